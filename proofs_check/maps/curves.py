"""Tables for the figures of the theory: computed curves beside simulated points with intervals (docs/theory.md).

Four tables: acceptance by length (T1, T2), LRE by drift error (T3), the cosine of clipped and true update beside T7's
bound, and the Berry-Esseen bound of how far an acceptance is from that under Gaussian S, beside the true distance (T5).
``figures`` only draws them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from scipy.special import ndtr
from scipy.stats import binom, binomtest

from fspo import theory
from fspo.base.errors import UserError
from fspo.rules import Rule, preset
from fspo.stats.intervals import CONFIDENCE
from proofs_check.frame import generator
from proofs_check.maps.matching import matched
from proofs_check.maps.settings import SIGMA
from proofs_check.maps.tables import to_frame, write_table
from proofs_check.models import ExponentialTokens, GaussianTokens, StudentTokens, matching_means
from proofs_check.tools.balls import lre_enclosure
from proofs_check.tools.lemma_claims import STATED, Strata, Terms, sharp_strata
from proofs_check.tools.lemma_search import descend, random_strata
from proofs_check.tools.policy import PRESETS, calibrated, make_bandit, strata

Floats = theory.Floats
Row = dict[str, Any]

ACCEPTANCE = 0.85
"""The band acceptance, averaged over ``LENGTHS``, to which the range of every rule is scaled."""
LENGTHS = np.unique(np.round(np.geomspace(1, 1e5, 121)))
"""Response lengths in tokens. They are equally likely, so log length is nearly uniform."""
SIMULATED_LENGTHS = np.geomspace(1, 10**4.5, 10)
"""Lengths at which the first rule of a panel is simulated. Each further rule is simulated at lengths a tenth of a
decade longer, so that its points do not cover the others."""
LAWS = {
    "no drift error": (0.0, ("rloo", "gspo", "fspo", "power")),
    "drift -sigma^2/2": (-(SIGMA**2) / 2, ("rloo", "gspo", "fspo", "fspo-kl", "power")),
}
"""Panels of the figure of acceptance by length. A panel is given by the drift mu of S in nats per token, and the names
of its rules. fspo-kl's band is centred at the drift, all others at 0.
"""
RANGES = {"equal": (1.0, 1.0, False), "unequal": (0.5, 1.5, True)}
"""Cases of the figure of LRE by drift error (T3): lower and upper range in standard deviations of S, and whether drift
errors of both signs occur.
"""
NEAR = 0.1
"""Relative half-width of an interval around a range of `RANGES`. The table of T3 encloses LRE twice: at the range
itself, and over all ranges in that interval.
"""
TOKEN_LENGTHS = np.unique(np.round(np.geomspace(1, 4096, 37))).astype(int)
EXPONENTIAL, STUDENT = ExponentialTokens(0.0, 1.0), StudentTokens(0.0, 1.0, df=5.0)


def interval(hits: int, draws: int) -> tuple[float, float]:
    """Return the Clopper-Pearson interval of the share of ``hits`` among ``draws``."""
    found = binomtest(hits, draws).proportion_ci(CONFIDENCE, method="exact")
    return found.low, found.high


def matched_rule(name: str, mu: float, sigma: float, target: float) -> tuple[Rule, float]:
    """Return a preset's rule, its range scaled so that the band acceptance, averaged over ``LENGTHS``, is ``target``;
    and the centre of its band per token.

    S given the length L is Gaussian with mean mu L and standard deviation sigma sqrt(L).

    Raises
    ------
    UserError
        If no range gives the target.
    """
    base = preset(name).rule
    m = base.centre(matching_means(GaussianTokens(mu, sigma))) if base.needs_stats else 0.0
    found = matched(base, lambda rule: float(theory.band_acceptance(rule, LENGTHS, mu, sigma, m).mean()), target)
    if found is None:
        raise UserError(f"rule {name!r} reaches no mean acceptance of {target}: choose one in (0, 1) and a band")
    return found, m


def acceptance_laws(rng: np.random.Generator, draws: int) -> Iterator[Row]:
    """Yield rows of each rule's band acceptance at each length (T1, T2). The ranges are such that all rules have the
    same mean acceptance.

    The column kind says how it was computed: ``law`` from a formula, ``simulated`` from drawn responses.
    """
    for panel, (mu, rules) in LAWS.items():
        model = GaussianTokens(mu, SIGMA)
        for place, name in enumerate(rules):
            rule, m = matched_rule(name, mu, SIGMA, ACCEPTANCE)
            head = {"panel": panel, "mu": mu, "sigma": SIGMA, "target": ACCEPTANCE, "rule": name}
            a = theory.band_acceptance(rule, LENGTHS, mu, SIGMA, m)
            for length, value in zip(LENGTHS, a, strict=True):
                yield {**head, "kind": "law", "length": length, "acceptance": value}
            for length in np.round(SIMULATED_LENGTHS * 10 ** (0.1 * place)).tolist() if draws else ():
                S = model.sample(rng, np.full(draws, length))
                hits = int(rule.apply(S, np.full(draws, length), np.ones(draws), m).in_band.sum())
                low, high = interval(hits, draws)
                yield {
                    **head, "kind": "simulated", "length": length, "acceptance": hits / draws,
                    "ci_low": low, "ci_high": high, "draws": draws,
                }  # fmt: skip


def drift_lre(rng: np.random.Generator, draws: int) -> Iterator[Row]:
    """Yield rows of T3: how large LRE_inf can be if the drift error of every length is between 0 and x (or between -x
    and x), and T3's bounds on it.

    A row belongs to one pair of ranges (lower and upper) of `RANGES` and one x. Its column ``lre`` is the largest
    LRE_inf over all shares of the lengths. ``low`` and ``high`` enclose that number; ``near_low`` and ``near_high``
    enclose it for all ranges that differ from that pair by at most the fraction NEAR. ``one_sided`` and ``two_sided``
    are T3's bounds for drift errors of one and of both signs, empty where T3 gives none.
    """
    del rng
    count = 9 if draws < 5_000 else 25
    for case, (u_lo, u_hi, mixed) in RANGES.items():
        a_0 = float(theory.interval_probability(-u_lo, u_hi))
        near = [((1 - NEAR) * u, (1 + NEAR) * u) for u in (u_lo, u_hi)]
        for x in np.linspace(0, 1.2, count).tolist():
            least = -x if mixed else 0.0
            # u_lo and u_hi are the half-widths in standard deviations of S. Acceptance is largest at the drift error
            # (u_lo - u_hi)/2, or at the allowed drift error nearest to it. It is least at the smallest or at the
            # largest allowed one (T3).
            at = np.array([least, x, min(max((u_lo - u_hi) / 2, least), x)])
            a = theory.interval_probability(-u_lo + at, u_hi + at)
            # LRE_inf is largest if nearly all responses have the length that is accepted least.
            worst_p = np.where(np.arange(3) == np.argmin(a), 1.0, 1e-15)
            low, high = lre_enclosure(u_lo, u_hi, least, x)
            near_low, near_high = lre_enclosure(near[0], near[1], least, x, pieces=4 if draws < 5_000 else 12)
            bound = float(np.max(theory.drift_error_bound(u_lo, u_hi, at)))
            yield {
                "case": case, "u_lo": u_lo, "u_hi": u_hi, "mixed_signs": mixed, "a_0": a_0, "x": x,
                "lre": theory.lre(worst_p, a).inf, "low": low, "high": high, "near": NEAR,
                "near_low": near_low, "near_high": near_high,
                "one_sided": theory.lre_bound(bound, a_0, one_sided=True),
                "two_sided": theory.lre_bound(bound, a_0, one_sided=False),
            }  # fmt: skip


def lemma_row(source: str, case: Strata) -> Row:
    """Return one row of the table about T7: rho of the strata ``case``, and the cosine and sine of the angle between
    their clipped and true update. ``source``: how the strata were made.

    The sine is not computed from the cosine, because 1 - cosine^2 would lose digits at small angles.
    """
    lemma = case.lemma()
    sine, _ = case.sine()
    return {"source": source, "rho": lemma.rho, "cosine": lemma.cosine, "sine": sine, "guaranteed": lemma.rho < 1}


def optimised_strata(rng: np.random.Generator, rho: float, steps: int = 150) -> Strata:
    """Return strata with T7's rho near ``rho``, at which an optimiser has turned the clipped update as far from the
    true one as it can.
    """
    K, D = int(rng.integers(2, 6)), int(rng.integers(2, 9))

    def unpack(x: Any) -> tuple[Any, Any, Any, Any]:
        g, delta = np.split(x[..., 2 * K :].reshape(*x.shape[:-1], 2 * K, D), 2, axis=-2)
        return np.exp(x[..., :K]), np.exp(x[..., K : 2 * K]), g, delta

    def depth(terms: Terms) -> Any:
        log_rho = np.log(STATED.floats(terms))
        return log_rho - np.log(terms.sine + 1e-30) + 10 * (log_rho - math.log(rho)) ** 2

    start = 0.3 * rng.standard_normal(2 * K + 2 * K * D)
    start[2 * K : 2 * K + K * D] += np.tile(rng.standard_normal(D), K)
    start[2 * K + K * D :] *= 0.1
    return descend(unpack, depth, start, 15.0, {"maxiter": steps})


def tightness(rng: np.random.Generator, draws: int) -> Iterator[Row]:
    """Yield rows that show how near the cosine of clipped and true update comes to T7's bound (`lemma_row`): for random
    strata, for optimised strata, for softmax policies with their lengths as strata, and for strata that reach the bound
    (T7s).
    """
    for _ in range(min(max(draws // 10, 100), 2_000)):
        yield lemma_row("random", random_strata(rng))
    for rho in np.linspace(0.05, 0.95, min(max(draws // 1_000, 4), 19)).tolist():
        yield lemma_row("optimised", optimised_strata(rng, rho))
    for i in range(min(max(draws // 1_000, 4), 24)):
        bandit = make_bandit(rng, step=(0.02, 0.05, 0.1, 0.3)[i % 4])
        for name in PRESETS:
            p, g, clipped, a = strata(bandit, calibrated(bandit, name, (0.99, 0.95)[i % 2]))
            yield lemma_row("policy", Strata.of_gradients(p, g, clipped, a))
    for rho in [*np.geomspace(1e-4, 0.1, 7), *np.linspace(0.2, 0.9, 8), 0.99, 0.999]:
        yield lemma_row("T7s", sharp_strata(float(rho)))


def edge_errors(law: str, length: int) -> tuple[Any, Any]:
    """Return places z of a band's edge, in standard deviations of S, and F(z) - Phi(z) at each: F is the distribution
    function of S, a sum of ``length`` tokens of the law ``law``, and Phi the standard normal one.

    Where F jumps, z occurs twice: once with F's limit from the left, once with F's value.
    """
    if law == "signs":
        steps = np.arange(length + 1)
        atoms = (2.0 * steps - length) / math.sqrt(length)
        below, at = binom.cdf(steps - 1, length, 0.5), binom.cdf(steps, length, 0.5)
        return np.repeat(atoms, 2), (np.stack([below, at], axis=1) - ndtr(atoms)[:, None]).ravel()
    if law == "exponential":
        z = np.linspace(-8, 8, 1601)
        return z, EXPONENTIAL.cdf(z * math.sqrt(length), length) - ndtr(z)
    z = np.linspace(0, 4, 61)
    error = STUDENT.cdf(z * math.sqrt(length), length) - ndtr(z)
    # ``error`` is the distribution function of the standardised S less the normal one. The law of a Student-t token is
    # symmetric, so the error at -z is minus the error at z.
    return np.concatenate([-z[:0:-1], z]), np.concatenate([-error[:0:-1], error])


def worst_band(z: Floats, error: Floats) -> float:
    """Return the largest difference between a band's acceptance and what it would be under Gaussian S, over all bands
    that contain 0. ``z``, ``error``: places of an edge and the errors of the distribution function there, from
    `edge_errors`.
    """
    upper, lower = error[z >= 0], error[z <= 0]
    return float(max(upper.max() - lower.min(), lower.max() - upper.min()))


def unit_band(law: str, length: int) -> float:
    """Return the exact acceptance of a band of half-width one standard deviation of S, where S is the sum of ``length``
    tokens of the law ``law``.
    """
    root = math.sqrt(length)
    if law == "signs":
        k = np.arange(length + 1)
        # Each token log-ratio is +1 or -1, so S is a whole number and S^2 <= length is computed exactly: no S on the
        # band's edge is rounded to the outside.
        inside = (2 * k - length) ** 2 <= length
        return float(binom.pmf(k, length, 0.5)[inside].sum())
    low, high = (EXPONENTIAL if law == "exponential" else STUDENT).cdf(np.array([-root, root]), length)
    return float(high - low)


def token_sums(law: str, length: int, rng: np.random.Generator, draws: int) -> Floats:
    """Draw S of ``draws`` responses of one length, with tokens of the law ``law``, in units of a token's standard
    deviation.
    """
    if law == "signs":
        return np.asarray(2.0 * rng.binomial(length, 0.5, draws) - length, np.float64)
    return (EXPONENTIAL if law == "exponential" else STUDENT).sample(rng, np.full(draws, length))


def berry_esseen(rng: np.random.Generator, draws: int) -> Iterator[Row]:
    """Yield rows of T5 for each law of the tokens and each length: the distance of a band's acceptance from that under
    Gaussian S, and the Berry-Esseen bound of that distance.

    The column band says which band: ``worst`` the one with the largest distance, ``unit`` the one whose half-width is
    one standard deviation of S.
    """
    gauss = float(theory.interval_probability(-1.0, 1.0))
    powers = 2 ** np.arange(13)
    for law, rho3 in (("exponential", float(EXPONENTIAL.RHO3)), ("signs", 1.0), ("student", STUDENT.rho3)):
        lengths = powers if law == "student" else TOKEN_LENGTHS
        envelope = theory.berry_esseen_bound(rho3, lengths)
        for length, bound in zip(lengths.tolist(), envelope, strict=True):
            head = {"law": law, "rho3": rho3, "length": length, "envelope": bound}
            yield {**head, "band": "worst", "kind": "exact", "difference": worst_band(*edge_errors(law, length))}
            yield {**head, "band": "unit", "kind": "exact", "difference": abs(unit_band(law, length) - gauss)}
            if draws and length in powers and length <= 64:
                hits = int((np.abs(token_sums(law, length, rng, draws)) <= math.sqrt(length)).sum())
                low, high = (value - gauss for value in interval(hits, draws))
                ends = sorted((abs(low), abs(high)))
                yield {
                    **head, "band": "unit", "kind": "simulated", "difference": abs(hits / draws - gauss),
                    "ci_low": 0.0 if low <= 0 <= high else ends[0], "ci_high": ends[1], "draws": draws,
                }  # fmt: skip


TABLES: dict[str, Callable[[np.random.Generator, int], Iterator[Row]]] = {
    "acceptance_laws": acceptance_laws,
    "drift_lre": drift_lre,
    "tightness": tightness,
    "berry_esseen": berry_esseen,
}
"""Name of each table, and the function that yields its rows."""


def write(out: Path, seed: int = 0, draws: int = 20_000, progress: bool = True) -> list[Path]:
    """Compute the curves' tables and write each as ``NAME.csv`` into the folder ``out``.

    Parameters
    ----------
    out : Path
        Folder; made if missing.
    seed : int
        Root of the random streams, >= 0; each table has its own.
    draws : int
        Number of responses for each simulated point; 0 leaves these points out. Fewer than 5,000 also make the table
        drift_lre coarser (fewer drift errors, wider enclosures), and fewer than 24,000 give the table tightness fewer
        rows.

    Raises
    ------
    UserError
        For a negative number of draws or seed, or a place that cannot be written.
    """
    from tqdm import tqdm

    if draws < 0:
        raise UserError(f"draws={draws} must be >= 0; 0 leaves the simulated points out")
    if seed < 0:
        raise UserError(f"seed={seed} must be >= 0")
    written = []
    for name, rows in tqdm(TABLES.items(), desc="curves", unit="table", disable=not progress):
        frame = to_frame(name, rows(generator(seed, name, "curve"), draws))
        # Numbers are written with 17 digits, because in the table drift_lre the columns low and high, which enclose
        # one number, differ only in their last digits.
        written.append(write_table(Path(out), name, frame, digits=17))
    return written
