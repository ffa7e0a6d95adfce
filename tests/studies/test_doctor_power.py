"""The study of the doctor: rewrites change what they say, verdicts are strict, the page holds the stored results."""

import json

import numpy as np
import pytest

from analysis.doctor.doctor import CHECKS
from analysis.doctor.findings import Severity, found
from analysis.rules.recompute import recompute
from fspo.gradlog import read_log
from fspo.rules import token_k3
from studies.doctor_defects import DEFECTS, Defect
from studies.doctor_healthy import SimulatedRun, write_simulated_run
from studies.doctor_page import LAWS, page
from studies.doctor_power import PAGE, RESULTS
from studies.log_changes import add, rewritten, rough


@pytest.fixture(scope="module")
def sound(tmp_path_factory):
    return write_simulated_run(
        tmp_path_factory.mktemp("sound") / "run", SimulatedRun(engine=0.01, rollouts=7, prompts=16), 3
    )


@pytest.mark.parametrize("number", range(len(DEFECTS)), ids=[defect.says for defect in DEFECTS])
def test_each_defect_changes_the_log(sound, tmp_path, number):
    before, after = read_log(sound), read_log(rewritten(sound, tmp_path / "run", DEFECTS[number].change, 0))
    if len(before) == len(after):
        assert any(before.table[name] != after.table[name] for name in before.table.column_names)


def test_a_shift_of_the_tokens_moves_every_sum_with_it():
    tokens, x = np.array([0.3, -0.2, 0.1]), 0.6
    c = {"log_ratio": tokens.sum(keepdims=True), "length": np.array([3]), "advantage": np.array([1.0])}
    c |= {"sum_sq_log_ratio": np.array([np.sum(tokens**2)]), "k3_sum": np.array([np.sum(token_k3(tokens))])}
    c |= {name: np.array([v]) for name, v in (("lo", -1.0), ("hi", 1.0), ("side", 0), ("band_accept", True))}
    c |= {name: np.ones(1, np.float32) for name in ("multiplier", "weight")}
    done = add(c, np.array([x]))
    assert done["sum_sq_log_ratio"][0] == pytest.approx(np.sum((tokens + 0.2) ** 2))
    assert done["k3_sum"][0] == pytest.approx(np.sum(token_k3(tokens + 0.2)))
    assert done["weight"][0] == pytest.approx(np.exp(0.8))


def test_noise_leaves_columns_that_do_not_contradict_each_other(sound, tmp_path):
    run = rewritten(sound, tmp_path / "run", lambda c, r, i: rough(rough(c, 0.03, r), 0.02, r, engine=True), 0)
    log = read_log(run)
    columns = {name: log.column(name) for name in log.table.column_names if name in log and "sketch" not in name}
    columns = {name: x.astype(float) for name, x in columns.items() if x.dtype.kind in "fiub"}
    assert {name: int(c.wrong.sum()) for name, c in recompute(columns, log.rule).items() if c.wrong.any()} == {}


def test_a_verdict_asks_for_the_check_and_its_words():
    defect = Defect("", "engine~weights|model clip", lambda c, r, i: c)
    answer = [found(name, Severity.INFO, "other weights", "") for name in ("engine", "clip", "sums")]
    assert defect.named_by(answer[:1])
    assert defect.named_by(answer[1:])
    assert not defect.named_by(answer[2:])
    assert not defect.named_by([found("engine", Severity.INFO, "a temperature", "")])
    assert not Defect("", "", lambda c, r, i: c).named_by(answer)


def test_the_laws_of_the_page_name_checks():
    assert {check for *_, checks in LAWS for check in checks.split("`, `")} <= set(CHECKS)


def test_the_page_is_the_one_of_the_stored_results():
    assert page(json.loads(RESULTS.read_text())) == PAGE.read_text()
