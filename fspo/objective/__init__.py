"""The training objective: log-ratios, loss and records of responses, as pure functions on torch tensors."""

from fspo.config import ObjectiveConfig
from fspo.objective.loss import (
    ObjectiveOutput,
    aggregate,
    apply_rule,
    denominator_for,
    kl_terms,
    objective,
    straight_through,
    surrogate,
)
from fspo.objective.ratios import Mismatch, log_ratios, ratio_tokens
from fspo.objective.records import Records, ratio_stats
