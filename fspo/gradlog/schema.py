"""The columns of the gradient log: their names, types, units and meanings."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import pyarrow as pa

SCHEMA_VERSION = (1, 2)
"""Version (major, minor) of the log's columns. Logs of any minor version are read; another major version is refused."""
NO_ADVANTAGES = "none"
"""Value of ``advantage`` in the header of a log that was imported from a table without advantages.

A is 0 in all rows of such a log."""
NOTICED = "noticed"
"""Name, in the header of an imported log, of what is wrong with the table's log-probabilities: a list of sentences."""
USER_PREFIX = "user."


class LogColumn(NamedTuple):
    """One column of the gradient log: its Arrow type, meaning and unit."""

    kind: str
    meaning: str
    unit: str


LOG_COLUMNS: dict[str, LogColumn] = {
    "rollout": LogColumn("int32", "number of the rollout, from 0", "number"),
    "step": LogColumn("int32", "optimizer updates done before this row's update, over the run", "updates"),
    "updates_since_rollout": LogColumn("int16", "optimizer updates between the rollout and this row", "updates"),
    "times_used": LogColumn("int16", "updates that used this response before; 0: first epoch", "updates"),
    "phase": LogColumn("string", "train, noise, or in older logs audit (fresh responses)", "text"),
    "policy_version": LogColumn("int32", "step of the parameters that S and the score psi were computed at", "updates"),
    "behaviour_version": LogColumn("int32", "step of the parameters that sampled the response", "updates"),
    "behaviour_version_last": LogColumn(
        "int32", "step of the parameters that sampled its last token; null: the same as the first's", "updates"
    ),
    "prompt_id": LogColumn("int64", "prompt number over the run; (rollout, prompt_id) is a cluster", "number"),
    "response_id": LogColumn("int64", "response number over the run", "number"),
    "length": LogColumn("int32", "L, unmasked response tokens, end-of-sequence included", "tokens"),
    "truncated": LogColumn("bool", "the response met the token limit", "yes or no"),
    "entropy": LogColumn("float32", "mean entropy of the policy over the response's tokens", "nats"),
    "log_ratio": LogColumn("float64", "S, sum over tokens of new less old log-probability", "nats"),
    "engine_log_ratio": LogColumn(
        "float64", "E, sum over tokens of the trainer's less the sampler's log-probability at the same weights", "nats"
    ),
    "sum_sq_log_ratio": LogColumn("float64", "sum over tokens of s_t^2", "nats squared"),
    "k3_sum": LogColumn("float64", "sum over tokens of exp(s_t)-1-s_t", "nats"),
    "engine_sum_sq": LogColumn("float64", "sum over tokens of e_t^2", "nats squared"),
    "engine_k3_sum": LogColumn("float64", "sum over tokens of exp(e_t)-1-e_t", "nats"),
    "staleness_log_ratio": LogColumn(
        "float64", "D, sum over tokens of old less sampling weights' log-probability; null: unknown", "nats"
    ),
    "behaviour_log_ratio": LogColumn(
        "float64", "D + E, old log-probability less the sampler's, summed over tokens", "nats"
    ),
    "behaviour_sum_sq": LogColumn("float64", "sum over tokens of (d_t+e_t)^2", "nats squared"),
    "behaviour_k3_sum": LogColumn("float64", "sum over tokens of exp(d_t+e_t)-1-d_t-e_t", "nats"),
    "behaviour_k2_max": LogColumn("float64", "largest (d_t+e_t)^2/2 of a token", "nats squared"),
    "behaviour_k3_max": LogColumn("float64", "largest exp(d_t+e_t)-1-d_t-e_t of a token", "nats"),
    "total_sum_sq": LogColumn("float64", "sum over tokens of (s_t+d_t+e_t)^2", "nats squared"),
    "total_k3_sum": LogColumn("float64", "sum over tokens of exp(x_t)-1-x_t with x = s+d+e", "nats"),
    "reward": LogColumn("float32", "reward of the response", "reward"),
    "advantage": LogColumn("float32", "A, the value that the objective used", "number"),
    "rule": LogColumn("string", "label of the rule that trained", "text"),
    "lo": LogColumn("float64", "lower edge of the band on S", "nats"),
    "hi": LogColumn("float64", "upper edge of the band on S", "nats"),
    "drift": LogColumn("float64", "m, centre of the band per token", "nats per token"),
    "drift_source": LogColumn("string", "none, two_pass or lagged", "text"),
    "band_accept": LogColumn("bool", "lo <= S <= hi; of a rule on tokens: every token is in its range", "yes or no"),
    "side": LogColumn("int8", "-1 clipped below, 0 not clipped, +1 clipped above, 2 dual clip", "number"),
    "multiplier": LogColumn("float32", "M, what the clip multiplies the weight by", "number"),
    "weight": LogColumn("float32", "w = exp(S) or exp(S/L), the exponent capped", "number"),
    "correction_lo": LogColumn("float64", "lower edge of the correction's band on its ratio", "nats"),
    "correction_hi": LogColumn("float64", "upper edge of the correction's band on its ratio", "nats"),
    "correction_drift": LogColumn("float64", "centre of the correction's band per token", "nats per token"),
    "correction_side": LogColumn("int8", "-1 below the correction's range, 0 inside, +1 above", "number"),
    "correction_weight": LogColumn(
        "float32", "factor M w that the correction leaves on the gradient (token rules: its mean)", "number"
    ),
    "score_status": LogColumn("string", "ok, not_taken or failed", "text"),
    "score_norm": LogColumn(
        "float32", "norm of the stored score psi (gradient of log-probability)", "nats per unit of the parameters"
    ),
    "score_unit": LogColumn(
        "list", "psi over its norm, float16 (exact scores: float32); null where not taken", "number"
    ),
}


class RatioColumns(NamedTuple):
    """Names of three columns of the gradient log, for one kind of log-ratio with token log-ratios x_t, nats: the sums
    over a response's tokens of x_t (the log-ratio), of x_t^2, and of k3 = exp(x_t) - 1 - x_t."""

    log_ratio: str
    sum_sq: str
    k3_sum: str


RATIO_COLUMNS: dict[str, RatioColumns] = {
    "update": RatioColumns("log_ratio", "sum_sq_log_ratio", "k3_sum"),
    "engine": RatioColumns("engine_log_ratio", "engine_sum_sq", "engine_k3_sum"),
    "behaviour": RatioColumns("behaviour_log_ratio", "behaviour_sum_sq", "behaviour_k3_sum"),
    "total": RatioColumns("", "total_sum_sq", "total_k3_sum"),
}
"""Columns of each log-ratio that a rule may act on: "update" S, "engine" E, "behaviour" D + E; and of "total" S + D + E
(no rule acts on it). The log has no column for the total itself, which is ``log_ratio`` + ``behaviour_log_ratio``."""
OF_THE_RULE = ("lo", "hi", "drift", "drift_source", "band_accept", "side", "multiplier", "weight")
"""Columns that say what the clip rule did; null where another trainer's loss applies no rule of this project."""
REQUIRED = ("rollout", "step", "prompt_id", "response_id", "length", "log_ratio", "advantage")
"""Columns that every trainer must write; each other column may be null or missing."""


def schema(
    width: int,
    user_columns: Mapping[str, str] | None = None,
    metadata: Mapping[str, Any] | None = None,
    *,
    exact: bool = False,
) -> pa.Schema:
    """Make the Arrow schema of a log: its columns with their types, and the header ``metadata``.

    The column ``score_unit`` holds ``width`` entries of a score, float16, or float32 if it is the ``exact`` gradient;
    with width 0 there is none. ``user_columns`` maps a further column (without ``user.``) to its Arrow type's name."""
    import pyarrow as pa

    types = {
        "string": pa.string(),
        "bool": pa.bool_(),
        "list": pa.list_(pa.float32() if exact else pa.float16(), width),
    }
    fields = [
        pa.field(
            name,
            types.get(kind) or getattr(pa, kind)(),
            nullable=name not in REQUIRED,
            metadata={"doc": f"{meaning}; {unit}"},
        )
        for name, (kind, meaning, unit) in LOG_COLUMNS.items()
        if name != "score_unit" or width > 0
    ]
    fields += [
        pa.field(USER_PREFIX + name, types.get(kind) or getattr(pa, kind)())
        for name, kind in (user_columns or {}).items()
    ]
    header = {
        "fspo.schema": "{}.{}".format(*SCHEMA_VERSION),
        "fspo.run": json.dumps(dict(metadata or {}), sort_keys=True),
    }
    return pa.schema(fields, metadata=header)


def typed(table: pa.Table) -> pa.Table:
    """Cast each column of the schema whose kind (boolean, number or text) is not the schema's to the schema's type, so
    that the tables of all trainers can be joined."""
    import pyarrow as pa

    for place, f in enumerate(table.schema):
        kind = LOG_COLUMNS[f.name].kind if f.name in LOG_COLUMNS else ""
        if kind == "bool" and not pa.types.is_boolean(f.type):
            table = table.set_column(place, f.name, table[f.name].cast(pa.bool_()))
        elif kind.startswith(("int", "float")) and not (pa.types.is_integer(f.type) or pa.types.is_floating(f.type)):
            table = table.set_column(place, f.name, table[f.name].cast(getattr(pa, kind)()))
        elif kind == "string" and not (pa.types.is_string(f.type) or pa.types.is_dictionary(f.type)):
            table = table.set_column(place, f.name, table[f.name].cast(pa.string()))
    return table
