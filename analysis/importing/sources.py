"""Find the files of another trainer's log, tell what kind each is, and read them in parts. Functions that read append
a line to a list ``damage`` for each file that they cannot read completely."""

from __future__ import annotations

import gzip
import json
import re
import zlib
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv
import pyarrow.parquet as pq

from analysis.importing.names import COLUMNS, MARKS, STATE, TRL_TABLE, canonical, is_log_probability, step_column
from analysis.importing.values import NUMPY_NUMBER, Chunk, as_values, unpacked
from fspo.base.errors import UserError
from fspo.base.files import json_lines
from fspo.gradlog.run_folder import GRADLOG

_MARKING = {canonical(alias) for name in MARKS for alias in COLUMNS[name]}
CHUNK, CHUNK_BYTES = 50_000, 32 * 2**20
"""Rows in a part of a table. A part of a text (CSV, JSON lines) with long lists ends after ``CHUNK_BYTES``."""
TABLES = (".parquet", ".csv", ".tsv", ".jsonl", ".jsonl.gz")
VERL_LINE = r"\bstep:(\d+) - (\S+:\S.*)"
HUGGING_FACE_LINE = r"(?m)^\{'(?:loss|reward|eval_loss|num_tokens)':"
NUMBER = r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?|nan|-?inf"
Part = list[dict[str, Any]] | pa.Table
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
    files = [path] if path.is_file() else [*filter(Path.is_file, path.rglob("[!.]*"))]
    files.sort(key=lambda file: [int(p) if p.isdecimal() else p for p in re.split(r"(\d+)", str(file))])  # 2 before 10
    found = Sources()
    for file in files:
        try:
            if kind := kind_of(file, given or {}):
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


def kind_of(path: Path, given: Mapping[str, str]) -> str | None:
    """Return what kind of source a file is, by its name and columns: "state", "scalars" or "table"; None if no log.

    ``given`` is that of `find_sources`. Raise UserError if a log or table cannot be read, is empty, names a column
    twice, or has neither scalars by step nor responses."""
    if path.suffix == ".json" and Path(STATE).stem in path.stem.lower().replace("-", "_"):
        return "state"
    if ".tfevents." in path.name:
        raise UserError(f"{path} is a file of TensorBoard, which is not read: name {STATE} or a CSV of its scalars")
    if path.suffix in (".txt", ".log", ".out"):
        with path.open(encoding="utf-8", errors="replace") as file:
            text = file.read(100_000)
        if re.search(VERL_LINE, text):
            return "scalars"
        if re.search(HUGGING_FACE_LINE, text):
            raise UserError(f"{path}: a Hugging Face trainer's console text names no steps: name {STATE} of that run")
    if not path.name.endswith(TABLES):
        return None
    damage: list[str] = []
    part = next(read_parts(path, damage, rows=1), [])
    if damage:
        raise UserError(damage[0])
    lines = isinstance(part, list)  # of JSON, in which a number inside an object is named outer/inner, as scalars are
    columns = columns_of(part).items()
    present = [name.replace(".", "/") if lines and found.kind == "number" else name for name, found in columns]
    if not present:
        raise UserError(f"{path} is empty: name a file with a row for each response")
    responses = {name.rpartition(".")[2] for name in present if "/" not in name}  # rollout/log_probs is a scalar
    names = {canonical(name) for name in (*present, *responses)}
    told = {ours for ours, theirs in given.items() if canonical(theirs) in names and ours in COLUMNS}
    if _MARKING & {*map(canonical, responses)} or any(map(is_log_probability, present)) or told & {"length", *MARKS}:
        return "table"
    if (told or step_column(present)) and not path.name.endswith(".parquet"):
        return "scalars"
    raise UserError(
        f"{path} has no column of steps, which scalars need, and none of responses; it has {', '.join(present[:20])}: "
        "name one with --columns step=COLUMN or, with a row for each response, log_ratio=COLUMN"
    )


def read_parts(path: Path, damage: list[str], rows: int = CHUNK) -> Iterator[Part]:
    """Yield a file in parts, of Parquet and JSON lines at most ``rows`` rows. The first part of Parquet and CSV has the
    columns and no row.

    ``damage`` receives a line if some rows, or the complete file, cannot be read."""
    if path.suffix == ".json":
        parts = _state(path)
    elif path.name.endswith(".parquet"):
        parts = _parquet(path, rows)
    elif path.name.endswith((".csv", ".tsv")):
        parts = _csv(path)
    else:
        parts = _json_lines(path, damage, rows) if path.name.endswith(TABLES) else _console(path)
    done = 0
    try:
        for part in parts:
            while not isinstance(part, list) and any(map(pa.types.is_struct, part.schema.types)):
                part = part.flatten()
            names = [] if isinstance(part, list) else part.column_names
            if twice := [name for name in names if names.count(name) > 1]:
                raise ValueError(f"it names the column {twice[0]!r} twice")
            done += len(part)
            yield part
    except (pa.ArrowException, OSError, EOFError, ValueError, zlib.error) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        reason = "it is not text in UTF-8" if isinstance(error, UnicodeDecodeError) else reason
        what = f"{path}: what follows row {done} cannot be read: {reason}"
        damage.append(what if done else f"{path} cannot be read: {reason}; repair it or move it away")


def columns_of(part: Part) -> Chunk:
    """Return the columns, by name, of some rows that `read_parts` has yielded."""
    if not isinstance(part, list):
        return {name: as_values(part[name].combine_chunks()) for name in part.column_names}
    records = [row for record in part for row in _rows(dissolved(record))]
    names = dict.fromkeys(name for record in records for name in record)
    return {name: as_values([record.get(name) for record in records]) for name in names}


def dissolved(record: Mapping[str, Any], between: str = ".") -> dict[str, Any]:
    """Return a flat copy of a record: a value of a nested object is named outer + ``between`` + inner (or inner, if
    outer holds all scalars); a list of objects becomes a list for each key, unless they hold "logprob" (OpenAI's)."""
    out: dict[str, Any] = {}
    for name, value in record.items():
        if isinstance(value, dict):
            before = "" if name in ("data", "metrics", "scalars") else f"{name}{between}"
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
    nested = [value for value in lists.values() if value and all(isinstance(one, list) for one in value)]
    if len(lists) < 2 or len(sizes) > 1 or not any(unpacked([value])[0] is value for value in nested):
        return [record]
    return [dissolved(record | {name: value[i] for name, value in lists.items()}) for i in range(sizes.pop())]


def _parquet(path: Path, rows: int) -> Iterator[Part]:
    with pq.ParquetFile(path, page_checksum_verification=True) as file:
        yield file.schema_arrow.empty_table()
        for number in range(file.num_row_groups):
            for batch in file.iter_batches(batch_size=rows, row_groups=[number]):
                yield pa.Table.from_batches([batch])


def _csv(path: Path) -> Iterator[Part]:
    with path.open(encoding="utf-8-sig") as file:
        between = max(",;\t", key=file.readline().count)
    options = (
        pacsv.ReadOptions(use_threads=False, block_size=CHUNK_BYTES),  # threads would not name the row of an error
        pacsv.ParseOptions(delimiter=between, newlines_in_values=True),
    )
    schema = pacsv.open_csv(path, *options).schema
    yield schema.empty_table()
    texts = pacsv.ConvertOptions(column_types=dict.fromkeys(schema.names, pa.string()), strings_can_be_null=True)
    for block in pacsv.open_csv(path, *options, texts):
        yield pa.Table.from_arrays([_of_texts(column) for column in block.columns], schema.names)


def _of_texts(texts: pa.Array) -> pa.Array:
    """Return the texts of a column as numbers or as flags if all of them are; ids of over 63 bits, which a number would
    round, remain texts. (pyarrow itself takes a column's type from the first block, and refuses another one later.)"""
    if texts.null_count == len(texts):
        return pa.nulls(len(texts))
    words = pc.utf8_trim_whitespace(texts)  # type: ignore[attr-defined]
    whole = pc.all(pc.utf8_is_decimal(words)).as_py()  # type: ignore[attr-defined]
    for kind in (pa.int64(),) if whole else (pa.int64(), pa.float64(), pa.bool_()):
        with suppress(pa.ArrowInvalid):
            return words.cast(kind)
    return texts


def _json_lines(path: Path, damage: list[str], rows: int) -> Iterator[Part]:
    records: list[dict[str, Any]] = []
    start, number, bad, why = 0, 0, 0, ""
    torn: Exception | None = None
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
    except (OSError, EOFError, zlib.error) as error:
        torn = error
    if bad:
        damage.append(f"{path}: {bad} of {number} lines cannot be read and are left out, the first is {why}")
    if records:
        yield records
    if torn:
        raise torn


def _state(path: Path) -> Iterator[Part]:
    content = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(content, dict) or "log_history" not in content:
        raise ValueError(f"it has no log_history, as the {STATE} of a Hugging Face trainer has")
    yield [entry for entry in content["log_history"] if "step" in entry]


def _console(path: Path) -> Iterator[Part]:
    records: list[dict[str, Any]] = []
    with path.open(encoding="utf-8", errors="replace") as file:
        for line in file:
            if found := re.search(VERL_LINE, line):
                pairs = [part.rpartition(":") for part in NUMPY_NUMBER.sub(r"\1", found[2]).strip().split(" - ")]
                values = {name: float(value) for name, _, value in pairs if name and re.fullmatch(NUMBER, value)}
                records.append({"step": int(found[1])} | values)
    yield records
