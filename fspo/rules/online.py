"""Bands that find their own range: what follows a target acceptance online (docs/theory.md section 2, T14, T15).

An `OnlineRule` starts from a template rule. Before each update it gives an ordinary `Rule`, made from earlier
updates alone; after the update it is shown that update's rows. The trainer and the counterfactual evaluation of a
log use the same class, so what a log's tables say of such a rule is what the trainer would have done.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from fspo.base.errors import UserError
from fspo.rules import Rule, excess_quantile, scaled, standardized_excess

GAIN = 0.5
"""Least step of the range's logarithm, in units of (target - accepted share); before, the t-th step is 1/sqrt(t)."""
MAX_HALF_WIDTH = 30.0
"""The half-width at one log-ratio, nats, above which a range does not grow: e^30 is no ratio that one could clip at."""
LEAST_LOG_FACTOR = -12.0
EXPONENTS = (0.0, 2.0)
"""Bounds of the exponent: outside of them no sum of log-ratios spreads."""
LEAST_SPREAD = 0.5
"""Least unit of log length: in a smaller one, from a first update of like lengths, later steps would overshoot."""
MEMORY = 512
"""Scores that the conformal rule keeps in each bin of lengths."""
EACH_ROLLOUT = 128
"""Of which at most this many come from one rollout, evenly spaced in time, so that all its updates are in."""


@dataclass
class OnlineState:
    """What a run must keep to go on: plain numbers for a checkpoint's JSON.

    Attributes
    ----------
    updates : int
        Updates that were seen.
    log_scale, slope : float
        theta of T14: the half-width is the template's times ``exp(log_scale + slope * z)``, z the standardized log
        of the length.
    centre, spread : float
        Mean and standard deviation (at least ``LEAST_SPREAD``) of log n in the first update: z = (log n - centre) /
        spread.
    scores : dict of str -> list of float
        Of the conformal rule, by bin: excess of past rollouts' rows, oldest first.
    pending : dict of str -> list of float
        The same of the present rollout.
    """

    updates: int = 0
    log_scale: float = 0.0
    slope: float = 0.0
    centre: float = 0.0
    spread: float = 1.0
    scores: dict[str, list[float]] = field(default_factory=dict)
    pending: dict[str, list[float]] = field(default_factory=dict)


class OnlineRule:
    """A rule whose band follows its target.

    Parameters
    ----------
    rule : Rule
        The template; with ``adapt="none"`` it is the rule and nothing changes it.
    state : mapping, optional
        From `state`, to go on where another run stopped.

    Raises
    ------
    UserError
        For a state that another version wrote.
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
        """The state as plain values."""
        return asdict(self._state)

    @property
    def rule(self) -> Rule:
        """The rule for the next update."""
        if self._rule is None:
            self._rule = self._made()
        return self._rule

    def _made(self) -> Rule:
        s, rule = self._state, self.template
        if rule.adapt == "range":
            return scaled(rule, self._bounded(s.log_scale))
        if rule.adapt == "exponent" and rule.gamma is not None:
            gamma = min(max(rule.gamma + s.slope / s.spread, EXPONENTS[0]), EXPONENTS[1])  # to rounding, it is
            return replace(scaled(rule, self._bounded(s.log_scale - s.slope * s.centre / s.spread)), gamma=gamma)
        if rule.adapt == "bins" and s.scores:
            return replace(rule, factors=self._factors())
        return rule

    def observe(self, S: Any, n: Any, A: Any, m: Any = None) -> None:
        """Learn from one update's rows, over all processes.

        Parameters
        ----------
        S, n, A : arrays (N,)
            Log-ratios, lengths and advantages of responses that have seen an update since their rollout. Rows whose
            S is not finite are left out.
        m : float or array (N,), optional
            Centre of the band in this update, as in `Rule.apply`.
        """
        if self.template.adapt == "none":
            return
        S, n, A = (np.asarray(x, np.float64) for x in (S, n, A))
        excess = standardized_excess(self.template, S, n, A, m, self.template.target_rate)
        lengths = n if self.template.target_rate == "band" else n[A != 0]
        self.learn(excess, lengths)

    def learn(self, excess: np.ndarray, lengths: np.ndarray) -> None:
        """`observe` from each row's excess under the template.

        Parameters
        ----------
        excess, lengths : arrays (N,)
            Of the rows that the target's acceptance counts, from `standardized_excess`; an excess that is not finite
            is left out.
        """
        good = np.isfinite(excess)
        if not good.all():
            excess, lengths = excess[good], lengths[good]
        if excess.size == 0:
            return
        if self.template.adapt == "bins":
            bins = _bin(lengths)
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
        """The rollout's scores become past ones, the oldest are forgotten."""
        s = self._state
        for name, new in s.pending.items():
            if len(new) > EACH_ROLLOUT:
                new = [new[i] for i in np.linspace(0, len(new) - 1, EACH_ROLLOUT).round().astype(int)]
            s.scores[name] = [*s.scores.get(name, []), *new][-MEMORY:]
        s.pending = {}
        self._rule = None

    # -- range and exponent: stochastic quantile regression of log excess on log length (T14) ----------------------

    def _step(self, excess: np.ndarray, log_n: np.ndarray) -> bool:
        """One step of theta; the first one jumps to the rows' own quantile. Whether anything was learnt."""
        s = self._state
        with_slope = self.template.adapt == "exponent"
        if s.updates == 0:
            try:
                s.log_scale = math.log(self._bounded(math.log(excess_quantile(excess, self._target))))
            except UserError:  # S is 0: nothing has moved yet
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
        """Logarithm of the largest factor."""
        return math.log(MAX_HALF_WIDTH / max(float(w[0]) for w in self.template.half_widths(np.ones(1))))

    def _bounded(self, log_factor: float) -> float:
        """The factor, held where a rule can express it."""
        return math.exp(min(max(log_factor, LEAST_LOG_FACTOR), self._widest))

    # -- conformal factors by bin of lengths (T15) -------------------------------------------------------------------

    def _factors(self) -> tuple[tuple[float, float], ...]:
        scores = {int(name): np.asarray(found, np.float64) for name, found in self._state.scores.items()}
        pooled = conformal_quantile(np.concatenate(list(scores.values())), self._target)
        last = max(scores) + 1  # beyond what was seen, the pooled factor
        found = []
        for bin_ in range(last + 1):
            factor = conformal_quantile(scores.get(bin_, ()), self._target)
            factor = factor if math.isfinite(factor) else pooled
            found.append((2.0**bin_, self._bounded(math.log(max(factor, 1e-300)) if factor < math.inf else 0.0)))
        return tuple(found)


def _bin(n: np.ndarray) -> np.ndarray:
    """Bin of each length: floor(log2 n), so that no bin depends on data."""
    return (np.frexp(n)[1] - 1).astype(np.int64)


def conformal_quantile(scores: Any, target: float) -> float:
    """The split-conformal quantile: the ceil((n+1) target)-th smallest of n scores; infinite where there is none.

    If these scores and a new one are exchangeable, the new one is at most this with probability at least ``target``,
    and, without ties, at most ``target + 1/(n+1)`` (T15; Vovk, Gammerman and Shafer 2005).

    Parameters
    ----------
    scores : array (n,)
    target : float
        In (0, 1).

    Raises
    ------
    UserError
        For another target.
    """
    if not 0 < target < 1:
        raise UserError(f"target={target} must lie strictly between 0 and 1")
    found = np.asarray(scores, np.float64)
    k = math.ceil((found.size + 1) * target - 1e-12)  # rounding of the product must not cost a rank
    return float(np.partition(found, k - 1)[k - 1]) if k <= found.size else math.inf
