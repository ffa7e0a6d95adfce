"""Adaptive bands: the range changes during training to reach a target acceptance (docs/theory.md section 2, T14).

An `OnlineRule` starts from a template rule. Before each update it gives an ordinary `Rule`, whose range comes from
earlier updates alone. After the update it learns from that update's responses. The trainer and the counterfactual
evaluation of a log use the same class, so the tables of a log show for an adaptive rule what the trainer would have
done."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from jaxtyping import Float, Real

from fspo.base.errors import UserError
from fspo.rules import Rule, excess_quantile, scaled, standardized_excess
from fspo.rules.clip import WAYS

GAIN = 0.5
"""Least gain of an adaptive band. Each step changes log(range) by the gain times (target - accepted share).

The gain of step t is the larger of 1/sqrt(t) and this value."""
MAX_HALF_WIDTH = 30.0
"""Largest half-width at n = 1, nats. A range does not grow beyond it, because no importance ratio comes near e^30."""
LEAST_LOG_FACTOR = -12.0
EXPONENTS = (0.0, 2.0)
"""Least and greatest exponent gamma of a band c n**gamma. A sum of n log-ratios has a standard deviation that
grows like n to a power between these two."""
LEAST_SPREAD = 0.5
"""Least standard deviation by which log lengths are divided.

If the lengths in the first update are nearly equal, a smaller divisor would make later steps too large."""


@dataclass
class OnlineState:
    """What an adaptive band, or one side of it, has learnt, as plain numbers.

    Attributes
    ----------
    updates : int
        Number of updates that it has learnt from.
    log_scale, slope : float
        What is learnt (theta and eta of docs/theory.md section 2): the half-width is the template's times
        ``exp(log_scale + slope * z)``, where z is the standardized logarithm of the length.
    centre, spread : float
        If the exponent is learnt: mean and standard deviation (at least 1/2) of log n, n the lengths of the responses
        in the first update learnt from; z = (log n - centre) / spread. (Not the centre of the band.)
    """

    updates: int = 0
    log_scale: float = 0.0
    slope: float = 0.0
    centre: float = 0.0
    spread: float = 1.0


class OnlineRule:
    """A rule whose band changes after each update to reach a target acceptance.

    A band has two sides, each with a range and an exponent of its own, if ``adapt`` is "exponent", ``target_rate`` is
    "update", and ``outside`` is "drop" or "truncate" without a dual clip: the lower side learns from the responses with
    A < 0, the upper from those with A > 0. Any other band has one factor and at most one exponent for both half-widths.

    Parameters
    ----------
    rule : Rule
        The template, a rule from which the band starts. If its ``adapt`` is "none", nothing is learnt.
    state : mapping, optional
        A value of the property `state`, with which a resumed run goes on.

    Raises
    ------
    UserError
        If the state was written by a version with other fields.
    """

    def __init__(self, rule: Rule, state: dict[str, Any] | None = None) -> None:
        self.template = rule
        clips_its_sign = WAYS[rule.outside].cuts == "active" and rule.dual is None  # a dual edge is above A < 0
        self.two_sided = rule.adapt == "exponent" and rule.target_rate == "update" and clips_its_sign
        names = ("below", "above") if self.two_sided else ("both",)
        given = (state or {}) if self.two_sided else {"both": state or {}}
        try:
            if not set(given) <= set(names):
                raise TypeError(f"it holds {', '.join(given)}")
            self._sides = {name: OnlineState(**given.get(name, {})) for name in names}
        except (TypeError, AttributeError) as error:
            raise UserError(f"the checkpoint's state of rule {rule.label!r} is not of this version: {error}") from None
        self._target = 0.0 if rule.target is None else rule.target
        self._rule: Rule | None = None

    @property
    def state(self) -> dict[str, Any]:
        """What the band has learnt, as plain values for a checkpoint: the fields of `OnlineState` by name, or, if the
        band has two sides, these fields of each side by its name, "below" and "above"."""
        found = {name: asdict(side) for name, side in self._sides.items()}
        return found if self.two_sided else found["both"]

    @property
    def rule(self) -> Rule:
        """The `Rule` for the next update, with the range that earlier updates have led to."""
        if self._rule is None:
            self._rule = self._made()
        return self._rule

    def _made(self) -> Rule:
        rule, sides = self.template, [*self._sides.values()]
        if rule.adapt == "range":
            return scaled(rule, self._bounded(sides[0].log_scale))
        if rule.adapt == "exponent" and rule.gamma is not None:
            # ``_step``, which learns the slope, already keeps the band's exponent gamma within EXPONENTS. Here min and
            # max only remove rounding errors.
            gammas = [min(max(rule.gamma + s.slope / s.spread, EXPONENTS[0]), EXPONENTS[1]) for s in sides]
            factors = [self._bounded(s.log_scale - s.slope * s.centre / s.spread) for s in sides]
            return replace(scaled(rule, *factors), gamma=gammas[0], gamma_hi=gammas[1] if self.two_sided else None)
        return rule

    def observe(self, S: Any, n: Any, A: Any, m: Any = None) -> None:
        """Learn from one update's responses, those of all processes: change `state` and, for the next update, `rule`.

        Parameters
        ----------
        S, n, A : arrays (N,)
            Log-ratios (nats), lengths and advantages of responses. S is taken after at least one update since their
            rollout; before the first it is 0 for all. Responses whose S is not finite are left out.
        m : float or array (N,), optional
            Drift of the band in this update, nats per token (`Rule.centre`).
        """
        if self.template.adapt == "none":
            return
        S, n, A = (np.asarray(x, np.float64) for x in (S, n, A))
        excess = standardized_excess(self.template, S, n, A, m, self.template.target_rate)
        counted = slice(None) if self.template.target_rate == "band" else A != 0
        self.learn(excess, n[counted], A[counted])

    def learn(
        self, excess: Float[np.ndarray, " N"], lengths: Real[np.ndarray, " N"], A: Real[np.ndarray, " N"]
    ) -> None:
        """Learn from one update's responses: change `state` and `rule`. `observe` calls this with their excesses.

        A response's excess is the factor on the template's half-widths at which its S lies on the band's edge.

        Parameters
        ----------
        excess, lengths, A : arrays (N,)
            Excess (from `standardized_excess`), length and advantage of the responses that the target acceptance
            counts. An excess that is not finite is left out.
        """
        good = np.isfinite(excess)
        for name, side in self._sides.items():
            some = good if name == "both" else good & (A < 0 if name == "below" else A > 0)
            if some.any():
                side.updates += self._step(side, excess[some], np.log(lengths[some]))
        self._rule = None

    def _step(self, s: OnlineState, excess: Float[np.ndarray, " N"], log_n: Float[np.ndarray, " N"]) -> bool:
        """Change ``s.log_scale`` (theta of T14) and ``s.slope`` after one update; ``log_n`` (N,) are logs of lengths.

        The first call sets the factor at which the target share of the responses is accepted; it returns False if no
        factor is. Later calls add to the log scale the gain (>= `GAIN`) times the mean of d, and to a learnt slope the
        gain times the mean of d z. Here d = target - 1 for an accepted response, else target; z: `OnlineState`."""
        with_slope = self.template.adapt == "exponent"
        if s.updates == 0:
            try:
                s.log_scale = math.log(self._bounded(math.log(excess_quantile(excess, self._target))))
            except UserError:  # no range gives the target acceptance, for example because every S is 0
                return False
            if with_slope:
                s.centre, s.spread = float(log_n.mean()), max(float(log_n.std()), LEAST_SPREAD)
            return True
        z = (log_n - s.centre) / s.spread
        missed = self._target - (np.log(np.maximum(excess, 1e-300)) <= s.log_scale + s.slope * z)
        gain = max(GAIN, 1 / math.sqrt(s.updates))
        s.log_scale = math.log(self._bounded(s.log_scale + gain * float(missed.mean())))
        if with_slope and self.template.gamma is not None:
            slope = s.slope + gain * float((missed * z).mean())
            low, high = ((bound - self.template.gamma) * s.spread for bound in EXPONENTS)
            s.slope = min(max(slope, low), high)
        return True

    @cached_property
    def _widest(self) -> float:
        """Logarithm of the largest factor allowed on the half-widths of the template, the rule at the start.

        At length 1 that factor makes the larger of the two half-widths MAX_HALF_WIDTH, 30 nats."""
        return math.log(MAX_HALF_WIDTH / max(float(w[0]) for w in self.template.half_widths(np.ones(1))))

    def _bounded(self, log_factor: float) -> float:
        """Return exp(``log_factor``), a factor on the half-widths, held between exp(-12) and exp(`_widest`)."""
        return math.exp(min(max(log_factor, LEAST_LOG_FACTOR), self._widest))
