"""Claims over several tasks, the distance that the data would have shown, and the commit that claims.json names."""

import subprocess
from pathlib import Path

import pytest

from analysis.claims import judge as module
from analysis.claims.catalogue import Headline
from analysis.claims.evidence import Number, verdict_of
from analysis.claims.judge import commit, composed, evaluate_claims, judge, over_tasks
from tests.analysis.claims.made import ATOM, claim, on, slope, tables


@pytest.mark.parametrize(
    ("p_for", "p_against", "verdict", "decides"),
    [
        ((0.01, 0.02, 0.024), (0.99, 0.98, 0.97), "supported", 0.97),  # the largest p-value for it
        ((0.01, 0.02, 0.026), (0.99, 0.98, 0.97), "inconclusive", 0.97),
        ((0.01, 0.9, 0.5), (0.99, 0.0083, 0.5), "refuted", 0.0083),  # 3 x .0083 = .0249
        ((0.01, 0.9, 0.5), (0.99, 0.0084, 0.5), "inconclusive", 0.0084),  # 3 x .0084 = .0252
        ((0.9, 0.9, 0.9), (0.5, 0.4, 0.6), "inconclusive", 0.5),
    ],
)
def test_a_claim_over_three_tasks_by_hand(p_for, p_against, verdict, decides):
    each = {f"task {i}": values for i, values in enumerate(zip(p_for, p_against, strict=True))}
    tasks = {task: [claim(*values), claim(0.9, 0.9, "C2")] for task, values in each.items()}
    first, second = over_tasks(tasks)
    assert (first.verdict, first.estimate, first.p_for) == (verdict, decides, max(p_for))
    assert first.p_against == pytest.approx(min(3 * min(p_against), 1.0))
    assert (first.id, second.id, second.verdict, second.p_against) == ("C1", "C2", "inconclusive", 1.0)
    task = next(name for name, values in each.items() if values[1] == decides)
    assert first.details["decides"] == [task, "C1"]
    told = {name: found["verdict"] for name, found in first.details["atoms"].items()}
    assert told == {f"{task}: C1": verdict_of(*values) for task, values in each.items()}


def test_a_claim_that_is_exploratory_on_one_task_is_so_over_all():
    sure = [claim(0.01, 0.9)]
    assert over_tasks({"a": sure, "b": sure})[0].status == "confirmatory"
    assert over_tasks({"a": sure, "b": [claim(0.01, 0.9, status="exploratory")]})[0].status == "exploratory"


def test_the_distance_seen_is_told_in_words():
    """At 95 % a half-width is 1.960 standard errors; 1.960 + .842 of them are seen in 80 %: 1.429 .2 = .29."""
    power = judge(ATOM, Number("mean", 5.0, 4.8, 5.2, 0.5, 0.5)).details["power"]
    assert power["distance"] == pytest.approx((1.959964 + 0.841621) / 1.959964 * 0.2, rel=1e-5)
    assert power["sentence"].startswith("A true distance of 0.29 from the margin")
    for unseen in (Number("mean", reason="no row"), Number("mean", 5.0, 4.9, float("inf"), 0.5, 0.5)):
        power = judge(ATOM, unseen).details["power"]
        assert power["distance"] != power["distance"]  # NaN
        assert power["sentence"].startswith("Too little data")


def test_the_atom_that_decides_stands_in_the_details_as_in_the_prose():
    """Judged from tables, on one task and over two: what programs read, and what people read."""
    logs = {"none-41": 0.0, "none-42": 0.001, "none-43": -0.001}

    def judged(gspo=0.03):
        values = {"rloo": -0.08, "gspo": gspo, "fspo": 0.001}
        rows = [on(log, rule) | slope(x + more) for log, more in logs.items() for rule, x in values.items()]
        return evaluate_claims(tables(trend=rows))

    claims = {found.id: found for found in judged(gspo=-0.02)}
    head = claims["C1"]
    assert head.details["decides"] == "85-gspo-rises"
    assert head.estimand.startswith("of 8 atoms the one that decides, 85-gspo-rises: change of a_band ")
    assert "decides" not in claims["85-gspo-rises"].details
    assert head.details["power"] == claims["85-gspo-rises"].details["power"]
    assert head.details["power"]["distance"] > 0
    pooled = {found.id: found for found in over_tasks({"chain-add": judged(), "products": judged(gspo=-0.02)})}
    head = pooled["C1"]
    assert (head.verdict, head.details["decides"]) == ("refuted", ["products", "85-gspo-rises"])
    assert head.estimand.startswith(
        "of 2 atoms the one that decides, products: C1: of 8 atoms the one that decides, 85-gspo-rises: change of "
    )
    part = pooled["85-gspo-rises"]
    assert (part.verdict, part.details["decides"]) == ("refuted", ["products", "85-gspo-rises"])
    assert part.estimand.startswith("of 2 atoms the one that decides, products: 85-gspo-rises: change of ")
    for claims in ({found.id: found for found in judged()}, pooled):
        for found in claims.values():
            if "atoms" in found.details:
                decides = found.details["decides"]
                first, *_ = [decides] if isinstance(decides, str) else decides
                assert f"atoms the one that decides, {first}: " in found.estimand


def test_a_headline_without_a_named_atom_is_pooled_without_one():
    """As an older version wrote it."""
    old = composed(Headline("C1", "is claimed", ("a",)), {"a": claim(0.9, 0.9, "a")})
    del old.details["decides"]
    (pooled,) = over_tasks({"chain-add": [old], "products": [old]})
    assert "decides" not in pooled.details


def test_the_commit_is_that_of_the_checkout_and_marks_changed_files(tmp_path, monkeypatch):
    root = tmp_path / "checkout"
    code = root / "analysis" / "claims" / "judge.py"
    code.parent.mkdir(parents=True)
    code.write_text("first\n")
    monkeypatch.setattr(module, "__file__", str(code))
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path))
    assert commit() == "unknown"

    def git(*words: str, at: Path = root) -> str:
        options = ("-c", "user.name=a", "-c", "user.email=a@example.org")
        done = subprocess.run(["git", "-C", str(at), *options, *words], capture_output=True, text=True, check=True)
        return done.stdout.strip()

    git("init")
    git("add", ".")
    git("commit", "-m", "first")
    assert commit() == git("rev-parse", "HEAD")
    (root / "untracked").write_text("")
    assert commit() == git("rev-parse", "HEAD")
    code.write_text("second\n")
    assert commit() == git("rev-parse", "HEAD") + "+"
    inside = root / "packages" / "analysis" / "claims" / "judge.py"  # installed inside another project's checkout
    inside.parent.mkdir(parents=True)
    inside.write_text("")
    monkeypatch.setattr(module, "__file__", str(inside))
    assert commit() == "unknown"
