"""Convert a chunk of a foreign table to columns of the gradient log (fspo.gradlog)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from analysis.importing.names import COLUMNS
from analysis.importing.tables import Chunk
from analysis.importing.values import Floats, Ints, Values, as_values
from fspo.base.errors import UserError, unknown_name
from fspo.rules import Rule, token_k3

COPIED = (
    *("updates_since_rollout", "times_used", "policy_version", "behaviour_version"),
    *("engine_log_ratio", "sum_sq_log_ratio", "k3_sum", "drift", "lo", "hi", "multiplier", "weight"),
)
"""Columns with numbers that are copied unchanged."""
_VERL_UID = re.compile(r"(.+)_\d+_\d+")  # {sample}_{rollout}_{output}, where the sample identifies the prompt


def choose_columns(available: Iterable[str], given: Mapping[str, str] | None = None) -> dict[str, str]:
    """Map our column names to the table's: the given names first, then the first known alias that the table has.

    Raises
    ------
    UserError
        If a given name is not one of our columns, or the table lacks the column given for it.
    """
    present = {str(name).lower(): str(name) for name in available}
    chosen: dict[str, str] = {}
    for ours, theirs in (given or {}).items():
        if ours not in COLUMNS:
            raise unknown_name("column", ours, tuple(COLUMNS))
        if theirs.lower() not in present:
            raise UserError(
                f"--columns {ours}: the table has no column {theirs!r}; it has {', '.join(present.values())}"
            )
        chosen[ours] = present[theirs.lower()]
    for ours, aliases in COLUMNS.items():
        if ours not in chosen:
            hit = next((present[a] for a in aliases if a in present and present[a] not in chosen.values()), None)
            if hit is not None:
                chosen[ours] = hit
    return chosen


@dataclass
class Converter:
    """Converts chunks to rows of the gradient log, and numbers prompts, responses and rollouts if the table does not.

    Parameters
    ----------
    given : mapping
        Our column name to the table's, for names that are not known aliases.
    updates_per_rollout : int
        Optimizer updates between rollouts, where the table counts only steps.
    group_size : int, optional
        Number of successive responses that share a prompt, where the table names no prompt.
    rule : Rule, optional
        The rule that trained, a sequence rule without a drift: its band, side and weights are added to the rows.
    tokenizer : path, optional
        A tokenizer.json, used to count tokens where the table has only text.
    first_step : int
        Number of the run's first update.
    """

    given: Mapping[str, str] = field(default_factory=dict)
    updates_per_rollout: int = 1
    group_size: int | None = None
    rule: Rule | None = None
    tokenizer: str | None = None
    first_step: int = 0
    rows: int = 0
    not_finite: int = 0
    kinds: dict[str, str] = field(default_factory=dict)  # our column name to how the table's column was read
    notes: dict[str, None] = field(default_factory=dict)  # lines for the report, in order, each once

    def __post_init__(self) -> None:
        if self.updates_per_rollout < 1:
            raise UserError(f"--updates-per-rollout {self.updates_per_rollout}: a rollout has at least 1 update")
        if self.group_size is not None and self.group_size < 1:
            raise UserError(f"--group-size {self.group_size}: a prompt has at least 1 response")
        self._tokenizer = _load_tokenizer(self.tokenizer) if self.tokenizer else None

    def convert(self, chunk: Chunk, path: Path, chosen: Mapping[str, str]) -> dict[str, Any]:
        """Return the columns of the gradient log (N,) for a chunk."""
        got = {ours: as_values(chunk[theirs]) for ours, theirs in chosen.items() if theirs in chunk}
        n = len(next(iter(chunk.values())))
        self.kinds |= {ours: found.kind for ours, found in got.items()}

        def column(name: str, default: float = np.nan) -> Floats:
            return self._numbers(got, name, path, chosen) if name in got else np.full(n, default)

        tokens = self._tokens(got, path, chosen, n)
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
        rows: dict[str, Any] = {"length": np.nan_to_num(length, nan=0.0).astype(np.int64), **tokens}
        step = np.nan_to_num(column("step", 0.0)).astype(np.int64)
        since = np.maximum(step - self.first_step, 0)
        rollout = column("rollout").astype(np.int64) if "rollout" in got else since // self.updates_per_rollout
        numbers = np.arange(self.rows, self.rows + n)
        rows |= {"rollout": rollout, "step": step, "phase": "train"}
        rows["prompt_id"] = self._prompts(got, numbers)
        rows["response_id"] = got["response_id"].ids() if "response_id" in got else numbers
        if "phase" in got:
            rows["phase"] = [phase or "train" for phase in got["phase"].texts()]
        A = self._advantage(got, path, chosen, n)
        rows["advantage"] = A
        if "reward" in got:
            rows["reward"] = self._sums(got, "reward", path, chosen)
        if "truncated" in got:
            rows["truncated"] = _nullable(column("truncated"), bool)
        if "entropy" in got:
            rows["entropy"] = self._sums(got, "entropy", path, chosen, mean=True)
        rows |= {name: column(name) for name in COPIED if name in got and name not in rows}
        for name, cast in (("band_accept", bool), ("side", int)):
            if name in got:
                rows[name] = _nullable(column(name), cast)
        for name in ("updates_since_rollout", "times_used", "policy_version", "behaviour_version"):
            if name in rows:
                rows[name] = _nullable(np.asarray(rows[name]), int)
        S = np.asarray(rows.setdefault("log_ratio", np.full(n, np.nan)))
        if "updates_since_rollout" not in got and self.updates_per_rollout > 1 and "step" in got:
            rows["updates_since_rollout"] = since % self.updates_per_rollout
        if self.rule is not None:
            rows |= self._ruled(rows, S, A)
        self.rows += n
        self.not_finite += int(np.sum(~np.isfinite(S)))
        return rows

    def _numbers(self, got: Mapping[str, Values], name: str, path: Path, chosen: Mapping[str, str]) -> Floats:
        found = got[name]
        if found.kind != "number":
            example = found.array[0].as_py() if len(found) else None
            raise UserError(
                f"{path}: column {chosen[name]!r} is read as {name} and must hold numbers, not {str(example)[:40]!r}; "
                f"rename it, or name the right one with --columns '{{{name}: COLUMN}}'"
            )
        return found.numbers()

    def _sums(
        self, got: Mapping[str, Values], name: str, path: Path, chosen: Mapping[str, str], *, mean: bool = False
    ) -> Floats:
        if got[name].kind != "list":
            return self._numbers(got, name, path, chosen)
        flat, row = got[name].lists()
        total = np.bincount(row, flat, len(got[name])).astype(np.float64)
        return total / np.maximum(np.bincount(row, minlength=len(total)), 1) if mean else total

    def _advantage(self, got: Mapping[str, Values], path: Path, chosen: Mapping[str, str], n: int) -> Floats:
        if "advantage" not in got:
            return np.full(n, np.nan)
        if got["advantage"].kind != "list":
            return self._numbers(got, "advantage", path, chosen)
        flat, row = got["advantage"].lists()
        mask = _mask(got, flat, path, chosen)
        flat, row = flat[mask], row[mask]
        count = np.bincount(row, minlength=n)
        mean = np.bincount(row, flat, n) / np.maximum(count, 1)
        if np.any(np.abs(flat - mean[row]) > 1e-6 * (1 + np.abs(mean[row]))):
            self.notes["advantages differ by token: a response's mean stands for A, which no sequence rule used"] = None
        return mean

    def _tokens(self, got: Mapping[str, Values], path: Path, chosen: Mapping[str, str], n: int) -> dict[str, Any]:
        """Compute S, its token sums, L and the engine's ratio from those of the table's columns that it has."""
        out: dict[str, Any] = {}
        found: dict[str, Floats] = {}
        row = np.zeros(0, np.int64)
        lists = [name for name in ("log_ratio", "new", "old", "sampler") if name in got and got[name].kind == "list"]
        keep = np.zeros(0, bool)
        for name in lists:
            flat, place = got[name].lists()
            if found and (len(flat) != len(row) or np.any(place != row)):
                raise UserError(
                    f"{path}: columns {chosen[lists[0]]!r} and {chosen[name]!r} differ in tokens in some row; "
                    "both must hold one number for each response token"
                )
            found[name], row = flat, place
        if lists:
            keep = _mask(got, found[lists[0]], path, chosen)
            if "mask" not in got and "length" in got:
                keep &= _within(row, self._numbers(got, "length", path, chosen), path, chosen)
            found = {name: flat[keep] for name, flat in found.items()}
            row = row[keep]
            out["length"] = np.bincount(row, minlength=n).astype(np.float64)
        for name in ("new", "old", "sampler"):
            if name in got:
                values = found.get(name)
                values = self._numbers(got, name, path, chosen) if values is None else values
                if np.any(values > 1e-3):
                    raise UserError(
                        f"{path}: column {chosen[name]!r} holds {np.nanmax(values):.3g}, but a log-probability is at "
                        "most 0; give log-probabilities in nats"
                    )
        s = found.get("log_ratio")
        if s is None and "log_ratio" not in got and {"new", "old"} <= found.keys():
            s = found["new"] - found["old"]
        if s is not None:
            total = {"log_ratio": s, "sum_sq_log_ratio": s * s, "k3_sum": token_k3(s)}
            out |= {name: np.bincount(row, values, n) for name, values in total.items()}
        elif "log_ratio" in got:
            out["log_ratio"] = self._numbers(got, "log_ratio", path, chosen)
        elif {"new", "old"} <= got.keys():
            out["log_ratio"] = self._sum_of("new", got, found, row, n) - self._sum_of("old", got, found, row, n)
        if {"old", "sampler"} <= got.keys():
            old, sampler = (self._sum_of(name, got, found, row, n) for name in ("old", "sampler"))
            out["engine_log_ratio"] = old - sampler
        return out

    @staticmethod
    def _sum_of(name: str, got: Mapping[str, Values], found: Mapping[str, Floats], row: Ints, n: int) -> Floats:
        return np.bincount(row, found[name], n).astype(np.float64) if name in found else got[name].numbers()

    def _prompts(self, got: Mapping[str, Values], numbers: Ints) -> Ints:
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
        self.notes["no prompt: every response counts as independent, so intervals are too short (--group-size)"] = None
        return numbers

    def _ruled(self, rows: Mapping[str, Any], S: Floats, A: Floats) -> dict[str, Any]:
        assert self.rule is not None
        known = np.isfinite(S) & (np.asarray(rows["length"]) >= 1)
        L = np.maximum(np.asarray(rows["length"], np.float64), 1)
        with np.errstate(invalid="ignore"):
            done = self.rule.apply(S, L, np.nan_to_num(A))
        out: dict[str, Any] = {"rule": self.rule.label, "drift": 0.0, "drift_source": "none"}
        for name, values in (
            ("lo", done.lo),
            ("hi", done.hi),
            ("multiplier", done.multiplier),
            ("weight", done.weight),
        ):
            out[name] = np.where(known, values, np.nan)
        out["band_accept"] = _nullable(np.where(known, done.in_band, np.nan), bool)
        out["side"] = _nullable(np.where(known & np.isfinite(A), done.side, np.nan), int)
        return {name: value for name, value in out.items() if name not in rows}


def _mask(got: Mapping[str, Values], flat: Floats, path: Path, chosen: Mapping[str, str]) -> np.ndarray:
    if "mask" not in got or got["mask"].kind != "list":
        return np.ones(len(flat), bool)
    mask, _ = got["mask"].lists()
    if len(mask) != len(flat):
        raise UserError(
            f"{path}: column {chosen['mask']!r} and the token columns differ in tokens; both must cover the response"
        )
    return mask > 0


def _within(row: Ints, length: Floats, path: Path, chosen: Mapping[str, str]) -> np.ndarray:
    """Return whether each token's position is below its response's length; tokens behind it are padding."""
    count = np.bincount(row, minlength=len(length))
    short = np.flatnonzero(count < np.nan_to_num(length))
    if len(short):
        raise UserError(
            f"{path}: {chosen['length']!r} says {length[short[0]]:.0f} tokens where the token columns hold "
            f"{count[short[0]]}; the length must count response tokens alone"
        )
    start = np.concatenate([[0], np.cumsum(count)[:-1]])
    return np.arange(len(row)) - start[row] < length[row]


def _nullable(values: Floats, cast: Any) -> Any:
    if np.all(np.isfinite(values)):
        return values.astype(np.bool_ if cast is bool else np.int64)
    return [cast(v) if np.isfinite(v) else None for v in values]


def _load_tokenizer(path: str) -> Any:
    from tokenizers import Tokenizer

    file = Path(path) / "tokenizer.json" if Path(path).is_dir() else Path(path)
    if not file.is_file():
        raise UserError(f"--tokenizer {path}: no tokenizer.json there; name the model's folder or that file")
    try:
        return Tokenizer.from_file(str(file))
    except Exception as error:  # the library raises plain Exception
        raise UserError(f"--tokenizer {file} cannot be read: {error}") from error
