import pandas as pd
import pytest

from fspo.base.errors import UserError
from proofs_check.maps import build, online, price
from proofs_check.maps.__main__ import main
from proofs_check.maps.advice import advice
from proofs_check.maps.settings import Point
from proofs_check.maps.tables import COLUMNS, file_name


@pytest.fixture
def small(monkeypatch):
    """A few points, models and bands of the real maps."""
    points = [Point("exponent", h, simulate=h == 0.5) for h in (0.4, 0.5, 0.6)]
    monkeypatch.setattr(build, "points", lambda: points)
    monkeypatch.setattr(build, "MODELS", {name: build.MODELS[name] for name in ("aligned", "softmax")})
    monkeypatch.setattr(online, "MODELS", {"gaussian": online.MODELS["gaussian"]})
    monkeypatch.setattr(price, "GAMMAS", (0.0, 0.5))
    monkeypatch.setattr(price, "ACCEPTANCES", (0.1, 0.85))


def test_the_command_writes_documented_tables_and_advice(small, tmp_path, capsys):
    assert main(["--out", str(tmp_path), "--jobs", "1", "--draws", "500", "--no-progress"]) == 0
    for name, columns in COLUMNS.items():
        frame = pd.read_csv(tmp_path / file_name(name))
        assert list(frame) == list(columns)
        assert len(frame) > 0
    text = (tmp_path / "advice.md").read_text()
    assert text in capsys.readouterr().out
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


def test_advice_takes_its_numbers_from_the_tables(small):
    tables = build.build_tables(draws=0, progress=False)
    text = advice(tables)
    part = tables["mse_best"]
    part = part[(part.outside == "any") & (part.criterion == "mse_scaled")]
    wins = sum(half <= value * (1 + 1e-9) for half, value in zip(part.value_gamma_half, part.value, strict=True))
    assert f"it minimises it in {wins} of {len(part)} cases" in text
    best = tables["mse_best"].copy()
    best["value_gamma_half"] = best["value"]
    assert "gamma = 1/2 minimises the error everywhere" in advice(tables | {"mse_best": best})
    best["value_gamma_half"] = 3 * best["value"]
    assert "costs at most 200 % more" in advice(tables | {"mse_best": best})
    assert "elsewhere it costs at most 200 %" in advice(tables | {"mse_best": best})
    prices = tables["mse_map"].copy()
    prices.loc[prices.outside == "cap", "mse_scaled"] *= 1e6  # were cap bad, the advice would say so
    assert "drop, not cap" in advice(tables | {"mse_map": prices})
    assert "rather than drop them" in text
    fair = tables["fairness_map"].copy()
    fspo = (fair.rule == "fspo") & (fair.measure == "band")
    fair.loc[fspo, "lre_inf"] = 0.77
    assert "nowhere on the grid, 0.4 to 0.6 (least LRE_inf 0.77)" in advice(tables | {"fairness_map": fair})


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
