"""T7 and T8: the cosine lemma and its identity, attacked, at its sharp case and on an exact policy (section 5)."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np

from fspo import theory
from fspo.rules import Rule, calibrate, preset
from proofs_check.compare import close, holds, mean_is, worst
from proofs_check.frame import Check, Method, Outcome
from proofs_check.policy import Bandit, make_bandit, scores, strata

RULES = ("rloo", "gspo", "fspo", "fspo-kl", "fspo-tilted", "power")


@dataclass(frozen=True)
class Strata:
    """Inputs of the lemma: shares (K,), normalisers (K,), g_l and delta_l (K, D)."""

    p: np.ndarray
    a: np.ndarray
    g: np.ndarray
    delta: np.ndarray

    def lemma(self) -> theory.CosineLemma:
        """The suite's own T7 and T8."""
        return theory.cosine_lemma(self.p, self.a, self.g, self.a[:, None] * (self.g + self.delta))

    def sine(self) -> tuple[float, bool]:
        """Sine of the angle between g and g_clip, from the component of g_clip across g, and whether cos > 0.

        Independent of ``fspo.theory``, and exact for small angles where a cosine is all rounding.
        """
        g = self.p @ self.g
        clipped = (self.p * self.a) @ (self.g + self.delta)
        along = float(g @ clipped) / float(g @ g)
        return float(np.linalg.norm(clipped - along * g) / np.linalg.norm(clipped)), along > 0


Rho = Callable[[theory.CosineLemma], float]


def stated_rho(lemma: theory.CosineLemma) -> float:
    """The bound's own rho, read back from the bound: cos >= sqrt(1 - rho^2) says sin <= rho."""
    if lemma.bound is None:
        return math.inf
    # asin-free inverse of the bound; rho itself where the two agree to rounding
    implied = math.sqrt(max(0.0, (1 - lemma.bound) * (1 + lemma.bound)))
    return lemma.rho if abs(implied - lemma.rho) < 1e-7 else implied


def shrunk_rho(lemma: theory.CosineLemma, factor: float = 0.95) -> float:
    """A wrong constant (a control)."""
    return factor * lemma.rho


def rho_without_kappa(lemma: theory.CosineLemma) -> float:
    """LRE without the kappa factor (a control)."""
    return lemma.lre.inf + lemma.eta


def rho_without_eta(lemma: theory.CosineLemma) -> float:
    """Length reweighting alone (a control)."""
    return lemma.rho - lemma.eta


def random_strata(rng: np.random.Generator) -> Strata:
    """Dimension 1 to 64, 2 to 40 strata, shares and acceptances over many decades, delta from none to large."""
    K, D = int(rng.integers(2, 41)), int(2 ** rng.integers(0, 7))
    p = rng.dirichlet(np.full(K, 10 ** rng.uniform(-1.5, 1)))
    p = np.maximum(p, 1e-12) / np.maximum(p, 1e-12).sum()
    spread = 10 ** rng.uniform(-3, 0)
    a = np.exp(spread * rng.standard_normal(K))
    centre = rng.standard_normal(D)
    g = centre + 10 ** rng.uniform(-2, 1) * rng.standard_normal((K, D))
    delta = 10 ** rng.uniform(-4, 0.5) * rng.standard_normal((K, D)) * (rng.random() < 0.7)
    return Strata(p, a, g, delta)


def from_gradients(p: np.ndarray, g: np.ndarray, clipped: np.ndarray, a: np.ndarray) -> Strata:
    """Strata with delta_l worked out here; a stratum with a(l) = 0 adds nothing, so its delta is set to 0."""
    positive = (a > 0)[:, None]
    return Strata(p, a, g, np.where(positive, clipped / np.where(positive, a[:, None], 1.0) - g, 0.0))


def slack(strata_: Strata, rho: Rho) -> float | None:
    """(rho - sin)/rho, or -1 where the claim is false at once, or None where nothing (checkable) is promised."""
    lemma = strata_.lemma()
    stated = rho(lemma)
    if stated >= 1:
        return None
    sine, forward = strata_.sine()
    if stated < 1e-9:  # nothing clipped: the two directions must agree to rounding, a relative slack says nothing
        return None if forward and sine < 1e-7 else -1.0
    return (stated - sine) / stated if forward else -1.0


def random_search(rng: np.random.Generator, rho: Rho = stated_rho, cases: int = 2_500) -> Outcome:
    """No random strata with rho < 1 have a sine above rho."""
    slacks, residuals = [], []
    for _ in range(cases):
        case = random_strata(rng)
        residuals.append(case.lemma().identity_residual)
        found = slack(case, rho)
        if found is not None:
            slacks.append(found)
    if len(slacks) < cases / 20:
        return Outcome(note=f"only {len(slacks)} of {cases} cases have rho < 1")
    note = f"{len(slacks)} of {cases} cases with rho < 1"
    return holds(slacks, "(rho - sin)/rho", rounding=1e-7, note=note, max_identity_residual=max(residuals))


def _unpack(x: np.ndarray, K: int, D: int, with_delta: bool) -> Strata:
    p = np.exp(x[:K] - x[:K].max())
    a = np.exp(np.clip(x[K : 2 * K], -6, 6))
    g = x[2 * K : 2 * K + K * D].reshape(K, D)
    delta = x[2 * K + K * D :].reshape(K, D) if with_delta else np.zeros((K, D))
    return Strata(p / p.sum(), a, g, delta)


def attack(rng: np.random.Generator, rho: Rho = stated_rho, starts: int = 8) -> Outcome:
    """An optimiser pushes sin/rho up from random starts, in 2 to 5 strata and dimensions 1 to 6; 1 is the limit."""
    from scipy.optimize import minimize

    least, reached = math.inf, 0
    for start in range(starts):
        K, D, with_delta = int(rng.integers(2, 6)), int(rng.integers(1, 7)), bool(start % 2)
        x0 = 0.5 * rng.standard_normal(2 * K + K * D * (1 + with_delta))
        x0[2 * K : 2 * K + K * D] += 1.0

        def objective(x: np.ndarray, K=K, D=D, with_delta=with_delta) -> float:
            case = _unpack(x, K, D, with_delta)
            if np.linalg.norm(case.p @ case.g) < 1e-6:
                return 1.0
            lemma = case.lemma()
            value = rho(lemma)
            # where nothing is promised, lead the search back to rho < 1
            return min(value, 10.0) if value >= 0.999 else (slack(case, rho) or 0.0)

        result = minimize(objective, x0, method="L-BFGS-B", options={"maxiter": 60, "maxfun": 2_000})
        case = _unpack(result.x, K, D, with_delta)
        found = slack(case, rho) if np.linalg.norm(case.p @ case.g) >= 1e-6 else None
        if found is not None:
            reached += 1
            least = min(least, found)
    if reached < starts / 2:
        return Outcome(note=f"only {reached} of {starts} starts reached rho < 1")
    note = f"smallest slack {least:.1e} from {reached} starts"
    return holds(least, "(rho - sin)/rho", rounding=1e-7, note=note, starts=starts)


def sharp_case(rng: np.random.Generator, orthogonal: bool = True) -> Outcome:
    """T7s: two strata that reach the bound to machine precision, for rho from 1e-5 to .999."""
    gaps = []
    for rho in np.concatenate([10.0 ** np.arange(-5, 0), [0.2, 0.5, 0.9, 0.99, 0.999]]):
        eps = min(0.9, 10 ** rng.uniform(-2, -0.1))
        # e = e_len = -eps v (up to sign) has norm rho ||g|| and is orthogonal to g + eps v = g + e
        reach = float(rho)
        e = np.array([-reach * reach, reach * math.sqrt((1 - reach) * (1 + reach))])
        if not orthogonal:
            e = np.array([0.0, reach])
        g = np.array([1.0, 0.0])
        v = e / eps
        case = Strata(np.array([0.5, 0.5]), np.array([1 + eps, 1 - eps]), np.stack([g + v, g - v]), np.zeros((2, 2)))
        lemma = case.lemma()
        bound = math.sqrt((1 - reach) * (1 + reach))
        if lemma.bound is None:
            return Outcome(-1.0, "decades", note=f"no bound at rho = {rho}")
        sine, _ = case.sine()
        gaps += [close(sine, lemma.rho, 1e-8), close(lemma.cosine, lemma.bound, 1e-9), close(lemma.bound, bound, 1e-9)]
    return worst(*gaps, note="sin = rho and cos = sqrt(1 - rho^2) at rho = 1e-5 ... .999")


def identity(rng: np.random.Generator, drop_inner: bool = False) -> Outcome:
    """T8 written out with numpy.longdouble: g_clip/a_bar = g + sum p r (g_l - g) + sum p a/a_bar delta_l."""
    errors = []
    for _ in range(400):
        case = random_strata(rng)
        p, a, g, delta = (np.asarray(x, np.longdouble) for x in (case.p, case.a, case.g, case.delta))
        p = p / p.sum()
        a_bar = p @ a
        left = (p * a) @ (g + delta) / a_bar
        lemma = case.lemma()
        right = p @ g + lemma.e_len + (0.0 if drop_inner else lemma.e_in)
        size = np.abs(left).max() + np.abs(lemma.e_len).max() + np.abs(lemma.e_in).max()
        errors.append(float(np.abs(left - right).max() / size))
    return Outcome(math.log10(1e-12 / max(*errors, 1e-17)), "decades", note=f"max relative error {max(errors):.1e}")


def _rules(bandit: Bandit, target: float) -> list[Rule]:
    S, n = bandit.log_ratios.sum(axis=1), bandit.responses.lengths.astype(np.float64)
    found = []
    for name in RULES:
        base = calibrate(preset(name).rule, S, n, bandit.advantages, target, bandit.drift_stats())
        for outside in ("drop", "truncate", "cap"):
            found.append(Rule(**{**base.to_dict(), "outside": outside}))
    return found


def exact_policy(rng: np.random.Generator, rho: Rho = stated_rho, policies: int = 6) -> Outcome:
    """T7 and T8 by enumeration of all responses of a softmax policy with its real scores: all rules."""
    slacks, residuals, promised, total = [], [], 0, 0
    for i in range(policies):
        bandit = make_bandit(rng, step=(0.02, 0.1, 0.3)[i % 3])
        for rule in _rules(bandit, (0.99, 0.95, 0.85)[i % 3]):
            p, g, clipped, a = strata(bandit, rule)
            lemma = theory.cosine_lemma(p, a, g, clipped)
            residuals.append(lemma.identity_residual)
            found = slack(from_gradients(p, g, clipped, a), rho)
            total += 1
            if found is not None:
                promised += 1
                slacks.append(found)
    note = f"{promised} of {total} policies x rules with rho < 1; identity residual {max(residuals):.0e}"
    if promised < 5:
        return Outcome(note=note)
    if max(residuals) > 1e-12:
        return Outcome(-max(residuals), "identity residual", note=note)
    return holds(slacks, "(rho - sin)/rho", rounding=1e-7, note=note)


def true_update(rng: np.random.Generator, weighted: bool = True) -> Outcome:
    """sum_l p g_l, enumerated, is the gradient of E_new[A]: central differences of the objective itself."""
    bandit = make_bandit(rng, vocabulary=2, max_length=4)
    unclipped = preset("none").rule
    p, g, _, _ = strata(bandit, unclipped)
    total = p @ g
    if not weighted:
        psi = scores(bandit.new, bandit.responses)
        total = (bandit.p_old * bandit.advantages) @ psi
    h, numeric = 1e-5, np.zeros(bandit.new.size)
    for i in range(numeric.size):
        step = np.zeros(bandit.new.size)
        step[i] = h
        step = step.reshape(bandit.new.shape)
        numeric[i] = (bandit.expected_advantage(bandit.new + step) - bandit.expected_advantage(bandit.new - step)) / (
            2 * h
        )
    error = float(np.linalg.norm(total - numeric) / np.linalg.norm(numeric))
    return Outcome(math.log10(1e-7 / error), "decades", note=f"relative error {error:.1e}")


def live_log(rng: np.random.Generator, rho: Rho = stated_rho, logs: int = 8, draws: int = 4_000) -> Outcome:
    """The live form: T7 and T8 for the empirical measure of responses drawn from the old policy."""
    slacks, residuals, total = [], [], 0
    for i in range(logs):
        bandit = make_bandit(rng, step=(0.02, 0.1)[i % 2])
        rows = rng.choice(bandit.p_old.size, draws, p=bandit.p_old / bandit.p_old.sum())
        for rule in _rules(bandit, 0.95):
            p, g, clipped, a = strata(bandit, rule, rows)
            residuals.append(theory.cosine_lemma(p, a, g, clipped).identity_residual)
            found = slack(from_gradients(p, g, clipped, a), rho)
            total += 1
            if found is not None:
                slacks.append(found)
    note = f"{len(slacks)} of {total} logs x rules with rho < 1; identity residual {max(residuals):.0e}"
    if len(slacks) < 5:
        return Outcome(note=note)
    if max(residuals) > 1e-12:
        return Outcome(-max(residuals), "identity residual", note=note)
    return holds(slacks, "(rho - sin)/rho", rounding=1e-7, note=note)


def sampled_update(rng: np.random.Generator, keep_weight: bool = True, draws: int = 200_000) -> Outcome:
    """Drawn responses clipped by the rule average to g_clip, enumerated from section 2's own words (8 directions)."""
    bandit = make_bandit(rng, max_length=5, step=0.1)
    rule = _rules(bandit, 0.9)[RULES.index("fspo-kl") * 3]
    directions = rng.standard_normal((bandit.new.size, 8))
    rows = rng.choice(bandit.p_old.size, draws, p=bandit.p_old / bandit.p_old.sum())
    S, n = bandit.log_ratios.sum(axis=1), bandit.responses.lengths.astype(np.float64)
    applied = rule.apply(S, n, bandit.advantages, bandit.drift_stats())
    projected = scores(bandit.new, bandit.responses) @ directions
    weight = applied.clipped_weight if keep_weight else applied.multiplier
    terms = (weight * bandit.advantages)[:, None] * projected
    # drop by its definition: cut where A > 0 and S > hi, or A < 0 and S < lo, with the band written out
    drift = -bandit.drift_stats().k3 * n
    above, below = drift + rule.range_hi * np.sqrt(n) < S, drift - rule.range_lo * np.sqrt(n) > S
    kept = ~((bandit.advantages > 0) & above | (bandit.advantages < 0) & below)
    exact = (bandit.p_old * kept * np.exp(S) * bandit.advantages) @ projected
    return mean_is(terms[rows], exact, wanted=0.1, draws=draws)


CHECKS = (
    Check(
        "T7",
        Method.ATTACKED,
        "random strata, dimension 1 to 64",
        random_search,
        {
            "LRE without kappa": partial(random_search, rho=rho_without_kappa),
            "eta left out": partial(random_search, rho=rho_without_eta),
        },
    ),
    Check(
        "T7",
        Method.ATTACKED,
        "optimiser maximises sin/rho",
        attack,
        {"rho x .95": partial(attack, rho=shrunk_rho), "LRE without kappa": partial(attack, rho=rho_without_kappa)},
    ),
    Check(
        "T7",
        Method.CLOSED,
        "sharp case T7s to machine precision",
        sharp_case,
        {"e orthogonal to g instead of g + e": partial(sharp_case, orthogonal=False)},
    ),
    Check(
        "T7",
        Method.ENUMERATED,
        "softmax policy, real scores: rules x drop, truncate, cap",
        exact_policy,
        {"LRE without kappa and eta": partial(exact_policy, rho=lambda lemma: lemma.lre.inf)},
    ),
    Check(
        "T7",
        Method.SIMULATED,
        "live form on sampled logs (empirical measure)",
        live_log,
        {"LRE without kappa and eta": partial(live_log, rho=lambda lemma: lemma.lre.inf)},
    ),
    Check(
        "T7",
        Method.SIMULATED,
        "sampled clipped update has mean g_clip",
        sampled_update,
        {"weight w left out": partial(sampled_update, keep_weight=False)},
    ),
    Check(
        "T8",
        Method.CLOSED,
        "g_clip/a_bar = g + e_len + e_in on random strata",
        identity,
        {"e_in left out": partial(identity, drop_inner=True)},
    ),
    Check(
        "T8",
        Method.ENUMERATED,
        "g is the gradient of E_new[A]",
        true_update,
        {"weight w left out": partial(true_update, weighted=False)},
    ),
)
