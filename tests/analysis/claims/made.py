"""Rows of tables with known numbers, as the claims read them."""

from analysis.claims.catalogue import Atom
from analysis.claims.evidence import verdict_of
from analysis.claims.judge import Claim
from analysis.tables.files import TABLES
from tests.analysis.rows import table

NAN = float("nan")
ATOM = Atom("atom", "an atom", "matched", "trend", "above", 0.0)
MATCHED = {"source": "matched", "target": 0.85}


def tables(**found):
    return {name: table(row, found.get(name, [])) for name, row in TABLES.items()}


def interval(value, half):
    return {"estimate": value, "ci_low": value - half, "ci_high": value + half}


def own(rule, seed=11):
    """Columns of a rule on the run that it trained."""
    key = {"run": f"{rule}-{seed}", "trained_rule": rule, "seed": seed, "rule": rule, "source": "trained"}
    return key | {"outside": "drop", "target": NAN, "subset": "all", "use": "first", "measure": "band"}


def on(log, rule, target=0.85):
    """Columns of a rule matched to a target on a log of another rule."""
    seed = int(log.rsplit("-", 1)[1])
    key = {"run": log, "trained_rule": log.rsplit("-", 1)[0], "seed": seed, "rule": rule}
    return own(rule) | key | {"source": "matched", "target": target}


def slope(value, se=0.002, clusters=1000):
    half = 1.962 * se
    return {"slope": value, "se": se, "clusters": clusters, "ci_low": value - half, "ci_high": value + half}


def training(rule, seed, final, fall=0.0, rollouts=5):
    key = {"run": f"{rule}-{seed}", "trained_rule": rule, "seed": seed}
    curve = [0.3, 0.3 - fall, final, final, final][:rollouts]
    rows = [
        {**key, "rollout": i, "step": i, "phase": "train", "name": "reward", "value": v} for i, v in enumerate(curve)
    ]
    where = {"phase": "eval", "name": "eval/reward"}
    return rows + [{**key, "rollout": i, "step": i, **where, "value": v} for i, v in enumerate([0.3, final, final])]


def claim(p_for, p_against, name="C1", status="confirmatory"):
    """A claim whose estimate is its p-value against, so that one sees which task decided."""
    ends = (p_against, p_against - 1, p_against + 1)
    verdict = verdict_of(p_for, p_against)
    details = {"power": {"sentence": f"{p_against}"}}
    return Claim(name, "what is claimed", "of what", 0.01, *ends, verdict, status, p_for, p_against, details)
