"""Names of the metrics in metrics.jsonl that more than one module writes or reads; TRL's name where TRL means the same.

The names of metrics on held-out prompts begin with `EVAL`. A metric that is only written, and read by no module, is
not listed here.
"""

EVAL = "eval/"
"""Prefix of the metrics of an evaluation on held-out prompts."""

REWARD = "reward"
EQUAL_REWARDS = "frac_reward_zero_std"
MEAN_LENGTH = "completions/mean_length"
TRUNCATED = "completions/clipped_ratio"
VERIFIER_TIMEOUT = "verifier/timeout"
VERIFIER_ERROR = "verifier/error"

CLIPPED_LOW = "clip_ratio/low_mean"
CLIPPED_HIGH = "clip_ratio/high_mean"
CLIPPED = "clip_ratio/region_mean"
OUT_OF_BAND = "clip_ratio/out_of_band"
LOG_RATIO_MEAN = "seq_log_ratio/mean"
LOG_RATIO_STD = "seq_log_ratio/std"
LOG_RATIO_DRIFT = "seq_log_ratio/drift"
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
"""Mean over the responses with A != 0 of the factor by which the correction multiplies their gradient."""
ENTROPY = "entropy"
GRAD_NORM = "grad_norm"
LEARNING_RATE = "learning_rate"
NUM_TOKENS = "num_tokens"
COSINE_ERROR = "score/cosine_error"

HELD_OUT_REWARD = EVAL + REWARD
STDERR = "_stderr"
"""Ending of names: the standard error of the metric NAME is logged under NAME with this ending."""
HELD_OUT_STDERR = HELD_OUT_REWARD + STDERR
