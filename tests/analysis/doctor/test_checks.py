"""Every planted defect is found, healthy runs are clear, and the evidence is right against independent numbers."""

import json
import math
import re
import sys
from dataclasses import replace
from functools import partial
from importlib.machinery import ModuleSpec
from types import ModuleType, SimpleNamespace

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scipy import stats as sps

from analysis.__main__ import main
from analysis.doctor.examine import CHECKS, ON_KEPT_ROWS, Doctor, examine
from analysis.doctor.issues import Answer, Diagnosis, Evidence, Severity, clear, found, not_checked
from analysis.doctor.patient import Patient
from analysis.doctor.ratios import s_zero
from analysis.doctor.recomputed import of_columns
from analysis.importing.watch import TokenDigest
from fspo.base.errors import UserError
from fspo.gradlog import GradLogWriter
from fspo.rules import preset
from tests.analysis.doctor.made import rows_of
from tests.analysis.doctor.planted import DEFECTS, Plan, write_run


def answer(run, name):
    return next(a for a in examine(run).answers if a.id == name)


def evidence(found, start):
    return next(e for e in found.evidence if e.name.startswith(start))


def append(run, rows, rollout=0, **metadata):
    writer = GradLogWriter(run, metadata=metadata)
    writer.append(rows)
    writer.flush(rollout)
    return run


def plain(n=400, group=4, **columns):
    """Rows of one rollout after one update; S alternates around 0."""
    prompt = np.arange(n) // group
    rows = {"rollout": 0, "step": 1, "updates_since_rollout": 1, "times_used": 0, "prompt_id": prompt}
    rows |= {"response_id": np.arange(n), "length": np.full(n, 100)}
    rows |= {"log_ratio": np.where(np.arange(n) % 2, 0.1, -0.1), "advantage": np.where(np.arange(n) % 2, 1.0, -1.0)}
    return rows | columns


def test_every_check_has_a_planted_run():
    assert {name.split("-")[0] for name in DEFECTS} == set(ON_KEPT_ROWS)


@pytest.mark.parametrize("name", DEFECTS)
def test_a_planted_defect_is_found_and_nothing_else(tmp_path, name):
    (issue,) = examine(write_run(tmp_path / "run", DEFECTS[name], 0)).issues
    assert issue.id == name.split("-")[0]
    assert (issue.severity == Severity.INFO) == (name == "s_zero")  # without a clip is right on-policy


HEALTHY = {
    "fspo": Plan(),
    "rloo": Plan(rule=preset("rloo").rule, lengths=(16, 256)),
    "gspo": Plan(rule=preset("gspo", range_lo=2e-3, range_hi=2e-3).rule),
    "fspo-kl": Plan(rule=preset("fspo-kl").rule),
    "fspo-truncate": Plan(rule=preset("fspo", outside="truncate").rule),
    "unclipped": Plan(rule=preset("none").rule),
    "little noise": Plan(noise=1e-3),
    "one epoch": Plan(epochs=1),
}


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("name", HEALTHY)
def test_healthy_runs_are_clear(tmp_path, name, seed):
    diagnosis = examine(write_run(tmp_path / "run", HEALTHY[name], 100 + seed))
    assert [a.summary for a in diagnosis.issues] == []
    assert sum(a.status == "clear" for a in diagnosis.answers) >= 8


def test_the_rule_that_never_cuts_is_told_but_does_not_fail(tmp_path):
    rows = plain(4000, log_ratio=1e-4 * np.random.default_rng(8).standard_normal(4000))
    run = append(tmp_path, rows, rule=preset("fspo").rule.to_dict())
    diagnosis = examine(run)
    assert [a.id for a in diagnosis.issues] == ["acceptance"]
    assert diagnosis.fails("info")
    assert not diagnosis.fails("warning")


def test_learning_rate_0_is_told_from_recomputed_log_probs(tmp_path):
    run = write_run(tmp_path / "run", DEFECTS["old_recomputed"], 0)
    lines = [json.loads(line) | {"learning_rate": 0.0} for line in (run / "metrics.jsonl").read_text().splitlines()]
    (run / "metrics.jsonl").write_text("\n".join(map(json.dumps, lines)))
    found = examine(run).issues
    assert [a.id for a in found] == ["s_zero"]
    assert "nothing moves" in found[0].summary


def test_groups_that_are_all_solved_in_the_end(tmp_path):
    rollout = np.arange(4000) // 400
    rows = plain(4000, rollout=rollout, step=rollout, reward=np.ones(4000))
    rows["advantage"] = np.where((rollout < 7) & (np.arange(4000) % 2 == 1), 1.0, 0.0)
    found = answer(append(tmp_path, rows), "advantages_zero")
    assert found.found
    assert "by the end" in found.summary
    assert evidence(found, "responses with A != 0").value == pytest.approx(0.35)
    assert evidence(found, "responses with A != 0, last").value == 0


@pytest.mark.parametrize(
    ("sizes", "status"),
    [
        ([4] * 50 + [8] * 50, "clear"),  # a prompt drawn twice is no defect
        ([4] * 15 + [3] * 40 + [2] * 30 + [1] * 15, "found"),  # most groups lost someone
        (list(range(1, 31)) * 3, "not checked"),  # no size to be seen
        ([1] * 100, "not checked"),
    ],
)
def test_group_sizes(tmp_path, sizes, status):
    prompt = np.repeat(np.arange(len(sizes)), sizes)
    n = len(prompt)
    rows = plain(n, prompt_id=prompt)
    assert answer(append(tmp_path, rows), "dropped_sequences").status == status


def test_a_wholly_masked_response_and_a_kept_one_without_a_gradient_count_as_dropped(tmp_path):
    tenth = np.arange(400) % 10 == 0
    muted = {"side": np.zeros(400, int), "multiplier": np.where(tenth, 0.0, 1.0), "weight": np.ones(400)}
    masked = {"length": np.where(tenth, 0, 100)}
    for what, columns in (("rows without a token", masked), ("kept rows with multiplier 0", muted)):
        run = append(tmp_path / what, plain(**columns), rule=preset("fspo").rule.to_dict())
        found = answer(run, "dropped_sequences")
        assert found.found
        assert evidence(found, what).value == pytest.approx(0.1)


def test_token_rules_are_not_blamed_for_token_averages(tmp_path):
    run = append(tmp_path, plain(), rule=preset("grpo").rule.to_dict(), aggregation="token")
    assert answer(run, "length_weighted").status == "clear"
    for name in ("acceptance", "truncation"):  # the log does not say which responses are truncated
        assert answer(run, name).status == "not checked"


def test_a_log_with_nothing_in_it_is_not_judged(tmp_path):
    rows = plain(log_ratio=np.full(400, np.nan), advantage=np.full(400, np.nan), length=np.zeros(400, int))
    diagnosis = examine(append(tmp_path / "import", rows, imported_from="a table without S and A"))
    assert diagnosis.issues == []
    unchecked = {a.id for a in diagnosis.answers if a.status == "not checked"}
    assert set(CHECKS) - unchecked == {"dropped_sequences", "counters", "log"}
    assert any("400 of 400 rows have no length" in note for note in diagnosis.notes)
    # a trainer that has logged them as NaN is another matter
    diagnosis = examine(append(tmp_path / "own", rows))
    assert [a.id for a in diagnosis.issues] == ["not_finite"]


def test_damage_is_counted_and_the_rest_examined(tmp_path):
    run = write_run(tmp_path / "run", Plan(), 0)
    file = sorted((run / "gradlog").glob("*.parquet"))[3]
    file.write_bytes(file.read_bytes()[:200])
    with (run / "metrics.jsonl").open("a") as metrics:
        metrics.write('{"torn')
    diagnosis = examine(run)
    assert sum("damaged" in note for note in diagnosis.notes) == 2
    assert [(a.id, a.since) for a in diagnosis.issues] == [("log", 4)]
    assert "missing rollouts (1 times)" in diagnosis.issues[0].summary


def test_a_long_log_is_examined_in_spread_rollouts(tmp_path, monkeypatch):
    run = write_run(tmp_path / "run", DEFECTS["truncation"], 0)
    monkeypatch.setattr(Doctor, "of", staticmethod(partial(Doctor.of, most=8000)))
    diagnosis = examine(run)
    total = sum(pq.read_metadata(f).num_rows for f in (run / "gradlog").glob("*.parquet"))
    assert diagnosis.rows == total > 8000
    assert "8 of 16 rollouts, evenly spread, are examined" in diagnosis.notes[0]
    assert [a.id for a in diagnosis.issues] == ["truncation"]


def test_status_json_and_fail_on(tmp_path, capsys):
    bad, good = write_run(tmp_path / "bad", DEFECTS["length_weighted"], 0), write_run(tmp_path / "good", Plan(), 0)
    out = tmp_path / "issues.json"
    assert main(["doctor", str(good), str(bad), "--json", str(out)]) == 1
    assert "WARNING length_weighted" in capsys.readouterr().out
    first, second = json.loads(out.read_text())
    assert first["worst"] is None
    assert (second["worst"], second["issues"][0]["id"]) == ("warning", "length_weighted")
    for level, status in (("critical", 0), ("truncation", 0), ("length_weighted", 1)):
        assert main(["doctor", str(bad), "--fail-on", level]) == status
    assert main(["doctor", str(good)]) == 0


def test_the_next_step_names_the_runs_of_each_log_ratio(monkeypatch, capsys):
    on = {"a": "update", "b": "engine", "c": "update", "d": ""}
    monkeypatch.setattr("analysis.doctor.examine.examine", lambda run: Diagnosis(run, "fspo", 10, (), on=on[run]))
    assert main(["doctor", *on]) == 0
    said = [line for line in capsys.readouterr().out.splitlines() if line.startswith("next")]
    assert said == ["next: fspo analyse a c", "next: fspo analyse b --on engine"]


def test_a_response_that_changes_between_its_uses_is_found():
    use = np.arange(40.0)
    columns = dict.fromkeys(("length", "reward", "prompt_id", "response_id"), use // 2) | {"step": use}
    for name in ("length", "reward"):
        rows = rows_of(40, **{x: (v + (x == name) * (use == 7)).astype(int) for x, v in columns.items()})
        assert "prompt between its uses in 1 of 40" in of_columns(rows, None, None, imported=False)["counters"].summary


@pytest.mark.parametrize(("A", "since"), [(1.0, 3), (0.0, None)])
def test_rollouts_at_rest_are_frozen_only_if_they_had_a_gradient(A, since):
    i = np.arange(400)
    rest = (i >= 120) & (i < 320)
    columns = {"step": i // 4, "length": np.full(400, 20.0), "advantage": np.where(rest, A, 1.0)}
    rows = rows_of(400, **columns, log_ratio=np.where(rest, 0.0, 0.01 * (-1.0) ** i))
    logged = frozenset({"updates_since_rollout"})
    assert s_zero(Patient(None, None, rows, logged, {}, TokenDigest())).since == since


def scalars(run, **values):
    """Ten lines of metrics and no gradient log; a callable gets the line's number."""
    run.mkdir(exist_ok=True)
    lines = [{k: v(i) if callable(v) else v for k, v in values.items()} for i in range(10)]
    text = "".join(json.dumps({"rollout": i, "step": i, "phase": "train"} | one) + "\n" for i, one in enumerate(lines))
    (run / "metrics.jsonl").write_text(text)
    return run


@pytest.mark.parametrize(
    ("values", "wanted"),
    [
        ({"imported/clip_ratio/region_mean": 0.0}, set()),
        ({"imported/actor/pg_clipfrac": lambda i: 0.01 * (i > 5)}, set()),
        ({"frac_reward_zero_std": 1.0, "reward": 0.0}, {"advantages_zero"}),
        ({"frac_reward_zero_std": lambda i: 0.4 + 0.01 * i}, set()),
        ({"completions/clipped_ratio": lambda i: 0.2 + 0.01 * i}, {"truncation"}),
        ({"completions/clipped_ratio": 0.01}, set()),
    ],
)
def test_scalars_alone_tell_a_little(tmp_path, values, wanted):
    diagnosis = examine(scalars(tmp_path / "run", **values))
    assert {a.id for a in diagnosis.issues if "rldoctor" not in a.id} == wanted
    assert "only scalars are examined" in diagnosis.notes[0]
    assert sum(a.status == "not checked" for a in diagnosis.answers) >= len(CHECKS) - 3


@pytest.mark.parametrize(
    ("reward", "size", "said"),
    [
        (lambda i: i // 8 % 2, 8, "all responses to a prompt have one reward"),  # 0 in one group, 1 in the next
        (lambda i: i % 2, 8, "rewards differ but advantages do not"),
        (lambda i: i * np.nan, 8, "run the verifier by hand"),
        (lambda i: i**0, 1, "no response has a gradient; run the verifier"),  # alone in its group, none is a copy
    ],
)
def test_why_every_advantage_is_0(tmp_path, reward, size, said):
    i = np.arange(400)
    rows = plain(advantage=np.zeros(400), reward=1.0 * reward(i), prompt_id=i // size)
    issue = answer(append(tmp_path, rows), "advantages_zero")
    assert said in f"{issue.summary}; {issue.fix}"
    assert ("rewards differ" in issue.fix) == ("rewards differ" in said)


def test_truncation_is_told_beside_its_begin_and_the_reward(tmp_path):
    values = {"completions/clipped_ratio": lambda i: 0.06 * i, "reward": lambda i: float(i < 8)}
    (issue,) = (a for a in examine(scalars(tmp_path / "run", **values)).issues if a.id == "truncation")
    assert "in the last 8 lines 33.0% (in the first 21.0%) of the responses" in issue.summary
    assert "mean reward there is 0.75, and the highest over as many lines 1" in issue.summary


def test_scalars_need_lines_and_numbers(tmp_path):
    (tmp_path / "metrics.jsonl").write_text('{"rollout": 0, "phase": "train", "frac_reward_zero_std": 1.0}\n' * 3)
    assert not [a for a in examine(tmp_path).issues if "rldoctor" not in a.id]
    (tmp_path / "metrics.jsonl").write_text("torn")
    with pytest.raises(UserError, match="nothing to examine"):
        examine(tmp_path)


@pytest.mark.parametrize(("mean", "side"), [(-1.2, ""), (-1.7, "below"), (-0.2, "above")])
def test_most_responses_of_some_length_may_lie_beyond_one_edge(tmp_path, mean, side):
    """fspo-kl's band may lie at -1.5 to -.5: a mean S of -1.2 is inside, though beyond twice the upper edge."""
    n = 600
    S = mean + 0.05 * np.random.default_rng(0).standard_normal(n)
    rows = {"log_ratio": S, "length": 50 + np.arange(n) % 40, "advantage": np.ones(n), "lo": -1.5, "hi": -0.5}
    rows |= {"prompt_id": np.arange(n) // 4, "response_id": np.arange(n), "step": 1, "rollout": 0}
    append(tmp_path, rows | {"updates_since_rollout": 1, "times_used": 0, "phase": "train"})
    told = answer(tmp_path, "acceptance")
    assert (f"lie {side} the band" in told.summary) == bool(side)
    assert told.status == ("found" if side else "clear")


@pytest.mark.parametrize(
    ("size", "pull", "said"),
    [
        (1e-9, 0.0, "S is 0 up to float32's rounding"),
        (0.015, 0.0, "It does not follow A: numerics"),
        (0.015, 0.05, "It follows A, so rows were logged after their update"),
        (0.015, 0.0, "It is exactly 0 in 25% of the rows: these are of a first update"),
    ],
)
def test_one_update_a_rollout_is_information_on_numerics(tmp_path, size, pull, said):
    rng, n = np.random.default_rng(0), 400
    rows = {name: x for name, x in plain(n).items() if name not in ("updates_since_rollout", "times_used")}
    rows["log_ratio"] = 10 * (size * rng.standard_normal(n) + pull * rows["advantage"])
    rows["log_ratio"][: n // 4 * ("25%" in said)] = 0.0
    for rollout in range(2):
        append(tmp_path, rows | {"rollout": rollout, "step": rollout}, rollout, imported_from="a table")
    told = answer(tmp_path, "s_zero")
    assert said in told.summary
    assert told.severity == Severity.INFO
    if "numerics" in said:  # N(0, .15) at L = 100 outside .3, and outside about .03 and .04
        wanted = sps.norm.sf(0.03 / 0.15) + sps.norm.sf(0.04 / 0.15)
        shares = {label: float(x) / 100 for label, x in re.findall(r"(\w+) (\d+)%", told.summary)}
        assert shares["fspo"] == pytest.approx(2 * sps.norm.sf(2), abs=0.03)
        assert shares["gspo"] == pytest.approx(wanted, abs=0.05)


def test_scalars_go_to_rldoctor_where_it_is_installed(tmp_path, monkeypatch, capsys):
    """A stand-in for the package, which is no dependency: what is handed to it, and how its issues are shown."""
    package = ModuleType("rl_doctor")
    seen = []
    problem = SimpleNamespace(
        detector="kl_drift", severity=SimpleNamespace(name="CRITICAL"), summary="KL is 3", prescription=["lower it"]
    )
    vars(package).update(
        run_from_records=lambda rows: seen.extend(rows), diagnose=lambda _: SimpleNamespace(problems=[problem])
    )
    package.__spec__ = ModuleSpec("rl_doctor", None)
    run = scalars(tmp_path / "run", **{"imported/actor/entropy": 3.0, "imported/actor/ppo_kl": 3.0, "reward": None})
    assert main(["doctor", str(run), "--verbose"]) == 0
    assert "pip install rldoctor" in capsys.readouterr().out
    monkeypatch.setitem(sys.modules, "rl_doctor", package)
    monkeypatch.setattr("analysis.doctor.scalars.version", lambda _: "0.2.0")
    assert main(["doctor", str(run)]) == 1
    out = capsys.readouterr().out
    assert "CRITICAL rldoctor: kl_drift: KL is 3" in out
    assert "fix: lower it" in out
    assert "rldoctor 0.2.0 looked at 10 lines" in out
    assert len(seen) == 10
    assert seen[3]["actor/entropy"] == 3.0
    assert "actor/ppo_kl" not in seen[3]  # verl's is no KL to the reference
    assert math.isnan(seen[3]["reward"])
    assert "phase" not in seen[3]


def test_rldoctor_itself_names_a_collapse_of_entropy(tmp_path):
    pytest.importorskip("rl_doctor", reason="rldoctor is not installed")
    run = scalars(tmp_path / "run", entropy=lambda i: 2.0 * 0.3**i, reward=lambda i: 0.5)
    assert "rldoctor: entropy_collapse" in {a.id for a in examine(run).issues}


def test_another_trainers_scalars_are_examined_where_they_lie(tmp_path, capsys):
    history = [{"step": i, "frac_reward_zero_std": 1.0, "reward": 0.0} for i in range(1, 11)]
    (tmp_path / "trainer_state.json").write_text(json.dumps({"log_history": history}))
    for place in (tmp_path, tmp_path / "trainer_state.json"):
        assert main(["doctor", str(place)]) == 1
        out = capsys.readouterr().out
        assert f"{place}: 0 rows" in out
        assert "CRITICAL advantages_zero" in out
    assert [path.name for path in tmp_path.iterdir()] == ["trainer_state.json"]


def test_the_worst_issues_are_printed_with_their_fix_and_the_rest_is_named():
    def issue(name: str, severity: Severity) -> Answer:
        evidence = Evidence("share", 0.5, unit="share")
        return replace(found(f"{name} is wrong", f"mend {name}", evidence, since=3, severity=severity), id=name)

    sound, lacking = replace(clear("good"), id="f"), replace(not_checked("no x"), id="g")
    answers = [issue("a", Severity.INFO), issue("b", Severity.WARNING), issue("c", Severity.CRITICAL)]
    answers += [issue("d", Severity.WARNING), issue("e", Severity.INFO), sound, lacking]
    few = Diagnosis("run", "fspo", 10, tuple(answers))
    head, *lines, last = few.lines()
    assert head == "run: 10 rows, rule fspo: 5 issues (worst: critical)"
    assert lines[:3] == ["  CRITICAL c: c is wrong (from rollout 3 on)", "    share: 50.00%", "    fix: mend c"]
    assert [line.split()[1] for line in lines[3:-1:3]] == ["b:", "d:"]
    assert lines[-1] == "  and a, e (--verbose)"
    assert last == "  1 check found no issue, 1 could not be made (--verbose says which)"
    every = few.lines(verbose=True)
    assert {"    fix: mend a", "    fix: mend e", "  clear f: good", "  not checked g: no x"} <= set(every)
    assert Diagnosis("run", "fspo", 10, (sound,)).lines()[0] == "run: 10 rows, rule fspo: no issue"
    assert Diagnosis("run", "", 0, (lacking,)).verdict == "nothing could be checked"


VALUE = st.one_of(st.floats(-50, 50), st.sampled_from([0.0, math.nan, math.inf, -math.inf]))
OPTIONAL = dict.fromkeys(("reward", "lo", "hi", "multiplier", "weight"), VALUE)
OPTIONAL |= {"truncated": st.booleans(), "band_accept": st.booleans()}
OPTIONAL |= {"side": st.integers(-1, 2), "updates_since_rollout": st.integers(0, 3)}


@pytest.mark.filterwarnings("error::RuntimeWarning")
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_any_log_gets_an_answer_to_every_check(tmp_path_factory, data):
    n = data.draw(st.sampled_from([1, 7, 120]))
    kinds = data.draw(st.lists(VALUE, min_size=1, max_size=4)), data.draw(st.lists(VALUE, min_size=1, max_size=4))
    rows = {name: np.resize(np.arange(k), n) for name, k in (("rollout", 2), ("step", 3), ("prompt_id", 30))}
    rows |= {"response_id": np.arange(n), "length": np.resize(data.draw(st.lists(st.integers(0, 90), min_size=1)), n)}
    rows |= {"log_ratio": np.resize(kinds[0], n), "advantage": np.resize(kinds[1], n)}
    for name, values in OPTIONAL.items():
        if data.draw(st.booleans()):
            rows[name] = np.resize(data.draw(st.lists(values, min_size=1, max_size=5)), n)
    rule = data.draw(st.sampled_from(["none", "fspo", "fspo-kl", "gspo", "rloo", "grpo", None]))
    metadata = {"rule": preset(rule).rule.to_dict(), "aggregation": "token"} if rule else {}
    run = append(tmp_path_factory.mktemp("any"), rows, **metadata)
    diagnosis = examine(run)
    assert {a.id for a in diagnosis.answers} == set(CHECKS)
    assert diagnosis.lines(verbose=True)
    if n < 50:
        of_single_rows = {"clip", "band", "sums", "uses", "estimator", "counters", "log"}
        assert {a.id for a in diagnosis.issues} <= {"s_zero", "not_finite", "length_weighted"} | of_single_rows
