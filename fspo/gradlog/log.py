"""The gradient log: its writer, and its rows in memory.

``RUN/gradlog/rollout-00000012-rank-0000.parquet``: there is one file for each rollout and process, with one row for
each response and update. A file is written under another name and renamed when complete, so a killed run leaves no
partial log file. The log stores the direction of the score psi, not of a clipped gradient, so any sequence rule can be
evaluated afterwards."""

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
from fspo.rules import GoneError, Rule

if TYPE_CHECKING:
    import pyarrow as pa


class GradLogWriter:
    """Collects the log rows of one process in memory and writes one file for each rollout.

    Parameters
    ----------
    run : path
        Run folder; ``gradlog/`` is made inside it.
    rank : int
        Process index.
    width : int
        Number of entries of a sketch; 0 if no sketch is taken in this run.
    exact : bool
        Store unit vectors of the scores as float32 (full gradients) rather than float16 (sketches).
    metadata : mapping
        Plain values kept in each file's header. They should include ``{"rule": rule.to_dict()}``, because the tables of
        `fspo analyse` need the rule with which the run was trained.
    user_columns : mapping
        Columns beyond the schema: name of each (without its prefix ``user.``) to the name of its Arrow type.
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
        """Add N rows. A column is an array (N,) or a scalar for all rows; a column that is not given is null.

        ``score_unit`` is an array (N, width); it is stored as null in rows whose ``score_status`` is not "ok".

        Raises UserError for an unknown column, or if one of `fspo.gradlog.schema.REQUIRED` is missing."""
        import pyarrow as pa

        unknown = set(rows) - set(self.schema.names)
        missing = [name for name in REQUIRED if name not in rows]
        if unknown or missing:
            raise UserError(
                f"gradient log: unknown columns {sorted(unknown)}, missing columns {missing} "
                "(name columns as fspo.gradlog.schema.LOG_COLUMNS does, others user.NAME)"
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
        if not isinstance(value, (list, tuple)) and np.ndim(value) == 0:
            value = np.full(n, value)
        return pa.array(np.asarray(value) if not isinstance(value, list) else value, type=f.type)

    def flush(self, rollout: int, *, keep: bool = False) -> Path | None:
        """Write the collected rows to the file of a rollout, completely or not at all.

        Returns the file's path, or None if there are no rows. With ``keep`` the rows stay in memory, and the next flush
        writes them again together with further rows of the rollout."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        if not self._batches:
            return None
        path = self.folder / file_name(rollout, self.rank)
        with whole_file(path) as part:
            table = pa.Table.from_batches(self._batches, self.schema)
            # Sketches are not dictionary-encoded: the encoding would save no bytes and make reading four times slower.
            coded: Any = [name for name in self.schema.names if name != "score_unit"]
            pq.write_table(table, part, compression="zstd", write_page_checksum=True, use_dictionary=coded)
        self._batches = self._batches if keep else []
        return path


def discard_from(run: str | Path, rollout: int) -> int:
    """Remove the log files of rollouts >= ``rollout``, which a resumed run repeats, and half-written files.

    Returns the number of removed files."""
    count = remove_parts(Path(run) / GRADLOG)
    repeated = [path for path in log_paths(run) if rollout_of(path) >= rollout]
    for path in repeated:
        path.unlink()
    return count + len(repeated)


@dataclass
class GradLog:
    """Rows of one run's gradient log in memory: an Arrow table, the log's header, and a list of what could not be read.

    Attributes
    ----------
    table : pyarrow.Table
    metadata : dict
        The log's header: plain values by name, with ``rule`` (see ``Rule.to_dict``) if the trainer wrote it.
    damage : list of str
        One line for each file or row group that could not be read. Their rows are missing in the table.
    """

    table: pa.Table
    metadata: dict[str, Any] = field(default_factory=dict)
    damage: list[str] = field(default_factory=list)

    def __len__(self) -> int:
        return self.table.num_rows

    def __contains__(self, name: str) -> bool:
        return name in self.table.column_names and (len(self) == 0 or self.table[name].null_count < len(self))

    def column(self, name: str) -> np.ndarray:
        """Return the column ``name`` as a numpy array (N,); nulls become NaN in floating columns, and False, 0 or "" in
        others. Raises UserError if the log has no such column."""
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
        """Count the rows that hold ``value`` in the text column ``name``."""
        import pyarrow.compute as pc

        return int(pc.sum(pc.equal(self.table[name], value)).as_py() or 0)  # type: ignore[attr-defined]

    def scores(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the indices (M,) of the M rows that have a score, and their scores psi, float32 (M, width).

        ``width`` is that of the log's sketches. A score is the stored unit vector times the stored norm."""
        if "score_unit" not in self:
            return np.zeros(0, np.int64), np.zeros((0, 0), np.float32)
        taken = self.column("score_status") == "ok"
        index = np.flatnonzero(taken & self.table["score_unit"].is_valid().to_numpy())
        units = self.table["score_unit"]
        units = (units if len(index) == len(units) else units.take(index)).combine_chunks()
        flat = units.flatten().to_numpy(zero_copy_only=False).reshape(-1, units.type.list_size)
        return index, np.multiply(flat, self.column("score_norm")[index, None], dtype=np.float32)

    def where(self, mask: np.ndarray) -> GradLog:
        """Return a GradLog of the rows at which ``mask`` (N,) is true."""
        import pyarrow as pa

        return GradLog(self.table.filter(pa.array(mask)), self.metadata, self.damage)

    @staticmethod
    def joined(logs: Sequence[GradLog]) -> GradLog:
        """Return one GradLog with the rows of all ``logs``, in their order, and the header of the first log."""
        damage = [line for log in logs for line in log.damage]
        return GradLog(_joined([log.table for log in logs]), logs[0].metadata, damage)

    @property
    def rule(self) -> Rule:
        """The clip rule with which the run was trained, from the log's header; raises UserError if none is found."""
        found = header_rule(self.metadata)
        if found is None:
            raise UserError(
                gone_rule(self.metadata)
                or "the log's header names no rule; pass GradLogWriter(metadata={'rule': rule.to_dict()})"
            )
        return found


def header_rule(header: Mapping[str, Any], name: str = "rule") -> Rule | None:
    """Return the clip rule ("rule") or the correction ("correction") that a log's header names; None if it names none.

    The result is also None for a rule of an earlier release that is gone; `gone_rule` says which. Raises UserError if
    the entry is not a rule."""
    try:
        return _made(header, name)
    except GoneError:
        return None


def gone_rule(header: Mapping[str, Any], name: str = "rule") -> str:
    """Return a line for a message if the clip rule ("rule") or the correction ("correction") in a log's header is one
    that an earlier release had and this one lacks; "" if this release has it, or if the header names none."""
    try:
        _made(header, name)
    except GoneError as error:
        return f"the {name} that trained is of an earlier release, so its rows are left out: {error}"
    return ""


def _made(header: Mapping[str, Any], name: str) -> Rule | None:
    if header.get(name) is None:
        return None
    try:
        # releases up to 0.2 wrote the factors of bins of lengths, which were () in every rule but an adaptive one
        return Rule(**{field: value for field, value in header[name].items() if field != "factors"})
    except (TypeError, AttributeError) as error:
        raise UserError(f"the {name} in the log's header is no rule: {error}; write Rule.to_dict() there") from None


def read_log(
    run: str | Path,
    *,
    columns: Sequence[str] | None = None,
    phases: Iterable[str] | None = ("train",),
    rollouts: tuple[int, int] | None = None,
) -> GradLog:
    """Read the gradient log in the run folder ``run``.

    Parameters
    ----------
    columns : sequence of str, optional
        Columns to read. Leave out ``score_unit`` to save memory if no sketch is needed.
    phases : iterable of str or None
        Phases whose rows are read; None for all.
    rollouts : (first, last), optional
        Inclusive range of rollouts.

    Raises
    ------
    UserError
        If there is no log, or if no file of it can be read. A file of another major version cannot be read.
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
    """Read the rows of some log files, each given with the numbers of the row groups to read (None: all), into one
    GradLog.

    ``columns`` and ``phases`` are those to read, None for all; ``damage`` are messages on files that could not be read,
    which the result holds too. Raises UserError if none of the files and row groups can be read."""
    import pyarrow as pa

    tables: list[pa.Table] = []
    damage = list(damage)
    for file, groups in parts:
        found, lines = gradfiles.read_rows(file, columns, phases, groups)
        damage += lines
        for table in found:
            try:
                tables.append(typed(table))
            except (pa.ArrowException, ValueError) as error:
                damage.append(f"{gradfiles.broken(file.path, error)} ({table.num_rows} rows lost)")
    if not tables:
        raise gradfiles.unreadable(parts[0][0].path.parent, damage[0])
    metadata = next((file.metadata for file, _ in parts if file.metadata), {})
    return GradLog(_joined(tables), metadata, damage)


def _joined(tables: list[pa.Table]) -> pa.Table:
    """Concatenate tables; the result has every column that occurs in at least one of them."""
    import pyarrow as pa

    forms = {str(table.schema.field("score_unit").type) for table in tables if "score_unit" in table.column_names}
    if len(forms) > 1:
        raise UserError(f"the log has sketches of several widths or types ({', '.join(sorted(forms))}): keep one kind")
    return pa.concat_tables(tables, promote_options="permissive").unify_dictionaries()
