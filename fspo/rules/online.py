"""Adaptive bands: the range changes during training to reach a target acceptance (docs/theory.md section 2, T14, T15).

An `OnlineRule` starts from a template rule. Before each update it gives an ordinary `Rule`, whose range comes from
earlier updates alone. After the update it learns from that update's responses. The trainer and the counterfactual
evaluation of a log use the same class, so the tables of a log show for an adaptive rule what the trainer would have
done.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
from jaxtyping import Float, Int64, Real

from fspo.base.errors import UserError
from fspo.rules import Rule, excess_quantile, scaled, standardized_excess

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
MEMORY = 512
"""Number of past responses whose excess (`standardized_excess`) ``fspo-conformal`` keeps in each bin of lengths.

The rule makes the bin's factor on the half-widths from these excesses."""
EACH_ROLLOUT = 128
"""Largest number of responses of one rollout in one bin of lengths whose excess is kept for the next band.

The responses are taken from all updates on the rollout."""


@dataclass
class OnlineState:
    """State of an adaptive band as plain numbers, kept in a run's checkpoint so that the run can be resumed.

    Attributes
    ----------
    updates : int
        Number of updates that the band has learnt from.
    log_scale, slope : float
        The parameter theta of T14: the half-width is the template's times ``exp(log_scale + slope * z)``, where z is
        the standardized logarithm of the length.
    centre, spread : float
        Mean and standard deviation (at least ``LEAST_SPREAD``) of the logarithm of the length n over the responses of
        the first update: z = (log n - centre) / spread.
    scores : dict of str -> list of float
        For ``fspo-conformal``: bin of lengths -> excesses (`standardized_excess`) of responses of past rollouts, oldest
        first.
    pending : dict of str -> list of float
        Bin of lengths -> excesses of the present rollout's responses.
    """

    updates: int = 0
    log_scale: float = 0.0
    slope: float = 0.0
    centre: float = 0.0
    spread: float = 1.0
    scores: dict[str, list[float]] = field(default_factory=dict)
    pending: dict[str, list[float]] = field(default_factory=dict)


class OnlineRule:
    """A rule whose band changes after each update or rollout to reach a target acceptance.

    Parameters
    ----------
    rule : Rule
        The template, a rule from which the band starts. A template with ``adapt="none"`` is used unchanged.
    state : mapping, optional
        A value of the property `state`, with which a resumed run goes on.

    Raises
    ------
    UserError
        If the state was written by a version with other fields.
    """

    def __init__(self, rule: Rule, state: dict[str, Any] | None = None) -> None:
        self.template = rule
        try:
            self._state = OnlineState(**(state or {}))
        except TypeError as error:
            raise UserError(f"the checkpoint's state of rule {rule.label!r} is not of this version: {error}") from None
        self._target = 0.0 if rule.target is None else rule.target
        self._rule: Rule | None = None

    @property
    def state(self) -> dict[str, Any]:
        """The `OnlineState` of the band as a dict of plain values, for a checkpoint."""
        return asdict(self._state)

    @property
    def rule(self) -> Rule:
        """The `Rule` for the next update, with the range that earlier updates have led to."""
        if self._rule is None:
            self._rule = self._made()
        return self._rule

    def _made(self) -> Rule:
        s, rule = self._state, self.template
        if rule.adapt == "range":
            return scaled(rule, self._bounded(s.log_scale))
        if rule.adapt == "exponent" and rule.gamma is not None:
            # ``_step``, which learns the slope, already keeps the band's exponent gamma within EXPONENTS. Here min and
            # max only remove rounding errors.
            gamma = min(max(rule.gamma + s.slope / s.spread, EXPONENTS[0]), EXPONENTS[1])
            return replace(scaled(rule, self._bounded(s.log_scale - s.slope * s.centre / s.spread)), gamma=gamma)
        if rule.adapt == "bins" and s.scores:
            return replace(rule, factors=self._factors())
        return rule

    def observe(self, S: Any, n: Any, A: Any, m: Any = None) -> None:
        """Learn from the responses of one update, those of all processes.

        Parameters
        ----------
        S, n, A : arrays (N,)
            Log-ratios, lengths and advantages of responses, scored after at least one update since their rollout.
            Responses whose S is not finite are left out.
        m : float or array (N,), optional
            Centre of the band in this update, as in `Rule.apply`.
        """
        if self.template.adapt == "none":
            return
        S, n, A = (np.asarray(x, np.float64) for x in (S, n, A))
        excess = standardized_excess(self.template, S, n, A, m, self.template.target_rate)
        lengths = n if self.template.target_rate == "band" else n[A != 0]
        self.learn(excess, lengths)

    def learn(self, excess: Float[np.ndarray, " N"], lengths: Real[np.ndarray, " N"]) -> None:
        """Learn from one update's responses. `observe` computes their excesses and calls this method.

        A response's excess is the factor on the template's half-widths at which its S lies on the band's edge.

        Parameters
        ----------
        excess, lengths : arrays (N,)
            Excess (from `standardized_excess`) and length of the responses that the target acceptance counts. An
            excess that is not finite is left out.
        """
        good = np.isfinite(excess)
        if not good.all():
            excess, lengths = excess[good], lengths[good]
        if excess.size == 0:
            return
        if self.template.adapt == "bins":
            bins = length_bin(lengths)
            order = np.argsort(bins, kind="stable")
            scores, bins = excess[order].tolist(), bins[order]
            starts = np.flatnonzero(np.diff(bins, prepend=bins[0] - 1)).tolist()
            for start, stop in zip(starts, [*starts[1:], len(scores)], strict=True):
                self._state.pending.setdefault(str(bins[start]), []).extend(scores[start:stop])
            self._state.updates += 1
        else:
            self._state.updates += self._step(excess, np.log(lengths))
            self._rule = None

    def end_rollout(self) -> None:
        """Move the excesses of the present rollout's responses to those of past rollouts.

        Each bin of lengths keeps its newest `MEMORY` excesses. The next band is made from what the bins keep.
        """
        s = self._state
        for name, new in s.pending.items():
            if len(new) > EACH_ROLLOUT:
                new = [new[i] for i in np.linspace(0, len(new) - 1, EACH_ROLLOUT).round().astype(int)]
            s.scores[name] = [*s.scores.get(name, []), *new][-MEMORY:]
        s.pending = {}
        self._rule = None

    def _step(self, excess: Float[np.ndarray, " N"], log_n: Float[np.ndarray, " N"]) -> bool:
        """Change the log scale and slope of the half-widths (theta of T14) after one update; return False if no range
        gives the target.

        The first call sets the range at which the target share of the responses is accepted. Each later call moves both
        numbers by the gain (at least `GAIN`) times how far the accepted share was from the target.
        """
        s = self._state
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
        """Logarithm of the largest factor by which the band may be wider than ``template``, the band it started from.

        At length 1 that factor makes the larger of the two half-widths MAX_HALF_WIDTH.
        """
        return math.log(MAX_HALF_WIDTH / max(float(w[0]) for w in self.template.half_widths(np.ones(1))))

    def _bounded(self, log_factor: float) -> float:
        """Return exp(``log_factor``), held between the least and the largest factor allowed on the half-widths."""
        return math.exp(min(max(log_factor, LEAST_LOG_FACTOR), self._widest))

    def _factors(self) -> tuple[tuple[float, float], ...]:
        scores = {int(name): np.asarray(found, np.float64) for name, found in self._state.scores.items()}
        pooled = conformal_quantile(np.concatenate(list(scores.values())), self._target)
        # ``last`` is one bin more, for responses longer than any seen. It gets the factor of all bins pooled.
        last = max(scores) + 1
        found = []
        for bin_ in range(last + 1):
            factor = conformal_quantile(scores.get(bin_, ()), self._target)
            factor = factor if math.isfinite(factor) else pooled
            factor = self._bounded(math.log(max(factor, 1e-300)) if factor < math.inf else 0.0)
            found.append((least_length(bin_), factor))
        return tuple(found)


def length_bin(n: Real[np.ndarray, " N"]) -> Int64[np.ndarray, " N"]:
    """Return the bin in which ``fspo-conformal`` counts each length n: floor(log2 n), so that a bin holds the lengths
    from 2^i to 2^(i+1) - 1."""
    return (np.frexp(n)[1] - 1).astype(np.int64)


def least_length(bin_: int) -> float:
    """Return the least length in bin ``bin_`` of `length_bin`, which holds lengths from 2^bin_ to 2^(bin_+1) - 1."""
    return 2.0**bin_


def conformal_quantile(scores: Any, target: float) -> float:
    """Return the ceil((n+1) target)-th smallest of n scores, the split-conformal quantile; infinite if n is too small.

    If these scores and a new one are exchangeable, the new score is at most this quantile with a probability of at
    least ``target`` and, without ties, at most ``target + 1/(n+1)`` (T15; Vovk, Gammerman and Shafer 2005).

    Parameters
    ----------
    scores : array (n,)
    target : float
        In (0, 1).

    Raises
    ------
    UserError
        If ``target`` does not lie in (0, 1).
    """
    if not 0 < target < 1:
        raise UserError(f"target={target} must lie strictly between 0 and 1")
    found = np.asarray(scores, np.float64)
    k = math.ceil((found.size + 1) * target - 1e-12)  # without the 1e-12, rounding could make the rank k too large by 1
    return float(np.partition(found, k - 1)[k - 1]) if k <= found.size else math.inf
