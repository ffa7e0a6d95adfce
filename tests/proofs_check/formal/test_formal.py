"""Coq's verdicts: false scripts are refused, what is changed is seen, no Coq is never a pass."""

import re
import shutil

import numpy as np
import pytest

from proofs_check import frame
from proofs_check.formal import checks, coq
from proofs_check.frame import Verdict

RNG = np.random.default_rng(0)
needs_coq = pytest.mark.skipif(shutil.which("coqc") is None, reason="no coqc on the PATH: install coq")


@pytest.fixture
def changed(tmp_path, monkeypatch):
    """Coq's answer on scripts of which some are changed, with a cache of its own."""
    monkeypatch.setenv("FSPO_CACHE", str(tmp_path / "cache"))

    def answer(*changes):
        for path in coq.SCRIPTS.glob("*.v"):
            shutil.copy(path, tmp_path)
        for script, pattern, new in changes:
            text, number = re.subn(pattern, new, (tmp_path / script).read_text(encoding="utf-8"), flags=re.S)
            assert number
            (tmp_path / script).write_text(text, encoding="utf-8")
        return coq.printed(tmp_path)

    return answer


@needs_coq
@pytest.mark.parametrize("check", checks.CHECKS, ids=lambda check: check.name)
def test_check_passes_and_near_misses_are_refuted(check):
    (row,) = frame.assemble([check], [frame.run_one(0, check, 5)])
    assert row.verdict is Verdict.PASS, row.note
    assert set(row.near_misses.values()) == {Verdict.FAIL}, row.near_misses


def test_the_reviewed_statements_are_of_all_theorems_and_rest_on_coqs_reals_alone():
    known = coq.reviewed()
    assert list(known) == [*coq.theorems(coq.scripts()), coq.DEFINITIONS, coq.AXIOMS]
    assert set(re.findall(r"([A-Z]\w*\.\w+) :", known[coq.AXIOMS])) == {
        "ClassicalDedekindReals.sig_forall_dec",
        "ClassicalDedekindReals.sig_not_dec",
        "FunctionalExtensionality.functional_extensionality_dep",
    }


def test_every_check_asks_for_theorems_and_every_negation_is_a_near_miss():
    known = coq.reviewed()
    asked = {name for check in checks.CHECKS for name in check.run.keywords["theorems"]}
    near_misses = [run for check in checks.CHECKS for run in check.near_misses.values()]
    refuted = {name for run in near_misses for name in run.keywords["theorems"]}
    assert asked <= set(known)
    assert refuted == {name for name in known if name.endswith("_is_false")}
    assert all(re.search(r"(^|-> )~ \(forall", known[name].split(" : ", 1)[1]) for name in refuted)


@needs_coq
def test_a_false_statement_is_refused_with_coqs_first_error(changed):
    with pytest.raises(coq.CoqRefused, match=r"CosineLemma.v: .*Error"):
        changed(("CosineLemma.v", r"1 - rho \* rho", "1 - rho * rho / 4"))


@needs_coq
def test_a_changed_statement_a_goal_given_up_and_a_changed_definition_are_seen(changed):
    """The rate of the second of two strata is written otherwise: no statement changes by it, the definition does."""
    equivalence = r"<-> (forall s, In s strata -> 0 < p s -> a s = a_bar strata)\.\nProof\..*?Qed\."
    found = changed(
        ("Fairness.v", equivalence, r"-> \1.\nProof. Admitted."),
        ("Sharp.v", r"\(1 - eps\) \(u -v v\) \]", "(1 + - eps) (u -v v) ]"),
    )
    known = coq.reviewed()
    differ = {name for name in known if found[name] != known[name]}
    assert differ == {"LRE_inf_zero_iff", coq.DEFINITIONS, coq.AXIOMS}
    assert "LRE_inf_zero_iff" in found[coq.AXIOMS]


def test_a_statement_that_is_not_as_reviewed_fails(monkeypatch):
    known = coq.reviewed()
    monkeypatch.setattr(checks, "printed", lambda: known | {"T8_identity": "T8_identity : True"})
    outcome = checks.proved(RNG, ["T8_e_len_plain", "T8_identity"])
    assert outcome.margin == -1
    assert "T8_identity" in outcome.note
    assert checks.proved(RNG, ["T8_e_len_plain"]).margin == 0
    without = {name: text for name, text in known.items() if not name.endswith("_is_false")}
    monkeypatch.setattr(checks, "printed", lambda: without)
    assert frame.judge(checks.proved(RNG, ["T8_without_e_in_is_false"], refuted=True)) is Verdict.PASS


def test_without_coq_the_verdict_is_not_run(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    check = checks.CHECKS[0]
    (row,) = frame.assemble([check], [frame.run_one(0, check, 0)])
    assert row.verdict is Verdict.NOT_RUN
    assert set(row.near_misses.values()) == {Verdict.NOT_RUN}
    assert "install coq" in row.note
    assert frame.exit_status([row], strict=True) == 1
