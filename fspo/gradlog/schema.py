"""Columns of the gradient log and their types (docs: fspo.gradlog)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa

SCHEMA_VERSION = (1, 0)
"""major.minor: further minors are read, another major is refused by name."""
USER_PREFIX = "user."

COLUMNS: dict[str, tuple[str, str]] = {
    # name: (arrow type, meaning with its unit)
    "rollout": ("int32", "number of the rollout, from 0"),
    "step": ("int32", "optimizer updates done before this row's update, over the run"),
    "updates_since_rollout": ("int16", "optimizer updates between the rollout and this row"),
    "times_used": ("int16", "updates that used this response before; 0: first use"),
    "phase": ("string", "train, audit (fresh responses at the same parameters) or noise"),
    "policy_version": ("int32", "step of the parameters that S and psi were computed at"),
    "behaviour_version": ("int32", "step of the parameters that sampled the response"),
    "prompt_id": ("int64", "prompt number over the run; (rollout, prompt_id) is a cluster"),
    "response_id": ("int64", "response number over the run"),
    "length": ("int32", "L, unmasked response tokens, end-of-sequence included"),
    "truncated": ("bool", "the response met the token limit"),
    "entropy": ("float32", "mean entropy of the policy over the response's tokens, nats"),
    "log_ratio": ("float64", "S, nats"),
    "engine_log_ratio": ("float64", "trainer's old log-probability minus the sampler's, summed, nats"),
    "sum_sq_log_ratio": ("float64", "sum over tokens of s_t^2, nats squared"),
    "k3_sum": ("float64", "sum over tokens of exp(s_t)-1-s_t, nats"),
    "reward": ("float32", "reward of the response"),
    "advantage": ("float32", "A, the value that the objective used"),
    "rule": ("string", "label of the rule that trained"),
    "lo": ("float64", "lower edge of the band on S, nats"),
    "hi": ("float64", "upper edge of the band on S, nats"),
    "drift": ("float64", "m, centre of the band per token, nats"),
    "drift_source": ("string", "none, two_pass or lagged"),
    "band_accept": ("bool", "lo <= S <= hi"),
    "side": ("int8", "-1 cut below, 0 kept, +1 cut above, 2 dual clip"),
    "multiplier": ("float32", "M"),
    "weight": ("float32", "w, exponent capped"),
    "score_status": ("string", "ok, not_taken or failed"),
    "score_norm": ("float32", "norm of the stored psi"),
    "score_unit": ("list", "psi over its norm, fixed width, float16 (exact scores: float32); null where not taken"),
}
REQUIRED = ("rollout", "step", "prompt_id", "response_id", "length", "log_ratio", "advantage")
"""What another trainer must at least write; every other column may be null or missing."""


def schema(
    width: int,
    user_columns: Mapping[str, str] | None = None,
    metadata: Mapping[str, Any] | None = None,
    *,
    exact: bool = False,
) -> pa.Schema:
    """The Arrow schema for sketches of ``width`` entries (0: no sketch column)."""
    import pyarrow as pa

    types = {
        "string": pa.string(),
        "bool": pa.bool_(),
        "list": pa.list_(pa.float32() if exact else pa.float16(), width),
    }
    fields = [
        pa.field(name, types.get(kind) or getattr(pa, kind)(), nullable=name not in REQUIRED, metadata={"doc": doc})
        for name, (kind, doc) in COLUMNS.items()
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
    """The table with numbers where the schema has numbers, so that files of several trainers go together."""
    import pyarrow as pa

    for place, f in enumerate(table.schema):
        kind = COLUMNS.get(f.name, ("", ""))[0]
        if kind == "bool" and not pa.types.is_boolean(f.type):
            table = table.set_column(place, f.name, table[f.name].cast(pa.bool_()))
        elif kind.startswith(("int", "float")) and not (pa.types.is_integer(f.type) or pa.types.is_floating(f.type)):
            table = table.set_column(place, f.name, table[f.name].cast(getattr(pa, kind)()))
        elif kind == "string" and not (pa.types.is_string(f.type) or pa.types.is_dictionary(f.type)):
            table = table.set_column(place, f.name, table[f.name].cast(pa.string()))
    return table
