"""This script writes docs/rules.md and a page for each rule in docs/rules/, with a picture of its band.

    python -m studies.rule_pages             # the pages
    python -m studies.rule_pages --pictures  # and docs/images/rules/

Definitions follow from `fspo.rules`; measured numbers are copied from the tables of other pages. A test compares the
pages with the code.
"""

from __future__ import annotations

import re
from functools import cache, partial
from typing import Any

import numpy as np

from figures.rule_band import caption, figure
from figures.style import Style, band_of
from fspo.base.command_line import CommandParser
from fspo.base.errors import run_cli
from fspo.base.files import whole_file, write_text
from fspo.rules import CORRECTIONS, PRESETS, Rule
from fspo.rules.rule import EPS_SHAPES
from proofs_check.maps.fairness import rows_of
from proofs_check.maps.settings import setting
from studies.findings import RESULTS
from studies.findings_text import CLAIMS, PARTS
from studies.findings_verdicts import JudgedTask, further, headlines_of, read, verdict_of
from studies.reference_pages import DOCS, grid

RULES: dict[str, Rule] = {name: preset.rule for name, preset in PRESETS.items()} | CORRECTIONS
OF_MAP = {
    "rloo": "fixed",
    "gspo": "linear",
    "power": "power-0.75",
    "fspo": "fspo",
    "fspo-kl": "fspo-kl",
    "fspo-gaussian": "fspo-gaussian",
    "fspo-tilted": "fspo-tilted",
}
"""By preset: the rule of the fairness map whose band has the preset's shape and centre."""
OF_MISMATCH = {"mis": "product", "geo-mask": "geometric", "engine-sqrt": "sqrt-kl"}
"""By correction: the name that docs/mismatch.md gives a mask of the correction's shape."""
PURPOSE = {
    "none": "No clip. It is the reference that the other rules are compared with.",
    "rloo": "The fixed band on the ratio of a whole response, with leave-one-out advantages.",
    "gspo": "The geometric mean of the token ratios in a fixed band, so that the band on S grows with the length.",
    "fspo": "A band that grows as the square root of the length, as S spreads if its tokens vary independently.",
    "fspo-kl": "fspo, centred on the mean of S that the estimated KL divergence gives.",
    "fspo-gaussian": "fspo, centred on the mean of S of normal tokens.",
    "fspo-tilted": "fspo, centred on the mean of S under the weight e^S: fair in weight, not in counts.",
    "fspo-truncate": "fspo, which outside the band holds the weight at the edge, on the side that drop would cut.",
    "fspo-cap": "fspo, which above the band holds the weight at the upper edge, whatever the sign of the advantage.",
    "fspo-signed": "fspo with two centres: the mean of S where A > 0, and the mean of S where A < 0.",
    "fspo-auto": "fspo, whose range follows a wanted acceptance during training.",
    "fspo-adaptive": "A band whose range and exponent of the length follow a wanted acceptance during training.",
    "fspo-conformal": "fspo with a factor for each bin of lengths, which follows a wanted acceptance during training.",
    "power": "A band that grows as another power of the length than the square root.",
    "grpo": "PPO's band on the ratio of each token.",
    "ctpo": "A band on the log-ratio of each prefix, which grows as the square root of the prefix's length.",
    "tis": "Truncated importance sampling: each token's weight, at most 2.",
    "mis": "Masked importance sampling: a response's weight, and 0 beyond a factor of 3 either way.",
    "geo-mask": "A mask on the geometric mean of the token ratios; it cuts and does not weigh.",
    "icepop": "A mask on each token's ratio: the token's weight inside, 0 outside.",
    "engine-sqrt": "A mask that grows as the square root of the length, centred on the expected engine ratio.",
}
"""A sentence on each rule: what it is."""
_ONE_LAW = "Where the law of (S - m_L)/sqrt(L), with m_L the band's centre, is the same at every length (T1)"
_TOKENS = (
    "At the token level: a token's band does not depend on the response's length. A long response has more tokens, so "
    "it more often loses at least one; statements T1 to T8 are about bands on whole responses and say nothing here."
)
FAIR = {
    "none": "At every length, as it cuts nothing. No weight is bounded: T10 and T12 say what that costs.",
    "rloo": "Where S does not spread more at greater lengths (exponent H = 0 in T17). Under independent tokens its "
    "acceptance falls strictly with the length (T2).",
    "gspo": "Where S spreads in proportion to the length (exponent H = 1 in T17). Under independent tokens around 0 "
    "its acceptance rises strictly with the length (T2); with a drift beyond its edges it falls to 0 at great lengths.",
    "fspo": f"{_ONE_LAW}; here m_L = 0, so a drift of S makes it unfair by at most what T3 bounds.",
    "fspo-kl": f"{_ONE_LAW}; m_L = -KL L. For normal tokens the centre is exact.",
    "fspo-gaussian": f"{_ONE_LAW}; m_L = -L sigma^2/2. For normal tokens the centre is "
    "off by a term of order sigma^4 (T3).",
    "fspo-tilted": "In weight, for normal tokens (T13): each length keeps the same share of its weight e^S. In counts "
    "it is not fair then.",
    "fspo-truncate": "As fspo in counts. The weight that is left is another question (T13), and with A < 0 and S below "
    "the band a response keeps being pushed down.",
    "fspo-cap": "As fspo in counts of the upper edge alone; there is no lower edge. T13 says when the weights "
    "that are left are fair.",
    "fspo-signed": "Where the law of (S - m_L)/sqrt(L), given the sign of A, is the same at every length; each sign "
    "has its own m_L. It is for runs whose drift follows the sign of A more than -KL.",
    "fspo-auto": "As fspo. The mean acceptance over many updates comes near the target under any law (T14); that says "
    "nothing of single lengths.",
    "fspo-adaptive": "Where some power of the length describes the spread at the wanted acceptance (T17). T14 bounds "
    "the linear trend in the logarithm of the length; a bend may stay.",
    "fspo-conformal": "In each bin of lengths, where a new response is exchangeable with the kept ones of past "
    "rollouts (T15). Training moves the policy, so exchangeability is an assumption to measure.",
    "power": "Where S - m_L spreads as L to the power gamma (T17); for independent tokens that is gamma = 1/2 alone.",
    "grpo": _TOKENS,
    "ctpo": "For the prefixes as fspo is for responses: where (sum of the first t token log-ratios)/sqrt(t) has one "
    "law for all t. The share of a response's tokens that is left still depends on its length.",
    "tis": _TOKENS,
    "mis": "Where the ratio does not spread more at greater lengths. It accepts of longer responses no more than of "
    "shorter ones where the spread grows with the length (T17 b).",
    "geo-mask": "Where the ratio spreads in proportion to the length. It accepts of longer responses no less than of "
    "shorter ones where the spread grows more slowly (T17 b).",
    "icepop": _TOKENS,
    "engine-sqrt": "Where the law of (E - m_L)/sqrt(L) is the same at every length (T17), as it is if tokens err "
    "independently.",
}
"""A sentence on each rule: under which law of S it treats all lengths alike."""
RATIO = {"update": "S", "engine": "E", "behaviour": "D+E", "total": "S+D+E"}
LEFT = {
    "drop": "{unit} that is cut has no gradient: above the band with A > 0, below it with A < 0",
    "truncate": "{unit} that is cut (above the band with A > 0, below it with A < 0) keeps the weight of the edge",
    "cap": "above the band the weight is that of the upper edge, whatever the sign of A; there is no lower edge",
    "mask": "no gradient on both sides of the band, whatever the sign of A",
}
CENTRES = {
    "kl": "m_L = -L\\,k",
    "gaussian": "m_L = -L\\,\\sigma^2/2",
    "tilted": "m_L = +L\\,\\sigma^2/2",
    "signed": "m_L = L\\,m_\\pm",
}
CENTRE_WORDS = {
    "kl": "k is the mean over the batch's tokens of e^s - 1 - s, an estimate of the KL divergence for each token",
    "gaussian": "sigma^2 is the mean over the batch's tokens of s^2",
    "tilted": "sigma^2 is the mean over the batch's tokens of s^2",
    "signed": "m+ and m- are the means over the tokens of the batch's responses with A > 0 and with A < 0",
}

OWN_LOOP = """from fspo.objective import Mismatch, objective
from fspo.rules import Rule, correction, preset

mismatch = Mismatch.of(old, sampler, mask, version=old)  # old: the weights that sampled, by the trainer
clip, rule = preset("fspo").rule, correction("{name}")
{centre}loss, records = objective(new, old, mask, advantages, clip, mismatch=mismatch, correction=rule{argument})
"""
"""Code for a page that shows a correction in a user's own training loop. In it the log-probs ``new``, ``old`` and
``sampler`` and the ``mask`` have the shape (B, T): responses, tokens."""
OWN_CENTRE = """seen = objective(old, old, mask, advantages, Rule("none"), mismatch=mismatch).records
m = rule.centre(seen.drift_stats(advantages, rule.on))
"""


def definition(rule: Rule) -> str:
    """Return the formulas and words that define a rule."""
    symbol = RATIO[rule.on]
    if rule.shape == "none":
        band = "lo = -\\infty , \\qquad hi = \\infty"
    else:
        gamma = {"fixed": "", "token": "", "linear": "L", "sqrt": "\\sqrt L", "prefix": "\\sqrt t"}.get(rule.shape)
        scale = f"L^{{{rule.gamma:g}}}" if gamma is None else gamma
        m = "" if rule.drift == "none" else "m_L "
        if rule.shape in EPS_SHAPES:
            lower, upper = f"\\log(1-{rule.range_lo:.4g})", f"\\log(1+{rule.range_hi:.4g})"
            lo, hi = (f"{m}{'+' if m else ''}{scale}{' ' if scale else ''}{edge}" for edge in (lower, upper))
        else:
            lo, hi = f"{m}-{rule.range_lo:g}\\,{scale}", f"{m}{'+' if m else ''}{rule.range_hi:g}\\,{scale}"
        if not rule.clip.has_lower_edge or (rule.shape in EPS_SHAPES and rule.range_lo == 1):
            lo = "-\\infty"
        band = f"lo = {lo} , \\qquad hi = {hi}" + (f" , \\qquad {CENTRES[rule.drift]}" if m else "")
    summed = {"token": "each token's own", "prefix": "the sum over each prefix of t tokens"}.get(
        rule.level, "the sum over the L tokens of a response"
    )
    unit = {"token": "a token", "prefix": "a prefix"}.get(rule.level, "a response")
    weight = {
        "sequence": "its exponential",
        "geometric": "the exponential of its mean over the tokens, so that the gradient carries 1/L",
        "none": "1, so that the rule cuts and does not weigh",
    }[rule.weight]
    lines = [
        f"```math\n{band}\n```\n",
        f"- **Log-ratio**: {symbol}, {summed} ([the four ratios](../theory.md#1-objects)).",
        f"- **Weight**: {weight}.",
    ]
    if rule.shape != "none":
        lines.append(f"- **Outside the band**: `{rule.outside}`: {LEFT[rule.outside].format(unit=unit)}.")
    if rule.drift != "none":
        lines.append(f"- **Centre**: drift `{rule.drift}`; {CENTRE_WORDS[rule.drift]}.")
    if rule.adapt != "none":
        lines.append(
            f"- **Learnt**: `adapt={rule.adapt}`, target {rule.target:g}; the band above is the start "
            "([section 2](../theory.md#2-rules-one-family-in-log-space) says how it moves)."
        )
    return "\n".join(lines)


@cache
def lines_of(page: str) -> tuple[str, ...]:
    """Return the lines of a page of docs/."""
    return tuple((DOCS / page).read_text(encoding="utf-8").splitlines())


def rows_with(page: str, heading: str, wanted: str) -> str:
    """Return, as one Markdown table, the rows whose first cell is ``wanted`` from all tables in the section ``heading``
    of a page; "" if there are none. Its head is that of the first table with such a row.
    """
    lines = lines_of(page)
    start = lines.index(heading)
    end = next((i for i in range(start + 1, len(lines)) if lines[i].startswith("## ")), len(lines))
    found: list[str] = []
    head: tuple[str, ...] = ()
    for i in range(start, end):
        if lines[i].startswith("| ---"):
            head = lines[i - 1 : i + 1]
        elif lines[i].startswith(f"| `{wanted}` |"):
            found += [*([] if found else head), lines[i]]
    return "\n".join(found)


def mismatch_rows(mask: str) -> str:
    """Return a table, read from docs/mismatch.md, of the trend and LRE_2 of the correction named ``mask`` at 85 %
    acceptance. It has a row for each log-ratio that the page is about: E of several samplers, and D."""
    lines = lines_of("mismatch.md")
    start = next(i for i, line in enumerate(lines) if line.startswith("At 85 %: change of the acceptance"))
    table = [line.strip("|").split("|") for line in lines[start:] if line.startswith("|")]
    head = [cell.strip() for cell in table[0]]
    columns = [0, head.index(mask), head.index(f"LRE, {mask}")]
    rows = []
    for cells in table[2:]:
        if len(cells) != len(head):
            break
        rows.append([cells[i].strip() for i in columns])
    return grid(("ratio", "change for each doubling of the length", "LRE_2"), rows)


@cache
def map_rows() -> dict[tuple[str, str], float]:
    """Return LRE_inf under one law of S, that of the fairness map with all factors at their base values, where the mean
    acceptance is 85 %. Keys are pairs of a kind of acceptance and a rule."""
    rows = rows_of(setting("exponent", 0.5), ("band", "update", "weight"), np.random.default_rng(0), 0)
    return {(row["measure"], row["rule"]): row["lre_inf"] for row in rows if row["target"] == 0.85}


def claims_on(judged: JudgedTask, name: str) -> str:
    """Return a table of the headlines that name a rule, on one task of the reproduction; if no headline names it, a
    table of the parts (atoms) that do; "" if no claim names it."""
    claims = judged.said["claims"]
    named = [claim for claim in claims if re.search(rf"\b{name}\b(?!-)", claim["statement"])]
    headlines = headlines_of(named)
    between = " " if headlines else " | "  # the table of atoms has a column for the id, that of headlines has none
    rows = [
        f"| {claim['id']}{between}{claim['statement']} | {verdict_of(claim)} | {further(claim, claims)}"
        for claim in headlines or named
    ]
    where = f" on {judged.task}" if judged.task else ""
    said = f"Claims of the reproduction{where} that name it ([findings](../findings.md)):\n\n"
    return said + (CLAIMS if headlines else PARTS) + "\n".join(rows) if rows else ""


def measured(name: str, rule: Rule) -> str:
    """Return the Markdown that says what the project measured of a rule (claims, tables of docs/which_rule.md, values
    of the fairness map), with a link to the page of docs/ that each number is from.
    """
    parts = [] if name in CORRECTIONS or name == "none" else [claims_on(judged, name) for judged in read(RESULTS)]
    logs = rows_with("which_rule.md", "## On gradient logs", name)
    band, outside = name, rule.outside
    # docs/which_rule.md calls a rule with another outside than drop by its band and what happens outside, not by its
    # preset.
    if outside != "drop" and band_of(name) != name:
        logs = rows_with("which_rule.md", "## On gradient logs", band_of(name))
        kept = [line for line in logs.splitlines() if not line.startswith("| `") or f"| {outside} |" in line]
        logs = "\n".join(kept)
        band = f"{band_of(name)}` with `{outside}"
    if logs:
        parts.append(
            "Updates on 12 logs at equal acceptance, beside fspo with drop ([which_rule.md](../which_rule.md) explains "
            f"the columns); rows of `{band}`:\n\n{logs}"
        )
    training = rows_with("which_rule.md", "## In training", name)
    if training:
        parts.append(f"Short runs at equal acceptance ([which_rule.md](../which_rule.md)):\n\n{training}")
    if name in OF_MAP:
        values = [f"{map_rows()[measure, OF_MAP[name]]:.3f}" for measure in ("band", "update", "weight")]
        parts.append(
            "In a model: largest relative error of a length's share where a symmetric band of this shape and centre "
            "accepts 85 % (closed forms, base case of "
            "[the fairness map](../theory.md#9-where-fspo-is-fair-and-the-price)):\n\n"
            + grid(("band acceptance", "update acceptance, drop", "weight, two-sided drop"), [values])
        )
    if name in OF_MISMATCH:
        parts.append(
            f"A mask of this shape ({OF_MISMATCH[name]}) that keeps 85 % of a run's responses "
            f"([mismatch.md](../mismatch.md); one model, one task, one seed):\n\n{mismatch_rows(OF_MISMATCH[name])}"
        )
    return "\n\n".join(part.strip() for part in parts if part) or (
        "No table of this repository has a row of it. `fspo analyse RUN` evaluates the bands on whole responses on a "
        "run of yours, and a run that trains with a rule is analysed with it."
    )


def switch_on(name: str, rule: Rule) -> str:
    """Return the part of a rule's page (docs/rules/) that says how to use the rule in four trainers."""
    loss = "actor_rollout_ref.actor.policy_loss"
    target = f"{loss}._target_=fspo.integrations.verl.FSPOLossConfig\n{loss}.loss_mode=fspo\n"
    target += "actor_rollout_ref.actor.loss_agg_mode=seq-mean-token-mean\n"
    if name in CORRECTIONS:
        ours, trl = f"--correction.preset {name}", f'rule="fspo", correction="{name}", use_vllm=True'
        verl = f"{target}+{loss}.correction.preset={name}\nactor_rollout_ref.rollout.calculate_log_probs=true"
        own = (
            {"centre": OWN_CENTRE, "argument": ", correction_m=m"}
            if rule.needs_stats
            else dict.fromkeys(("centre", "argument"), "")
        )
        custom = (
            "The custom loss of prime-rl and rLLM takes clip rules alone. In a loop of your own, with log-probs and "
            f"mask of shape (B, T) and advantages of shape (B,):\n\n```python\n{OWN_LOOP.format(name=name, **own)}```"
        )
    else:
        lagged = rule.needs_stats
        ours = f"--rule.preset {name}"
        trl = f'rule="{name}"' + (', drift_source="lagged"' if lagged else "")
        verl = f"{target}+{loss}.rule={name}" + (f"\n+{loss}.drift_source=lagged" if lagged else "")
        refused = rule.needs_stats or rule.adapt != "none"
        custom = (
            "Refused: the custom loss sees one response at a time, and this band needs all of an update's."
            if refused
            else "prime-rl (rLLM and others: [custom loss](../other_trainers.md#prime-rl-and-rllm)):\n\n```toml\n"
            '[trainer.loss]\ntype = "custom"\nimport_path = "fspo.integrations.custom_loss.prime_rl_loss"\n'
            f'kwargs = {{ rule = "{name}" }}\n```'
        )
    return (
        "This repository's trainer ([train.md](../train.md)):\n\n"
        f"```bash\nfspo train --output out/{name} {ours}\n```\n\n"
        f"TRL ([other trainers](../other_trainers.md#fspo-inside-trl)):\n\n```python\n"
        "from fspo.integrations.trl import FSPOConfig  # for FSPOTrainer\n\n"
        f'args = FSPOConfig("out/{name}", {trl}, steps_per_generation=4)\n```\n\n'
        f"verl ([other trainers](../other_trainers.md#fspo-inside-verl)), on the command line of your run:\n\n"
        f"```bash\n{verl}\n```\n\n{custom}"
    )


def page(name: str) -> str:
    """Return the text of docs/rules/NAME.md."""
    rule = RULES[name]
    kind = "A correction of the sampler's mismatch. " if name in CORRECTIONS else ""
    return f"""# {name}

{kind}{PURPOSE[name]} This page is written by `python -m studies.rule_pages`; [all rules](../rules.md).

## Definition

{definition(rule)}

![Band of {name} by length, and the weight that it leaves](../images/rules/{name}.png)

*{caption(rule)}*

## When it is fair

{FAIR[name]} ([statements](../theory.md))

## What was measured

{measured(name, rule)}

## Switch it on

{switch_on(name, rule)}
"""


def overview() -> str:
    """Return the text of docs/rules.md."""

    def table(names: Any) -> str:
        rows = (
            (f"[{n}](rules/{n}.md)", RULES[n].shape, RULES[n].outside if n != "none" else "", PURPOSE[n]) for n in names
        )
        return grid(("rule", "shape", "outside", "what it is"), rows)

    return f"""# Rules

Each page: definition, picture, when it is fair, what was measured, how to switch it on in four trainers. Written by
`python -m studies.rule_pages` from `fspo/rules/presets.py`. [theory.md](theory.md#2-rules-one-family-in-log-space)
explains shapes, drifts and what happens outside; [which_rule.md](which_rule.md) compares the rules' updates.

## Clip rules

{table(PRESETS)}
## Corrections of the sampler's mismatch

{table(CORRECTIONS)}"""


PAGES = {"rules.md": overview} | {f"rules/{name}.md": partial(page, name) for name in RULES}


def main() -> None:
    """Write the pages of docs/ on the clip rules; with ``--pictures`` also draw the picture of each rule."""
    parser = CommandParser(prog="python -m studies.rule_pages", description=__doc__ or "")
    parser.add_argument("--pictures", action="store_true", help="draw docs/images/rules/ too")
    pictures = parser.parse_args().pictures
    for name, text in PAGES.items():
        write_text(DOCS / name, text())
    style = Style("neurips")
    for name, rule in RULES.items() if pictures else ():
        drawn = figure(rule, style)
        with style.context(), whole_file(DOCS / "images" / "rules" / f"{name}.png") as part:
            drawn.savefig(part, format="png", dpi=150, metadata={"Software": None})


if __name__ == "__main__":
    run_cli(main)
