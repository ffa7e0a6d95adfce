"""Names of all metrics in metrics.jsonl; a metric that means the same as in TRL has TRL's name."""

EVAL = "eval/"
"""Prefix of the metrics of an evaluation on held-out prompts."""
TIME = "time/"
"""Prefix of the wall time of each part of a rollout or evaluation, seconds."""
ADAPTED = "rule/"
"""Prefix of the parts of a rule whose band follows a target: its ranges and its exponent."""
DROPPED = "dropped/"
"""Prefix of the share of sampled responses that were left out, by reason."""
SKIPPED = "skipped/"
"""Prefix of the share of updates that were skipped, by cause."""
LRE_BAND, LRE_UPDATE = "lre_band/", "lre_update/"
"""Prefixes of the Length Reweighting Error of the band acceptance and of the update acceptance, by norm."""


def in_bin(i: int, name: str) -> str:
    """Return the name of a metric that is taken over the responses of the ``i``-th bin of lengths alone."""
    return f"length_bin/{i}/{name}"


BIN_OUT_OF_BAND, BIN_KEPT, BIN_CLIPPED_LOW, BIN_CLIPPED_HIGH = "out_of_band", "kept", "clip_low", "clip_high"
BIN_DROPPED, BIN_REWARD, BIN_GRAD_COSINE = "dropped", "reward", "grad_cosine"
BIN_COUNT, BIN_LENGTH_LO, BIN_LENGTH_HI = "count", "length_lo", "length_hi"
"""What is measured in a bin of lengths, for `in_bin`; "count" is the number of responses."""

REWARD = "reward"
REWARD_STD = "reward_std"
REWARD_SAMPLED = "reward_sampled"
EQUAL_REWARDS = "frac_reward_zero_std"
MEAN_LENGTH = "completions/mean_length"
TRUNCATED = "completions/clipped_ratio"
VERIFIER_TIMEOUT = "verifier/timeout"
VERIFIER_ERROR = "verifier/error"
TOO_LONG = "prompts/too_long"
REDRAWN_GROUPS, REDRAWN_ROUNDS = "redrawn/groups", "redrawn/rounds"

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
"""Share of the responses whose weight's exponent was held at MAX_EXPONENT."""
BEHAVIOUR_DIFFERENCE = "sampling/sampling_logp_difference/mean"
"""Mean over tokens of the absolute difference between the old log-probability and the sampler's, nats."""
ENGINE_DIFFERENCE = "sampling/engine_logp_difference/mean"
"""Mean over tokens of the absolute difference between the trainer's and the sampler's log-probability, nats, both at
the weights that sampled.
"""
MISSING = "sampling/missing_logp"
"""Share of tokens whose log-probability the sampler did not give; it is taken as equal to the trainer's."""
CORRECTION_CUT = "correction/cut"
"""Share of the responses with A != 0 (of their tokens, if the correction is on tokens) that the correction cuts."""
CORRECTION_WEIGHT = "correction/mean_weight"
"""Mean over the responses with A != 0 of the factor by which the correction multiplies their gradient.

Inside TRL each microbatch gives such a mean, and TRL averages over microbatches."""
ENTROPY = "entropy"
GRAD_NORM = "grad_norm"
LEARNING_RATE = "learning_rate"
NUM_TOKENS = "num_tokens"
SKIPPED_UPDATES = "skipped_updates"
STEP_TIME = "step_time"
GRAD_COSINE, GRAD_RHO, GRAD_BOUND = "grad_cosine/global", "grad_cosine/rho", "grad_cosine/bound"
"""Cosine of the clipped and the true update of a scored minibatch, and rho and the bound of T7."""
COSINE_ERROR = "score/cosine_error"
COVERAGE = "score/coverage"
"""Share of the squared norm of the gradient of S that the score's layers hold, mean over a few responses."""

HELD_OUT_REWARD = EVAL + REWARD
HELD_OUT_COUNT, HELD_OUT_FAILED = EVAL + "count", EVAL + "verifier_failed"
STDERR = "_stderr"
"""Ending of names: the standard error of the metric NAME is logged under NAME with this ending."""
HELD_OUT_STDERR = HELD_OUT_REWARD + STDERR
