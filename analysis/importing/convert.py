"""Convert a chunk (some rows) of another trainer's table to columns of the gradient log (fspo.gradlog)."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from analysis.importing.chunk import TOKENS, ChunkColumns
from analysis.importing.names import COLUMNS, COPIED, ROLLOUT_VERSIONS, canonical
from analysis.importing.ratios import Summed, parted, ratios
from analysis.importing.tables import Chunk
from analysis.importing.values import Floats, Ints, Values, as_values
from fspo.advantages import advantages
from fspo.base.errors import UserError, unknown_name
from fspo.base.keyed_noise import hashed
from fspo.gradlog.schema import LOG_COLUMNS as LOGGED
from fspo.gradlog.schema import RATIO_COLUMNS, REQUIRED
from fspo.rules import Estimator, Ratio, Rule, token_k3

VERSIONS = ("behaviour_version", "behaviour_version_last")
_TOKEN_LISTS: dict[Ratio, str] = {"update": "token_log_ratio", "behaviour": "token_behaviour_log_ratio"}
# verl names a response {sample}_{rollout}_{output}, of which {sample} alone identifies the prompt
_VERL_UID = re.compile(r"(.+)_\d+_\d+")


def choose_columns(available: Iterable[str], given: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return, for each of this project's columns (a key of `COLUMNS`), the table's name of it (one of ``available``).

    It is the name in ``given``, else the first of the names in `COLUMNS` that the table has. A column for which the
    table has neither is left out.

    Raises
    ------
    UserError
        If a key of ``given`` is not in `COLUMNS`, or the table lacks the column that ``given`` names.
    """
    present: dict[str, str] = {}
    for name in available:
        present.setdefault(canonical(str(name)), str(name))
    chosen: dict[str, str] = {}
    for ours, theirs in (given or {}).items():
        if ours not in COLUMNS:
            raise unknown_name("column", ours, tuple(COLUMNS))
        if canonical(theirs) not in present:
            raise UserError(
                f"--columns {ours}: the table has no column {theirs!r}; it has {', '.join(present.values())}"
            )
        chosen[ours] = present[canonical(theirs)]
    for ours, aliases in COLUMNS.items():
        if ours not in chosen:
            found = (present.get(canonical(alias)) for alias in aliases)
            hit = next((name for name in found if name and name not in chosen.values()), None)
            if hit is not None:
                chosen[ours] = hit
    return chosen


@dataclass
class Converter:
    """Converter of another trainer's table, read in chunks of rows, to rows of the gradient log.

    Prompts and responses without an id get a number.

    Parameters
    ----------
    given : mapping
        This project's name of a column -> the table's name of it, instead of the names in `analysis.importing.names`.
    updates_per_rollout : int
        Optimizer updates between two rollouts, from which rollouts are numbered if the table has only steps.
    group_size : int, optional
        Number of successive responses that share a prompt, where the table names no prompt.
    rule : Rule, optional
        The rule that trained, a sequence rule without a drift: its band, side and weights are added to the rows.
    tokenizer : path, optional
        A tokenizer.json, used to count tokens where the table has only text.
    first_step : int
        Number of the run's first update.
    keep_tokens : bool
        Whether to write the log-ratio of each token, besides that of the response.
    estimator : str
        How advantages are made of a group's rewards, if the table has rewards and groups but no advantages.
    """

    given: Mapping[str, str] = field(default_factory=dict)
    updates_per_rollout: int = 1
    group_size: int | None = None
    rule: Rule | None = None
    tokenizer: str | None = None
    first_step: int = 0
    keep_tokens: bool = False
    estimator: Estimator = "grpo"
    grouped: bool = True  # whether the rows tell which responses answer one prompt
    rows: int = 0
    known: Counter[str] = field(default_factory=Counter)  # for each log-ratio: number of rows that have it
    # By name of a column of the gradient log: whether the imported table's values in it are numbers, lists or texts.
    kinds: dict[str, str] = field(default_factory=dict)
    notes: dict[str, None] = field(default_factory=dict)  # sentences for the import's report, in order, each once

    def __post_init__(self) -> None:
        if self.updates_per_rollout < 1:
            raise UserError(f"--updates-per-rollout {self.updates_per_rollout}: a rollout has at least 1 update")
        if self.group_size is not None and self.group_size < 1:
            raise UserError(f"--group-size {self.group_size}: a prompt has at least 1 response")
        self._tokenizer = _load_tokenizer(self.tokenizer) if self.tokenizer else None

    def convert(self, chunk: Chunk, path: Path, chosen: Mapping[str, str]) -> dict[str, Any]:
        """Return the gradient log's columns (N,) for a chunk of the table ``path``.

        ``chosen`` maps this project's name of a column to the table's name.
        """
        got = {
            ours: as_values(chunk[theirs], listed=ours in (*TOKENS, "mask"))
            for ours, theirs in chosen.items()
            if theirs in chunk
        }
        columns = ChunkColumns(got, chosen, path)
        n = len(next(iter(chunk.values())))
        self.kinds |= {ours: found.kind for ours, found in got.items()}
        _refuse_rows_of_tokens(got, path, chosen)

        def column(name: str, default: float = np.nan) -> Floats:
            return columns.numbers(name) if name in got else np.full(n, default)

        step = np.nan_to_num(column("step", 0.0)).astype(np.int64)
        since = np.maximum(step - self.first_step, 0)
        updates = since % self.updates_per_rollout
        if "updates_since_rollout" in got:
            updates = column("updates_since_rollout")
        tokens = self._tokens(columns, n, updates == 0)
        text = got.get("response")
        length = tokens.pop("length", None)
        if length is None and "length" in got:
            length = column("length")
        elif length is None and self._tokenizer is not None and text is not None:
            length = np.array(
                [len(e.ids) for e in self._tokenizer.encode_batch(text.texts(), add_special_tokens=False)]
            )
        if length is None:
            length = np.zeros(n)
        for name in ("old", "new"):
            if self.kinds.get(name) == "number" and like_means(column(name), length):
                self.notes[
                    f"{chosen[name]} hardly grows with the length, as a mean over tokens does, and S is made of sums: "
                    "give the mean times the length, or a list with a number for each token"
                ] = None
        rows: dict[str, Any] = {"length": np.nan_to_num(length, nan=0.0).astype(np.int64), **tokens}
        rollout = column("rollout").astype(np.int64) if "rollout" in got else since // self.updates_per_rollout
        numbers = np.arange(self.rows, self.rows + n)
        rows |= {"rollout": rollout, "step": step, "phase": "train"}
        rows["prompt_id"] = self._prompts(columns, numbers)
        rows["response_id"] = got["response_id"].ids() if "response_id" in got else numbers
        if "phase" in got:
            rows["phase"] = [phase or "train" for phase in got["phase"].texts()]
        rows["advantage"] = self._advantage(columns, n)
        if "reward" in got:
            rows["reward"] = columns.sums("reward")
        if "truncated" in got:
            rows["truncated"] = column("truncated")
        if "entropy" in got:
            rows["entropy"] = columns.sums("entropy", mean=True)
        rows |= {name: column(name) for name in COPIED if name in got and name not in rows}
        rows |= {name: self._version(columns, name) for name in VERSIONS if name in got}
        rows.setdefault("log_ratio", np.full(n, np.nan))
        if "updates_since_rollout" not in got and self.updates_per_rollout > 1 and "step" in got:
            rows["updates_since_rollout"] = updates
        rows |= parted(rows, updates)
        self._count(rows, n)
        self.rows += n
        return _typed_columns(rows)

    @property
    def makes_advantages(self) -> bool:
        """Whether advantages are computed from rewards: the table has rewards and groups, but no advantages.

        The value is right only after the first chunk has been converted.
        """
        return "advantage" not in self.kinds and "reward" in self.kinds and self.grouped

    def complete(self, parts: list[dict[str, Any]]) -> None:
        """Add to a rollout's rows the advantages, if the table has none, and the columns that say what the rule does.

        ``parts`` holds the rollout's rows chunk by chunk. Advantages are made of the rewards of groups; they are 0 if
        the table lacks rewards or groups.
        """
        if self.makes_advantages:
            fill_advantages(parts, self.estimator)
        for rows in parts:
            if not self.makes_advantages and "advantage" not in self.kinds:
                rows["advantage"] = np.zeros(len(rows["log_ratio"]))
            rows |= self._ruled(rows)

    def _count(self, rows: Mapping[str, Any], n: int) -> None:
        """Count, for the import's report, the rows in which each log-ratio is known."""
        missing = np.full(n, np.nan)
        of = {ratio: np.asarray(rows.get(c.log_ratio, missing)) for ratio, c in RATIO_COLUMNS.items()}
        of["total"] = of["update"] + of["behaviour"]
        self.known.update({ratio: int(np.sum(np.isfinite(values))) for ratio, values in of.items()})

    def _version(self, columns: ChunkColumns, name: str) -> Floats:
        """Return for each response the version of the weights that sampled it (N,), counted in updates.

        If the other trainer's table lists a version for each token, the result for ``name`` behaviour_version is the
        version of the response's first token that counts, and for behaviour_version_last that of its last.
        """
        values = columns.values[name]
        if values.kind != "list":
            version = columns.numbers(name)
        else:
            flat, row = values.lists()
            keep = columns.mask(flat)
            version = np.full(len(values), np.nan)
            # Every token writes its version to its response's row, and the last version written stays. In reversed
            # order the first token writes last.
            order = slice(None, None, -1) if name == "behaviour_version" else slice(None)
            version[row[keep][order]] = flat[keep][order]
        return version * (self.updates_per_rollout if columns.chosen[name].lower() in ROLLOUT_VERSIONS else 1)

    def _advantage(self, columns: ChunkColumns, n: int) -> Floats:
        if "advantage" not in columns.values:
            return np.full(n, np.nan)
        if not columns.is_list("advantage"):
            return columns.numbers("advantage")
        flat, row = columns.values["advantage"].lists()
        mask = columns.mask(flat)
        flat, row = flat[mask], row[mask]
        count = np.bincount(row, minlength=n)
        mean = np.bincount(row, flat, n) / np.maximum(count, 1)
        if np.any(np.abs(flat - mean[row]) > 1e-6 * (1 + np.abs(mean[row]))):
            self.notes["advantages differ by token: a response's mean stands for A, which no sequence rule used"] = None
        return mean

    def _tokens(self, columns: ChunkColumns, n: int, first: np.ndarray) -> dict[str, Any]:
        """Compute each response's length and log-ratios, and the sums of squares and of k3 over their tokens.

        Only the log-ratios that follow from the table's columns are computed. Lengths and sums are computed only if the
        table has lists over tokens.

        Parameters
        ----------
        first : (N,) bool
            Whether a row's update is the first on its rollout, at which new and old weights are the same.
        """
        got, path, chosen = columns.values, columns.path, columns.chosen
        out: dict[str, Any] = {}
        found: dict[str, Floats] = {}
        row = np.zeros(0, np.int64)
        lists = [name for name in TOKENS if columns.is_list(name)]
        for name in lists:
            flat, place = got[name].lists()
            if found and (len(flat) != len(row) or np.any(place != row)):
                raise UserError(
                    f"{path}: columns {chosen[lists[0]]!r} and {chosen[name]!r} differ in tokens in some row; "
                    "both must hold one number for each response token"
                )
            found[name], row = flat, place
        if lists:
            keep = columns.mask(found[lists[0]])
            if "mask" not in got and "length" in got:
                keep &= columns.within(row)
            found = {name: flat[keep] for name, flat in found.items()}
            row = row[keep]
            out["length"] = np.bincount(row, minlength=n).astype(np.float64)
        parts: dict[str, Summed] = {}
        for name in TOKENS:
            if name in got:
                values = found.get(name)
                total = columns.numbers(name) if values is None else np.bincount(row, values, n).astype(np.float64)
                parts[name] = Summed(total, values)
                largest = np.nanmax(total if values is None else values, initial=-np.inf)
                if name != "log_ratio" and largest > 1e-3:
                    raise UserError(
                        f"{path}: column {chosen[name]!r} holds {largest:.3g}, but a log-probability is at most 0; "
                        "give log-probabilities in nats"
                    )
        for ratio, part in ratios(parts, first, row).items():
            names = RATIO_COLUMNS[ratio]
            out |= {names.log_ratio: part.total} if names.log_ratio else {}
            if (s := part.tokens) is not None:
                sums = {names.sum_sq: s * s, names.k3_sum: token_k3(s)}
                out |= {name: np.bincount(row, values, n) for name, values in sums.items()}
                if self.keep_tokens and (name := _TOKEN_LISTS.get(ratio)):
                    out[name] = np.split(s.astype(np.float32), np.cumsum(np.bincount(row, minlength=n))[:-1])
        return out

    def _prompts(self, columns: ChunkColumns, numbers: Ints) -> Ints:
        """Return a number (N,) that identifies each row's prompt.

        The number is made from the prompt's id, else from its text. Else, if the group size is given, so many
        successive rows share a prompt. Else the number is made from the prompt's tokens. If none of these is known,
        each row counts as a prompt of its own.
        """
        got = columns.values
        for name in ("prompt_id", "prompt"):
            if name in got:
                values = got[name]
                if name == "prompt_id" and values.kind == "text":
                    import pyarrow as pa

                    names = [m[1] if (m := _VERL_UID.fullmatch(t)) else t for t in values.texts()]
                    values = Values("text", pa.array(names))
                return values.ids()
        if self.group_size:
            return numbers // self.group_size
        if columns.is_list("tokens") and "mask" in got:
            flat, row = got["tokens"].lists()
            place = np.arange(len(flat))
            end = np.full(len(numbers), len(flat))
            keep = columns.mask(flat)
            np.minimum.at(end, row[keep], place[keep])
            start = np.searchsorted(row, np.arange(len(numbers)))
            whole = flat.astype(np.int64)
            return np.array([hashed(whole[a:b].tobytes().hex()) for a, b in zip(start, end, strict=True)], np.int64)
        self.notes["no prompt: every response counts as independent, so intervals are too short (--group-size)"] = None
        self.grouped = False
        return numbers

    def _ruled(self, rows: Mapping[str, Any]) -> dict[str, Any]:
        """Return columns that say what the rule that trained does to the rows; {} if that rule is not known."""
        if self.rule is None:
            return {}
        S, L, A = (np.asarray(rows[name], np.float64) for name in ("log_ratio", "length", "advantage"))
        known = np.isfinite(S) & (L >= 1)
        with np.errstate(invalid="ignore"):
            done = self.rule.apply(S, np.maximum(L, 1), np.nan_to_num(A))
        out: dict[str, Any] = {"rule": self.rule.label, "drift": 0.0, "drift_source": "none"}
        of_edges = {"lo": done.lo, "hi": done.hi, "multiplier": done.multiplier, "weight": done.weight}
        out |= {name: np.where(known, values, np.nan) for name, values in of_edges.items()}
        out["band_accept"] = np.where(known, done.in_band, np.nan)
        out["side"] = np.where(known & np.isfinite(A), done.side, np.nan)
        return _typed_columns({name: value for name, value in out.items() if name not in rows})


def like_means(log_probability: Floats, length: Floats) -> bool:
    """Return whether the log-probabilities of responses (N,) look like means over tokens instead of sums.

    A sum over tokens grows about as the length L. If a fit of the log-probabilities to L^b gives b below .4, they are
    taken for means. The answer is False for fewer than 50 responses with a log-probability below 0, or if the longest
    of these responses is less than 4 times as long as the shortest.
    """
    told = (log_probability < 0) & (length >= 1)
    x, y = np.log2(length[told]), np.log2(-log_probability[told])
    if len(x) < 50 or np.ptp(x) < 2:
        return False
    return bool(np.polyfit(x, y, 1)[0] < 0.4)


def _refuse_rows_of_tokens(got: Mapping[str, Values], path: Path, chosen: Mapping[str, str]) -> None:
    """Raise UserError for a table with one row for each token.

    The rows are taken for tokens if the table has log-probabilities or log-ratios but neither lengths nor lists, and a
    response id occurs in several rows of the same step.
    """
    names = [name for name in TOKENS if name in got]
    if not names or "length" in got or "response_id" not in got or any(got[name].kind == "list" for name in names):
        return
    keys = ["step", "response_id"] if "step" in got else ["response_id"]
    rows = np.stack([got[name].ids() for name in keys])
    if np.unique(rows, axis=1).shape[1] < rows.shape[1]:
        joined = [f"{chosen[name]!r}: list" for name in names]
        rest = ("prompt_id", "prompt", "reward", "advantage")
        joined += [f"{chosen[name]!r}: 'first'" for name in rest if name in got]
        raise UserError(
            f"{path}: {chosen['response_id']!r} repeats within a step and there is no length, so each row is a token; "
            f"make one row of each response, with pandas: table.groupby({[chosen[name] for name in keys]})"
            f".agg({{{', '.join(joined)}}}).reset_index()"
        )


def fill_advantages(parts: list[dict[str, Any]], estimator: Estimator) -> None:
    """Compute the advantages of a rollout's rows, given chunk by chunk, from the rewards of their groups.

    A response with several rows counts once in its group. The advantage is NaN for rows without a finite reward and for
    responses that are alone in their group.
    """
    none = [np.full(len(rows["log_ratio"]), np.nan) for rows in parts]
    reward = np.concatenate(
        [np.asarray(rows.get("reward", nan), np.float64) for rows, nan in zip(parts, none, strict=True)]
    )
    prompt, response = (np.concatenate([rows[name] for rows in parts]) for name in ("prompt_id", "response_id"))
    known = np.flatnonzero(np.isfinite(reward))
    _, first, row = np.unique(np.stack([prompt, response])[:, known], axis=1, return_index=True, return_inverse=True)
    first = known[first]
    _, group, size = np.unique(prompt[first], return_inverse=True, return_counts=True)
    several = size[group] > 1
    found = np.full(len(first), np.nan)
    found[several], _ = advantages(reward[first][several], group[several], estimator)
    whole = np.full(len(reward), np.nan)
    whole[known] = found[row]
    for rows, values in zip(parts, np.split(whole, np.cumsum([len(nan) for nan in none])[:-1]), strict=True):
        rows["advantage"] = values


def _unknown(values: Any) -> bool:
    return isinstance(values, np.ndarray) and values.dtype.kind == "f" and bool(np.all(np.isnan(values)))


def _typed_columns(rows: Mapping[str, Any]) -> dict[str, Any]:
    """Convert columns to the gradient log's types, and leave out optional columns whose values are all NaN."""
    return {name: _typed(name, values) for name, values in rows.items() if name in REQUIRED or not _unknown(values)}


def _typed(name: str, values: Any) -> Any:
    """Convert values to the type of the log's column ``name``; NaN becomes null in an integer or boolean column."""
    kind = LOGGED[name].kind
    if not isinstance(values, np.ndarray) or not kind.startswith(("int", "bool")):
        return values
    cast = bool if kind == "bool" else int
    if np.all(np.isfinite(values)):
        return values.astype(cast)
    return [cast(v) if np.isfinite(v) else None for v in values]


def _load_tokenizer(path: str) -> Any:
    from tokenizers import Tokenizer

    file = Path(path) / "tokenizer.json" if Path(path).is_dir() else Path(path)
    if not file.is_file():
        raise UserError(f"--tokenizer {path}: no tokenizer.json there; name the model's folder or that file")
    try:
        return Tokenizer.from_file(str(file))
    except Exception as error:  # the package tokenizers raises plain Exception
        raise UserError(f"--tokenizer {file} cannot be read: {error}") from error
