"""Find the files of another trainer's log, tell what kind each is, and read them in parts. Functions that read append
a line to a list ``damage`` for each file that they cannot read completely."""

from __future__ import annotations

import gzip
import json
import re
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq

from analysis.importing.names import COLUMNS, MARKS, STATE, TRL_TABLE, canonical, is_log_probability, step_column
from analysis.importing.values import NUMPY_NUMBER, Chunk, as_values, unpacked
from fspo.base.errors import UserError
from fspo.base.files import json_lines
from fspo.gradlog.run_folder import GRADLOG

CONSOLES = (".txt", ".log", ".out")
_MARKING = {canonical(alias) for name in MARKS for alias in COLUMNS[name]}
CHUNK = 50_000
"""Rows in a part of a table. Parts of JSON lines with token lists are smaller: they end after ``CHUNK_BYTES``."""
CHUNK_BYTES = 32 * 2**20
SEPARATED = (".csv", ".tsv")
TABLES = (".parquet", *SEPARATED, ".jsonl", ".jsonl.gz")
NESTS = ("data", "metrics", "scalars")
"""Names under which a line of scalars holds them as one object."""
VERL_LINE = r"\bstep:(\d+) - (\S+:\S.*)"
NUMBER = r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?|nan|-?inf"
Part = list[dict[str, Any]] | pa.RecordBatch
"""Some rows of a file: records of JSON lines, a state or a console text, or columns of a CSV or Parquet file."""


@dataclass
class Sources:
    """The files of another trainer that an import reads, each list in the order of training."""

    state: list[Path] = field(default_factory=list)  # TRL's trainer_state.json; a later one repeats earlier ones
    scalars: list[Path] = field(default_factory=list)  # scalars as JSON lines or CSV, one line for each step
    table: list[Path] = field(default_factory=list)  # tables of another trainer, one row for each response
    ignored: list[str] = field(default_factory=list)  # files that were left out, each with the reason
    first_step: int = 0  # number of a rollout's first update, and of the run's; TRL counts from 1


def find_sources(source: str | Path, given: Mapping[str, str] | None = None) -> Sources:
    """Find the source files in a folder and below it, or look at a single file.

    ``given`` maps this project's names of columns to the source's: a file with a column of such a name is read.

    Raise UserError if ``source`` does not exist, is a run folder of this project, or holds no log that can be read."""
    path = Path(source)
    if (path / GRADLOG).is_dir():
        raise UserError(f"{path} holds a gradient log already: run `fspo analyse {path}`")
    if not path.is_file() and not path.is_dir():
        what = "is no regular file" if path.exists() else "does not exist"
        raise UserError(f"{path} {what}: name a trainer's output folder or one of its log files")
    files = [path] if path.is_file() else sorted(filter(Path.is_file, path.rglob("[!.]*")), key=_order)
    found = Sources()
    for file in files:
        try:
            if kind := kind_of(file, given):
                getattr(found, kind).append(file)
        except UserError as error:
            if file == path:
                raise
            found.ignored.append(str(error))
    if not (found.state or found.scalars or found.table):
        why = f" ({found.ignored[0]})" if found.ignored else ""
        what = "is" if path.is_file() else f"holds no log that can be read{why}:"
        raise UserError(
            f"{path} {what} neither {STATE}, verl's console text, nor a .jsonl, .csv or .parquet of scalars by step or "
            "of one row a response"
        )
    found.first_step = int(bool(found.state) or any(file.name.startswith(TRL_TABLE) for file in found.table))
    return found


def _order(path: Path) -> tuple[tuple[int, Any], ...]:
    """Return a sort key under which 2.jsonl comes before 10.jsonl: numbers in names are compared as numbers."""
    return tuple((1, int(p)) if p.isdigit() else (0, p) for p in re.split(r"(\d+)", str(path)))


def is_state(path: Path) -> bool:
    """Return whether a file is Hugging Face's file of scalars, also if it was renamed a little."""
    return path.suffix == ".json" and Path(STATE).stem in path.stem.lower().replace("-", "_")


def kind_of(path: Path, given: Mapping[str, str] | None = None) -> str | None:
    """Return what kind of source a file is, by its name and columns: "state", "scalars" or "table"; None if no log.

    ``given`` is that of `find_sources`. Raise UserError if a log or table cannot be read, is empty, or has neither
    scalars by step nor responses."""
    if is_state(path):
        return "state"
    if ".tfevents." in path.name:
        raise UserError(f"{path} is a file of TensorBoard, which is not read: name {STATE} or a CSV of its scalars")
    if not path.name.endswith(TABLES):
        printed = console(path) if path.name.endswith(CONSOLES) else ""
        if printed == "hugging face":
            raise UserError(f"{path}: a Hugging Face trainer's console text names no steps: name {STATE} of that run")
        return "scalars" if printed else None
    present = column_names(path)
    names = {canonical(part) for name in present for part in (name, name.rpartition(".")[2])}
    plain = {canonical(name.rpartition(".")[2]) for name in present if "/" not in name}  # rollout/log_probs is a scalar
    if not names:
        raise UserError(f"{path} is empty: name a file with a row for each response")
    told = {ours for ours, theirs in (given or {}).items() if canonical(theirs) in names and ours in COLUMNS}
    if plain & _MARKING or any(map(is_log_probability, present)) or told & {"length", *MARKS}:
        return "table"
    if (told or step_column(present)) and not path.name.endswith(".parquet"):
        return "scalars"
    raise UserError(
        f"{path} has no column of steps, which scalars need, and none of responses; it has {', '.join(present[:20])}: "
        "name one with --columns step=COLUMN or, with a row for each response, log_ratio=COLUMN"
    )


def column_names(path: Path) -> list[str]:
    """Return the names of a table's columns (for JSON lines: the keys of the first record); [] if the file is empty.

    A number inside an object of a JSON line is named outer/inner, as scalars are. Raise UserError if the file cannot be
    read, or names a column twice."""
    damage: list[str] = []
    part = next(read_parts(path, damage, rows=1), [])
    if damage:
        raise UserError(damage[0])
    lines = isinstance(part, list)
    return [n.replace(".", "/") if lines and found.kind == "number" else n for n, found in columns_of(part).items()]


def read_parts(path: Path, damage: list[str], rows: int = CHUNK) -> Iterator[Part]:
    """Yield a file in parts: Parquet and JSON lines of at most ``rows`` rows, any other file of any size. The first
    part of Parquet and CSV has the columns and no row.

    ``damage`` receives one line if some rows, or the complete file, cannot be read."""
    if is_state(path):
        parts = _state(path)
    elif not path.name.endswith(TABLES):
        parts = _console(path)
    elif path.name.endswith(".parquet"):
        parts = _parquet(path, rows)
    else:
        parts = _csv(path) if path.name.endswith(SEPARATED) else _json_lines(path, damage, rows)
    done = 0
    try:
        for part in parts:
            done += len(part)
            yield part
    except (pa.ArrowException, OSError, EOFError, ValueError, zlib.error) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        reason = "it is not text in UTF-8" if isinstance(error, UnicodeDecodeError) else reason
        what = f"{path}: what follows row {done} cannot be read: {reason}"
        damage.append(what if done else f"{path} cannot be read: {reason}; repair it or move it away")


def read_chunks(path: Path, damage: list[str], rows: int = CHUNK) -> Iterator[Chunk]:
    """Yield by name the columns of each part that `read_parts` yields of a table (same arguments) if it has a row."""
    return (columns_of(part) for part in read_parts(path, damage, rows) if len(part))


def columns_of(part: Part) -> Chunk:
    """Return the columns, by name, of some rows that `read_parts` has yielded."""
    if not isinstance(part, list):
        table = _flat(pa.Table.from_batches([part]))
        return {name: as_values(table[name].combine_chunks()) for name in table.column_names}
    records = [row for record in part for row in _rows(dissolved(record))]
    names = dict.fromkeys(name for record in records for name in record)
    return {name: as_values([record.get(name) for record in records]) for name in names}


def dissolved(record: Mapping[str, Any], between: str = ".") -> dict[str, Any]:
    """Return a flat copy of a record: a value of a nested object is named outer + ``between`` + inner (inner alone if
    outer is in `NESTS`); a list of objects becomes a list for each key, or stays if they hold "logprob" (OpenAI's)."""
    out: dict[str, Any] = {}
    for name, value in record.items():
        if isinstance(value, dict):
            before = "" if name in NESTS else f"{name}{between}"
            out |= {before + inner: x for inner, x in dissolved(value, between).items()}
        elif isinstance(value, list) and value and isinstance(value[0], dict) and "logprob" not in value[0]:
            out |= {f"{name}{between}{inner}": [one.get(inner) for one in value] for inner in value[0]}
        else:
            out[name] = value
    return out


def _rows(record: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the responses that a record holds: one or, if it holds lists of equal length of which one is a list of
    lists, as many as these lists have entries (NeMo-RL writes lists of one, others a batch in a line)."""
    lists = {name: value for name, value in record.items() if isinstance(value, list) and "." not in name}
    sizes = {len(value) for value in lists.values()}
    batch = any(all(isinstance(v, list) for v in value) and unpacked([value])[0] is value for value in lists.values())
    if len(lists) < 2 or len(sizes) > 1 or not batch:
        return [record]
    return [dissolved(record | {name: value[i] for name, value in lists.items()}) for i in range(sizes.pop())]


def _flat(table: pa.Table) -> pa.Table:
    while any(map(pa.types.is_struct, table.schema.types)):
        table = table.flatten()
    return table


def _head(schema: pa.Schema) -> pa.RecordBatch:
    """Return a batch with a file's columns and no row; raise ValueError if two columns have one name."""
    names = _flat(schema.empty_table()).column_names
    if twice := [name for name in names if names.count(name) > 1]:
        raise ValueError(f"it names the column {twice[0]!r} twice")
    return pa.RecordBatch.from_pylist([], schema)


def _parquet(path: Path, rows: int) -> Iterator[Part]:
    with pq.ParquetFile(path, page_checksum_verification=True) as file:
        yield _head(file.schema_arrow)
        for number in range(file.num_row_groups):
            yield from file.iter_batches(batch_size=rows, row_groups=[number])


def _csv(path: Path) -> Iterator[Part]:
    with path.open(encoding="utf-8-sig") as file:
        between = max(",;\t", key=file.readline().count)
    options: dict[str, Any] = {
        "read_options": pacsv.ReadOptions(use_threads=False),  # threads would not name the row of an error
        "parse_options": pacsv.ParseOptions(delimiter=between, newlines_in_values=True),
    }
    yield _head(pacsv.open_csv(path, **options).schema)
    table = pacsv.read_csv(path, **options)
    for i, name in enumerate(table.column_names):
        column = table.column(i)
        if pa.types.is_floating(column.type) and np.any(np.abs(column.to_numpy()) >= 2**53):
            text = pacsv.ConvertOptions(include_columns=[name], column_types={name: pa.string()})
            texts = pacsv.read_csv(path, **options, convert_options=text).column(0)
            if all(value.isdecimal() for value in texts.to_pylist() if value):
                table = table.set_column(i, name, texts)  # ids of 64 bits, which a float would merge
    yield from table.combine_chunks().to_batches()


def _json_lines(path: Path, damage: list[str], rows: int) -> Iterator[Part]:
    records: list[dict[str, Any]] = []
    start, number, bad, why = 0, 0, 0, ""
    try:
        with gzip.open(path, "rb") if path.name.endswith(".gz") else path.open("rb") as file:
            for number, record in json_lines(file):
                if isinstance(record, str):
                    bad, why = bad + 1, why or f"line {number}: {record}"
                    continue
                records.append(record)
                if len(records) >= rows or file.tell() - start >= CHUNK_BYTES:
                    yield records
                    records, start = [], file.tell()
    except (OSError, EOFError, zlib.error):
        if records:
            yield records  # what stands before the torn part
        raise
    if bad:
        damage.append(f"{path}: {bad} of {number} lines cannot be read and are left out, the first is {why}")
    yield records


def _state(path: Path) -> Iterator[Part]:
    """Yield the scalars of TRL's trainer_state.json, with their steps."""
    content = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(content, dict) or "log_history" not in content:
        raise ValueError(f"it has no log_history, as the {STATE} of a Hugging Face trainer has")
    yield [entry for entry in content["log_history"] if "step" in entry]


def console(path: Path) -> str:
    """Return which trainer printed the text in the file ``path``, as its first 100,000 characters show: "verl",
    "hugging face" or ""."""
    with path.open(encoding="utf-8", errors="replace") as file:
        text = file.read(100_000)
    if re.search(VERL_LINE, text):
        return "verl"
    return "hugging face" if re.search(r"(?m)^\{'(?:loss|reward|eval_loss|num_tokens)':", text) else ""


def _console(path: Path) -> Iterator[Part]:
    """Yield the scalars of each line that verl printed to the console, with their step."""
    records: list[dict[str, Any]] = []
    with path.open(encoding="utf-8", errors="replace") as file:
        for line in file:
            if found := re.search(VERL_LINE, line):
                pairs = [part.rpartition(":") for part in NUMPY_NUMBER.sub(r"\1", found[2]).strip().split(" - ")]
                values = {name: float(value) for name, _, value in pairs if name and re.fullmatch(NUMBER, value)}
                records.append({"step": int(found[1])} | values)
    yield records
