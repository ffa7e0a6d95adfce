"""Per-response tables of every form become the same gradient log; the arithmetic is checked by hand."""

import json
from functools import partial

import numpy as np
import pandas as pd
import pytest

from analysis.__main__ import main
from analysis.doctor.command import main as doctor
from analysis.doctor.examine import examine
from analysis.importing.convert import choose_columns, typed_columns
from analysis.importing.names import canonical
from analysis.importing.run import ImportOptions, import_run
from analysis.importing.sources import read_parts
from analysis.log.loading import load_run
from analysis.options import Options
from analysis.run import analyse
from analysis.run import shared_bins as bins_of
from fspo.base.errors import UserError
from fspo.gradlog import read_log
from fspo.rules import preset
from tests.analysis.importing.made import OLD, TOKENS, imported, plain_rows, write

SAMPLER = [[-1.0, -2.0, -0.5], [-0.5], [-3.0, -2.5]]
S = [[0.5, 0.0, -0.25], [0.25], [0.0, 1.0]]  # of each token: new less old, old less sampler, new less sampler
D_E = [[-0.5, 0.0, 0.25], [0.0], [0.0, 0.5]]
ALL = [[0.0, 0.0, 0.0], [0.25], [0.0, 1.5]]


def k3(x):
    return np.expm1(x) - x


EXPECTED = {
    "log_ratio": [0.25, 0.25, 1.0],
    "sum_sq_log_ratio": [0.3125, 0.0625, 1.0],
    "k3_sum": [sum(map(k3, row)) for row in S],
    "behaviour_log_ratio": [-0.25, 0.0, 0.5],
    "behaviour_sum_sq": [0.3125, 0.0, 0.25],
    "behaviour_k3_sum": [sum(map(k3, row)) for row in D_E],
    "behaviour_k2_max": [0.125, 0.0, 0.125],
    "behaviour_k3_max": [max(map(k3, row)) for row in D_E],
    "total_sum_sq": [0.0, 0.0625, 2.25],
    "total_k3_sum": [sum(map(k3, row)) for row in ALL],
    "length": [3, 1, 2],
    "advantage": [1.0, -1.0, 0.5],
    "rollout": [0, 0, 1],
    "truncated": [True, False, True],
}


@pytest.mark.parametrize("name", ["t.parquet", "t.csv", "t.jsonl", "t.jsonl.gz"])
def test_token_lists_become_sums(tmp_path, name):
    more = {"tools": [[{"a": 1}], [{"a": 2}, {"a": 3}], []], "truncated": [True, False, True]}
    report, log = imported(tmp_path, TOKENS | {"rollout_log_probs": SAMPLER} | more, name)
    for column, values in EXPECTED.items():
        assert log.column(column) == pytest.approx(values)
    prompts = log.column("prompt_id")
    assert prompts[0] == prompts[1] != prompts[2]
    assert "engine_log_ratio" not in log  # the weights that sampled are unknown
    assert any("neither D nor E alone" in note for note in report.notes)
    assert report.known == {"update": 3, "engine": 0, "behaviour": 3, "total": 3}
    assert report.derived["log_ratio"] == "new_log_probs - old_log_probs"
    assert any("tools" in name for name in report.unknown_columns)


@pytest.mark.parametrize(
    ("ends", "log_ratio"),
    [
        ({"response_mask": [[1, 0, 1], [1], [1, 0]]}, [0.25, 0.25, 0.0]),
        ({"length": [2, 1, 1]}, [0.5, 0.25, 0.0]),
    ],
)
def test_a_mask_and_a_length_end_the_response(tmp_path, ends, log_ratio):
    _, log = imported(tmp_path, TOKENS | ends)
    assert log.column("log_ratio") == pytest.approx(log_ratio)
    assert log.column("length").tolist() == [2, 1, 1]


def test_new_and_sampler_alone_are_parted_at_the_first_update_only(tmp_path):
    columns = {k: v for k, v in TOKENS.items() if k != "old_log_probs"} | {"rollout_log_probs": SAMPLER}
    report, log = imported(tmp_path, columns, "one.parquet")
    assert np.isnan(log.column("log_ratio")).all()  # nobody said how many updates a rollout has
    assert log.column("behaviour_log_ratio") == pytest.approx([0.0, 0.25, 1.5])
    assert log.column("behaviour_sum_sq") == pytest.approx([0.0, 0.0625, 2.25])
    assert any("S is not known" in note and "--columns old=rollout_log_probs" in note for note in report.notes)
    report = import_run(tmp_path / "one.parquet", tmp_path / "two", ImportOptions(updates_per_rollout=2))
    log = read_log(tmp_path / "two")
    for name in ("log_ratio", "behaviour_log_ratio"):
        assert np.isnan(log.column(name)).tolist() == [False, False, True]  # step 1 is the rollout's second update
    assert log.column("total_sum_sq") == pytest.approx([0.0, 0.0625, 2.25])
    assert report.known == {"update": 2, "engine": 0, "behaviour": 2, "total": 2}


@pytest.mark.parametrize(("begun", "ended"), [(3, 4), (4, 5)])
def test_the_engine_is_parted_from_staleness_where_the_versions_are_equal(tmp_path, begun, ended):
    versions = {"policy_version": [4, 4, 4], "updates_since_rollout": [0, 0, 2]}
    versions |= {"behaviour_version": [4, begun, 2], "behaviour_version_last": [None, ended, 2]}
    _, log = imported(tmp_path, TOKENS | {"rollout_log_probs": SAMPLER} | versions)
    # old weights have version 4, 4 and 2; of the second response another version sampled a part
    assert log.column("engine_log_ratio") == pytest.approx([-0.25, np.nan, 0.5], nan_ok=True)
    assert log.column("staleness_log_ratio") == pytest.approx([0.0, np.nan, 0.0], nan_ok=True)
    assert log.column("engine_sum_sq") == pytest.approx([0.3125, np.nan, 0.25], nan_ok=True)
    assert log.table["behaviour_version_last"].to_pylist() == [None, ended, 2]


def test_the_rule_that_trained_stands_in_the_header(tmp_path):
    report, log = imported(tmp_path, TOKENS, rule="fspo", range_lo=0.1, range_hi=0.3, aggregation="token")
    assert log.rule == preset("fspo", range_lo=0.1, range_hi=0.3).rule
    assert any("--range-lo 0.1, --range-hi 0.3" in note for note in report.notes)
    assert log.metadata["aggregation"] == "token"


@pytest.mark.parametrize("first", [0, 1])
def test_updates_and_groups_by_count(tmp_path, first):
    columns = {"log_ratio": np.zeros(24), "length": [5] * 24, "advantage": [1.0] * 24, "max_global_steps": [2] * 24}
    columns["step"] = first + np.repeat(np.arange(6), 4)  # nothing tells of rollouts but the smallest step
    _, log = imported(tmp_path, columns, updates_per_rollout=3, group_size=2)
    assert log.column("rollout").tolist() == [0] * 12 + [1] * 12
    assert log.column("updates_since_rollout").tolist() == [0] * 4 + [1] * 4 + [2] * 4 + [0] * 4 + [1] * 4 + [2] * 4
    assert log.column("prompt_id").tolist() == (np.arange(24) // 2).tolist()
    assert set(log.column("behaviour_version_last")) == {6}  # verl counts rollouts


def reused(order):
    """Rows of steps 1, 2, ...: each has the 16 responses, with ids from 0 in a group, that a letter of order names."""
    rng = np.random.default_rng(0)
    of = {a: [(f"{a}{i // 4}", i % 4, int(rng.integers(20, 400)), rng.normal()) for i in range(16)] for a in order}
    names = ("step", "log_ratio", "prompt_id", "completion_id", "length", "advantage")
    return pd.DataFrame([(step, 0.0, *row) for step, a in enumerate(order, 1) for row in of[a]], columns=names)


@pytest.mark.parametrize("without", ["", "completion_id"])
@pytest.mark.parametrize("rollouts", ["a1b2c3d4e5f6", "a0a0b1b1c2c2d3d3", "a0b1b1c2c2d3d3e4", "a0b0a0b0c1d1c1d1"])
def test_responses_that_stand_in_several_steps_show_the_updates_of_a_rollout(tmp_path, without, rollouts):
    report, log = imported(tmp_path, reused(rollouts[::2]).drop(columns=without or []))
    assert log.column("rollout").tolist() == [int(n) for n in rollouts[1::2] for _ in range(16)]
    once = rollouts.startswith("a1")
    assert any("same responses" in note for note in report.notes) != once
    told = {answer.id for answer in examine(tmp_path / "run").issues}
    assert told & {"counters", "s_zero", "old_recomputed"} == {"s_zero" if once else "old_recomputed"}


@pytest.mark.parametrize(("first", "cut"), [(0, 0), (1, 0), (1, 1), (6, 1)])
def test_a_rollout_begins_where_its_prompts_do(tmp_path, first, cut):
    place = np.arange(4 * cut, 32)
    columns = {"step": first + place // 4, "prompt_id": 4 * (place // 8) + place % 4, "length": place + 5}
    _, log = imported(tmp_path, columns | {"log_ratio": place * 0.0}, updates_per_rollout=2)
    assert (log.column("rollout") - log.column("rollout")[-1] + 3).tolist() == (place // 8).tolist()
    assert log.column("updates_since_rollout").tolist() == (place // 4 % 2).tolist()


def test_names_are_found_without_case_and_never_twice():
    chosen = choose_columns(["Step", "LOG_PROBS", "old_log_probs", "Score", "input"], {})
    assert chosen == {"step": "Step", "new": "LOG_PROBS", "old": "old_log_probs", "reward": "Score", "prompt": "input"}
    with pytest.raises(UserError, match="did you mean 'reward'"):
        choose_columns(["a"], {"rewards": "a"})
    with pytest.raises(UserError, match="no column 'b'"):
        choose_columns(["a"], {"reward": "b"})


def test_an_imported_table_goes_through_analysis_and_doctor(tmp_path, capsys):
    """S ~ N(-sigma^2 L / 2, sigma^2 L) after a first update at S = 0, in ten steps of 16 groups of 8 responses."""
    rng = np.random.default_rng(0)
    rows = []
    for step, i in np.ndindex(10, 128):
        L = int(rng.integers(5, 60))
        old = -rng.exponential(1.0, L) - 0.3
        s = 0.02 * rng.standard_normal(L) - 0.0002 if step % 2 else np.zeros(L)
        rows.append({"step": step, "prompt": f"p{step // 2}-{i // 8}", "response_id": f"{step}-{i}",
                     "reward": float(rng.choice([-1.0, 1.0])), "old_log_probs": old.tolist(),
                     "log_probs": np.minimum(old + s, 0.0).tolist(), "truncated": False})  # fmt: skip
    rewards = pd.DataFrame(rows).groupby("prompt")["reward"]
    rows = [row | {"advantage": a} for row, a in zip(rows, rewards.transform(lambda r: r - r.mean()), strict=True)]
    (tmp_path / "log.jsonl").write_text("\n".join(map(json.dumps, rows)))
    out = tmp_path / "run"
    arguments = ["import", str(tmp_path / "log.jsonl"), "--out", str(out), "--rule", "fspo"]
    assert main([*arguments, "--updates-per-rollout", "2", "--aggregation", "response"]) == 0
    printed = capsys.readouterr().out
    assert "1280 responses in 5 rollouts" in printed
    run = load_run(out)
    expected = np.array([np.subtract(r["log_probs"], r["old_log_probs"]).sum() for r in rows if r["step"] % 2])
    assert np.sort(run.rows.S) == pytest.approx(np.sort(expected))
    tables, _ = analyse(run, bins_of([run], Options()), Options())
    table = tables["acceptance"]
    trained = table.query("source == 'trained' and measure == 'band' and bin == -1 and subset == 'all'")
    L = np.array([len(r["log_probs"]) for r in rows if r["step"] % 2])
    assert trained.estimate.item() == pytest.approx(np.mean(np.abs(expected) <= 0.03 * np.sqrt(L)))
    assert examine(out).issues == []
    arguments[arguments.index("--out") + 1] = str(tmp_path / "split")  # each step counts as a rollout
    assert main(arguments) == 0
    split = next(a for a in examine(tmp_path / "split").issues if a.id == "estimator")
    assert "not centred in the group" in split.summary
    assert "fspo import --updates-per-rollout N" in split.fix


def test_a_table_with_one_step_a_rollout_is_analysed(tmp_path):
    report, _ = imported(tmp_path, plain_rows(800), "table.csv", rule="fspo", group_size=4)
    assert {"length": "L", "advantage": "A", "log_ratio": "S"}.items() <= report.columns.items()
    run = load_run(tmp_path / "run")
    assert len(run.rows) == 800
    assert any("every row counts as after an update" in line for line in run.notes.warnings)
    assert any("analysed as of after it" in note for note in examine(tmp_path / "run").notes)


GROUPS = {  # rollouts out of order
    "step": [1, 0, 0, 0, 0, 0, 1],
    "prompt": ["a", "a", "b", "a", "b", "alone", "a"],
    "length": [8, 3, 4, 5, 6, 7, 9],
    "log_ratio": [0.1, 0.1, -0.1, 0.2, 0.0, 0.3, -0.2],
    "reward": [5.0, 1.0, 2.0, 0.0, 2.0, 1.0, 2.0],
}


@pytest.mark.parametrize(
    ("rule", "estimator", "expected"),
    [
        (None, "grpo", [1, 0, -1, 0, np.nan, 1, -1]),  # +-d / (d sqrt(2)) by hand, times sqrt(2)
        ("rloo", "rloo", [1.0, 0, -1.0, 0, np.nan, 3.0, -3.0]),
    ],
)
def test_advantages_are_made_of_rewards_within_groups(tmp_path, monkeypatch, rule, estimator, expected):
    three = partial(read_parts, rows=3)  # groups lie in several chunks
    monkeypatch.setattr("analysis.importing.run.read_parts", three)
    report, log = imported(tmp_path, GROUPS, rule=rule)
    scale = np.sqrt(2) if estimator == "grpo" else 1.0
    assert scale * log.column("advantage") == pytest.approx(expected, rel=2e-4, nan_ok=True)
    assert log.metadata["advantage"] == estimator
    assert report.derived["advantage"] == f"reward within groups, as {estimator} makes them"
    assert log.column("response_id").tolist() == [2, 3, 4, 5, 6, 1, 7]
    assert len(load_run(tmp_path / "run").rows) == 6


def test_a_response_counts_once_in_its_group_however_often_it_was_used(tmp_path):
    twice = {name: values[1:5] + values[1:2] for name, values in GROUPS.items()} | {"response_id": [0, 1, 2, 3, 0]}
    _, log = imported(tmp_path, twice, rule="rloo")
    assert log.column("advantage") == pytest.approx([1.0, 0.0, -1.0, 0.0, 1.0])


@pytest.mark.parametrize("prompts", [{}, {"prompt": [f"p{i}" for i in range(len(GROUPS["step"]))]}])
def test_without_advantages_and_groups_the_cure_is_said(tmp_path, prompts):
    columns = {name: GROUPS[name] for name in ("step", "length", "log_ratio", "reward")}
    report, log = imported(tmp_path, columns | prompts)
    assert any(note.startswith("no advantages") and "--group-size" in note for note in report.notes)
    assert not log.column("advantage").any()
    assert any("no advantages in the log" in line for line in load_run(tmp_path / "run").notes.warnings)
    (answer,) = (found for found in examine(tmp_path / "run").answers if found.id == "advantages_zero")
    assert "the log has no advantages" in answer.summary


@pytest.mark.parametrize("names", [("prompt", "trainer", "engine"), ("prompt_id", "old", "new")])
def test_a_table_of_two_log_probabilities_names_the_next_command(tmp_path, capsys, names):
    columns = {names[0]: ["a", "a", "b", "b"], "reward": [1, 0, 0, 1], "penalty": [-1, 0, 0, 0]}
    columns |= {names[1]: [[-1.0, -2.0], [-1.0], [-2.0], [-1, -1]], names[2]: [[-1.1, -2.0], [-1.2], [-2.0], [-1, -1]]}
    table, run = write(tmp_path / "mine.csv", columns), tmp_path / "run"
    with pytest.raises(UserError, match=rf"are these\? {names[1]}, {names[2]}: .*old=COLUMN,sampler=COLUMN"):
        main(["import", str(table), "--out", str(run)])
    assert main(["import", str(table), "--out", str(run), "--columns", f"old={names[1]},sampler={names[2]}"]) == 0
    assert "nothing can be told by length" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("comma.csv", "\ufeffstep,prompt,old_logprobs,new_logprobs,length\n0,p,-3.75,-3.5,\n"),
        ("semicolon.csv", "step;prompt;logp_old;logp_new\n0;p; -3.75;-3.5 \n"),
        ("tab.tsv", "step\tprompt\tLogP-Old\tLogP-New\n0\tp\t-3.75\t-3.5\n"),
        ("lists.csv", 'step;prompt;old logprobs;new logprobs\n0;p;[-1.5, -2.0, -0.25];"[-1.0, -2.0, -0.5]"\n'),
        ("numpy.csv", 'step,prompt,old_logprobs,new_logprobs\n0,p,[-1.5 -2.   -0.25],"[-1.  -2.\n -0.5]"\n'),
        ("np.csv", 'step,old_logps,new_logps\n0,"[-1.5,-2,-.25]","[np.float64(-1.0), -2, np.float32(-0.5)]"\n'),
        ("python.csv", 'step,prompt,old_logps,new_logps\n0,p,"(-1.5, -2.0, -0.25)","(-1.0, -2.0, -0.5)"\n'),
    ],
)
def test_a_table_as_a_stranger_writes_it(tmp_path, name, text):
    (tmp_path / name).write_text(text, encoding="utf-8")
    report = import_run(tmp_path / name, tmp_path / "run")
    log = read_log(tmp_path / "run")
    assert log.column("log_ratio") == pytest.approx([0.25])
    assert report.known["update"] == 1
    if "[" in text or "-1.5" in text:
        assert log.column("length").tolist() == [3]
        assert log.column("sum_sq_log_ratio") == pytest.approx([0.3125])


def test_names_of_log_probabilities_in_any_order_and_spelling():
    same = ["new_logprobs", "Logp-New", "log_probs_new", "new log prob", "NEW_LOGPS", "new_log_probability"]
    assert {canonical(name) for name in [*same, "new_token_logprobs", "per_token_logps_new"]} == {"logp_new"}
    others = ["logits_new", "log_ratio", "logps_newer", "blogp_new", "logprobs", "new_tokens"]
    assert "logp_new" not in {canonical(name) for name in others}


def test_log_probs_of_unknown_policies_are_asked_for_and_never_guessed(tmp_path):
    columns = {"response": ["1", "2", "3"], "my_len": [3, 1, 2], "logp_b": [-3.0] * 3, "logp_c": [-2.0] * 3}
    report = import_run(write(tmp_path / "own.csv", columns), tmp_path / "run")
    assert any("whose log-probabilities are these? logp_b, logp_c" in note for note in report.notes)
    assert any("no length" in note and "may it be my_len?" in note for note in report.notes)
    assert report.lines()[-1] == f"next: fspo doctor {tmp_path / 'run'}"
    assert not {"new", "old", "sampler"} & report.columns.keys()


@pytest.mark.parametrize(("power", "means"), [(1.0, False), (0.6, False), (0.0, True)])
def test_means_over_tokens_in_the_place_of_sums_are_noticed(tmp_path, power, means):
    rng = np.random.default_rng(0)
    length = rng.integers(4, 400, 200)
    old = -np.exp(rng.normal(0, 0.3, 200)) * length**power
    columns = {"length": length, "old_logprobs": old, "new_logprobs": old * 1.01, "prompt": ["a"] * 200}
    report = import_run(write(tmp_path / "t.parquet", columns), tmp_path / "run")
    what = "old_logprobs and new_logprobs: means over tokens"
    assert any(what in note for note in report.notes) == means
    told = {answer.id: answer for answer in examine(tmp_path / "run").answers}
    assert ("no statement on a ratio holds" in told["sums"].summary) == means
    assert ("means over tokens" in told["s_zero"].summary) == means  # which would give the size of S
    only = {"length": length, "old_logprobs": old, "logp_b": old, "prompt": ["a"] * 200}
    notes = import_run(write(tmp_path / "only.parquet", only), tmp_path / "other").notes
    assert not any("NaN or missing" in note for note in notes)  # a name is missing, and no value


@pytest.mark.parametrize("mean", [False, True])
def test_a_log_ratio_over_the_length_gives_way_to_the_log_probabilities(tmp_path, mean):
    S, L = np.tile([0.5, -0.3], 40), np.repeat([20, 100], 40)
    table = {"length": L, "old_logprobs": -1.0 * L, "new_logprobs": S - L, "log_ratio": S / L if mean else 2 * S}
    report, log = imported(tmp_path, table)
    assert log.column("log_ratio") == pytest.approx(S if mean else 2 * S)
    assert ("log_ratio is S over the length: S is made of the log-probabilities" in report.notes) == mean


def test_whether_a_column_of_minibatches_counts_updates_is_asked(tmp_path):
    table = TOKENS | {"step": [0, 0, 0], "mini_batch": [0, 1, 2]}
    report, _ = imported(tmp_path, table)
    cure = "--columns updates_since_rollout=mini_batch"
    assert any(cure in note for note in report.notes)
    report, log = imported(tmp_path / "told", table, columns={"updates_since_rollout": "mini_batch"})
    assert log.column("updates_since_rollout").tolist() == [0, 1, 2]
    assert not any(cure in note for note in report.notes)


def test_numbers_in_lists_of_one_are_read(tmp_path):
    table = {name: [[x] for x in (3.0, 4.0, 5.0)] for name in ("step", "advantage", "reward")}
    _, log = imported(tmp_path, TOKENS | table | {"mask": [[1, 1, 1], [1], [1, 1]]})
    for name in table:
        assert log.column(name).tolist() == [3.0, 4.0, 5.0]
    with pytest.raises(UserError, match="'step' is read as step and must hold numbers"):
        imported(tmp_path / "uneven", TOKENS | {"step": [[1.0], [], [2.0, 3.0]]})  # as many numbers as rows


def test_a_token_without_a_log_probability_is_said_and_a_mask_cures_it(tmp_path, capsys):
    old = [[float("nan"), *values[1:]] for values in OLD]
    table = write(tmp_path / "first.parquet", TOKENS | {"old_log_probs": old, "kept": [[0, 1, 1], [0], [0, 1]]})
    assert main(["import", str(table), "--out", str(tmp_path / "run")]) == 0
    said = capsys.readouterr().out
    assert "no log-ratio in 3 of 3 rows" in said
    assert doctor([str(tmp_path / "run")]) == 2
    said = capsys.readouterr().out
    assert "the clip cannot be judged: no row has a log-ratio" in said
    assert "next: fspo analyse" not in said
    import_run(table, tmp_path / "masked", ImportOptions(columns={"mask": "kept"}))
    assert np.nansum(read_log(tmp_path / "masked").column("log_ratio")) == pytest.approx(-0.25 + 1.0)


def test_what_is_no_number_is_null_among_whole_numbers():
    assert typed_columns(pd.DataFrame({"policy_version": [3, np.inf, np.nan]})) == {"policy_version": [3, None, None]}
