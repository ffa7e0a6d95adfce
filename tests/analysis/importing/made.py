"""Tables of another trainer, written and imported by the tests."""

import gzip
import json

import numpy as np
import pandas as pd

from analysis.importing.run import ImportOptions, import_run
from fspo.gradlog import read_log

NEW = [[-1.0, -2.0, -0.5], [-0.25], [-3.0, -1.0]]
OLD = [[-1.5, -2.0, -0.25], [-0.5], [-3.0, -2.0]]
TOKENS = {"step": [0, 0, 1], "prompt": ["a", "a", "b"], "completion": ["xyz", "x", "xy"]}
TOKENS |= {"advantages": [1.0, -1.0, 0.5], "old_log_probs": OLD, "new_log_probs": NEW}


def write(path, columns):
    """Write a table in the form that its name asks for."""
    frame = pd.DataFrame(columns)
    if path.name.endswith(".parquet"):
        frame.to_parquet(path)
    elif path.name.endswith(".csv"):
        frame.map(lambda v: json.dumps(v) if isinstance(v, list) else v).to_csv(path, index=False)
    else:
        text = frame.to_json(orient="records", lines=True).encode()
        path.write_bytes(gzip.compress(text) if path.name.endswith(".gz") else text)
    return path


def imported(tmp_path, table, name="table.parquet", **options):
    tmp_path.mkdir(exist_ok=True)
    report = import_run(write(tmp_path / name, table), tmp_path / "run", ImportOptions(**options))
    return report, read_log(tmp_path / "run", phases=None)


def scalars(run):
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def plain_rows(number):
    rng = np.random.default_rng(0)
    return [
        {"step": i // 8, "S": float(rng.normal()), "L": int(rng.integers(1, 99)), "A": float(rng.normal())}
        for i in range(number)
    ]


def records(path, rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def taken(tmp_path, rows, name="t.jsonl", **columns):
    report = import_run(records(tmp_path / name, rows), tmp_path / "run", ImportOptions(columns=columns))
    return report, read_log(tmp_path / "run")
