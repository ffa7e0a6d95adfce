"""The study of the doctor's errors: its lists of runs, and the counts of a part."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from studies import doctor as study
from tests.analysis.doctor.defects import DEFECTS, SEVERITIES


def test_the_healthy_runs_differ_and_their_rules_exist() -> None:
    assert len(study.HEALTHY) == len(set(study.HEALTHY)) == 200
    assert {plan.preset.rule.shape for plan in study.HEALTHY} == {"sqrt", "fixed", "linear", "power", "none"}
    assert sum(plan.selected for plan in study.HEALTHY) == 54


def test_the_table_has_a_row_for_each_defect_and_each_size() -> None:
    table = pd.read_csv(study.TABLE, keep_default_na=False)
    assert tuple(table.columns) == study.ErrorRate._fields
    assert list(table[table.part == "spoilt"].case) == [defect.says for defect in DEFECTS]
    sizes = [(name, f"{size:g}") for name, (sizes, _) in SEVERITIES.items() for size in sizes]
    assert [tuple(row) for row in table[table.part == "power"][["case", "size"]].to_numpy()] == sizes


def test_a_large_defect_is_noticed_in_each_log_and_a_small_one_in_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "a token more in S, nats"
    _, make = SEVERITIES[name]
    monkeypatch.setattr(study, "SEVERITIES", {name: ((0.0, 0.3), make)})
    monkeypatch.setattr(study, "SEEDS", 2)
    small, large = study.power(tmp_path)
    assert small == study.ErrorRate("power", name, "0", 0, -1, 2)
    assert large == study.ErrorRate("power", name, "0.3", 2, -1, 2)
