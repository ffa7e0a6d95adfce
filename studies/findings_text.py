"""The sentences of the page docs/findings.md that do not depend on the numbers; `studies.findings` puts these in."""

HEAD = """# What the reproduction found

From the runs of `fspo reproduce --preset {preset}` (`results/{preset}/`: {tasks}seeds {seeds}, commit
{commit}, catalogue {catalogue}).
`python -m studies.findings out/{preset}` writes this page. Square brackets hold a {percent} interval, round ones the
lowest and the highest value. All runs of a task start from one warmed-up model of 0.4M parameters, at one learning
rate, and train for {rollouts} rollouts with a clip rule and {unclipped} without. "As published" means at the range of
the rule's preset; a run then differs from another of its seed and task in its rule alone. All rules use GRPO's
advantages, so `rloo` is RLOO's clip range only; `gspo` also has a weight of its own, exp(S/L). So nothing here says
what a rule does from other starts, in longer training, at other learning rates or in larger models, except
[the pretrained model](#on-a-pretrained-language-model).

Unless a table says otherwise, its responses are at [first use](glossary.md): in the first pass over a rollout, after
the rollout's first update. They are trained on in three of a rollout's eight updates. In the first update S is 0, and
in the four updates of the second pass the responses have been trained on before.
"""
SHORT = """## In short

{verdicts}
- A part that is about logs must hold on every log of every task to be supported; a part about training must hold of the
  mean over seeds on every task. Refuted means that some part fails somewhere, so [look which](#every-part). Where a
  claim says that fspo leads, it is compared with {rivals} alone.

The band's acceptance by length is compared on common logs, those of all runs. Each rule's range is set on the log
itself, in each window of {window} rollouts, so that the rule keeps the same share as the others; no training run can do
that. Mean over the logs (lowest to highest):

{trends}

On how many of {logs} logs this is so; in brackets, on how many it is clearly so, and on how many the opposite is clear
(p at most {level} on that log alone):

{counts}

- **Responses with A = 0** bring no gradient, wherever S lies. They move less than the others, so most of them lie in a
  band that keeps a large share of all responses, and they hide how it cuts the others. {why}
- **Both signs.** {edges}
- **Rules in their own runs.** {fairest} {gain}
"""
LAW = """## Which law S follows

T1's simplest model has S normal given L, with the mean -KL L and a variance proportional to L. Of these:

"""
SHAPE = """
How S is distributed in the runs without a clip, with the changes over training taken out (in each window of {window}
rollouts S is divided by the root mean square of S/sqrt(L)). Where S/sqrt(L) has one law, its quantiles and its standard
deviation are the same in the shortest and the longest bin of lengths; where that law is normal, {near_normal} lie
within a tenth of a standard deviation of the mean, and {far_normal} beyond three. Cells: mean over the runs (lowest to
highest).

"""
FAIR = """## At which exponent a band is fair

A band |S| <= f L^gamma accepts every length alike where gamma is the fair exponent. With one law of S/sqrt(L) it is 1/2
at every acceptance (T1); [otherwise it depends on how much the band cuts](theory.md#t17) (T17). Where it changes with
the acceptance and passes 1/2, a sqrt band is fair at that cut and at no other.

![The fair exponent of a band by the share that it accepts](images/fair_exponent.png)

*Fair exponent by the share of responses that the band accepts, runs without a clip of all seeds together: of all
responses and of those with A != 0, counted where S lies in the band, and of those with A != 0 that are not cut, which a
band cuts at the edge of their active side alone. Shaded: {percent} intervals, from resampled prompts. Dotted: what
[T19](theory.md#t19) predicts for all responses if those with A = 0 do not move and the others follow one law of
S/sqrt(L). Grey line: T1.*

In the table each run stands for itself: the upper edge cuts responses with A > 0, the lower edge those with A < 0.
First-use responses after the first update of a rollout; the range f is calibrated anew in every window of {window}
rollouts, so that changes of S's law while the model learns do not look like a dependence on the length. Intervals end
at -inf or inf where they go beyond -{widest:g} or {widest:g}. Each cell: lowest to highest estimate of the runs, and
how many runs' intervals lie below and above 1/2.

"""
TREND = """## Why fspo's acceptance has a trend

Change of the acceptance for each doubling of L of a sqrt band around 0 that accepts the share given in every window,
and its parts: the drift of S, its scale (a variance that is not proportional to L), and its shape (the trend that is
left when drift and scale are taken away in each window, in this order). Each cell: lowest to highest estimate of the
runs, and how many runs' intervals lie below and above 0.

"""
UPDATES = """
How much of a population's update is left, and how far the clipped update is from it (T12): inner products and squared
norms of all runs of a task together, over pairs of responses to different prompts, so that clipped and true update do
not share their noise. *Population*: the unclipped update of the same responses; *fresh*: new responses at the same
weights. MSE is the mean squared error of the clipped update over that of the unclipped one: clipping helps where it is
below 1. Ranges are matched to the share of A != 0 that is left alone.

"""
LANGUAGE_MODEL = """## On a pretrained language model

Runs without a clip of a pretrained model of 268M parameters and 262,144 tokens that learns to count (Gemma 3 270M;
`studies/pretrained.py`; design and seeds were committed before the runs, the windows of the analysis after the first
19 rollouts of seed 11 had been seen).

![Band acceptance by length on the pretrained model](images/pretrained_acceptance.png)

"""
SIZES = """## The model's size

Runs without a clip of the embedded model and of a wider one of the same build, warmed up alike, on chain-add
(`studies/model_size.py`; learning rates in inverse proportion to the width), and the pretrained model above on its own
task. First-use responses after an update; T1's model has 2H = 1 and the fair exponent 1/2.

"""
READ = """## How to read a verdict

A claim consists of parts; a part is about one estimand and one margin, and is judged on every log, or on the mean over
seeds. Names of parts begin with the acceptance on common logs, with `own` for rules as published, or with `log` for the
law of S; `update` stands in names of parts about the responses with A != 0.

- A part is supported if the p-value of the hypothesis that it is false is at most {level} on every log. It is refuted
  if, of n logs, n times the smallest p-value of the hypothesis that it is true is at most {level}.
- A claim is supported if all its parts are, and refuted if, of k parts, k times the smallest such p-value is at most
  {level}; over t tasks this is done again with t in place of k. So an interval may lie beyond the margin, or a part be
  refuted, while the claim, which pays for looking at k parts and t tasks, is inconclusive. A part that says that a
  number is within a margin pays for looking at two sides.
- The estimate is that of the part and the log that decide; behind it stands what was claimed of it. The log that
  decides is not a typical one: it speaks most clearly against the part, or least clearly for it. "All logs" is the
  range of all estimates, with the log that decides, and how many logs alone would support and refute the part, each at
  the level {level}.
- "Distance seen" is how far from the margin the truth must lie for the log with the widest interval to show it with
  80 % probability. A part that must hold on all logs sees less well.

What these verdicts cannot say:

- Each is wrong with probability at most {level} if the errors of the estimates follow Student's or the normal law as
  far out as n logs, k parts and t tasks make the test look. The claims are not corrected for each other.
- If the truth were 0, these parts would be supported with a probability below 80 %, because the distance seen exceeds
  their margin: {weak}. So the sizes of these runs can refute such a part, and the claim that it belongs to, but hardly
  support them.
- The lead of one rule over another in trend or LRE_2 on one log has the sum of both rules' errors, which is enough
  however they depend on each other, and often too much.
- A log on which two rules cut alike has a lead of exactly 0 without an error, and leaves a part about this lead
  without support.
- C1, C1p, C2 and C2p are about all responses, those with A = 0 included. "As stably" in C5 and C9 means that no run
  ended early and that the deepest fall of the training reward below its maximum so far is at most as large, within a
  margin.
- The logs of a seed share prompts and the start of training, so a count of logs is no count of independent runs.
- Estimands, margins and sizes were fixed before these runs; the hash of the catalogue covers them, not the code that
  computes them, which the commit names. C1u, C2u, C4u, C8, C9 and the parts `gspo-falls` were chosen after runs of the
  same tasks and model with other seeds (11 to 15) had been seen; C6 and C7 after shorter ones.

[The rules](theory.md#11-how-to-read-a-verdict); estimands, margins and numbers log by log:
{files}.

"""
CLAIMS = "| claim | verdict | estimate | all logs | distance seen |\n| --- | --- | --- | --- | --- |\n"
"""Head of the page's table of claims."""
PARTS = "| part | statement | verdict | estimate | all logs | distance seen |\n| --- | --- | --- | --- | --- | --- |\n"
"""Head of the page's table of the claims' parts (atoms)."""
EVERY = """## Every part

What each verdict above is made of: first which parts each claim has, then their estimates.

"""
ADVICE = """## What to do

{of_tasks}
- Measure first: `fspo analyse RUN` shows the acceptance by length of all responses and of those with A != 0. Only the
  second says which lengths the clip takes gradient from.
- Look at the fair exponent at the acceptance at which your band cuts, not at the exponent of the variance. Where its
  interval excludes 1/2, a sqrt band cuts lengths unevenly. `fspo-adaptive` estimates the exponent from earlier updates,
  and `fspo-conformal` a factor for each bin of lengths. Whether that helped here: claims {learnt},
  and their LRE_2, of all responses and of those with A != 0, [beside that of `fspo`](#the-rules-side-by-side).
"""
