"""Clip rules: one family of bands in log space, used by the trainer, the simulations and the diagnostics alike.

A rule is a band ``[lo, hi]`` on a sum of ``n`` token log-ratios, a weight, and what happens outside the band
(docs/theory.md section 2). For sequence rules ``n`` is the response's length, for token rules 1. The rule says where
the band lies; fspo/rules/clip.py decides what happens outside it. The same code computes with numpy arrays and with
torch tensors."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, get_args

import numpy as np
from array_api_compat import array_namespace
from jaxtyping import Float, Float64, Real

from fspo.base.errors import UserError, unknown_name
from fspo.base.number_checks import as_numbers, number, one_shape
from fspo.rules.clip import Applied, Array, Clip, Edges, Outside, Weight
from fspo.rules.drift import DRIFTS, Drift, DriftSource, DriftStats, TokenMeans
from fspo.rules.gone import GONE_PARTS, check_name

Shape = Literal["none", "fixed", "linear", "sqrt", "power", "token"]
Adapt = Literal["none", "range", "exponent"]
Rate = Literal["band", "update"]
Ratio = Literal["update", "engine", "behaviour"]
"""The log-ratio of a response that a rule acts on (docs/theory.md section 1).

update: S, new less old. engine: E, the sampling weights' log-probability by the trainer less that by the sampler.
behaviour: D + E, old less the sampler's, with D the policy lag, old less the sampling weights'."""

EPS_SHAPES = ("fixed", "linear", "token")
"""Shapes whose range is an eps: the band on the ratio is [1 - range_lo, 1 + range_hi] at n = 1."""
_CHOICES = {
    "shape": get_args(Shape),
    "drift": get_args(Drift),
    "drift_source": get_args(DriftSource),
    "outside": get_args(Outside),
    "weight": get_args(Weight),
    "on": get_args(Ratio),
    "adapt": get_args(Adapt),
    "target_rate": get_args(Rate),
}
_MAX_LOG_RANGE = 700.0  # largest half-width in nats, because exp of a much larger number overflows float64
_EXPONENTS = {"fixed": 0.0, "linear": 1.0, "sqrt": 0.5, "token": 1.0}


@dataclass(frozen=True)
class Rule:
    """A clip rule: a band on the log-ratio, a weight, and what happens outside the band (docs/theory.md section 2).

    Parameters
    ----------
    shape : {"none", "fixed", "linear", "sqrt", "power", "token"}
        How the half-widths grow with ``n``, the number of summed token log-ratios. ``none`` has no band, ``fixed`` does
        not grow, ``linear``, ``sqrt`` and ``power`` grow like n, sqrt(n) and n**gamma. ``token`` is a band on each
        token's log-ratio.
    range_lo, range_hi : float
        Lower and upper range. For ``fixed``, ``linear`` and ``token`` a range is an eps: the half-widths at n = 1 are
        ``-log(1 - range_lo)`` and ``log(1 + range_hi)`` nats; a range_lo of 1 means no lower edge. For ``sqrt`` and
        ``power`` a range is a c: the half-width is ``c * n**gamma`` nats (gamma 1/2 but for ``power``).
    gamma : float, optional
        Exponent of ``power``; refused for the other shapes.
    gamma_hi : float, optional
        Exponent of the upper half-width of ``power``, where it is another than that of the lower; a band that follows a
        target learns both.
    drift : {"none", "kl", "gaussian", "tilted"}
        Drift, the centre of the band per token, nats: 0, ``-k3``, ``-sigma^2/2`` or ``+sigma^2/2`` (T9). k3 and sigma^2
        are a minibatch's means over tokens of k3 = exp(s_t) - 1 - s_t and of s_t^2, s_t the token log-ratio.
    drift_source : {"two_pass", "lagged"}
        Where the trainer takes the drift statistics from: a pass over the minibatch before its update, or the minibatch
        of the previous update.
    outside : {"drop", "truncate", "cap", "mask"}
        What happens outside the band: no gradient on the active side (as by the min in PPO); on the active side the
        weight at the edge; above the band the weight at the upper edge, whatever the sign of A; or no gradient on both
        sides, whatever the sign of A.
    dual : float, optional
        Dual clip d > 1: a response with A < 0 and S > m_L + d (hi - m_L) is clipped too, with m_L the centre of the
        band and hi its upper edge.
    weight : {"sequence", "geometric", "none"}
        Importance weight: exp(S); exp(S/n), whose gradient has a factor 1/n (GSPO); or 1, so that the rule only clips.
    adapt : {"none", "range", "exponent"}
        What is changed during training to reach ``target`` (fspo/rules/online.py): nothing, the range, or the range and
        the exponent of a ``power`` band. Training starts from the ranges above.
    target : float, optional
        Wanted acceptance, a share in (0, 1); needed if ``adapt`` is not "none", refused otherwise.
    target_rate : {"band", "update"}
        Whether ``target`` is a band acceptance or an update acceptance (docs/theory.md section 1).
    on : {"update", "engine", "behaviour"}
        The log-ratio that the band is on (`Ratio`). In this docstring S stands for that log-ratio.
    name : str
        Label in logs and tables.

    Raises
    ------
    UserError
        For values outside their range; the message says what to use.
    """

    shape: Shape
    range_lo: float = 0.0
    range_hi: float = 0.0
    gamma: float | None = None
    gamma_hi: float | None = None
    drift: Drift = "none"
    drift_source: DriftSource = "two_pass"
    outside: Outside = "drop"
    dual: float | None = None
    weight: Weight = "sequence"
    adapt: Adapt = "none"
    target: float | None = None
    target_rate: Rate = "update"
    on: Ratio = "update"
    name: str = ""

    def __post_init__(self) -> None:
        for field, choices in _CHOICES.items():
            check_name(f"rule {field}", str(getattr(self, field)), choices, GONE_PARTS.get(field, {}))
        if self.shape != "none":
            for field, value in (("range_lo", self.range_lo), ("range_hi", self.range_hi)):
                if not value > 0:
                    raise UserError(
                        f"rule {self.label!r}: {field}={value} must be > 0 (use shape 'none' for no clipping)"
                    )
            if self.shape in EPS_SHAPES and not self.range_lo <= 1:
                raise UserError(
                    f"rule {self.label!r}: range_lo={self.range_lo} is an eps and must be at most 1 (no lower edge)"
                )
        if (self.shape == "power") != (self.gamma is not None):
            raise UserError(f"rule {self.label!r}: gamma belongs to shape 'power' and to no other; set both or neither")
        if self.gamma is not None and not 0 <= self.gamma <= 2:
            raise UserError(f"rule {self.label!r}: gamma={self.gamma} must lie in [0, 2]; 0.5 is FSPO's")
        if self.gamma_hi is not None and (self.gamma is None or not 0 <= self.gamma_hi <= 2):
            raise UserError(f"rule {self.label!r}: gamma_hi={self.gamma_hi} must lie in [0, 2] and needs a gamma")
        self.clip.check(f"rule {self.label!r}")
        if self.weight == "geometric" and self.shape == "token":
            raise UserError(f"rule {self.label!r}: a geometric weight needs a sequence shape; use 'sequence'")
        if self.drift != "none" and self.shape in ("none", "token"):
            raise UserError(f"rule {self.label!r}: drift {self.drift!r} needs a sequence band; use drift 'none'")
        self._check_adaptation()

    def _check_adaptation(self) -> None:
        if self.adapt != "none" and self.shape in ("none", "token"):
            raise UserError(f"rule {self.label!r}: adapt {self.adapt!r} needs a sequence band; use adapt 'none'")
        if self.adapt == "exponent" and self.shape != "power":
            raise UserError(f"rule {self.label!r}: adapt 'exponent' needs shape 'power' (and gamma, where it starts)")
        if (self.adapt != "none") != (self.target is not None):
            raise UserError(f"rule {self.label!r}: target is what 'adapt' follows; set both or neither")
        if self.target is not None and not 0 < self.target < 1:
            raise UserError(f"rule {self.label!r}: target={self.target} must lie strictly between 0 and 1")

    @property
    def label(self) -> str:
        """The rule's name; for a rule without one, its ``shape`` and ``outside``, as in ``sqrt-drop``."""
        return self.name or f"{self.shape}-{self.outside}"

    @property
    def level(self) -> Literal["sequence", "token"]:
        """What the rule clips as one: whole responses ("sequence") or single tokens ("token")."""
        return "token" if self.shape == "token" else "sequence"

    @property
    def needs_stats(self) -> bool:
        """Whether the rule has a drift, so that `centre` needs a minibatch's `DriftStats`; if not, the centre is 0."""
        return self.drift != "none"

    @property
    def clip(self) -> Clip:
        """What the rule does outside its band, as a `Clip`."""
        return Clip(self.outside, self.dual, self.weight)

    @property
    def edges_vary(self) -> bool:
        """Whether the range changes during training (``adapt``), so that a logged response's band is known only from
        the edges ``lo`` and ``hi`` in its row. Otherwise the band follows from this rule and the logged drift."""
        return self.adapt != "none"

    def to_dict(self) -> dict[str, Any]:
        """Return the rule's fields by name as plain values, for a log's metadata; ``Rule(**values)`` makes the same
        rule again."""
        return asdict(self)

    def half_widths(self, n: Float[Array, "*rows"]) -> tuple[Float[Array, "*rows"], Float[Array, "*rows"]]:
        """Return two arrays, the band's half-widths below and above its centre, nats, on sums of ``n`` log-ratios."""
        xp = array_namespace(n)
        if self.shape == "none":
            infinite = xp.full_like(n, math.inf)
            return infinite, infinite
        gamma = self.gamma if self.gamma is not None else _EXPONENTS[self.shape]
        scale = xp.ones_like(n) if gamma == 0 else n**gamma
        if self.shape in EPS_SHAPES:
            below = math.inf if self.range_lo == 1 else -math.log1p(-self.range_lo)
            return scale * below, scale * math.log1p(self.range_hi)
        upper = scale if self.gamma_hi is None else n**self.gamma_hi
        return scale * self.range_lo, upper * self.range_hi

    def with_dual_at(self, ratio: float) -> Rule:
        """Return the rule with a dual clip whose edge, for one token (n = 1) and a band around 0, lies at the
        importance weight exp(S) = ``ratio``, that is at S = log(ratio)."""
        return replace(self, dual=math.log(ratio) / float(self.half_widths(np.ones(1))[1][0]))

    def centre(self, stats: DriftStats | TokenMeans | None = None) -> Float[Array, " ..."] | float:
        """Return the drift m, nats per token, and not the centre, nats: `sum_centre` makes of m the centre m n of the
        band on a sum of n token log-ratios (docs/theory.md section 2). A rule without a drift gives 0.

        Parameters
        ----------
        stats : DriftStats or TokenMeans, optional
            Drift statistics (sums), or means, over the tokens of a minibatch on all processes; needed if the rule has a
            drift. ``TokenMeans`` of arrays (N,), one minibatch's means for each response, give m as an array (N,).
        """
        if self.drift == "none":
            return 0.0
        if stats is None:
            raise UserError(f"rule {self.label!r} centres its band on a drift: pass the minibatch's DriftStats")
        return DRIFTS[self.drift](stats)

    def band(
        self, n: Float[Array, "*rows"], m: Real[Array, "#*rows"] | float | None = None
    ) -> tuple[Float[Array, "*rows"], Float[Array, "*rows"]]:
        """Return the lower and the upper edge of the band on S, nats.

        Parameters
        ----------
        n : array, floating
            Number of token log-ratios that S sums: a response's length, or 1 for a token.
        m : float or array, optional
            Drift of the band, nats per token, from `centre`; needed if the rule has one.
        """
        below, above = self.half_widths(n)
        centre = self.sum_centre(n, m)
        return centre - below, centre + above

    def sum_centre(
        self, n: Float[Array, "*rows"], m: Real[Array, "#*rows"] | float | None = None
    ) -> Float[Array, "*rows"]:
        """Return the centre m_L = m n, nats, of the band on sums of n token log-ratios, m the drift from `centre`; 0 if
        the rule has no drift."""
        if m is None and self.needs_stats:
            raise UserError(f"rule {self.label!r} centres its band on a drift: pass m=rule.centre(stats)")
        return (0.0 if m is None else m) * n

    def apply(
        self,
        S: Float[Array, "*rows"],
        n: Real[Array, "#*rows"],
        A: Real[Array, "#*rows"],
        m: Real[Array, "#*rows"] | float | None = None,
        logged: tuple[Float[Array, "#*rows"], Float[Array, "#*rows"]] | None = None,
    ) -> Applied:
        """Clip responses (or tokens): return their sides, multipliers and weights, as an `Applied`.

        Parameters
        ----------
        S : array, floating
            Log-ratios of the responses (or tokens), nats. NaN is passed through, never clipped.
        n : array
            Number of token log-ratios that each S sums, same shape or broadcastable.
        A : array, floating
            Advantages, same shape or broadcastable. A = 0 is never clipped: it has no gradient under any rule.
        m : float or array, optional
            Drift of the band, nats per token, from `centre`; needed where the rule has one.
        logged : pair of arrays, optional
            Lower and upper edges read from a log, nats, used instead of the edges that this rule computes.
        """
        xp = array_namespace(S)
        n, A = xp.astype(n, S.dtype) + xp.zeros_like(S), xp.astype(A, S.dtype) + xp.zeros_like(S)
        lo, hi = self.band(n, m) if logged is None else logged
        return self.clip.apply(S, n, A, Edges(lo, hi, self.sum_centre(n, m)))

    def acceptance(
        self,
        S: Real[Array, "#*rows"],
        n: Real[Array, "#*rows"],
        A: Real[Array, "#*rows"],
        m: Real[Array, "#*rows"] | float | None = None,
        rate: Rate = "band",
    ) -> float:
        """Return the band acceptance, the share of all responses with S in the band, or, if ``rate`` is "update", the
        update acceptance, the share of those with A != 0 that are not clipped. ``S``, ``n`` and ``A`` are log-ratios
        (nats; NaN is outside the band, never clipped), lengths and advantages; ``m`` is the drift, nats per token.

        Raises UserError if there is no response, or under "update" none with A != 0, or if ``checked_rows`` refuses the
        arrays."""
        S, n, A = checked_rows(S, n, A, rate)
        applied = self.apply(S, n, A, m)
        accepted = applied.in_band if rate == "band" else applied.side[A != 0] == 0
        if accepted.size == 0:
            raise UserError("no rows, or none with A != 0: an acceptance needs at least one")
        return float(np.mean(accepted))


def scaled(rule: Rule, factor: float, above: float | None = None) -> Rule:
    """Return the rule with both half-widths (nats) multiplied by ``factor``, so that their ratio stays the same.

    With ``above``, ``factor`` is for the lower half-width alone and ``above`` for the upper; a rule whose range is an
    eps takes no ``above``.

    Raises UserError if the factor is not positive and finite, or if a range that is an eps cannot give so wide a band.
    """
    factor = number("factor", factor, 0, above=True)
    if rule.shape in EPS_SHAPES:
        lo = 1.0 if rule.range_lo == 1 else -math.expm1(factor * math.log1p(-rule.range_lo))
        log_hi = factor * math.log1p(rule.range_hi)
        if not ((lo < 1 or rule.range_lo == 1) and log_hi < _MAX_LOG_RANGE):
            raise UserError(
                f"rule {rule.label!r} would need a half-width of {log_hi:.3g} nats, more than an eps can express: "
                "look for log-ratios that are broken, or ask for a lower acceptance"
            )
        return replace(rule, range_lo=lo, range_hi=math.expm1(log_hi))
    upper = factor if above is None else number("above", above, 0, above=True)
    return replace(rule, range_lo=factor * rule.range_lo, range_hi=upper * rule.range_hi)


def checked_rows(
    S: Real[Array, "#*rows"], n: Real[Array, "#*rows"], A: Real[Array, "#*rows"], rate: str
) -> list[Float64[np.ndarray, "*rows"]]:
    """Return log-ratios S, lengths n and advantages A as three float64 arrays, broadcast to one shape. S may be NaN,
    and is not left out here. ``rate``, band or update, is only checked.

    Raises UserError for a ``rate`` that is neither "band" nor "update", shapes that do not broadcast, a length below 1
    or NaN, or an advantage that is not finite."""
    if rate not in get_args(Rate):
        raise unknown_name("rate", str(rate), get_args(Rate))
    arrays = [as_numbers(name, x) for name, x in (("S", S), ("n", n), ("A", A))]
    one_shape("S, n and A", *arrays)
    rows = [np.asarray(x) for x in np.broadcast_arrays(*arrays)]
    if not np.all(rows[1] >= 1):
        raise UserError("n must be >= 1: the number of summed log-ratios of each row")
    if not np.all(np.isfinite(rows[2])):
        raise UserError("A must be finite: look for rewards that are NaN")
    return rows
