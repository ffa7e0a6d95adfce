"""From a run folder to its tables, and what happens with bad or poor input."""

import json
from dataclasses import replace

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest

from analysis.__main__ import main
from analysis.log.loading import load_run
from analysis.log.rows import windows
from analysis.options import Options
from analysis.run import analyse, analyse_runs, shared_bins
from analysis.tables.files import TABLES, read_tables, write_json
from analysis.tables.typed_rows import names
from fspo.base.errors import UserError
from fspo.gradlog import GradLogWriter
from fspo.rules import Rule, preset

FEW = Options(rules=("rloo", "fspo-kl"), targets=(0.9,), draws=2, bins=3)


@pytest.fixture(scope="module")
def written(tmp_path_factory, fspo_run):
    analyse_runs([fspo_run], FEW)
    return fspo_run


def test_every_table_is_there_twice_and_summary_is_json(written):
    folder = written / "analysis"
    described = pd.read_csv(folder / "columns.csv")
    for name, row in TABLES.items():
        csv, parquet = pd.read_csv(folder / f"{name}.csv"), pd.read_parquet(folder / f"{name}.parquet")
        assert list(csv.columns) == list(parquet.columns)
        assert tuple(csv.columns) == tuple(described.loc[described["table"] == name, "column"]) == names(row)
        assert len(csv) == len(parquet)
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["integrity"]["pass"]
    assert summary["rule"] == "fspo"
    assert summary["counts"]["rows"] == 6 * 8 * 128
    assert not list(folder.glob("*.part-*"))


def test_no_table_about_first_use_counts_a_response_that_was_trained_on(simulate):
    """Every second response counts as used before, in rows with and without scores: the two uses stand apart."""
    run = load_run(simulate(rollouts=3, prompts=32))
    first, acting = run.rows.response % 2 == 0, run.rows.A != 0
    run = replace(run, rows=replace(run.rows, used=np.where(first, 0, 1)))
    tables, _ = analyse(run, shared_bins([run], FEW), replace(FEW, rules=("fspo",), targets=()))
    sets = {("all", "first"): first, ("all", "reused"): ~first}
    sets |= {("nonzero", "first"): first & acting, ("nonzero", "reused"): ~first & acting}
    whole = {name: table.query("bin == -1") for name, table in tables.items() if "bin" in table}
    for (subset, use), rows in sets.items():
        where = f"subset == '{subset}' and use == '{use}'"
        assert set(whole["moments"].query(where)["count"]) == {rows.sum()}
        assert set(whole["acceptance"].query(where)["count"]) == {rows.sum()}
        if subset == "nonzero":
            scored = int(np.sum(rows & (run.rows.updates == 3)))
            assert set(whole["cosine"].query(where)["count"]) == {scored}
            assert set(whole["population"].query(where)["count"]) == ({scored} if use == "first" else set())
            each = tables["lemma"].query(where + " and updates == 1")
            assert set(each.groupby(["rule", "outside", "source"])["count"].sum()) == {scored}


def test_trained_rows_are_the_logged_columns_after_an_update(written):
    rows = load_run(written).rows.use("first")
    table = read_tables([written])["acceptance"].query("source == 'trained' and bin == -1")
    counts = table.query("measure == 'band' and subset == 'all'").set_index("use")["count"].to_dict()
    assert counts == {"first": 6 * 3 * 128, "reused": 6 * 4 * 128}
    value = table.query("use == 'first'").set_index(["measure", "subset"])["estimate"]
    assert value["band", "all"] == pytest.approx(rows.band_accept.mean())
    acting = rows.A != 0
    assert value["update", "nonzero"] == pytest.approx((rows.side[acting] == 0).mean())
    weight = rows.weight[acting]
    assert value["weight", "nonzero"] == pytest.approx(np.average(rows.multiplier[acting], weights=weight), rel=1e-6)


def test_windows_by_hand():
    assert windows(np.array([0, 1, 2, 5, 9]), 2).tolist() == [0, 0, 2, 2, 9]
    with pytest.raises(UserError):
        windows(np.array([0]), 0)


def minimal(folder, n=64, rollouts=4, metadata=None, **columns):
    """What another trainer must at least write: no scores, no rule, no k3."""
    rng = np.random.default_rng(0)
    writer = GradLogWriter(folder, metadata=metadata)
    for rollout in range(rollouts):
        for update in range(3):
            rows = (
                {"rollout": rollout, "step": rollout * 3 + update, "prompt_id": np.arange(n) // 4}
                | {"response_id": np.arange(n), "length": rng.integers(4, 100, n)}
                | {"log_ratio": 0.1 * update * rng.normal(size=n), "advantage": rng.choice([-1.0, 0.0, 1.0], n)}
            )
            writer.append(rows | columns)
        writer.flush(rollout)
    return folder


def test_a_log_with_the_required_columns_alone(tmp_path):
    run = load_run(minimal(tmp_path / "other"))
    assert set(run.rows.used.tolist()) == {1, 2}  # the same responses in three updates
    tables, summary = analyse(run, shared_bins([run], FEW), FEW)
    assert any("times_used" in line for line in summary["warnings"])
    assert any("no rule" in line for line in summary["warnings"])
    kl = tables["acceptance"].query("rule == 'fspo-kl' and source == 'given'")
    assert kl["estimate"].isna().all()
    assert kl["reason"].str.contains("k3_sum").all()
    assert tables["acceptance"].query("rule == 'rloo' and bin == -1")["estimate"].notna().all()
    assert len(tables["cosine"]) == len(tables["lemma"]) == 0


def test_a_log_of_nan_is_refused(tmp_path):
    with pytest.raises(UserError, match="no row has a finite S and A"):
        load_run(minimal(tmp_path / "none", advantage=np.full(64, np.nan)))


def test_the_analysis_and_the_doctor_count_the_same_rows(tmp_path, capsys):
    bad = np.where(np.arange(64) < 5, np.nan, 1.0)
    run = minimal(tmp_path / "run", advantage=bad, phase=["train"] * 60 + ["noise"] * 4)
    assert main([str(run), "--rules", "fspo", "--draws", "2", "--bins", "2"]) == 0
    analysed = capsys.readouterr().out
    assert json.loads((run / "analysis" / "summary.json").read_text())["counts"]["rows_not_finite"] == 5 * 12
    main(["doctor", str(run)])
    examined = capsys.readouterr().out.splitlines()
    assert analysed.startswith(f"{run}: 440 of 720 rows (after an update)")  # 55 finite of 60 train rows, 8 updates
    assert examined[0].startswith(f"{run}: 720 rows")
    assert analysed.splitlines()[-1] == f"next: fspo report {run}"
    assert examined[-1] == f"next: fspo analyse {run}"


@pytest.mark.parametrize(
    "columns",
    [{"advantage": 0.0}, {"log_ratio": np.zeros(64)}, {"length": 7}, {"prompt_id": 0}, {"log_ratio": np.full(64, 1e4)}],
)
def test_degenerate_logs_give_reasons_not_exceptions(tmp_path, columns):
    run = load_run(minimal(tmp_path / "odd", **columns))
    tables, _ = analyse(run, shared_bins([run], FEW), FEW)
    missing = tables["acceptance"]["estimate"].isna()
    assert (tables["acceptance"].loc[missing, "reason"] != "").all()
    missing = tables["lre"]["estimate"].isna()
    assert (tables["lre"].loc[missing, "reason"] != "").all()


def test_one_response_gives_no_number(tmp_path):
    run = load_run(minimal(tmp_path / "one", n=1, rollouts=1))
    tables, _ = analyse(run, shared_bins([run], FEW), FEW)
    assert tables["acceptance"]["estimate"].isna().all()


def break_page(file, column):
    """Flip a byte of a column's first page; the writer's checksum tells."""
    group = pq.read_metadata(file).row_group(0)
    columns = [group.column(i) for i in range(group.num_columns)]
    place = next(c for c in columns if c.path_in_schema.startswith(column))
    content = bytearray(file.read_bytes())
    content[place.data_page_offset + 200] ^= 0xFF
    file.write_bytes(content)


@pytest.mark.parametrize("window", [1, 5])
def test_broken_sketches_cost_their_file_the_cosines_alone(simulate, window):
    run = simulate(rollouts=3, width=8)
    break_page(run / "gradlog" / "rollout-00000001-rank-0000.parquet", "score_unit")
    loaded = load_run(run)
    assert loaded.notes.damage == ()
    options = replace(FEW, window=window)
    tables, summary = analyse(loaded, shared_bins([loaded], options), options)
    assert set(tables["over_time"]["window"]) == {0, 1, 2}
    assert summary["counts"]["scored"]["updates"] == 2
    (line,) = summary["damage"]
    assert "rollout-00000001" in line
    assert summary["integrity"]["pass"]


def test_files_of_another_rule_are_told(simulate, tmp_path):
    run, other = simulate("a", rollouts=2, width=0), simulate("b", rollouts=2, width=0, rule=preset("gspo").rule)
    name = "rollout-00000001-rank-0000.parquet"
    (run / "gradlog" / name).write_bytes((other / "gradlog" / name).read_bytes())
    (line,) = load_run(run).notes.warnings
    assert f"the headers of 1 of 2 files name another rule than the first ({name}, ...)" in line


def test_metrics_lines_become_rows_and_broken_ones_damage(simulate):
    run = simulate(rollouts=2, width=8)
    lines = ['{"rollout": 0, "step": 4, "phase": "train", "reward": 0.5, "note": "x"}', "{broken", "[1]"]
    (run / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    (run / "config.yaml").write_text("seed: 7\n")
    loaded = load_run(run)
    assert loaded.seed == 7
    tables, summary = analyse(loaded, shared_bins([loaded], FEW), FEW)
    assert tables["training"][["rollout", "step", "phase", "name", "value"]].values.tolist() == [
        [0, 4, "train", "reward", 0.5]
    ]
    assert len(summary["damage"]) == 2


def test_a_token_rule_that_trained_is_read_from_its_columns(simulate):
    loaded = load_run(simulate(rule=Rule("token", 0.2, 0.2, name="grpo"), rollouts=2, width=8))
    tables, _ = analyse(loaded, shared_bins([loaded], FEW), FEW)
    table = tables["acceptance"].query("source == 'trained' and bin == -1 and measure == 'band' and subset == 'all'")
    rows = loaded.rows.use("first")
    assert table.set_index("use")["estimate"]["first"] == pytest.approx(rows.band_accept.mean())
    assert "trained" not in set(tables["cosine"]["source"])


def test_no_update_since_the_rollout_is_refused(tmp_path):
    with pytest.raises(UserError, match=rf"num_iterations above 1.*fspo doctor {tmp_path / 'flat'}"):
        load_run(minimal(tmp_path / "flat", updates_since_rollout=0))
    with pytest.raises(UserError, match="import rows of later updates too"):
        load_run(minimal(tmp_path / "table", metadata={"imported_from": "log.csv"}, updates_since_rollout=0))


def test_a_log_without_scores_is_not_called_sound(simulate, capsys):
    run = simulate(rollouts=1, width=0)
    assert main([str(run), "--rules", "fspo", "--draws", "2", "--edges", "1,40,400"]) == 0
    first = capsys.readouterr().out.splitlines()[0]
    assert first.endswith("rule fspo, no scores logged, so no cosines")
    assert json.loads((run / "analysis" / "summary.json").read_text())["edges"] == [1, 40, 400]


def test_several_runs_share_their_bins(simulate, capsys):
    paths = [simulate("a", rollouts=1, width=8), simulate("b", rollouts=1, width=8, seed=5)]
    assert main([*map(str, paths), "--rules", "[fspo]", "--draws", "2", "--bins", "3"]) == 0
    assert capsys.readouterr().out.count("columns of the log agree") == 2
    one, other = (json.loads((path / "analysis" / "summary.json").read_text())["edges"] for path in paths)
    assert one == other
    assert len(read_tables(paths)["over_time"]["run"].unique()) == 2


def test_json_has_no_nan(tmp_path):
    write_json(tmp_path / "x.json", {"a": np.float64("nan"), "b": np.array([1, 2]), "c": np.bool_(True)})
    assert json.loads((tmp_path / "x.json").read_text()) == {"a": None, "b": [1, 2], "c": True}


def test_an_unfinished_analysis_is_refused(tmp_path):
    (tmp_path / "analysis").mkdir()
    with pytest.raises(UserError, match="no gradient log under"):
        read_tables([tmp_path])
    with pytest.raises(UserError, match="no finished analysis"):
        read_tables([minimal(tmp_path / "run")])
