import pandas as pd
import pytest

from fspo.base.errors import UserError
from proofs_check.maps import build, online, price
from proofs_check.maps.__main__ import main
from proofs_check.maps.settings import Point
from proofs_check.maps.tables import MAP_COLUMNS, file_name


@pytest.fixture
def small(monkeypatch):
    """A few points, models and bands of the real maps."""
    points = [Point("exponent", h, simulate=h == 0.5) for h in (0.4, 0.5, 0.6)]
    monkeypatch.setattr(build, "points", lambda: points)
    monkeypatch.setattr(build, "MODELS", {name: build.MODELS[name] for name in ("aligned", "softmax")})
    monkeypatch.setattr(online, "MODELS", {"gaussian": online.MODELS["gaussian"]})
    monkeypatch.setattr(price, "GAMMAS", (0.0, 0.5))
    monkeypatch.setattr(price, "ACCEPTANCES", (0.1, 0.85))


def test_the_command_writes_documented_tables(small, tmp_path, capsys):
    assert main(["--out", str(tmp_path), "--jobs", "1", "--draws", "500", "--no-progress"]) == 0
    told = capsys.readouterr().out
    for name, columns in MAP_COLUMNS.items():
        frame = pd.read_csv(tmp_path / file_name(name))
        assert list(frame) == list(columns)
        assert len(frame) > 0
    assert all(file_name(name) in told for name in MAP_COLUMNS)
    assert not list(tmp_path.glob(".part-*"))
    frame = pd.read_csv(tmp_path / "fairness_map.csv")
    assert set(frame.method) == {"closed", "simulated"}


def test_processes_do_not_change_the_tables(monkeypatch):
    monkeypatch.setattr(build, "MODELS", {"softmax": build.MODELS["softmax"]})  # workers read the whole grid
    one = build.build_tables(["price"], jobs=1, progress=False)
    two = build.build_tables(["price"], jobs=2, progress=False)
    assert list(one) == ["mse_map", "price_by_length", "mse_best"]
    for name in one:
        pd.testing.assert_frame_equal(one[name], two[name])


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--only", "fairnes"], "did you mean 'fairness'"),
        (["--jobs", "0"], "at least 1"),
        (["--seed", "-1"], ">= 0"),
        (["--draws", "1"], "at least 2"),
    ],
)
def test_bad_options(options, words, tmp_path):
    with pytest.raises(UserError, match=words):
        main(["--out", str(tmp_path), "--no-progress", *options])


def test_out_that_is_a_file(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="is a file: name a folder"):
        main(["--out", str(tmp_path / "file")])
