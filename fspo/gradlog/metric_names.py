"""Names of all metrics in metrics.jsonl, with meaning and unit. A metric that means the same in TRL has TRL's name."""

from __future__ import annotations

from typing import NamedTuple

EVAL = "eval/"
"""Prefix of the metrics of an evaluation on held-out prompts."""
TIME = "time/"
"""Prefix of the wall time of each part of a rollout or evaluation, seconds."""
ADAPTED = "rule/"
"""Prefix of the present ranges and exponent of a rule whose band follows a target."""
SKIPPED = "skipped/"
"""Prefix of the shares of updates that were skipped, one share for each cause."""
LRE_BAND, LRE_UPDATE = "lre_band/", "lre_update/"
"""Prefixes of the Length Reweighting Error of the band acceptance and of the update acceptance, by norm."""


def in_bin(i: int | str, name: str) -> str:
    """Return the name that metrics.jsonl gives the metric ``name`` when it is taken over the responses in length bin
    number ``i`` alone (from 0, or `BIN` for any)."""
    return f"length_bin/{i}/{name}"


BIN_OUT_OF_BAND, BIN_KEPT, BIN_CLIPPED_LOW, BIN_CLIPPED_HIGH = "out_of_band", "kept", "clip_low", "clip_high"
BIN_DROPPED, BIN_REWARD = "dropped", "reward"
BIN_COUNT, BIN_LENGTH_LO, BIN_LENGTH_HI = "count", "length_lo", "length_hi"
"""What is measured in a bin of lengths: values of ``name`` for `in_bin`. "count" is the number of responses."""

REWARD = "reward"
REWARD_STD = "reward_std"
EQUAL_REWARDS = "frac_reward_zero_std"
MEAN_LENGTH = "completions/mean_length"
TRUNCATED = "completions/clipped_ratio"
VERIFIER_TIMEOUT = "verifier/timeout"
VERIFIER_ERROR = "verifier/error"
TOO_LONG = "prompts/too_long"
DROPPED_TRUNCATED = "dropped/truncated"

CLIPPED_LOW = "clip_ratio/low_mean"
CLIPPED_HIGH = "clip_ratio/high_mean"
CLIPPED = "clip_ratio/region_mean"
OUT_OF_BAND = "clip_ratio/out_of_band"
LOG_RATIO_MEAN = "seq_log_ratio/mean"
LOG_RATIO_STD = "seq_log_ratio/std"
LOG_RATIO_DRIFT = "seq_log_ratio/drift"
DRIFT = "drift_per_token"
KL = "kl"
CAPPED = "weight_capped"
BEHAVIOUR_DIFFERENCE = "sampling/sampling_logp_difference/mean"
ENGINE_DIFFERENCE = "sampling/engine_logp_difference/mean"
MISSING = "sampling/missing_logp"
CORRECTION_CUT = "correction/cut"
CORRECTION_WEIGHT = "correction/mean_weight"
ENTROPY = "entropy"
GRAD_NORM = "grad_norm"
LEARNING_RATE = "learning_rate"
NUM_TOKENS = "num_tokens"
SKIPPED_UPDATES = "skipped_updates"
STEP_TIME = "step_time"
COSINE_ERROR = "score/cosine_error"
"""Root mean square error of the sketches' cosines of pairs of responses; only releases up to 0.2 measured it."""

HELD_OUT_REWARD = EVAL + REWARD
HELD_OUT_COUNT, HELD_OUT_FAILED = EVAL + "count", EVAL + "verifier_failed"
STDERR = "_stderr"
"""Ending of names: the standard error of the metric NAME is logged under NAME with this ending."""
HELD_OUT_STDERR = HELD_OUT_REWARD + STDERR


class Metric(NamedTuple):
    """Meaning and unit of a metric."""

    meaning: str
    unit: str


LIVE = "responses with A != 0"
MOVED = "after the first update of the rollout"
BIN = "I"
"""Stands for the number of a bin of lengths, from 0, in the names of `METRICS`."""
METRICS = {
    REWARD: Metric("mean reward of the rollout's responses", "reward"),
    REWARD_STD: Metric("mean over groups of the standard deviation of a group's rewards", "reward"),
    EQUAL_REWARDS: Metric("groups whose rewards are all equal", "share of groups"),
    MEAN_LENGTH: Metric("mean length", "tokens"),
    TRUNCATED: Metric("responses cut off at the longest length that is allowed", "share of responses"),
    VERIFIER_TIMEOUT: Metric("responses whose verifier took too long", "share of responses"),
    VERIFIER_ERROR: Metric("responses whose verifier failed", "share of responses"),
    TOO_LONG: Metric("prompts passed over because they are too long", "share of prompts"),
    DROPPED_TRUNCATED: Metric("sampled responses that get no gradient: truncated", "share of responses"),
    NUM_TOKENS: Metric("tokens of prompts and responses since the run began", "tokens"),
    ENTROPY: Metric("mean over tokens of the entropy of the old policy, at its temperature", "nats"),
    CLIPPED_LOW: Metric(f"{LIVE} that are clipped below the band (token rules: tokens)", f"share of {LIVE}"),
    CLIPPED_HIGH: Metric(f"{LIVE} that are clipped above the band (token rules: tokens)", f"share of {LIVE}"),
    CLIPPED: Metric("both, and those clipped at the dual clip", f"share of {LIVE}"),
    OUT_OF_BAND: Metric(f"responses outside the band, {MOVED}", "share of responses"),
    LOG_RATIO_MEAN: Metric(f"mean of S {MOVED}", "nats"),
    LOG_RATIO_STD: Metric(f"standard deviation of S {MOVED}", "nats"),
    LOG_RATIO_DRIFT: Metric(f"sum of S over sum of L {MOVED}", "nats per token"),
    DRIFT: Metric("mean of the band's centre per token, for rules that estimate it", "nats per token"),
    KL: Metric("mean over tokens of k3 of the policy and the reference model, where it is penalised", "nats"),
    CAPPED: Metric("responses whose weight's exponent was held at its cap", "share of responses"),
    LRE_BAND + "NORM": Metric(f"LRE of the band acceptance over the bins of lengths {MOVED}: inf, l1, l2", "ratio"),
    LRE_UPDATE + "NORM": Metric("LRE of the update acceptance over the same bins: inf, l1, l2", "ratio"),
    BEHAVIOUR_DIFFERENCE: Metric(
        "mean over tokens of the absolute difference between the old log-probability and the sampler's", "nats"
    ),
    ENGINE_DIFFERENCE: Metric(
        "mean over tokens of the absolute difference between the trainer's and the sampler's log-probability, both at "
        "the weights that sampled",
        "nats",
    ),
    MISSING: Metric(
        "tokens whose log-probability the sampler did not give; it is taken as equal to the trainer's",
        "share of tokens",
    ),
    CORRECTION_CUT: Metric(f"{LIVE} that the correction clips (one on tokens: their tokens)", f"share of {LIVE}"),
    CORRECTION_WEIGHT: Metric(
        f"mean over {LIVE} of the factor by which the correction multiplies their gradient", "factor"
    ),
    ADAPTED + "PART": Metric(
        "the present value of a part of a rule that follows a target: range_lo, range_hi, gamma, gamma_hi",
        "as the option",
    ),
    GRAD_NORM: Metric("mean over the updates made of the norm of the gradient before it is limited", "norm"),
    LEARNING_RATE: Metric("mean over the rollout's updates", "rate"),
    SKIPPED_UPDATES: Metric("updates that were skipped", "share of updates"),
    SKIPPED + "CAUSE": Metric("the same by cause: loss, weight, gradient", "share of updates"),
    in_bin(BIN, BIN_COUNT): Metric(f"responses of the bin, counted at each update {MOVED}", "responses"),
    in_bin(BIN, BIN_LENGTH_LO): Metric("least length of the bin", "tokens"),
    in_bin(BIN, BIN_LENGTH_HI): Metric("the next bin's least length; the last bin has none", "tokens"),
    in_bin(BIN, BIN_OUT_OF_BAND): Metric(f"`{OUT_OF_BAND}` in the bin", "share of responses"),
    in_bin(BIN, BIN_CLIPPED_LOW): Metric(f"`{CLIPPED_LOW}` in the bin, {MOVED}", f"share of {LIVE}"),
    in_bin(BIN, BIN_CLIPPED_HIGH): Metric(f"`{CLIPPED_HIGH}` in the bin, {MOVED}", f"share of {LIVE}"),
    in_bin(BIN, BIN_DROPPED): Metric("sampled responses of the bin that get no gradient", "share of responses"),
    STEP_TIME: Metric("wall time of the rollout", "seconds"),
    TIME + "PART": Metric(
        "wall time of a part of the rollout: sample, verify, old_log_probs, drift, update, scores; or of an "
        "evaluation: eval",
        "seconds",
    ),
    HELD_OUT_REWARD: Metric("mean reward on held-out prompts", "reward"),
    HELD_OUT_STDERR: Metric("its standard error", "reward"),
    HELD_OUT_COUNT: Metric("responses to held-out prompts", "responses"),
    HELD_OUT_FAILED: Metric("those whose verifier failed or took too long", "share of responses"),
    EVAL + MEAN_LENGTH: Metric("their mean length", "tokens"),
    EVAL + TRUNCATED: Metric("those cut off at the longest length", "share of responses"),
    EVAL + in_bin(BIN, BIN_REWARD): Metric("mean reward of those in the bin", "reward"),
    EVAL + in_bin(BIN, BIN_COUNT): Metric("number of those in the bin", "responses"),
}
"""Every metric that the trainer writes, in the order of the site's page. A word in capitals in a name, such as CAUSE,
stands for one of several words."""
