"""The clip: which rows it clips, at which edge, and what is left of their weights (docs/theory.md section 2).

No other code decides what is clipped. The trainer and the evaluation of a log's rows call ``Clip.apply``. Sums over a
complete log use ``Clip.excess`` to find the rows that a band may clip, and call ``Clip.side`` and ``Clip.edge_weight``
for these alone. The same code computes with numpy arrays and with torch tensors."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

from array_api_compat import array_namespace
from jaxtyping import Bool, Float, Int8, Real

from fspo.base.errors import UserError

Array = Any  # stands for a numpy array or a torch tensor in annotations
Outside = Literal["drop", "truncate", "cap", "mask"]
Weight = Literal["sequence", "geometric", "none"]


class Way(NamedTuple):
    """One way to treat what lies outside a band.

    ``cuts`` says which responses are clipped: "active" (A > 0: above the band; A < 0: below it), "above" (whatever the
    sign of A), or "both" (above or below, whatever the sign of A). A response that is clipped loses its weight if
    ``zeroes``; else it keeps the weight of the edge. ``clips`` and ``corrects`` say whether tables and figures show
    what each clip rule, or each correction of the mismatch, would do if it treated the outside in this way."""

    cuts: Literal["active", "above", "both"]
    zeroes: bool
    clips: bool
    corrects: bool


WAYS: dict[Outside, Way] = {
    "drop": Way("active", zeroes=True, clips=True, corrects=False),
    "truncate": Way("active", zeroes=False, clips=True, corrects=False),
    "mask": Way("both", zeroes=True, clips=False, corrects=True),
    "cap": Way("above", zeroes=False, clips=True, corrects=True),
}
"""The values of `Clip.outside`."""
ZEROING = tuple(name for name, way in WAYS.items() if way.zeroes)
"""Values of `Clip.outside` with which a response that is clipped loses all its weight.

With the other values a response that is clipped keeps the weight of the edge."""
OF_CLIP_RULES = tuple(name for name, way in WAYS.items() if way.clips)
"""Values of `Clip.outside` with which tables and figures evaluate each clip rule."""
OF_CORRECTIONS = tuple(name for name, way in WAYS.items() if way.corrects)
"""Values of `Clip.outside` with which tables and figures evaluate each correction of the mismatch."""

MAX_EXPONENT = 20.0
"""Largest exponent of an importance weight: a larger one is replaced by it before ``exp`` (docs/theory.md section 2).

A response whose exponent is replaced keeps its gradient. Logs and metrics count such responses."""
# Limit on |log M| of the multiplier M that is reported, because exp(80) is finite in float32. The limit does not change
# the gradient, which uses `clipped_weight`, computed without M.
_MAX_LOG_MULTIPLIER = 80.0


def capped(exponent: Float[Array, "*rows"]) -> Float[Array, "*rows"]:
    """Return the exponent of an importance weight, or 20 (MAX_EXPONENT) where it is larger; NaN stays NaN."""
    xp = array_namespace(exponent)
    return xp.where(exponent > MAX_EXPONENT, xp.full_like(exponent, MAX_EXPONENT), exponent)


def importance_weight(exponent: Float[Array, "*rows"]) -> Float[Array, "*rows"]:
    """Return the importance weight ``exp(min(exponent, 20))``; the exponent is a log-ratio, nats."""
    return array_namespace(exponent).exp(capped(exponent))


def token_k3(log_ratio: Float[Array, "*rows"]) -> Float[Array, "*rows"]:
    """Return ``exp(s) - 1 - s`` of each token log-ratio s: the k3 estimate of KL(old||new), nats.

    In exp(s) an s above 20 is replaced by 20."""
    return array_namespace(log_ratio).expm1(capped(log_ratio)) - log_ratio


def exponent(S: Float[Array, "*rows"], n: Real[Array, "#*rows"], weight: Weight) -> Float[Array, "*rows"]:
    """Return the exponent of a rule's importance weight: S; S/n if ``weight`` is "geometric"; 0 if it is "none"."""
    if weight == "none":
        return array_namespace(S).zeros_like(S)
    return S / n if weight == "geometric" else S


class Edges(NamedTuple):
    """The edges ``lo`` and ``hi`` and the centre m_L of a band on S: arrays of the shape of S, nats."""

    lo: Float[Array, "*rows"]
    hi: Float[Array, "*rows"]
    centre: Float[Array, "*rows"]  # m_L, the centre of the band


class Applied(NamedTuple):
    """What a rule does to each response (or token): arrays of the shape of S.

    ``side`` is -1 for a response clipped at the lower edge, 0 for one not clipped, 1 at the upper edge, 2 at that of
    the dual clip. ``multiplier`` is M and ``weight`` the importance weight w. ``clipped_weight`` is M w, which
    multiplies ``A * psi`` in the gradient; made without M, it is exact even where log M is held within +-80.
    ``edge_weight`` is the importance weight at the edge that clips the response, or ``weight`` if none does;
    ``edge_weight * A`` is the response's value in the objective. ``lo`` and ``hi`` are the edges, nats, ``in_band``
    says whether lo <= S <= hi, and ``capped`` whether the exponent of the weight exceeded 20."""

    # int8: -1 clipped at the lower edge, 0 not clipped, 1 at the upper edge, 2 at the edge of the dual clip
    side: Int8[Array, "*rows"]
    multiplier: Float[Array, "*rows"]  # M >= 0; a rule that truncates or caps holds log M within +-80
    weight: Float[Array, "*rows"]  # w = exp(S) or exp(S/n), exponent capped at MAX_EXPONENT
    clipped_weight: Float[Array, "*rows"]
    edge_weight: Float[Array, "*rows"]
    in_band: Bool[Array, "*rows"]  # bool: whether lo <= S <= hi
    lo: Float[Array, "*rows"]
    hi: Float[Array, "*rows"]
    capped: Bool[Array, "*rows"]  # bool: whether the exponent of the weight exceeds MAX_EXPONENT


class Clip(NamedTuple):
    """Decides which rows a rule clips, given the edges of its band, and what weight is left to a row that is clipped.

    ============ ==================================================================== ===========================
    ``outside``  rows that are clipped                                                weight of a clipped row
    ============ ==================================================================== ===========================
    drop         A > 0: above the band; A < 0: below it, or above the dual edge       0 (as by the min in PPO)
    truncate     the rows that "drop" clips                                           the weight at the edge
    cap          above the band, whatever the sign of A                               the weight at the edge
    mask         above or below the band, whatever the sign of A                      0
    ============ ==================================================================== ===========================

    A row is a response, or a token under a rule by tokens. A row with A = 0 is never clipped, because it has no
    gradient under any rule; nor is a row whose S is NaN.

    Attributes
    ----------
    outside : {"drop", "truncate", "cap", "mask"}, as in the table
    dual : float, optional
        d > 1: a row with A < 0 is also clipped above the dual edge ``m_L + d (hi - m_L)``, m_L the centre of the band.
    weight : {"sequence", "geometric", "none"}
        The importance weight: exp(S), exp(S/n) with n the number of tokens, or 1.
    """

    outside: Outside
    dual: float | None
    weight: Weight

    def check(self, label: str) -> None:
        """Raise UserError, begun with ``label``, if ``dual`` <= 1, or if the fields contradict each other: a dual clip
        beside ``outside`` "cap" or "mask", or ``weight`` "none" with ``outside`` "truncate" or "cap"."""
        if self.dual is not None and not self.dual > 1:
            raise UserError(f"{label}: dual={self.dual} must be > 1; common values are 2 to 10")
        if self.dual is not None and self.outside == "cap":
            raise UserError(f"{label}: 'cap' already bounds A < 0; drop the dual clip or use 'truncate'")
        if self.dual is not None and self.outside == "mask":
            raise UserError(f"{label}: 'mask' already clips A < 0 above the band; drop the dual clip")
        if self.weight == "none" and not self.zeroes:
            raise UserError(f"{label}: {self.outside!r} holds a weight, and weight is 'none'; use 'mask'")

    def side(self, S: Float[Array, "*rows"], A: Float[Array, "*rows"], edges: Edges) -> Int8[Array, "*rows"]:
        """Return which edge of the band clips each response with log-ratio S, nats, and advantage A: int8, -1 lower, +1
        upper, 2 dual edge, 0 none."""
        xp = array_namespace(S)
        above = edges.hi < S
        if WAYS[self.outside].cuts == "above":
            return xp.astype(above & (A != 0), xp.int8)
        if WAYS[self.outside].cuts == "both":
            return xp.astype(above & (A != 0), xp.int8) - xp.astype((edges.lo > S) & (A != 0), xp.int8)
        side = xp.astype(above & (A > 0), xp.int8) - xp.astype((edges.lo > S) & (A < 0), xp.int8)
        if self.dual is not None:
            side = side + 2 * xp.astype((self._dual_edge(edges) < S) & (A < 0), xp.int8)
        return side

    def edge(self, S: Float[Array, "*rows"], side: Int8[Array, "*rows"], edges: Edges) -> Float[Array, "*rows"]:
        """Return the edge that clips each response, nats; for a response that is not clipped (``side`` 0), its S."""
        xp = array_namespace(S)
        edge = xp.where(side == 1, edges.hi, xp.where(side == -1, edges.lo, S))
        return edge if self.dual is None else xp.where(side == 2, self._dual_edge(edges), edge)

    def edge_weight(
        self, S: Float[Array, "*rows"], n: Float[Array, "*rows"], side: Int8[Array, "*rows"], edges: Edges
    ) -> Float[Array, "*rows"]:
        """Return the importance weight at the edge that clips each response (``side``, from the method `side`), or the
        response's own weight, from its log-ratio S, nats, over n tokens, if no edge clips it."""
        return importance_weight(exponent(self.edge(S, side, edges), n, self.weight))

    def clipped_weight(self, side: Int8[Array, "*rows"], edge_weight: Float[Array, "*rows"]) -> Float[Array, "*rows"]:
        """Return M w, the weight left to each response. It is ``edge_weight`` (from the method `edge_weight`: w itself
        where ``side`` is 0), but 0 for a clipped response if the rule `zeroes`."""
        xp = array_namespace(edge_weight)
        return xp.where(side != 0, xp.zeros_like(edge_weight), edge_weight) if self.zeroes else edge_weight

    def excess(
        self, over: Float[Array, "*rows"], under: Float[Array, "*rows"], A: Float[Array, "*rows"]
    ) -> Float[Array, "*rows"]:
        """Return each response's excess: the smallest factor on both half-widths at which the response is not clipped.

        A band whose half-widths are multiplied by f clips the response if and only if f is below the excess.

        Parameters
        ----------
        over, under : arrays (N,)
            Factors at which S lies on the upper and on the lower edge: ``(S - m_L) / above``, ``(m_L - S) / below``,
            with ``above`` and ``below`` the half-widths on either side of the centre m_L.
        A : array (N,)
            Advantages other than 0.
        """
        xp = array_namespace(over)
        if WAYS[self.outside].cuts == "above":
            return over
        if WAYS[self.outside].cuts == "both":
            return xp.maximum(over, under)
        negative = under if self.dual is None else xp.maximum(under, over / self.dual)
        return xp.where(A > 0, over, negative)

    def apply(
        self, S: Float[Array, "*rows"], n: Float[Array, "*rows"], A: Float[Array, "*rows"], edges: Edges
    ) -> Applied:
        """Clip responses (or tokens) with log-ratios S, nats, over n tokens and advantages A at the ``edges`` of their
        bands; all arrays have one shape. Return what the rule did to each: sides, multipliers, weights, edges."""
        xp = array_namespace(S)
        side = self.side(S, A, edges)
        own, at_edge = (exponent(x, n, self.weight) for x in (S, self.edge(S, side, edges)))
        weight, edge_weight = importance_weight(own), importance_weight(at_edge)
        if self.zeroes:
            multiplier = xp.astype(side == 0, S.dtype)
        else:
            log_multiplier = xp.clip(capped(at_edge) - capped(own), -_MAX_LOG_MULTIPLIER, _MAX_LOG_MULTIPLIER)
            multiplier = xp.where(side != 0, xp.exp(log_multiplier), xp.ones_like(weight))
        return Applied(
            side,
            multiplier,
            weight,
            self.clipped_weight(side, edge_weight),
            edge_weight,
            in_band=(edges.lo <= S) & (edges.hi >= S),
            lo=edges.lo,
            hi=edges.hi,
            capped=own > MAX_EXPONENT,
        )

    @property
    def zeroes(self) -> bool:
        """Whether a response that is clipped loses all its weight. If not, it keeps the weight of the edge."""
        return WAYS[self.outside].zeroes

    def _dual_edge(self, edges: Edges) -> Float[Array, "*rows"]:
        assert self.dual is not None
        return edges.centre + self.dual * (edges.hi - edges.centre)
