"""The command line and the table reader."""

import json

import pytest

from analysis.options import Options
from analysis.rules.evaluate import CRITERIA, UNCORRECTED, candidates
from analysis.run import analyse_runs
from figures import draw_all, find_module
from figures.__main__ import main
from figures.style import Style
from figures.tables import load
from fspo.base.errors import UserError
from fspo.rules import correction
from tests.analysis.conftest import Plan, write_log
from tests.figures.conftest import write_run


@pytest.mark.usefixtures("no_pixels")
def test_figures_of_another_ratio_say_so(tmp_path):
    run = write_log(tmp_path / "run", Plan(rollouts=2, engine=0.05, correction=correction("mis", on="engine")))
    analyse_runs([run], Options(draws=2, bins=3, targets=(0.9,), on="engine"))
    names = ["acceptance_by_length", "lre_by_rule", "cosine_by_rule", "variance_scaling", "training_curves"]
    assert main([str(run), "--on", "engine", "--output", str(tmp_path / "out"), "--only", f"[{','.join(names)}]"]) == 0
    captions = json.loads((tmp_path / "out" / "captions-on-engine.json").read_text())
    assert [c["name"] for c in captions] == [f"{name}-on-engine" for name in names]
    assert [c["title"].endswith(": E") for c in captions] == [True] * 5
    assert [c["skipped"] for c in captions] == [""] * 4 + ["it is about no log-ratio: draw it without --on"]
    said = "Log-ratio: E (engine), each response once, in the first epoch."
    assert all(c["caption"].endswith(said) for c in captions[:4])
    tables = load([run], on="engine")
    fig = find_module("variance_scaling").figure(tables, Style())
    assert fig.axes[0].get_ylabel() == r"Var$(E\,|\,L)$"
    assert "Var(E|L)" in captions[3]["caption"]
    fig = find_module("acceptance_by_length").figure(tables, Style("acl-column"))
    labels = [text.get_text() for text in fig.legends[0].get_texts()]
    assert labels[:2] == ["mis", "geo-mask"]
    assert set(labels) == {*candidates("engine"), *CRITERIA} - {UNCORRECTED}
    # the panel is named by the correction, and not by fspo, which clipped
    assert find_module("clip_over_training").figure(tables, Style()).axes[0].get_title("left") == "mis"
    with pytest.raises(UserError, match=r"run `fspo analyse .* --on behaviour` first"):
        load([run], on="behaviour")


def test_a_skipped_figure_is_listed_with_its_reason(case_runs, tmp_path, capsys):
    runs = [str(case_runs("near-one")[0])]
    assert main([*runs, "--output", str(tmp_path), "--only", "[clip_over_training,lre_by_rule]"]) == 0
    assert "skipped  clip_over_training: only unclipped runs" in capsys.readouterr().out
    assert not (tmp_path / "clip_over_training.pdf").exists()
    skipped = {c["name"]: c["skipped"] for c in json.loads((tmp_path / "captions.json").read_text())}
    assert "only unclipped runs" in skipped["clip_over_training"]
    assert skipped["lre_by_rule"] == ""
    with pytest.raises(UserError, match="nothing could be drawn"):
        main([*runs, "--output", str(tmp_path / "out"), "--only", "[clip_over_training]"])


def test_runs_of_one_name_are_told_apart(tmp_path, case_tables):
    for parent in ("a", "b"):
        write_run(tmp_path / parent / "fspo", case_tables("one").frames)
    assert set(load([tmp_path / "a" / "fspo", tmp_path / "b" / "fspo"])["lre"]["run"]) == {"a/fspo", "b/fspo"}


def test_a_missing_column_is_told_and_an_error_of_ours_is_raised(tmp_path, case_tables, monkeypatch):
    tables = case_tables("one")
    folder = write_run(tmp_path / "fspo", tables.frames) / "analysis"
    tables["lre"].drop(columns="ci_low").to_parquet(folder / "lre.parquet")
    with pytest.raises(UserError, match=r"table 'lre' of .* has no column 'ci_low': run `fspo analyse .*/fspo` again"):
        load([tmp_path / "fspo"])
    monkeypatch.setattr("figures.of_runs.variance_scaling.rows", lambda tables: tables["moments"]["var_s"])
    with pytest.raises(KeyError, match="var_s"):
        draw_all(tables, tmp_path / "out", only=["variance_scaling"])
