"""The names that other trainers use: files, columns of per-response tables, and scalar metrics.

A scalar of another trainer gets the name of this project's metric only if both mean the same. ``DIFFERENT`` says for
scalars with a similar name how their meaning differs. The names come from the sources of TRL 1.16
(``trl/trainer/grpo_trainer.py``), verl 0.9.1 (``verl/trainer/ppo``) and prime-rl of August 2026
(``trainer/rl/token_export.py``).
"""

from __future__ import annotations

import re

from fspo.gradlog import metric_names as metric
from fspo.gradlog import schema

STATE = "trainer_state.json"
"""Name of the file in which TRL (any trainer of Hugging Face's) keeps its scalars."""
TRL_TABLE = "completions_"
"""How the names of TRL's tables of responses begin."""
EVENTS = "events.out.tfevents"
"""Part of the names of TensorBoard's files."""
ROLLOUT_VERSIONS = ("min_global_steps", "max_global_steps")
"""Columns of verl that give the version of the weights in rollouts; all other columns of versions count updates."""

COLUMNS: dict[str, tuple[str, ...]] = {
    # Each key is our name of a column. Its value lists the names that other trainers have for the column, the most
    # specific first. Case does not matter.
    "rollout": ("rollout", "rollout_id", "generation_step"),
    "step": ("step", "global_step", "training_step", "train_step", "iteration"),
    "phase": ("phase",),
    "behaviour_version": ("behaviour_version", "behavior_version", "policy_versions", "min_global_steps"),
    "behaviour_version_last": ("behaviour_version_last", "behavior_version_last", "max_global_steps"),
    "prompt_id": ("prompt_id", "prompt_idx", "prompt_index", "group_id", "group", "uid"),
    "response_id": ("response_id", "completion_id", "sample_id", "request_id"),
    "prompt": ("prompt", "input", "question", "prompts", "prompt_ids", "prompt_token_ids"),
    "tokens": ("token_ids", "input_ids"),
    "response": ("completion", "output", "response", "completions"),
    "length": (
        *("length", "completion_length", "response_length", "completion_len", "response_len", "num_response_tokens"),
        *("n_response_tokens", "num_completion_tokens", "n_tokens", "num_tokens", "l"),
    ),
    "truncated": ("truncated", "is_truncated", "clipped"),
    "reward": ("reward", "score", "rewards", "scores", "total_reward"),
    "advantage": ("advantage", "advantages", "adv", "a"),
    "log_ratio": ("log_ratio", "seq_log_ratio", "log_ratios", "token_log_ratios", "sum_log_ratio", "s"),
    "new": ("new_logprobs", "per_token_logps", "logprobs", "token_logprobs", "trainer_logprobs"),
    "old": ("old_logprobs", "old_per_token_logps", "old_token_logprobs"),
    "sampler": (
        *("rollout_log_probs", "sampling_per_token_logps", "sampler_logprobs", "vllm_logprobs"),
        *("inference_logprobs", "sampling_logprobs"),
    ),
    "mask": ("response_mask", "completion_mask", "loss_mask", "action_mask", "mask"),
    "entropy": ("entropy", "entropies"),
}
"""For our name of a column, its names in other trainers' tables with a row for each response. ``new``, ``old`` and
``sampler`` are log-probabilities by the new weights, the old weights and the sampler. These three, ``log_ratio`` and
``entropy`` hold in each row a number or a list over tokens. ``tokens`` holds the token ids of prompt and response; the
ids before the first token that ``mask`` keeps identify the prompt.
"""


def canonical(name: str) -> str:
    """Return one spelling for all names of the same column, so that names can be compared.

    Names may differ in case. Names of log-probabilities may also differ in the order of their words, in the spelling of
    "logprobs", and in the word "token": ``new_logprobs``, ``Logp-New`` and ``new_token_logprobs`` are the same.
    """
    name = name.lower()
    words = re.split(r"[\W_]+", re.sub(r"(?<![a-z])log[\W_]?p(?:rob(?:abilit(?:y|ies)|s)?|s)?(?![a-z])", "logp", name))
    return "_".join(sorted({*words} - {"per", "token", "tokens"})) if "logp" in words else name


COPIED = tuple(
    name
    for name, column in schema.LOG_COLUMNS.items()
    if name not in COLUMNS and column.kind.startswith(("int", "float", "bool"))
)
"""Columns of the gradient log for which no other names are known: a table's column of the same name is copied."""
COLUMNS |= {name: (name,) for name in COPIED}

MARKS = ("prompt", "response", "advantage", "log_ratio", "new", "old", "behaviour_log_ratio")
"""A file with one of these columns (under any known name) is a table of responses. A file with none of them is a log of
scalars if it has a column of steps and is not Parquet.
"""

METRICS: dict[str, str] = {
    # Scalars that TRL logs; those of an evaluation begin with eval_.
    "reward": metric.REWARD,
    "frac_reward_zero_std": metric.EQUAL_REWARDS,
    "completions/mean_length": metric.MEAN_LENGTH,
    "completions/clipped_ratio": metric.TRUNCATED,
    "entropy": metric.ENTROPY,
    "grad_norm": metric.GRAD_NORM,
    "learning_rate": metric.LEARNING_RATE,
    "num_tokens": metric.NUM_TOKENS,
    # Scalars of verl.
    "critic/score/mean": metric.REWARD,
    "response_length/mean": metric.MEAN_LENGTH,
    "response_length/clip_ratio": metric.TRUNCATED,
    "actor/entropy": metric.ENTROPY,
    "actor/grad_norm": metric.GRAD_NORM,
    "actor/lr": metric.LEARNING_RATE,
    # This project's own metrics keep their names; another trainer's run has them if it logged them through a tracker.
    **{
        name: name for name in (metric.OUT_OF_BAND, metric.LOG_RATIO_MEAN, metric.LOG_RATIO_STD, metric.LOG_RATIO_DRIFT)
    },
}

VERL_CLIP_SHARE = "actor/pg_clipfrac"
DIFFERENT: dict[str, str] = {
    "clip_ratio/low_mean": "TRL counts responses (or tokens) with A = 0 too",
    "clip_ratio/high_mean": "TRL counts responses (or tokens) with A = 0 too",
    "clip_ratio/region_mean": "TRL counts responses (or tokens) with A = 0 too",
    "reward_std": "TRL takes the deviation over the whole batch, here it is the mean over groups",
    "kl": "TRL multiplies the term by the importance ratio (use_bias_correction_kl)",
    "step_time": "seconds of an optimizer step, here of a rollout",
    VERL_CLIP_SHARE: "a share of tokens, responses with A = 0 counted",
    "actor/pg_clipfrac_lower": "a share of tokens, responses with A = 0 counted",
    "actor/ppo_kl": "minus the mean token log-ratio, updates with S = 0 counted",
    "critic/rewards/mean": "the KL penalty is subtracted",
    "perf/time_per_step": "seconds of a step with everything in it",
}

MISMATCH: dict[str, str] = {
    # Scalars of TRL about the mismatch of sampler and trainer; d + e is a token's behaviour log-ratio.
    "sampling/sampling_logp_difference/mean": "mean |d + e| over tokens",
    "sampling/sampling_logp_difference/max": "largest |d + e| of a token",
    "sampling/importance_sampling_ratio/mean": "mean factor of the correction",
    "sampling/importance_sampling_ratio/min": "least factor of the correction",
    "sampling/importance_sampling_ratio/max": "largest factor of the correction",
    # Scalars of verl about the mismatch (rollout_corr_helper.py); releases before 0.7 write mismatch/ for
    # rollout_corr/.
    "rollout_corr/kl": "minus the mean of d + e over tokens",
    "rollout_corr/k3_kl": "mean of exp(d + e) - 1 - (d + e) over tokens",
    "rollout_corr/chi2_token": "mean of exp(2 (d + e)) over tokens, less 1",
    "rollout_corr/chi2_seq": "mean of exp(2 (D + E)) over responses, less 1, with D + E held within 20",
    "rollout_corr/log_ppl_diff": "mean of (D + E) / L over responses, with the sign turned: sampler less trainer",
    "rollout_corr/rollout_is_mean": "mean weight of the correction",
    "rollout_corr/rollout_is_eff_sample_size": "effective share of the sample under the correction's weights",
    "rollout_corr/rollout_rs_masked_fraction": "share of tokens that the correction masks",
    "rollout_corr/rollout_rs_seq_masked_fraction": "share of responses with a token that the correction masks",
    # Scalars of prime-rl about the mismatch, with the environment's name or "all" before the statistic.
    "mismatch_kl/all/mean": "mean of exp(x) - 1 - x over tokens, x = s + d + e",
    "mismatch_kl/all/max": "largest exp(x) - 1 - x of a token, x = s + d + e",
}
"""Scalars of other trainers about the mismatch between sampler and trainer, each with its meaning. Each is a statistic
of a whole batch, so none tells how the mismatch depends on the length.

Lower-case letters are log-ratios of a token, capitals are log-ratios of a response.
"""
_SPELT = {"mismatch/mismatch_": "rollout_corr/", "mismatch/": "rollout_corr/", "actor/rollout_corr/": "rollout_corr/"}
"""Beginning of the names of verl's mismatch scalars in some releases -> beginning of their names in ``MISMATCH``."""

FOREIGN = "imported/"
"""Prefix put before the original name of a scalar that has no counterpart among this project's metrics."""


def metric_name(name: str) -> tuple[str, str, str, str]:
    """Return how a scalar of another trainer's log is stored: its phase and its name.

    Returns
    -------
    phase : "train" or "eval"
    plain : the original name without the prefix of its phase
    stored : name of this project's metric with the same meaning, or else ``FOREIGN`` + plain
    why : "" if such a metric exists; else what the scalar means or how it differs from a similar metric, or "unknown"
    """
    phase, plain = "train", name
    for prefix in ("train/", "eval/", "eval_"):
        if name.startswith(prefix):
            phase, plain = prefix[:-1], name[len(prefix) :]
    if plain in METRICS:
        ours = METRICS[plain]
        return phase, plain, ours if phase == "train" else metric.EVAL + ours, ""
    known = next((new + plain[len(old) :] for old, new in _SPELT.items() if plain.startswith(old)), plain)
    return phase, plain, FOREIGN + plain, DIFFERENT.get(plain) or MISMATCH.get(known, "unknown")
