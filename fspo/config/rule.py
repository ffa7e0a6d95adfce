"""Options of the clip rule and of the objective."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Literal, get_args

from fspo.base.errors import UserError, unknown_name
from fspo.config.option_ranges import check_ranges, number
from fspo.rules import (
    Adapt,
    Aggregation,
    Drift,
    DriftSource,
    Estimator,
    Outside,
    Rate,
    Rule,
    Weight,
    correction,
    preset,
)


@dataclass(frozen=True)
class ObjectiveConfig:
    """How the terms of the objective (clipped weight times A, one for each response or token) become one loss.

    Parameters
    ----------
    aggregation : {"response", "sequence", "token", "constant"}
        How the terms are averaged. "response": a response's terms are summed, and the mean is over responses.
        "sequence": a response's terms are averaged over its tokens, then over responses. "token": the terms of all
        tokens are averaged together. "constant": they are summed and divided by the number of responses times
        ``constant_length``. Under a sequence rule each token has the term of its response, but "response" counts it
        once (`fspo.objective.aggregate`).
    constant_length : int, optional
        Divisor of the aggregation "constant", tokens; usually the response limit.
    kl_coef : float
        Weight of the penalty that is subtracted from the objective: the k3 estimate of KL(policy || initial model) at
        each token, nats, aggregated like the terms.

    Raises
    ------
    UserError
        For values outside their range; the message says what to use.
    """

    aggregation: Aggregation = "response"
    constant_length: int | None = number(None, 1)
    kl_coef: float = number(0.0, 0, 1e6)

    def __post_init__(self) -> None:
        if self.aggregation not in get_args(Aggregation):
            raise unknown_name("aggregation", str(self.aggregation), get_args(Aggregation))
        if (self.aggregation == "constant") != (self.constant_length is not None):
            raise UserError("constant_length belongs to aggregation 'constant' and to no other; set both or neither")
        check_ranges(self, "rule")


@dataclass(frozen=True)
class RuleConfig:
    """The clip rule: a preset, with any of its parts changed (docs/theory.md section 2).

    Parameters
    ----------
    preset : str
        none, rloo, gspo, fspo, fspo-kl, fspo-adaptive, grpo.
    range_lo : float, optional
        Lower range of the band: eps for rloo, gspo, grpo (the lower edge of the ratio exp(S), exp(S/L), or exp(s) of a
        token is 1 - eps); c for fspo (nats; the half-width is c times sqrt(length)).
    range_hi : float, optional
        Upper range of the band, as range_lo; with eps the edge is 1 + eps.
    gamma : float, optional
        Exponent of the fspo presets: the half-width is the range times length^gamma.
    drift : {"none", "kl", "gaussian", "tilted"}, optional
        Centre of the band per token: 0 ("none"), -k ("kl"), -v/2 ("gaussian") or v/2 ("tilted"), where k and v are the
        means of exp(s) - 1 - s and of s^2 over the tokens, and s is the token log-ratio.
    drift_source : {"two_pass", "lagged"}, optional
        Which log-ratios set the centre: those of the same minibatch, from an extra pass before its update ("two_pass"),
        or those of the previous update ("lagged").
    outside : {"drop", "truncate", "cap", "mask"}, optional
        What happens outside the band. On the active side (above if A > 0, below if A < 0) "drop" gives the response no
        gradient, and "truncate" holds its weight at that of the edge. Whatever the sign of A, "cap" holds the weight at
        that of the upper edge, and "mask" gives no gradient on either side.
    dual : float, optional
        Dual clip d > 1: a response with A < 0 whose S is above the centre by more than d times the upper half-width is
        clipped too.
    adapt : {"none", "range", "exponent"}, optional
        What is changed during training to reach a target acceptance, so that no pilot run is needed: nothing, the
        range, or the range and the exponent. Any preset with a band on responses can be adapted; token rules cannot.
    target : float, optional
        The acceptance that ``adapt`` is to reach.
    target_rate : {"band", "update"}, optional
        Which acceptance the target is: the share of all responses that lie in the band ("band"), or the share of the
        responses with A != 0 that are not clipped ("update", the default).
    advantage : {"rloo", "grpo", "dr_grpo"}, optional
        Advantage estimator, by default the preset's.
    aggregation : {"response", "token", "sequence", "constant"}, optional
        How the terms become one loss; by default the preset's. "response": a response's terms are summed, and the mean
        is over responses; "sequence": averaged over its tokens, then over responses; "token": averaged over all tokens;
        "constant": summed over tokens, and divided by the number of responses times ``constant_length``.
    constant_length : int, optional
        Divisor of the "constant" aggregation, tokens; usually the response limit.
    kl_coef : float
        Weight of the penalty on the KL divergence of the policy from the initial model; 0 for none.
    """

    preset: str = "fspo"
    range_lo: float | None = number(None, 0, 1e6, above=True)
    range_hi: float | None = number(None, 0, 1e6, above=True)
    gamma: float | None = number(None, 0, 2)
    drift: Drift | None = None
    drift_source: DriftSource | None = None
    outside: Outside | None = None
    dual: float | None = number(None, 1, 1e6, above=True)
    adapt: Adapt | None = None
    target: float | None = number(None, 0, 1, above=True, below=True)
    target_rate: Rate | None = None
    advantage: Estimator | None = None
    aggregation: Aggregation | None = None
    constant_length: int | None = number(None, 1)
    kl_coef: float = number(0.0, 0, 1e6)

    def __post_init__(self) -> None:
        check_ranges(self, "rule")
        self.rule()
        self.objective()

    def rule(self) -> Rule:
        """Return the clip rule that the options make."""
        return preset(self.preset, **_parts(self)).rule

    def advantage_estimator(self) -> Estimator:
        """Return the name of the advantage estimator: the option ``advantage``, or the preset's."""
        return self.advantage or preset(self.preset).advantage

    def objective(self) -> ObjectiveConfig:
        """Return the options of the objective: aggregation and KL term."""
        return ObjectiveConfig(
            aggregation=self.aggregation or preset(self.preset).aggregation,
            constant_length=self.constant_length,
            kl_coef=self.kl_coef,
        )


def _parts(config: Any) -> dict[str, Any]:
    """Return the options that are set and are fields of `Rule`: what they change in the preset."""
    names = [f.name for f in fields(config) if f.name in Rule.__dataclass_fields__]
    return {name: getattr(config, name) for name in names if getattr(config, name) is not None}


@dataclass(frozen=True)
class CorrectionConfig:
    """The correction of the mismatch between the sampler and the trainer: a preset, with any of its parts changed.

    A correction multiplies the gradient of each response, or of each token, by a factor: the probability of the
    response or token by the trainer over the probability with which the sampler drew it. Outside a band this ratio is
    bounded or replaced by 0.

    Parameters
    ----------
    preset : str
        none, tis, mis, geo-mask, icepop, engine-sqrt.
    range_lo : float, optional
        Lower range of the band. For engine-sqrt it is c (nats; the half-width is c times sqrt(length)), for the other
        presets eps (the edge of the ratio is 1 - eps; 1 means no lower edge). It has no use in tis, which has an upper
        edge alone.
    range_hi : float, optional
        Upper range of the band, in the unit of range_lo.
    drift : {"none", "kl", "gaussian", "tilted"}, optional
        Centre of the band per token, as in the clip rule's option ``rule.drift``, but computed from the token
        log-ratios of the mismatch that ``on`` names.
    outside : {"drop", "truncate", "cap", "mask"}, optional
        What happens outside the band, as in the clip rule's option ``rule.outside``.
    weight : {"sequence", "geometric", "none"}, optional
        The factor inside the band: the ratio, its geometric mean over the tokens, or 1.
    on : {"engine", "behaviour"}, optional
        The mismatch that is corrected: "engine" between trainer and sampler at the weights that sampled (default of
        engine-sqrt), or "behaviour" between the old policy and the sampler, policy lag included (default of all
        other presets).
    """

    preset: str = "none"
    range_lo: float | None = number(None, 0, 1e6, above=True)
    range_hi: float | None = number(None, 0, 1e6, above=True)
    drift: Drift | None = None
    outside: Outside | None = None
    weight: Weight | None = None
    on: Literal["engine", "behaviour"] | None = None

    def __post_init__(self) -> None:
        check_ranges(self, "correction")
        self.rule()

    def rule(self) -> Rule | None:
        """Return the correction that the options make; None for the preset "none"."""
        changes = _parts(self)
        if changes and self.preset == "none":
            raise UserError(f"correction.{next(iter(changes))} is set, and no correction runs: set correction.preset")
        return correction(self.preset, **changes)
