"""The generated pages against the code, and the code's columns against what the commands write."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest

from analysis.__main__ import main
from analysis.claims.judge import Claim
from analysis.rules.calibrate import CalibratedRange
from analysis.sweeps.counterfactual import SweepRow
from analysis.tables.columns import columns, names
from analysis.tables.files import TABLES
from fspo.gradlog import GradLogWriter
from fspo.gradlog.schema import LOG_COLUMNS, REQUIRED
from fspo.rules import Rule, preset
from studies.reference_pages import DOCS, ELSEWHERE, KEYS, PAGES
from tests.analysis.conftest import Plan, write_log


@pytest.mark.parametrize("name", PAGES)
def test_the_page_is_what_the_code_declares(name):
    assert (DOCS / name).read_text(encoding="utf-8") == PAGES[name](), "run python studies/reference_pages.py"


@pytest.mark.parametrize("row", [*KEYS.values(), *TABLES.values(), *ELSEWHERE.values()])
def test_every_column_says_what_it_means_and_its_unit(row):
    assert row.__doc__
    for column in columns(row):
        assert column.meaning.strip(), column
        assert column.unit.strip(), column
    assert len(set(names(row))) == len(names(row))


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run with everything that a table is made of: scores, metrics, a noise floor, token log-ratios."""
    run = write_log(
        tmp_path_factory.mktemp("columns") / "run", Plan(rollouts=2, prompts=32, width=8, engine=0.01, tokens=True)
    )
    (run / "metrics.jsonl").write_text('{"rollout": 0, "step": 4, "phase": "train", "reward": 0.5}\n')
    n = np.arange(64)
    noise = GradLogWriter(
        run / "noise", metadata={"rule": preset("fspo").rule.to_dict()}, user_columns={"source": "string"}
    )
    noise.append(
        {
            "rollout": 0,
            "step": 0,
            "phase": "noise",
            "prompt_id": n,
            "response_id": n,
            "length": 5 + n,
            "log_ratio": 1e-3 * np.cos(n),
            "advantage": 1.0,
            "band_accept": True,
            "user.source": ["low"] * 64,
        }
    )
    noise.flush(0)
    return run


def test_every_table_that_a_run_writes_has_the_declared_columns_and_rows(run, tmp_path):
    claims = tmp_path / "claims.json"
    assert main([str(run), "--rules", "[fspo,rloo]", "--draws", "2", "--bins", "2", "--claims", str(claims)]) == 0
    written = {path.stem for path in (run / "analysis").glob("*.csv")}
    assert written == set(TABLES)
    for name, row in TABLES.items():
        table = pd.read_parquet(run / "analysis" / f"{name}.parquet")
        assert tuple(table.columns) == names(row), name
        assert tuple(pd.read_csv(run / "analysis" / f"{name}.csv").columns) == names(row), name
        assert len(table), f"{name} is empty"
    for claim in json.loads(claims.read_text())["claims"]:
        assert tuple(claim) == names(Claim)


def test_a_table_without_rows_has_its_columns(run, tmp_path):
    bare = tmp_path / "bare"
    shutil.copytree(run / "gradlog", bare / "gradlog")
    assert main([str(bare), "--rules", "[fspo]", "--draws", "2"]) == 0
    for name in ("noise_floor", "training"):
        table = pd.read_parquet(bare / "analysis" / f"{name}.parquet")
        assert (len(table), tuple(table.columns)) == (0, names(TABLES[name]))


def test_what_other_commands_write_has_the_declared_columns(run, tmp_path):
    assert main(["sweep", str(run), "--bins", "2"]) == 0
    table = pd.read_csv(run / "analysis" / "sweep.csv")
    assert tuple(table.columns) == names(SweepRow)
    assert len(table)
    ranges = tmp_path / "ranges.json"
    unclipped = write_log(tmp_path / "none", Plan(rule=Rule("none"), rollouts=1, prompts=16, width=0))
    assert main(["calibrate", str(unclipped), "--rules", "[fspo]", "--output", str(ranges)]) == 0
    assert tuple(json.loads(ranges.read_text())["fspo"]) == names(CalibratedRange)


def test_a_logs_file_has_the_declared_columns(run):
    schema = pq.read_schema(next((run / "gradlog").iterdir()))
    assert schema.names == list(LOG_COLUMNS)
    for field in schema:
        column = LOG_COLUMNS[field.name]
        assert field.nullable == (field.name not in REQUIRED)
        assert field.metadata[b"doc"].decode() == f"{column.meaning}; {column.unit}"
        kind = {"float32": "float", "float64": "double", "tokens": "list<"}.get(column.kind, column.kind)
        assert str(field.type).startswith("fixed_size_list" if kind == "list" else kind)
