"""Make the text of the page docs/doctor.md from the results that studies/doctor_power.py stores."""

from __future__ import annotations

from collections import Counter
from typing import Any

from scipy import stats

from analysis.doctor.doctor import ON_ALL_ROWS, ON_KEPT_ROWS
from analysis.doctor.findings import Severity
from analysis.doctor.laws import LEVEL
from analysis.doctor.mismatch import POSITIVE
from analysis.doctor.scalars import PACKAGE
from fspo.stats.intervals import CONFIDENCE, PERCENT
from studies.doctor_defects import DEFECTS, FORTY, SEVERITIES

LAWS = (
    ("$`E[e^S] = 1`$ at first use; above 1 is tested", "T9", "mean_weight"),
    ("$`E[\\sum_t (e^{s_t}-1)] = 0`$, so $`-E[S] = E[k3]`$", "T9 (ii)", "k1_k3"),
    ("$`E[(e^S-1) h(L)]`$ is the shift of the mean of $`h(L)`$", "T9", "weight_by_length"),
    ("$`E[S] = -KL \\le 0`$", "T9, Jensen", "drift_sign"),
    ("S = 0 where new and old weights are one", "section 1", "before_update"),
    (
        "an ascent step raises $`\\sum A (S - \\bar S)`$, $`\\bar S`$ the group's mean, over the rows it trained on",
        "section 1",
        "direction",
    ),
    ("$`E_{mu}[e^E] = 1`$; where sampling was truncated, $`e^E < 1`$ always", "T16", "sampler_law"),
    ("D is not 0 where older weights sampled and updates move S", "section 1", "staleness"),
    ("edges, sides, multipliers, weights follow from rule, drift, S and A", "section 2", "band`, `clip"),
    ("Cauchy-Schwarz, Jensen and monotonicity bound the sums over tokens", "section 1", "sums"),
    ("A is a line in the group's reward through its mean", "section 1", "estimator"),
    ("token log-ratios add up to S; after each prefix $`E[e^{s_t}] = 1`$", "T9", "tokens"),
)
"""Rows of the page's table of laws: a law, the statement or section of docs/theory.md that it is from, and the doctor's
checks that test it."""
ALARM = Severity.WARNING
"""A finding of this severity or a worse one in a healthy run counts as a false alarm. This severity is the default of
``fspo doctor --fail-on``."""
MENDED, NEW = range(len(FORTY)), range(len(FORTY), len(DEFECTS))
"""Indices in ``DEFECTS`` of the forty defects for which the doctor's checks were improved, and of the ten that were
written afterwards."""


WORTH = [
    "## What these numbers are worth",
    "",
    "- Healthy means: of a step size under which the band keeps most responses. Step sizes and ranges were set in "
    "trials with other seeds. Runs that move faster have findings (`drift`, `truncation`, `heavy_weights`) that are "
    "true.",
    "- Simulated runs are of one kind of policy, a table; trained runs of one small model and one task, with 960 "
    "responses each. Rates say little about large models.",
    "- Who wrote the defects had read the checks, though not written them. After a first look two faults of the study "
    "were mended: a response's engine ratio had been drawn anew at each of its uses, which `counters` saw; and one "
    "trained log had RLOO's advantages, for which the defects write GRPO's.",
    "- A rewritten log is no trained one: what the defect would have done to the weights, and they to later rows, is "
    "not in it.",
    "- Power counts any new finding, also one under another name.",
]
"""Lines of the page's last section: what the study's numbers do and do not show."""


def page(results: dict[str, Any]) -> str:
    """Return the text of docs/doctor.md; a part of the study without results has no section."""
    lines = [
        "# The doctor",
        "",
        "Written by `python -m studies.doctor_power --runs FOLDER`; its answers are in "
        "`studies/results/doctor_power.json`.",
        "",
        "`fspo doctor RUN` reads a gradient log and says what cannot be true of a sound run. Each "
        "finding has a cure, its evidence and the rollout from which on it holds. Where there is no gradient log it "
        f"reads the scalars, and asks {PACKAGE} about them if that is installed.",
        "",
        *_summary(results),
        "## What it looks at",
        "",
        "Checks of rows recompute columns from each other. Laws are tests of means; one level of "
        f"{LEVEL:.0%} is shared by all of a report and by every look at a log that grows "
        "(`analysis/stats/anytime.py`). For a mean weight and for E[S] it holds whatever the tails are, at a price: a "
        "mean weight below 1 is not tested, and k1 against k3 on one side only in logs of about a million rows "
        "(`analysis/doctor/laws.py`), so an S that is too small passes. `sampler_law` holds it for truncated "
        f"sampling if E + k3 of a sound run is above 0 in at least {POSITIVE:.0%} of the responses. `before_update`, "
        "`direction`, `engine`, `drift`, `numerics` and `sorted_minibatches` compare with thresholds of their own; "
        "`weight_by_length` allows for a shift of lengths that it estimates from the log. Where groups were selected "
        "by their outcome, laws are tested on responses whose mates differ in their rewards. T numbers and sections "
        "are those of [theory.md](theory.md).",
        "",
        "| law | source | check |",
        "| --- | --- | --- |",
        *(f"| {law} | {source} | `{check}` |" for law, source, check in LAWS),
        "",
        f"Checks of every row: {', '.join(f'`{n}`' for n in ON_ALL_ROWS)}. Of kept rows: "
        f"{', '.join(f'`{n}`' for n in ON_KEPT_ROWS)}.",
        "",
    ]
    for part, write in (("false_alarms", _alarms), ("spoilt", _spoilt), ("power", _power)):
        if part in results:
            lines += write(results[part], results)
    lines += WORTH
    return "\n".join(lines).rstrip("\n") + "\n"


def _summary(results: dict[str, Any]) -> list[str]:
    """Return the three answers at the top of docs/doctor.md: how often the doctor is wrong, which defects it sees, and
    which it never saw.
    """
    lines = []
    if "false_alarms" in results:
        parts = [f"{wrong} of {of} {kind} healthy runs" for kind, wrong, of in _counts(results["false_alarms"], ALARM)]
        lines.append(f"- **How often it is wrong.** It warns of something in {' and '.join(parts)}.")
    if "spoilt" in results:
        verdicts = list(_verdicts(results["spoilt"]).values())
        parts = []
        for what, part in (("ten new defects", NEW), ("the forty that it was mended for", MENDED)):
            counts = [sum(t) for t in zip(*(verdicts[k] for k in part), strict=True)]
            of = max(sum(counts), 1)
            parts.append(
                f"in {of} logs with {what} it names the defect rightly in {counts[0] / of:.0%}, finds something "
                f"else in {counts[1] / of:.0%} and nothing in {counts[2] / of:.0%}"
            )
        lines.append(f"- **What it sees.** {'; '.join(parts)}.".replace("** in", "** In"))
        blind = [
            DEFECTS[k].says + ("" if DEFECTS[k].rightly else " (which contradicts nothing in a log)")
            for k, (named, other, _) in _verdicts(results["spoilt"]).items()
            if not named and not other
        ]
        lines.append(f"- **What it never saw.** {'; '.join(blind) or 'None'}.")
    return [*lines, ""] if lines else []


def _counts(alarms: dict[str, dict[str, str]], severity: Severity) -> list[tuple[str, int, int]]:
    """Count false alarms of ``fspo doctor``: return for each kind of healthy run ("simulated", "trained") its name, in
    how many runs the doctor found something of this or a worse ``severity``, and how many runs there are."""
    out = []
    for kind in ("simulated", "trained"):
        runs = [found for name, found in alarms.items() if name.startswith(kind)]
        wrong = [f for f in runs if any(Severity[s.upper()] >= severity for s in f.values())]
        out.append((kind, len(wrong), len(runs)))
    return out


def _alarms(alarms: dict[str, dict[str, str]], results: dict[str, Any]) -> list[str]:
    rows = []
    for severity in Severity:
        for kind, wrong, of in _counts(alarms, severity):
            low, high = stats.binomtest(wrong, of).proportion_ci(CONFIDENCE, "exact")
            rows.append(f"| {kind} | {severity.label} | {wrong} of {of} | {low:.1%} to {high:.1%} |")
    which = [
        f"- {name}: {', '.join(f'`{check}` ({severity})' for check, severity in found.items())}"
        for name, found in alarms.items()
        if any(Severity[s.upper()] >= ALARM for s in found.values())
    ]
    infos = Counter(check for found in alarms.values() for check, s in found.items() if s == Severity.INFO.label)
    return [
        "## How often it is wrong",
        "",
        "A false alarm is a finding at `warning` or above, the default of `--fail-on`, in a healthy run. The lists of "
        "runs (`studies/doctor_healthy.py`) were written before any of them was examined. A simulated run is a table "
        "of logits that is really sampled from and trained: ten rules, three kinds of updates (one makes heavy tails), "
        "peaked and flat policies, groups of 4, 8 and 16, mean lengths from 6 to 300 tokens, one or two epochs, with "
        "and without a sampler of lower precision, with and without DAPO's selection of groups, with prompt ids that "
        "come back or grow over the run. A trained run is the "
        "trainer's, on chain-add with the embedded model: each preset twice, once sampled in bfloat16. Laws examined: "
        f"commit {results['false_alarms at']}.",
        "",
        f"| runs | finding at or above | runs with one | {PERCENT} interval (Clopper-Pearson) |",
        "| --- | --- | --- | --- |",
        *rows,
        "",
        *(["Runs with a false alarm:", "", *which, ""] if which else []),
        *_earlier(results),
        *([f"Findings at `info`: {', '.join(f'`{c}` in {n} runs' for c, n in infos.items())}.", ""] if infos else []),
        "Tests run the doctor on short healthy runs of each integration and expect no finding at all: our trainer, "
        "`observe(GRPOTrainer)` and `FSPOTrainer` inside TRL (`tests/analysis/doctor/test_integrations.py`), verl's "
        "worker (`make test-verl`) and a vLLM server (`make test-vllm`).",
        "",
    ]


def _earlier(results: dict[str, Any]) -> list[str]:
    """Return a paragraph on the false alarms that earlier versions of the doctor raised in healthy runs of other seeds.
    Their numbers are stored; the study does not compute them again."""
    if "earlier" not in results:
        return []
    parts = [
        f"{wrong} of {of} simulated runs at commit {at}" for at, (wrong, of) in results["earlier"]["alarms"].items()
    ]
    return [
        f"With earlier seeds and laws there were false alarms in {' and '.join(parts)}. Checks were mended after each "
        "list, and the next list had other seeds.",
        "",
    ]


def _verdicts(spoilt: dict[str, dict[str, Any]], base: str = "") -> dict[int, tuple[int, int, int]]:
    """Return for each defect the number of logs of the kind ``base`` (simulated, trained; by default both) in which the
    doctor named the defect rightly, named only something else, and found nothing."""
    out = {}
    for k in range(len(DEFECTS)):
        here = [v for name, v in spoilt.items() if name.startswith(f"{k} {base}")]
        named = sum(v["rightly"] for v in here)
        unseen = sum(not v["said"] for v in here)
        out[k] = named, len(here) - named - unseen, unseen
    return out


def _spoilt(spoilt: dict[str, dict[str, Any]], results: dict[str, Any]) -> list[str]:
    seen = sum(bool(v["said"]) for v in spoilt.values()), sum(bool(v[PACKAGE]) for v in spoilt.values())
    hopeless = sum(not d.rightly for d in DEFECTS)
    reported = sum(bool(DEFECTS[k].source) for k in MENDED)
    earlier = results.get("earlier")
    return [
        "## Defects that nobody planted for it",
        "",
        f"`studies/doctor_defects.py`: {reported} of the forty are bugs that users "
        "of RL libraries reported (repository and number beside them). All defects, and the checks that would name "
        f"each rightly, were written down before the doctor saw them (laws: commit {results['spoilt at']}). "
        f"{hopeless} of them contradict nothing that a log holds. A defect rewrites the rows of a sound run; what a "
        "finding says of the untouched run "
        "does not count. Numbers: logs in which it is named rightly / seen under another name alone / unseen.",
        "",
        "### Ten that are new to it",
        "",
        "They were written after the checks were changed for the forty, and no check was changed for them. After they "
        "were first examined `s_zero` had false alarms in healthy runs, so it now wants three rollouts in succession; "
        "all logs were examined again, and no answer about a defect had changed.",
        "",
        *_table(spoilt, NEW),
        "### The forty of before",
        "",
        "The checks were first examined with these as they are now with the ten"
        + (
            f" (commit {earlier['at']}: {', '.join(f'{k} {v}' for k, v in earlier['forty'].items())})"
            if earlier
            else ""
        )
        + ". Afterwards checks were added for six that had passed unseen, so the forty no longer say what the doctor "
        "makes of a defect that nobody planted for it.",
        "",
        *_table(spoilt, MENDED),
        f"{PACKAGE} {results[PACKAGE]} reads the scalars that a trainer logs of the same rows. In {seen[1]} of "
        f"{len(spoilt)} logs it raises some new alarm, the doctor in {seen[0]}. The doctor itself looks for no trends "
        "of entropy, KL, reward or length over a run; those it leaves to that package.",
        "",
    ]


def _table(spoilt: dict[str, dict[str, Any]], part: range) -> list[str]:
    """Return lines of docs/doctor.md on the planted defects with the indices ``part``.

    They say in how many of the spoilt logs the doctor named the defect rightly, and what the doctor and rldoctor,
    another program, said of each defect (a table).
    """
    kinds = ("simulated", "trained")
    verdicts = {kind: _verdicts(spoilt, kind) for kind in kinds}
    rows, totals = [], []
    for k in part:
        here = [v for name, v in spoilt.items() if name.startswith(f"{k} ")]
        cells = [" / ".join(map(str, verdicts[kind][k])) for kind in kinds]
        source = f" ({DEFECTS[k].source})" if DEFECTS[k].source else ""
        said = " | ".join(_said(here, who) for who in ("said", PACKAGE))
        rows.append(f"| {DEFECTS[k].says}{source} | {' | '.join(cells)} | {said} |")
    for kind in kinds:
        named, other, none = (sum(t) for t in zip(*(verdicts[kind][k] for k in part), strict=True))
        totals.append(f"{kind} {named} / {other} / {none}")
    return [
        f"All: {'; '.join(totals)}.",
        "",
        f"| defect | simulated | trained | what the doctor said (logs) | {PACKAGE} on the scalars |",
        "| --- | --- | --- | --- | --- |",
        *rows,
        "",
    ]


def _said(answers: list[dict[str, Any]], who: str) -> str:
    """Return as text which findings a program reported about some logs, each with the number of logs that have it.
    ``who`` is the program's key in ``answers``: "said" for ``fspo doctor``, else the name of the package rldoctor."""
    counts = Counter(name for answer in answers for name in answer[who])
    return ", ".join(f"{name} {count}" for name, count in counts.most_common()) or "-"


def _power(power: dict[str, dict[str, int]], results: dict[str, Any]) -> list[str]:
    rows = []
    for name, (severities, _) in SEVERITIES.items():
        cells = [f"{power[f'{name}: {s:g}']['found']}" for s in severities]
        rows.append(f"| {name} | {' | '.join(f'{s:g}: **{n}**' for s, n in zip(severities, cells, strict=True))} |")
    of = next(iter(power.values()))["of"]
    width = max(len(s) for s, _ in SEVERITIES.values())
    return [
        "## Power by severity",
        "",
        f"Severity: **in how many of {of} simulated logs** (3072 rows each) something new is found, whatever its name "
        f"(laws: commit {results['power at']}).",
        "",
        f"| defect |{' |' * width}",
        f"| --- |{' --- |' * width}",
        *rows,
        "",
    ]
