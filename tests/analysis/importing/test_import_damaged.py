"""Of files that are damaged, contradict themselves or hold no log: what is read of them, and how they are refused."""

import gzip
import json

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from analysis.importing.run import ImportOptions, import_run
from fspo.base.errors import UserError
from fspo.gradlog import read_log
from tests.analysis.importing.made import TOKENS, imported, plain_rows


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        (TOKENS | {"old_log_probs": [[-1.0], [-0.5], [-3.0, -2.0]]}, "differ in tokens"),
        (TOKENS | {"new_log_probs": [[0.3, 0.2, 0.9], [0.7], [0.5, 0.5]]}, "a log-probability is at most 0"),
        (TOKENS | {"response_mask": [[1, 1], [1], [1, 1]]}, "differ in tokens"),
        (TOKENS | {"length": [3, 1, 9]}, "says 9 tokens where the token columns hold 2"),
        (TOKENS | {"advantages": ["high", "low", "low"]}, "must hold numbers, not 'high'"),
    ],
)
def test_tables_that_contradict_themselves(tmp_path, columns, message):
    with pytest.raises(UserError, match=message):
        imported(tmp_path, columns)
    assert [p.name for p in tmp_path.iterdir()] == ["table.parquet"]


TOKEN_ROWS = "response_id,token_idx,old_logprobs,new_logprobs\n0,0,-1,-1\n0,1,-2,-2\n1,0,-1,-1\n"
TICKS = '{"tick": 3, "who": "x"}'


@pytest.mark.parametrize(
    ("name", "content", "columns", "message"),
    [
        ("t.jsonl", '{"prompt": ', {}, "1 of 1 lines cannot be read"),
        ("t.txt", "hello", {}, "neither trainer_state"),
        ("trainer_state.json", "{", {}, "cannot be read: Expecting"),
        ("trainer_state.json", "[1]", {}, "no log_history"),
        ("events.out.tfevents.1.host", "", {}, r"TensorBoard, which is not read: name trainer_state\.json or a CSV"),
        ("hf.txt", "{'loss': 0.01, 'grad_norm': 0.2,\n 'epoch': 0.5}\n", {}, r"trainer_state\.json of that run"),
        ("t.csv", TOKEN_ROWS, {}, r"a row seems to be a token \(column 'token_idx'\)"),
        ("s.jsonl", TICKS, {}, "no column of steps"),
        ("s.jsonl", TICKS, {"step": "who"}, "no line has a number as its step"),
        ("r.jsonl", '{"step": 3, "now": -2.0}\n' * 3, {}, "many lines for each step.*new=COLUMN.*; it has now"),
        ("w.csv", "_step,mine - x,other - x\n4,0.5,0.1\n", {}, r"scalars of 2 runs \(mine, other\): export one run"),
    ],
)
def test_what_is_no_log_is_refused_in_one_line(tmp_path, name, content, columns, message):
    (tmp_path / name).write_text(content)
    with pytest.raises(UserError, match=message) as error:
        import_run(tmp_path / name, tmp_path / "run", ImportOptions(columns=columns))
    assert "\n" not in str(error.value)
    assert not (tmp_path / "run").exists()


def test_of_damaged_lines_the_good_ones_are_read_and_the_others_counted(tmp_path):
    rows = plain_rows(3000)
    lines = [json.dumps(row).encode() for row in rows]
    lines[0], lines[5], lines[9] = lines[0][:-1], lines[5][:20] + b"\xff", b"\x00"
    (tmp_path / "t.jsonl").write_bytes(b"\n".join(lines))
    report = import_run(tmp_path / "t.jsonl", tmp_path / "run")
    good = [row["S"] for i, row in enumerate(rows) if i not in (0, 5, 9)]
    assert read_log(tmp_path / "run").column("log_ratio").tolist() == good
    (line,) = (line for line in report.lines() if line.startswith("  damaged: "))
    assert "t.jsonl: 3 of 3000 lines cannot be read and are left out, the first is line 1: no valid JSON" in line
    whole = gzip.compress(b"\n".join(lines))
    (tmp_path / "z.jsonl.gz").write_bytes(whole[: len(whole) // 2])
    report = import_run(tmp_path / "z.jsonl.gz", tmp_path / "from-gz")
    assert read_log(tmp_path / "from-gz").column("log_ratio").tolist() == good[: report.rows]
    assert f"3 of {report.rows + 3} lines cannot be read" in report.damage[0]
    assert f"what follows row {report.rows} cannot be read" in report.damage[1]


def test_of_a_damaged_table_the_good_part_is_read(tmp_path, monkeypatch):
    frame = pd.DataFrame(plain_rows(3000))
    text = frame.to_csv(index=False).splitlines()
    text[2000] = "1,2"
    (tmp_path / "c.csv").write_text("\n".join(text))
    with pytest.raises(UserError, match="Row #2001: Expected 4 columns, got 2"):
        import_run(tmp_path / "c.csv", tmp_path / "from-csv")
    pq.write_table(pa.Table.from_pandas(frame), tmp_path / "p.parquet", row_group_size=1000, write_page_checksum=True)
    where = pq.read_metadata(tmp_path / "p.parquet").row_group(1).column(1).data_page_offset
    content = bytearray((tmp_path / "p.parquet").read_bytes())
    content[where + 200] ^= 255
    (tmp_path / "p.parquet").write_bytes(content)
    monkeypatch.setattr("analysis.importing.sources.CHUNK_BYTES", 20_000)
    for name in ("c.csv", "p.parquet"):
        report = import_run(tmp_path / name, tmp_path / f"from-{name}")
        assert f"what follows row {report.rows} cannot be read" in report.damage[0]
        log = read_log(tmp_path / f"from-{name}")
        assert log.column("log_ratio").tolist() == frame["S"][: report.rows].tolist()
        assert len(set(log.column("prompt_id"))) == report.rows  # without a prompt each has one of its own
        assert report.rows == 1000 if name == "p.parquet" else 1000 < report.rows < 2000
