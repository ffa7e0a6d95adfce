"""Of tables that are damaged or contradict themselves: what is read of them, and how they are refused."""

import gzip
import json
import tempfile
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analysis.importing.run import import_run
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


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("t.jsonl", b'{"prompt": ', "1 of 1 lines cannot be read"),
        ("t.jsonl", b"[1, 2]\n", "line 1: the row is list"),
        ("t.csv", b"\x89PNG\r\n\x1a\n\x00\xff\xfe", "it is not text in UTF-8"),
        ("t.txt", b"hello", "neither trainer_state"),
        ("t.jsonl", b"\xff\xfe\x00bad", "cannot be read"),
    ],
)
def test_bad_files_are_one_line(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=message) as error:
        import_run(tmp_path / name, tmp_path / "run")
    assert "\n" not in str(error.value)
    assert not (tmp_path / "run").exists()


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_of_a_damaged_table_the_good_lines_are_read_and_the_others_counted(data):
    rows = plain_rows(40)
    lines = [json.dumps(row).encode() for row in rows]
    broken = sorted(data.draw(st.sets(st.integers(0, 39), min_size=1, max_size=39)))
    for i in broken:
        lines[i] = lines[i][: data.draw(st.integers(1, len(lines[i]) - 1))] + data.draw(
            st.sampled_from([b"", b"\xff", b"\x00"])
        )
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "t.jsonl"
        file.write_bytes(b"\n".join(lines))
        report = import_run(file, Path(folder) / "run")
        log = read_log(Path(folder) / "run")
    assert log.column("log_ratio").tolist() == [row["S"] for i, row in enumerate(rows) if i not in broken]
    assert len(report.damage) == 1
    assert f"{len(broken)} of 40 lines" in report.damage[0]
    assert f"line {broken[0] + 1}:" in report.damage[0]
    assert any(line.startswith("  damaged: ") for line in report.lines())


def test_of_every_kind_of_file_the_good_part_is_read(tmp_path):
    rows = plain_rows(3000)
    frame = pd.DataFrame(rows)
    frame.to_csv(tmp_path / "c.csv", index=False)
    text = (tmp_path / "c.csv").read_text().splitlines()
    text[10] = "1,2"
    (tmp_path / "c.csv").write_text("\n".join(text))
    with pytest.raises(UserError, match="Row #11: Expected 4 columns, got 2"):
        import_run(tmp_path / "c.csv", tmp_path / "from-csv")
    whole = gzip.compress("\n".join(map(json.dumps, rows)).encode())
    (tmp_path / "z.jsonl.gz").write_bytes(whole[: len(whole) // 2])
    report = import_run(tmp_path / "z.jsonl.gz", tmp_path / "from-gz")
    assert 0 < report.rows < 3000
    assert "what follows row" in report.damage[-1]
    pq.write_table(pa.Table.from_pandas(frame), tmp_path / "p.parquet", row_group_size=1000, write_page_checksum=True)
    where = pq.read_metadata(tmp_path / "p.parquet").row_group(1).column(1).data_page_offset
    content = bytearray((tmp_path / "p.parquet").read_bytes())
    content[where + 200] ^= 255
    (tmp_path / "p.parquet").write_bytes(content)
    report = import_run(tmp_path / "p.parquet", tmp_path / "from-parquet")
    assert report.rows == 1000
    assert "what follows row 1000" in report.damage[0]
    log = read_log(tmp_path / "from-parquet")
    assert log.column("log_ratio").tolist() == frame["S"][:1000].tolist()
