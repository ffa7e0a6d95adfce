"""Convert a chunk (some rows) of another trainer's table to columns of the gradient log (fspo.gradlog)."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pandas as pd
import pyarrow as pa

from analysis.importing.names import COLUMNS, CUT, ROLLOUT_VERSIONS, TOKENS, canonical, is_log_probability, role_of
from analysis.importing.report import Report
from analysis.importing.values import Chunk, ChunkColumns, Floats, Ints, Mask, padding
from analysis.importing.watch import Watch, at, stands_before
from analysis.log.ratio import LARGEST
from fspo.advantages import advantages
from fspo.base.errors import UserError, unknown_name
from fspo.base.keyed_noise import hashed
from fspo.base.number_checks import checked_count
from fspo.gradlog.schema import LOG_COLUMNS, RATIO_COLUMNS, REQUIRED, USER_PREFIX
from fspo.rules import Aggregation, Estimator, Preset, preset, token_k3

VERSIONS = ("behaviour_version", "behaviour_version_last")
_VERL_UID = re.compile(r"^(.+)_\d+_\d+$")  # verl's {sample}_{rollout}_{output}, whose {sample} identifies the prompt
PENALTY = re.compile(r"(?i)penal|reward|score|adv|loss|cost")  # words for numbers below 0 that are no log-probabilities
TOKEN_PLACE = re.compile(r"(token|tok)_?(idx|index|pos|position|id)")
"""Names of a column of numbers that only a table with a row for each token has: the place or the id of a token."""
_STEP_IN_NAME = re.compile(r"(?:step|iter|iteration|rollout|batch)[_-]?(\d+)|^(\d+)(?=\.)")
SLIGHT, MANY = 0.05, 0.5
"""Log-probabilities at most ``SLIGHT`` nats above 0 are held at 0, unless 10 or more, a share above ``MANY``, are."""


@dataclass(frozen=True)
class ImportOptions:
    """What the user says about an imported log: ``columns`` (this project's name of a column to the table's), the
    preset that trained with its ranges, how the loss was averaged, updates a rollout and responses a group."""

    columns: Mapping[str, str] = field(default_factory=dict)
    rule: str | None = None
    range_lo: float | None = None
    range_hi: float | None = None
    aggregation: str | None = None
    updates_per_rollout: int = 1
    group_size: int | None = None

    def __post_init__(self) -> None:
        checked_count("--updates-per-rollout", self.updates_per_rollout, 1, 2**31, "a rollout has at least 1 update")
        if self.group_size is not None:
            checked_count("--group-size", self.group_size, 1, 2**31, "a prompt has at least 1 response")
        if self.aggregation is not None and self.aggregation not in get_args(Aggregation):
            raise unknown_name("--aggregation", self.aggregation, get_args(Aggregation))

    def trained(self) -> Preset | None:
        """The preset that trained; None if the options name none. Raise UserError if they give a range and no rule."""
        changes = {k: v for k, v in (("range_lo", self.range_lo), ("range_hi", self.range_hi)) if v is not None}
        if self.rule is None and changes:
            raise UserError("--range-lo and --range-hi belong to a rule: name it with --rule")
        return preset(self.rule, **changes) if self.rule is not None else None


def choose_columns(names: Sequence[str], given: Mapping[str, str]) -> dict[str, str]:
    """Return, by this project's name of a column (a key of `COLUMNS`), its name in the imported table (``names``).

    It is the name in ``given``, else the first name that `COLUMNS` lists for it and the table has, else, for
    log-probabilities, the only column whose name says whose they are (`role_of`). What the table lacks is left out. A
    table's column that ``given`` names may stand for a second column of ours, unless given for one of `TOKENS`.

    Raise UserError if a key of ``given`` is not in `COLUMNS`, or the table lacks the column that ``given`` names."""
    present = {canonical(n.rpartition(".")[2]): n for n in reversed(names)} | {canonical(n): n for n in reversed(names)}
    plain = present.get("logp", "").rpartition(".")[2].lower()
    samplers = {*map(canonical, COLUMNS["sampler"])}
    chosen: dict[str, str] = {}
    for ours, theirs in given.items():
        if ours not in COLUMNS:
            raise unknown_name("column", ours, tuple(COLUMNS))
        if canonical(theirs) not in present:
            raise UserError(f"--columns {ours}: the table has no column {theirs!r}; it has {', '.join(names)}")
        chosen[ours] = present[canonical(theirs)]
    taken = {theirs for ours, theirs in chosen.items() if ours in TOKENS}
    known = dict(COLUMNS)
    if {"logp_prox", "weight_versions"} & present.keys():  # AReaL's logprobs are the engine's, slime's the old policy's
        role = "sampler" if "logp_prox" in present else "old"
        known |= {role: (*COLUMNS[role], "logprobs"), "new": ("new_logprobs",)}
    elif "logp_old" in present and plain in ("logprobs", "token_logprobs") and not samplers & present.keys():
        known |= {"new": ("new_logprobs",)}  # inference engines write this name too, so ask
    if canonical("old_action_log_probs") in present:  # OpenRLHF's action_log_probs are then those after
        known |= {"new": (*known["new"], "action_log_probs")}
    for ours, aliases in known.items():
        hits = [present[alias] for alias in map(canonical, aliases) if alias in present and present[alias] not in taken]
        by_words = [name for name in names if role_of(name) == ours and name not in taken]
        if ours not in chosen and (hits or len(by_words) == 1):
            chosen[ours] = (hits or by_words)[0]
            taken.add(chosen[ours])
    if "length" in chosen or not {"total_length", "prompt_length"} <= chosen.keys():
        chosen = {ours: theirs for ours, theirs in chosen.items() if ours not in ("total_length", "prompt_length")}
    return chosen


@dataclass
class Converter:
    """Converter of another trainer's table, read in chunks of rows, to rows of the gradient log.

    ``first_step`` is the number of the run's first update, and ``rows`` counts the rows so far. Prompts and responses
    without an id get a number. What is used, made and noticed goes into ``report``."""

    options: ImportOptions
    first_step: int
    report: Report
    rows: int = 0
    grouped: bool = True  # whether the rows tell which responses answer one prompt
    seen: dict[str, None] = field(default_factory=dict)  # the table's columns that are none of ours
    watch: Watch = field(default_factory=Watch)

    def convert(self, chunk: Chunk, path: Path) -> pd.DataFrame:
        """Return a chunk (N rows) of the table in the file ``path`` as N rows of the gradient log."""
        report, each = self.report, self.options.updates_per_rollout
        present = {canonical(name) for name in chunk}  # a later file may lack a column of the first
        given = {k: v for k, v in self.options.columns.items() if not self.rows or canonical(v) in present}
        told = [n for n, found in chunk.items() if n in given.values() or not pa.types.is_null(found.array.type)]
        chosen = choose_columns(told, given)
        columns = ChunkColumns(chunk, chosen, path, self.rows)
        if columns.is_list("behaviour_version"):
            chosen.setdefault("behaviour_version_last", chosen["behaviour_version"])
        report.columns |= chosen
        n = len(next(iter(chunk.values())).array)

        def column(name: str, default: float = np.nan) -> Floats:
            return columns.numbers(name) if name in chosen else np.full(n, default)

        step = np.floor(np.nan_to_num(column("step")))
        if not {"step", "rollout"} & chosen.keys() and (named := _STEP_IN_NAME.findall(path.name.lower())):
            step += int(max(named[-1]))
            report.derived["step"] = "the names of the files"
        since = np.maximum(step - self.first_step, 0)
        updates = column("updates_since_rollout") if "updates_since_rollout" in chosen else since % each
        phase = [name or "train" for name in columns["phase"].texts()] if "phase" in chosen else "train"
        rows: dict[str, Any] = {"step": step, "phase": phase, "log_ratio": np.nan, "advantage": np.nan}
        rows["rollout"] = np.nan_to_num(column("rollout")) if "rollout" in chosen else since // each
        rows |= self._tokens(columns, rows["rollout"], since % each == 0)
        if "length" not in rows and "total_length" in chosen:
            rows["length"] = column("total_length") - column("prompt_length")
            report.derived["length"] = f"{chosen['total_length']} - {chosen['prompt_length']}"
        rows.setdefault("length", column("length", 0.0))
        sums = [n for n in ("old", "new") if n in chosen and columns[n].kind == "number"]
        if means := [chosen[n] for n in sums if like_means(column(n), rows["length"])]:
            what = f"{' and '.join(means)}: means over tokens (the size hardly grows with L), and S is made of sums"
            report.note(f"{what}: give the mean times the length, or a list with a number for each token")
            self.watch.digest.means = what
        rows["prompt_id"] = self._prompts(columns, np.arange(self.rows, self.rows + n))
        text = next((name for name in ("response_id", "response", "tokens") if name in chosen), "")
        rows["response_id"] = columns[text].ids() if text else 0  # see `identify`
        for place in (name for name in told if TOKEN_PLACE.fullmatch(canonical(name)) and chunk[name].kind == "number"):
            if len(np.unique(chunk[place].numbers())) > 1 and not any(map(columns.is_list, TOKENS)):
                raise UserError(
                    f"{path}: a row seems to be a token (column {place!r}); an import wants a row for each response "
                    "with lists over its tokens: table.groupby([step, response]).agg(list); or leave that column out"
                )
        rows |= {name: columns.folded(name) for name in ("advantage", "reward", "entropy") if name in chosen}
        if "truncated" in chosen and columns["truncated"].kind == "text":
            rows["truncated"] = np.array([float(bool(CUT.fullmatch(text))) for text in columns["truncated"].texts()])
        rows |= {name: self._version(columns, name) for name in VERSIONS if name in chosen}
        rows |= {name: column(name) for name in LOG_COLUMNS if name in chosen and name not in rows}
        if each > 1 and "step" in chosen:
            rows["updates_since_rollout"] = updates
        if parts := parted(rows, updates):
            rows |= parts
            report.derived["engine_log_ratio"] = "D + E where the versions are equal"
        self._weights(columns)
        self._refuse_unfit(rows, columns)
        known = {"log_ratio", "behaviour_log_ratio"} & (report.columns | report.derived).keys()
        for name in [name for name in told if name not in chosen.values()]:
            self.seen[name] = None
            values = chunk[name].numbers() if chunk[name].kind != "text" else np.zeros(0)
            below_0 = np.any(values < 0) and not np.any(values > 0) and not PENALTY.search(name)
            if (is_log_probability(name) or (below_0 and not known)) and name not in report.undecided:
                report.undecided.append(name)
            if chunk[name].kind == "number":
                rows[USER_PREFIX + name] = values
        self.rows += n
        return pd.DataFrame(rows)

    def _refuse_unfit(self, rows: Mapping[str, Any], columns: ChunkColumns) -> None:
        """Raise UserError if a length is no whole number from 0, or a value exceeds its log column's integer type."""
        for name in (name for name in rows if LOG_COLUMNS[name].kind in ("int8", "int16", "int32")):
            values, limit = rows[name], np.iinfo(LOG_COLUMNS[name].kind).max
            bad = np.abs(np.where(np.isfinite(values), values, 0)) > limit
            if name == "length":
                bad |= ~(values >= 0) | (values == np.inf) | (values != np.floor(values))
            if bad.any():
                i, theirs = int(np.argmax(bad)), self.report.derived.get(name) or columns.chosen.get(name, name)
                what = "null" if np.isnan(values[i]) else np.format_float_positional(values[i], trim="-")
                raise UserError(
                    f"{columns.path}: {theirs} is {what} in row {columns.ids(i)['row']} ({bad.sum()} of {len(bad)} "
                    f"rows hold no whole number from 0 to {limit}): mend or leave out these rows"
                )

    def _version(self, columns: ChunkColumns, name: str) -> Floats:
        """Return the version of the weights that sampled each response (N,), in updates; NaN if below 0. Of a list (for
        each token or sampler call) take the first for behaviour_version, the last for behaviour_version_last."""
        n, many = len(columns[name].array), columns.is_list(name)
        row = columns[name].rows() if many else np.arange(n)
        flat = columns[name].numbers() if many else columns.numbers(name)
        if many and columns.is_list("mask") and np.array_equal(row, columns["mask"].rows()):
            flat, row = columns.kept(name)  # one version for each token
        known = pd.Series(np.where(flat < 0, np.nan, flat)).groupby(row)  # first and last take no NaN
        version = known.agg("first" if name == "behaviour_version" else "last").reindex(np.arange(n)).to_numpy()
        return version * (self.options.updates_per_rollout if columns.chosen[name].lower() in ROLLOUT_VERSIONS else 1)

    def _tokens(self, columns: ChunkColumns, rollout: Floats, first: Mask) -> dict[str, Any]:
        """Return columns of the gradient log, by name, that are made of log-probabilities: log-ratios and, of lists
        over tokens, the length and sums over tokens. ``rollout`` (N,) is the rollout of each response.

        Log-probabilities of the new weights and of the sampler alone give S + D + E in all rows. In the rows ``first``
        (N,) of a rollout's first update old and new are one, which gives D + E (and S = 0 if a rollout has several)."""
        n, chosen, derived = len(rollout), columns.chosen, self.report.derived
        out: dict[str, Any] = {}
        lists: dict[str, Floats] = {}
        row, padded = np.zeros(0, np.int64), np.zeros(0, bool)

        def over(values: Floats) -> Floats:
            return np.bincount(row, values, n).astype(np.float64)  # of no tokens it counts integers

        for name in filter(columns.is_list, TOKENS):
            lists[name], row = columns.lists(name, next(iter(lists), name))
        sums = {name: columns.numbers(name) for name in TOKENS if name in chosen and name not in lists}
        self._hold_at_0(columns, sums, np.arange(n))
        if lists:
            keep = columns.mask(next(iter(lists)))
            if "mask" not in chosen:
                keep &= columns.within(row) if "length" in chosen else ~(padded := padding(lists.values(), row))
            areal = canonical(chosen.get("old", "")) == "logp_prox" and {"old", "sampler"} <= lists.keys()
            if areal and stands_before(lists["old"], lists["sampler"], keep):
                lists["old"], keep = np.roll(lists["old"], 1), keep & np.append(False, row[1:] == row[:-1])
                apart = f"{chosen['old']} stands one place before {chosen['sampler']}"
                self.report.note(f"{apart}: moved here, as AReaL does")
            row, lists = row[keep], {name: flat[keep] for name, flat in lists.items()}
            self._hold_at_0(columns, lists, row)
            keep = self.watch.look(lists, row, columns, rollout)
            row, lists = row[keep], {name: flat[keep] for name, flat in lists.items()}
            out["length"] = over(np.ones(len(row)))
            told = " up to length" if "length" in chosen else " without padding" if padded.any() else ""
            derived["length"] = chosen.get("mask") or f"tokens of {chosen[next(iter(lists))]}{told}"
        if {"log_ratio", "new", "old", "length"} <= chosen.keys() - lists.keys():
            S, told, L = sums["new"] - sums["old"], sums["log_ratio"], columns.numbers("length")
            if np.nansum((S - told * L) ** 2) < 0.01 * np.nansum((S - told) ** 2):
                del sums["log_ratio"]
                self.report.note(f"{chosen['log_ratio']} is S over the length: S is made of the log-probabilities")
        sums |= {name: over(flat) for name, flat in lists.items()}
        made = {"new", "sampler"} <= sums.keys() and not {"old", "log_ratio"} & sums.keys()
        for of, known in ((sums, first), (lists, first[row])) if made else ():
            of |= {"old": np.where(known, of["new"], np.nan)} if "new" in of else {}
        ratios = {
            "update": ("log_ratio",) if "log_ratio" in sums else ("new", "old"),
            "behaviour": ("old", "sampler"),
            "total": ("log_ratio", "old", "sampler") if "log_ratio" in sums else ("new", "sampler"),
        }
        if made and self.options.updates_per_rollout == 1:  # nobody said that these are first updates, where S is 0
            del ratios["update"]
        for ratio, terms in ratios.items():
            names = RATIO_COLUMNS[ratio]
            if names.log_ratio and {*terms} <= sums.keys():
                out[names.log_ratio] = _difference(sums, terms)
                if len(terms) > 1:
                    less = " - ".join(chosen.get(name) or chosen["new"] for name in terms)
                    derived[names.log_ratio] = "0 at a rollout's first update" if made and "new" in terms else less
            if {*terms} <= lists.keys():
                s = _difference(lists, terms)
                out |= {names.sum_sq: over(s * s), names.k3_sum: over(token_k3(s))}
                if ratio == "behaviour":
                    for column, values in zip(LARGEST, (s * s / 2, token_k3(s)), strict=True):
                        out[column] = np.zeros(n)
                        with np.errstate(invalid="ignore"):
                            np.maximum.at(out[column], row, values)
        return out

    def _hold_at_0(self, columns: ChunkColumns, found: dict[str, Floats], row: Ints) -> None:
        """Lower values above 0 in ``found`` (arrays (n,), of the rows ``row``) to 0; refuse many or one far off."""
        above_0 = {name: values for name, values in found.items() if name != "log_ratio" and np.any(values > 1e-6)}
        highest = np.max([*above_0.values()], 0) if above_0 else np.zeros(len(row))
        self.watch.digest.above_zero.add(highest[highest > 1e-6], row[highest > 1e-6], columns.ids)
        for name, values in above_0.items():
            count, most = np.count_nonzero(values > 1e-6), int(np.nanargmax(values))
            if values[most] > SLIGHT or (count >= 10 and count > MANY * len(values)):
                raise UserError(
                    f"{columns.path}: column {columns.chosen[name]!r} holds {count} values above 0 "
                    f"({count / len(values):.2%} of all), the largest {values[most]:.3g} in "
                    f"{at(columns.ids(int(row[most])))}, but a log-probability is at most 0: give those in nats"
                )
            found[name] = np.minimum(values, 0.0)

    def _weights(self, columns: ChunkColumns) -> None:
        """Note in the report which token weights of a correction are not finite, and which exceed 2, the usual cap."""
        if not columns.is_list("token_weights"):
            return
        flat, row = columns.kept("token_weights")
        overflow = "no number: an overflow, which a mask of 0 turns into NaN"
        for what, one in ((overflow, ~np.isfinite(flat)), ("a weight above 2, the usual cap", flat > 2)):
            if where := "; ".join(at(columns.ids(int(i))) for i in np.unique(row[one])[:5]):
                self.report.note(f"{columns.chosen['token_weights']}: {one.sum()} tokens have {what} ({where})")

    def _prompts(self, columns: ChunkColumns, numbers: Ints) -> Ints:
        """Return a number (N,) that identifies each row's prompt: made from its id, else its text, else the group size
        and ``numbers`` (N,), the rows' places in the table, else its tokens. Else each row has a prompt of its own."""
        if "prompt_id" in columns.chosen:
            return columns["prompt_id"].ids(_VERL_UID)
        if "prompt" in columns.chosen:
            return columns["prompt"].ids()
        if self.options.group_size:
            return numbers // self.options.group_size
        if columns.is_list("tokens") and columns.is_list("mask"):
            both = zip(columns["tokens"].array.to_pylist(), columns["mask"].array.to_pylist(), strict=True)
            begun = [np.array((ids or [])[: [*map(bool, kept or []), True].index(True)], int) for ids, kept in both]
            return np.array([hashed(prompt.tobytes().hex()) for prompt in begun], np.int64)
        self.report.note("no prompt: every response counts as independent, so intervals are too short (--group-size)")
        self.grouped = False
        return numbers


def _difference(of: Mapping[str, Floats], terms: Sequence[str]) -> Floats:
    """Return the arrays that ``terms`` name: all but the last added up, less the last (a + b - c); of one, itself."""
    *plus, last = (of[name] for name in terms)
    return sum(plus, -last) if plus else last


def parted(rows: Mapping[str, Any], updates: Floats) -> dict[str, Floats]:
    """Return the log's columns of D and E (N,) that D + E gives: where the old weights sampled the response, D is 0 and
    E is D + E; both are NaN where others did. The old weights did if the response's behaviour versions equal its policy
    version less the ``updates`` (N,) since the rollout. Without D + E or versions there are no columns."""
    if not {"behaviour_log_ratio", "policy_version", "behaviour_version"} <= rows.keys():
        return {}
    old = rows["policy_version"] - updates
    last = rows.get("behaviour_version_last", np.nan)
    same = (rows["behaviour_version"] == old) & (np.isnan(last) | (last == old))
    of, to = RATIO_COLUMNS["behaviour"], RATIO_COLUMNS["engine"]
    found = {theirs: rows[ours] for ours, theirs in zip(of, to, strict=True) if ours in rows}
    found |= {"staleness_log_ratio": 0.0}
    return {name: np.where(same, values, np.nan) for name, values in found.items() if name not in rows}


def like_means(log_probability: Floats, length: Floats) -> bool:
    """Return whether the ``log_probability`` (N,) of responses of length L looks like means over tokens, not sums: L^b
    with b below .4 fits its size. False below 50 responses, or if no length is 4 times the shortest."""
    told = (log_probability < 0) & (length >= 1)
    x, y = np.log2(length[told]), np.log2(-log_probability[told])
    return len(x) >= 50 and np.ptp(x) >= 2 and bool(np.polyfit(x, y, 1)[0] < 0.4)


def group_advantages(frame: pd.DataFrame, estimator: Estimator) -> Floats:
    """Return the advantage of each row (N,), which ``estimator`` makes of the rewards of the row's group (each response
    counts once); NaN where the reward is not finite or the response is alone in its group."""
    keys, finite = ["rollout", "prompt_id", "response_id"], np.isfinite(frame["reward"].to_numpy())
    once = frame.loc[finite, [*keys, "reward"]].drop_duplicates(keys)
    groups = once[once.groupby(keys[:2])["reward"].transform("size") > 1].groupby(keys[:2])
    made, _ = advantages(groups.obj["reward"].to_numpy(np.float64), groups.ngroup().to_numpy(), estimator)
    joined = frame[keys].merge(groups.obj[keys].assign(made=made), how="left", on=keys)
    return joined["made"].where(finite).to_numpy(np.float64)


def typed_columns(frame: pd.DataFrame) -> dict[str, Any]:
    """Return by name the columns of ``frame`` with the gradient log's types, without optional ones that have no value.
    Where a column of the log holds whole numbers, NaN and infinity become null."""
    out: dict[str, Any] = {}
    for name, column in frame.items():
        if name in REQUIRED or column.notna().any():
            out[str(name)] = values = column.to_numpy()
            kind = LOG_COLUMNS[str(name)].kind if name in LOG_COLUMNS else "float64"
            if kind.startswith(("int", "bool")):
                out[str(name)] = pa.array(values, kind, mask=~np.isfinite(values), safe=False).to_pylist()
    return out
