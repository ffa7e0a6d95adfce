"""Coq's verdicts are real: false scripts are refused, given-up goals are found, and no Coq is never a pass."""

import math
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from proofs_check import frame
from proofs_check.formal import checks, coq, library
from proofs_check.formal.coq import Coq, CoqMissing
from proofs_check.formal.library import Proved, Refused
from proofs_check.frame import Method, Verdict

RNG = np.random.default_rng(0)


@pytest.fixture(scope="module")
def prover():
    """A working Coq; tests that need one are skipped with the reason where it cannot be had."""
    try:
        return coq.find_coq()
    except CoqMissing as reason:
        pytest.skip(str(reason))


@pytest.fixture(scope="module")
def compiled(prover):
    folder = library.compiled(prover)
    assert isinstance(folder, Path), folder
    return folder


def compile_text(prover, folder, text, needs):
    (folder / "Mine.v").write_text(text, encoding="utf-8")
    return coq.run_coqc(prover, folder, "Mine", needs)


@pytest.mark.parametrize("check", checks.CHECKS, ids=lambda check: check.key)
def test_check_passes_and_controls_are_refused(prover, check):
    (row,) = frame.assemble([check], [frame.run_one(0, check, 5)])
    assert row.verdict is Verdict.PASS, row.note
    assert set(row.controls.values()) == {"fail"}, row.controls
    assert row.method == Method.MACHINE_PROVED
    for theorem in row.parameters["theorems"]:
        assert re.search(rf"^@?{theorem}\n     : \S", row.details, re.M)
    assert "Axioms: " in row.details


def test_a_true_and_a_false_script(prover, compiled, tmp_path):
    head = "From Coq Require Import Reals Lra.\nOpen Scope R_scope.\n"
    good = compile_text(prover, tmp_path, head + "Lemma x (a : R) : a <= a.\nProof. lra. Qed.\n", compiled)
    assert good.ok
    bad = compile_text(prover, tmp_path, head + "Lemma x (a : R) : a < a.\nProof.\n  lra.\nQed.\n", compiled)
    assert not bad.ok
    assert bad.error_line == 5
    assert "Error" in bad.first_error


def test_statements_say_what_the_page_says(prover, compiled, tmp_path):
    """The compiled theorem is applied to the page's own words, written again here: a weaker one would not fit."""
    script = """From Coq Require Import Reals List.
From FSPO Require Import Sums InnerProduct CosineLemma Strata Space Sharp.
Open Scope R_scope.
Goal forall (V : InnerProductSpace) (l : list (stratum V)),
  (forall s, In s l -> 0 <= p s) -> sum p l = 1 -> (forall s, In s l -> 0 <= a s) ->
  0 < sum (fun s => p s * a s) l -> (forall s, In s l -> a s = 0 -> clipped s = zero) ->
  let abar := sum (fun s => p s * a s) l in
  let rel := fun s => a s / abar - 1 in
  let u := vsum (fun s => p s *v g s) l in
  u <> zero ->
  let top := fold_right (fun s m => if Rlt_dec 0 (p s) then Rmax (Rabs (rel s)) m else m) 0 l in
  let two := sqrt (sum (fun s => p s * (rel s * rel s)) l) in
  let k := sum (fun s => p s * norm (g s)) l / norm u in
  let kc := sum (fun s => p s * norm (g s -v u)) l / norm u in
  let kc2 := sqrt (sum (fun s => p s * (norm (g s -v u) * norm (g s -v u))) l) / norm u in
  let eta := sum (fun s => p s * (a s / abar) * norm (delta s)) l / norm u in
  let rho := Rmin (Rmin (top * k) (top * kc)) (two * kc2) + eta in
  rho < 1 ->
  let c := vsum (fun s => p s *v clipped s) l in
  sqrt (1 - rho * rho) <= <| c, u |> / (sqrt <| c, c |> * sqrt <| u, u |>).
Proof.
  intros V l H1 H2 H3 H4 H5 abar rel u N top two k kc kc2 eta0 rho0 Small c.
  exact (proj1 (proj2 (T7_finite_strata l (conj H1 (conj H2 (conj H3 (conj H4 H5)))) N Small))).
Qed.
"""
    run = compile_text(prover, tmp_path, script, compiled)
    assert run.ok, run.first_error
    better = script.replace("sqrt (1 - rho * rho) <=", "sqrt (1 - rho * rho / 4) <=")
    assert not compile_text(prover, tmp_path, better, compiled).ok


def test_an_axiom_of_ones_own_is_found(prover, compiled):
    text = library.scripts()["CosineLemma"].replace(
        "Section Lemma7.", "Definition false_now : 1 = 0 -> False := R1_neq_R0.\nSection Lemma7."
    )
    allowed = library.ask(prover, "CosineLemma", ["T7_sine"], compiled, text)
    assert isinstance(allowed, Proved)
    assert allowed.foreign == ()
    cheat = text + "\nAxiom cheat : False.\nTheorem wrong : 1 = 0. Proof. destruct cheat. Qed.\n"
    found = library.ask(prover, "CosineLemma", ["T7_sine", "wrong"], compiled, cheat)
    assert isinstance(found, Proved)
    assert found.foreign == ("cheat",)
    assert library.given_up(cheat) == [f"Axiom in line {text.count(chr(10)) + 2}"]


def test_a_slip_in_the_syntax_is_no_refutation(prover):
    outcome = checks.prove(RNG, "CosineLemma", ["T7_sine"], ("Section Lemma7.", "Sectoin Lemma7."))
    assert math.isnan(outcome.margin)
    assert frame.judge(outcome) is Verdict.UNDECIDED


def test_a_change_that_changes_nothing_raises():
    with pytest.raises(ValueError, match="holds no"):
        checks.prove(RNG, "CosineLemma", ["T7_sine"], ("not in the script", "x"))


def test_broken_scripts_fail_with_coqs_first_error(prover, monkeypatch, tmp_path):
    source = library.SCRIPTS
    for path in source.glob("*.v"):
        shutil.copy(path, tmp_path)
    text = (tmp_path / "CosineLemma.v").read_text(encoding="utf-8")
    (tmp_path / "CosineLemma.v").write_text(text.replace("1 - rho * rho", "1 - rho * rho / 4"), encoding="utf-8")
    monkeypatch.setattr(library, "SCRIPTS", tmp_path)
    outcome = checks.prove(RNG, "Strata", ["T8_identity"])
    assert outcome.margin == -math.inf
    assert "CosineLemma.v" in outcome.note
    assert "Error" in outcome.note
    assert frame.judge(outcome) is Verdict.FAIL


def test_running_out_of_time_fails_and_is_not_remembered(prover, compiled, monkeypatch, tmp_path):
    run = coq.run_coqc(prover, Path(shutil.copytree(compiled, tmp_path / "copy")), "Sharp", seconds=0.05)
    assert not run.ok
    assert not run.ended
    assert "did not finish" in run.first_error


def test_without_coq_the_verdict_is_not_run(monkeypatch, tmp_path):
    monkeypatch.setenv("FSPO_CACHE", str(tmp_path))
    monkeypatch.setenv(coq.NO_DOWNLOAD, "1")
    monkeypatch.setenv("PATH", str(tmp_path))
    check = checks.CHECKS[0]
    (row,) = frame.assemble([check], [frame.run_one(0, check, 0)])
    assert row.verdict is Verdict.NOT_RUN
    assert row.control is Verdict.NOT_RUN
    assert "FSPO_NO_DOWNLOAD" in row.note
    assert frame.exit_status([row], strict=True) == 1


def fake_tool(folder, name, body):
    tool = folder / name
    tool.write_text(f"#!{sys.executable}\n{body}\n", encoding="utf-8")
    tool.chmod(0o755)


def test_a_failed_download_leaves_nothing_and_says_why(monkeypatch, tmp_path):
    tools = tmp_path / "tools"
    tools.mkdir()
    fake_tool(tools, "apt-get", "import sys\nsys.exit('E: no network here')")
    fake_tool(tools, "dpkg-deb", "")
    monkeypatch.setenv("FSPO_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv(coq.NO_DOWNLOAD, raising=False)
    monkeypatch.setenv("PATH", str(tools))
    with pytest.raises(CoqMissing, match="no network here"):
        coq.find_coq()
    kept = {path.name for path in (tmp_path / "cache" / "coq").iterdir()}
    assert kept <= {"fetch.lock", "fetch.failed"}


def test_no_script_gives_up_a_goal():
    for name, text in library.scripts().items():
        assert library.given_up(text) == [], name


def test_given_up_goals_are_seen_outside_comments_only():
    assert library.given_up("(* Admitted (* Axiom *) admit *)\nLemma a : b. Proof. Qed.") == []
    assert library.given_up("(* x *)\nLemma a : b.\nAdmitted.") == ["Admitted in line 3"]
    assert library.given_up("Lemma a : b. Proof. admit. Qed.") == ["admit in line 1"]


def test_answers_are_read_strictly():
    said = "=== theorem t\n@t\n     : 1 = 1\n=== theorem \n"
    assert library.parse(said + "Closed under the global context\n", ["t"]) == Proved({"t": "@t\n     : 1 = 1"}, ())
    axioms = "Axioms:\nClassical_Prop.classic : forall P,\n  P \\/ ~ P\nmine\n  : False\n"
    assert library.parse(said + axioms, ["t"]).foreign == ("mine",)
    for wrong in ("", said, said + "Axioms:\n", said + "Something else\n"):
        assert isinstance(library.parse(wrong, ["t"]), Refused)
    assert isinstance(library.parse(said + "Closed under the global context\n", ["t", "u"]), Refused)


@pytest.mark.slow
def test_the_independent_checker_agrees(prover, compiled, tmp_path):
    """coqchk reads the compiled files anew, the library of real numbers included."""
    checker = Path(prover.program).with_name("coqchk")
    if not checker.is_file():
        pytest.skip("this Coq has no coqchk")
    with_coq = dict(coq._environment(Coq(prover.program, prover.version, prover.root), tmp_path))
    command = [str(checker), "-silent", "-o", "-Q", str(compiled), "FSPO"]
    command += [f"FSPO.{name}" for name in library.scripts()]
    done = subprocess.run(command, env=with_coq, capture_output=True, text=True, timeout=600, check=True)
    said = done.stdout + done.stderr
    axioms = said.split("* Axioms:")[1].split("* Constants")[0].split()
    assert {name.removeprefix("Coq.").split(".", 1)[1] for name in axioms} == set(library.ALLOWED_AXIOMS)
    assert said.count("<none>") == 3


def test_every_script_is_asked_for_or_needed_by_one_that_is():
    texts = library.scripts()
    asked = {check.run.keywords["module"] for check in checks.CHECKS}
    needed = {name for text in texts.values() for name in library._needs(text)}
    assert set(texts) <= asked | needed
