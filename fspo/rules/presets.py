"""Presets: published methods by the names that their papers give them (docs/theory.md section 2)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal, NamedTuple

from fspo.base.errors import UserError, unknown_name
from fspo.rules.clip import WAYS
from fspo.rules.gone import GONE_PRESETS, check_name
from fspo.rules.range import Rule

Estimator = Literal["rloo", "grpo", "dr_grpo"]  # advantage estimators, computed by fspo/advantages.py
# Ways to average the loss over responses and tokens; `fspo.objective.aggregate` says what each does.
Aggregation = Literal["response", "token", "sequence", "constant"]


class Preset(NamedTuple):
    """A published method: its clip rule, the name of its advantage estimator, and that of the way in which it adds up
    the terms of responses and tokens to a loss (`fspo.objective.loss.aggregate`)."""

    rule: Rule
    advantage: Estimator
    aggregation: Aggregation


PRESETS: dict[str, Preset] = {
    "none": Preset(Rule("none", name="none"), "rloo", "response"),
    "rloo": Preset(Rule("fixed", 0.2, 0.2, name="rloo"), "rloo", "response"),
    "gspo": Preset(Rule("linear", 3e-4, 4e-4, weight="geometric", name="gspo"), "grpo", "response"),
    "fspo": Preset(Rule("sqrt", 0.03, 0.03, name="fspo"), "grpo", "response"),
    "fspo-kl": Preset(Rule("sqrt", 0.03, 0.03, drift="kl", name="fspo-kl"), "grpo", "response"),
    "fspo-adaptive": Preset(
        Rule("power", 0.03, 0.03, gamma=0.5, adapt="exponent", target=0.9, name="fspo-adaptive"), "grpo", "response"
    ),
    "grpo": Preset(Rule("token", 0.2, 0.2, name="grpo"), "grpo", "sequence"),
}

CORRECTIONS: dict[str, Rule] = {
    "tis": Rule("token", 1.0, 1.0, outside="cap", on="behaviour", name="tis"),
    "mis": Rule("fixed", 2 / 3, 2.0, outside="mask", on="behaviour", name="mis"),
    "geo-mask": Rule("linear", 1e-3, 1e-3, outside="mask", weight="none", on="behaviour", name="geo-mask"),
    "icepop": Rule("token", 0.5, 4.0, outside="mask", on="behaviour", name="icepop"),
    "engine-sqrt": Rule("sqrt", 0.1, 0.1, drift="kl", outside="mask", on="engine", name="engine-sqrt"),
}
"""Corrections of the mismatch between sampler and trainer: rules on another ratio than the update's.

A correction leaves each response, or each token, the factor M w, which multiplies its gradient. Let R = D + E be the
rollout-policy log-ratio of a response and r_t that of a token. tis: token weights min(e^{r_t}, 2). mis: sequence
weights e^R; those outside [1/3, 3] become 0. geo-mask: weight 1 for responses with e^{R/L} within .001 of 1, else 0.
icepop: token weights e^{r_t}; those outside [.5, 5] become 0. engine-sqrt: sequence weights e^E, kept where E lies
within c sqrt(L) of its expected value, which is -L times the estimated KL of a token; else 0."""

CRITERIA: dict[str, tuple[str, Rule]] = {
    "seq_sum_k2": ("k2_sum", Rule("fixed", 1.0, 1.0, outside="mask", weight="none")),
    "seq_mean_k2": ("k2_sum", Rule("linear", 1.0, 1.0, outside="mask", weight="none")),
    "seq_max_k2": ("k2_max", Rule("fixed", 1.0, 1.0, outside="mask", weight="none")),
    "seq_sum_k3": ("k3_sum", Rule("fixed", 1.0, 1.0, outside="mask", weight="none")),
    "seq_mean_k3": ("k3_sum", Rule("linear", 1.0, 1.0, outside="mask", weight="none")),
    "seq_max_k3": ("k3_max", Rule("fixed", 1.0, 1.0, outside="mask", weight="none")),
}
"""verl's criteria that reject a response: a number that is made of its tokens' k2 = x^2/2 or k3 = e^x - 1 - x, and the
band that it must not exceed (verl publishes no threshold). verl's seq_sum_k1 and seq_mean_k1 are the bands of mis and
geo-mask; its token_k1 to token_k3 mask tokens, one or more in the responses that a seq_max rejects."""

RIVALS = ("rloo", "gspo")
"""The presets that the paper's comparison puts beside fspo."""
COMPARED = (*RIVALS, "fspo")
"""The presets in the paper's comparison: fspo and its rivals."""
COMPARED_ADVANTAGE: Estimator = "grpo"
"""The advantage estimator of every rule that a reproduction trains, so that only the clip rule differs."""


def preset(name: str, **changes: Any) -> Preset:
    """Return the preset ``name``; ``changes`` are new values for fields of its rule.

    ``gamma`` alone turns a rule of shape "sqrt" into one of shape "power", whose band grows as L**gamma.

    Raises UserError for an unknown preset or field; the message names the nearest known one."""
    if name.lower() == "ppo":
        raise UserError(f"unknown rule {name!r}: PPO's clip of every token's ratio is the rule 'grpo'")
    check_name("preset", name, tuple(PRESETS), GONE_PRESETS)
    found = PRESETS[name]
    return found._replace(rule=_changed(found.rule, changes))


def correction(name: str, **changes: Any) -> Rule | None:
    """Return the correction ``name``, a `Rule`, with new values for the fields in ``changes``; None for "none".

    Raises UserError for an unknown correction or field, a lower range for a correction that ignores the lower edge, or
    a correction on the update's ratio, on which only a clip rule may act."""
    if name == "none":
        return None
    if name not in CORRECTIONS:
        raise unknown_name("correction", name, ("none", *CORRECTIONS))
    rule = _changed(CORRECTIONS[name], changes)
    if "range_lo" in changes and WAYS[rule.outside].cuts == "above":
        raise UserError(
            f"correction {name!r}: range_lo has no effect, because outside={rule.outside!r} clips at the upper edge "
            "alone: leave range_lo out, or set outside='mask'"
        )
    check_ratios(Rule("none"), rule)
    return rule


def check_ratios(rule: Rule, correction: Rule | None) -> None:
    """Check that a clip rule acts on the log-ratio S of the update, and a correction (if any) on another log-ratio.

    Raises UserError if the clip rule is on the engine ratio E or the rollout-policy ratio D + E, which updates do not
    change, or if the correction is on the update's ratio S, which updates change."""
    if rule.on != "update":
        raise UserError(
            f"rule {rule.label!r}: on={rule.on!r} does not change with the updates, so no clip bounds it; use update, "
            "or make the rule a correction"
        )
    if correction is not None and correction.on == "update":
        raise UserError(
            f"correction {correction.label!r}: on='update' is bounded by the clip rule; use engine or behaviour"
        )


def _changed(rule: Rule, changes: dict[str, Any]) -> Rule:
    known: Sequence[str] = tuple(Rule.__dataclass_fields__)
    for key in changes:
        if key not in known:
            raise unknown_name("rule field", key, tuple(known))
    if "gamma" in changes and rule.shape == "sqrt":
        changes = {"shape": "power"} | changes
    return replace(rule, **changes) if changes else rule
