"""``fspo report`` and ``fspo demo``: a page about runs, and what they refuse to overwrite."""

import html
from pathlib import Path

import pytest

from analysis.options import Options
from analysis.run import analyse_runs
from figures import demo
from figures.page.command import main
from fspo.base.errors import UserError
from tests.analysis.conftest import Plan, write_log


def test_a_page_about_one_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = write_log(tmp_path / "run", Plan(rollouts=2))
    with pytest.raises(UserError, match=r"no finished analysis: run `fspo analyse .*run` first"):
        main([str(run)])
    analyse_runs([run], Options(draws=2, bins=3, targets=(0.9,), rules=("fspo",)))
    assert main([str(run), "--only", "variance_scaling"]) == 0
    page = (run / "report.html").read_text(encoding="utf-8")
    out = capsys.readouterr().out.splitlines()
    assert out[0].startswith("run, ")
    assert out[-2:] == [f"report: {run}/report.html", f"next: fspo sweep {run}"]
    for heading in ("Does the theory hold here?", "Is the run healthy?", "What to do?"):
        assert f">{heading}</h2>" in page
    assert "the clipped update has with the true one a cosine of" in html.unescape(page)
    assert "data:image/png;base64," in page
    assert main([str(run), "--only", "variance_scaling"]) == 0  # its own page may be written again
    mine = tmp_path / "mine.html"
    mine.write_text('<!DOCTYPE html>\n<html lang="en">\n<head>\n<title>mine</title>')
    with pytest.raises(UserError, match="fspo report did not write it"):
        main([str(run), "--output", str(mine)])
    assert "mine" in mine.read_text()


def test_the_demo_touches_no_folder_of_the_user(tmp_path: Path) -> None:
    own = tmp_path / "healthy" / "gradlog"
    own.mkdir(parents=True)
    (own / "rollout.parquet").write_text("mine")
    with pytest.raises(UserError, match="holds files, and none that fspo demo wrote"):
        demo.main(["--output", str(tmp_path)])
    assert (own / "rollout.parquet").read_text() == "mine"
