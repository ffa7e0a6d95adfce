"""The gradient log: the one contract between a trainer (ours or another's) and the diagnostics.

``RUN/gradlog/rollout-00000012-rank-0000.parquet``: one file for each rollout and process, one row for each
response and update. Files are written whole and renamed, so a killed run leaves no half file. Because the
stored direction is that of psi, and not of a clipped gradient, any sequence rule can be evaluated afterwards.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fspo.base.errors import UserError
from fspo.base.files import remove_parts, whole_file
from fspo.gradlog import files as gradfiles
from fspo.gradlog.files import file_name, log_paths, rollout_of
from fspo.gradlog.run_folder import GRADLOG
from fspo.gradlog.schema import REQUIRED, schema, typed
from fspo.rules import Rule

if TYPE_CHECKING:
    import pyarrow as pa


class GradLogWriter:
    """Collects rows in memory and writes one whole file a rollout and process.

    Parameters
    ----------
    run : path
        Run folder; ``gradlog/`` is made inside it.
    rank : int
        Process index.
    width : int
        Entries of a sketch; 0 if none is ever taken.
    exact : bool
        Store the directions as float32 (full gradients) rather than float16 (sketches).
    metadata : mapping
        Plain values kept in each file's header: at least ``{"rule": rule.to_dict()}`` so that the log explains itself.
    user_columns : mapping
        Further columns by name (without ``user.``) and Arrow type name.
    """

    def __init__(
        self,
        run: str | Path,
        *,
        rank: int = 0,
        width: int = 0,
        exact: bool = False,
        metadata: Mapping[str, Any] | None = None,
        user_columns: Mapping[str, str] | None = None,
    ) -> None:
        self.folder = Path(run) / GRADLOG
        self.folder.mkdir(parents=True, exist_ok=True)
        self.rank = rank
        self.width = width
        self.schema = schema(width, user_columns, metadata, exact=exact)
        self._batches: list[pa.RecordBatch] = []

    def append(self, rows: Mapping[str, Any]) -> None:
        """Add rows: a column is an array (N,), a scalar for all N rows, or missing (null).

        ``score_unit`` is an array (N, width); rows whose ``score_status`` is not "ok" are stored as null.

        Raises
        ------
        UserError
            For an unknown column or a missing required one.
        """
        import pyarrow as pa

        unknown = set(rows) - set(self.schema.names)
        missing = [name for name in REQUIRED if name not in rows]
        if unknown or missing:
            raise UserError(
                f"gradient log: unknown columns {sorted(unknown)}, missing columns {missing} "
                "(name columns as fspo.gradlog.schema.COLUMNS does, others user.NAME)"
            )
        n = len(np.atleast_1d(rows["log_ratio"]))
        columns = [self._column(f, rows.get(f.name), n, rows) for f in self.schema]
        self._batches.append(pa.record_batch(columns, schema=self.schema))

    def _column(self, f: pa.Field, value: Any, n: int, rows: Mapping[str, Any]) -> pa.Array:
        import pyarrow as pa

        if value is None:
            return pa.nulls(n, f.type)
        if f.name == "score_unit":
            flat = np.ascontiguousarray(value, dtype=f.type.value_type.to_pandas_dtype()).reshape(n, self.width)
            good = np.broadcast_to(np.asarray(rows.get("score_status", "ok")) == "ok", n)
            return pa.FixedSizeListArray.from_arrays(pa.array(flat.ravel()), self.width, mask=pa.array(~good))
        if np.ndim(value) == 0 and not isinstance(value, (list, tuple)):
            value = np.full(n, value)
        return pa.array(np.asarray(value) if not isinstance(value, list) else value, type=f.type)

    def flush(self, rollout: int, *, keep: bool = False) -> Path | None:
        """Write the collected rows as this rollout's file, whole or not at all; None if there are none.

        ``keep`` them where more rows of the rollout follow: the next flush writes all of them again.
        """
        import pyarrow as pa
        import pyarrow.parquet as pq

        if not self._batches:
            return None
        path = self.folder / file_name(rollout, self.rank)
        with whole_file(path) as part:
            table = pa.Table.from_batches(self._batches, self.schema)
            pq.write_table(table, part, compression="zstd", write_page_checksum=True)
        self._batches = self._batches if keep else []
        return path


def discard_from(run: str | Path, rollout: int) -> int:
    """Remove files of rollouts >= ``rollout`` and half-written ones (a resumed run repeats them); their number."""
    count = remove_parts(Path(run) / GRADLOG)
    repeated = [path for path in log_paths(run) if rollout_of(path) >= rollout]
    for path in repeated:
        path.unlink()
    return count + len(repeated)


@dataclass
class GradLog:
    """Rows of one run, in memory: an Arrow table, the run's header and what was damaged.

    Attributes
    ----------
    table : pyarrow.Table
    metadata : dict
        The run's header, with ``rule`` (see ``Rule.to_dict``) where the trainer wrote it.
    damage : list of str
        One line for each file that could not be read; the others are here.
    """

    table: pa.Table
    metadata: dict[str, Any] = field(default_factory=dict)
    damage: list[str] = field(default_factory=list)

    def __len__(self) -> int:
        return self.table.num_rows

    def __contains__(self, name: str) -> bool:
        return name in self.table.column_names and (len(self) == 0 or self.table[name].null_count < len(self))

    def column(self, name: str) -> np.ndarray:
        """A column as numpy (N,); nulls become NaN in floating columns, and False/0/"" elsewhere."""
        import pyarrow as pa
        import pyarrow.compute as pc

        if name not in self.table.column_names:
            raise UserError(
                f"the gradient log has no column {name!r}: let the trainer write it, or read one of "
                f"{', '.join(self.table.column_names)}"
            )
        values = self.table[name]
        if pa.types.is_dictionary(values.type):
            values = values.cast(values.type.value_type)
        if values.null_count:
            kind = values.type
            fill = math.nan if pa.types.is_floating(kind) else "" if pa.types.is_string(kind) else 0
            values = pc.fill_null(values, pa.scalar(fill).cast(kind))
        return values.to_numpy()

    def count(self, name: str, value: str) -> int:
        """Rows whose column of text holds a value."""
        import pyarrow.compute as pc

        return int(pc.sum(pc.equal(self.table[name], value)).as_py() or 0)  # type: ignore[attr-defined]

    def scores(self) -> tuple[np.ndarray, np.ndarray]:
        """Rows with a score (M,) and their psi (M, D), float32: unit vector times norm."""
        taken = self.column("score_status") == "ok"
        index = np.flatnonzero(taken & self.table["score_unit"].is_valid().to_numpy())
        if index.size == 0:
            return index, np.zeros((0, 0), np.float32)
        units = self.table["score_unit"].take(index).combine_chunks()
        width = units.type.list_size
        flat = units.flatten().to_numpy(zero_copy_only=False).astype(np.float32).reshape(-1, width)
        return index, flat * self.column("score_norm")[index, None]

    def where(self, mask: np.ndarray) -> GradLog:
        """The rows with ``mask`` (N,)."""
        import pyarrow as pa

        return GradLog(self.table.filter(pa.array(mask)), self.metadata, self.damage)

    @staticmethod
    def joined(logs: Sequence[GradLog]) -> GradLog:
        """The rows of all, with the first one's header."""
        damage = [line for log in logs for line in log.damage]
        return GradLog(_joined([log.table for log in logs]), logs[0].metadata, damage)

    @property
    def rule(self) -> Rule:
        """The rule that trained."""
        if "rule" not in self.metadata:
            raise UserError("the log's header names no rule; pass GradLogWriter(metadata={'rule': rule.to_dict()})")
        try:
            return Rule(**self.metadata["rule"])
        except TypeError as error:
            raise UserError(f"the rule in the log's header is none: {error}; write Rule.to_dict() there") from None


def read_log(
    run: str | Path,
    *,
    columns: Sequence[str] | None = None,
    phases: Iterable[str] | None = ("train",),
    rollouts: tuple[int, int] | None = None,
) -> GradLog:
    """Read a run's gradient log.

    Parameters
    ----------
    run : path
        The run folder (the one that holds ``gradlog/``).
    columns : sequence of str, optional
        Only these; leave out ``score_unit`` where sketches are not needed.
    phases : iterable of str or None
        Rows of these phases; None for all.
    rollouts : (first, last), optional
        Inclusive range.

    Raises
    ------
    UserError
        If there is no log, or no file of it can be read: not even one of this major schema.
    """
    files, damage = gradfiles.log_files(run, rollouts)
    kept = None if phases is None else list(phases)
    return read_files([(file, None) for file in files], columns, kept, damage)


def read_files(
    parts: Sequence[tuple[gradfiles.LogFile, Sequence[int] | None]],
    columns: Sequence[str] | None,
    phases: Sequence[str] | None,
    damage: Sequence[str] = (),
) -> GradLog:
    """Rows of some files, or of some of their row groups.

    Raises
    ------
    UserError
        If none of them can be read.
    """
    import pyarrow as pa

    tables: list[pa.Table] = []
    names: list[str] = []
    damage = list(damage)
    for file, groups in parts:
        found, lines = gradfiles.read_rows(file, columns, phases, groups)
        damage += lines
        for table in found:
            try:
                tables.append(typed(table))
                names.append(file.path.name)
            except (pa.ArrowException, ValueError) as error:
                damage.append(f"{gradfiles.broken(file.path, error)} ({table.num_rows} rows lost)")
    if not tables:
        raise gradfiles.unreadable(parts[0][0].path.parent, damage[0])
    metadata = next((file.metadata for file, _ in parts if file.metadata), {})
    return GradLog(_joined(_of_one_width(tables, names, damage)), metadata, damage)


def _of_one_width(tables: list[pa.Table], names: Sequence[str], damage: list[str]) -> list[pa.Table]:
    """Tables whose sketches are of the form that most rows have; sketches of another are left out and named."""
    unit = "score_unit"
    forms = [table.schema.field(unit).type if unit in table.column_names else None for table in tables]
    rows: dict[pa.DataType, int] = {}
    for form, table in zip(forms, tables, strict=True):
        if form is not None:
            rows[form] = rows.get(form, 0) + table.num_rows
    if len(rows) <= 1:
        return tables
    usual = max(rows, key=lambda form: rows[form])
    out = []
    for form, name, table in zip(forms, names, tables, strict=True):
        if form not in (None, usual):
            lost = table.num_rows - table[unit].null_count
            damage.append(f"{name}: {lost} sketches left out: they are {form}, and those of most rows {usual}")
            table = table.drop_columns([unit])
        out.append(table)
    return out


def _joined(tables: list[pa.Table]) -> pa.Table:
    """One table with the columns of all."""
    import pyarrow as pa

    joined = pa.concat_tables(tables, promote_options="permissive")
    return joined.unify_dictionaries()
