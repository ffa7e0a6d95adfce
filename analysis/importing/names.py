"""The names that other trainers use: files, columns of per-response tables, and scalar metrics.

A scalar of another trainer gets the name of this project's metric only if both mean the same. The names come from the
sources of TRL 1.16, verl 0.9.1, prime-rl of August 2026, NeMo-RL, slime, OpenRLHF, SkyRL, AReaL and SGLang."""

from __future__ import annotations

import re
from collections.abc import Collection

from fspo.gradlog import metric_names as metric
from fspo.gradlog import schema

STATE, TRL_TABLE = "trainer_state.json", "completions_"
"""Names of Hugging Face's file of scalars, and of TRL's tables (their beginning)."""
ROLLOUT_VERSIONS = ("min_global_steps", "max_global_steps")
"""Columns of verl that give the version of the weights in rollouts; all other columns of versions count updates."""

COLUMNS: dict[str, tuple[str, ...]] = {
    # Our name of a column: the names that other trainers have for it, the most specific first; case does not matter.
    ours: tuple(names.split())
    for ours, names in {
        "rollout": "rollout rollout_id generation_step",
        "step": "step global_step global_steps training_step train_step iteration iter _step",
        "phase": "phase",
        "behaviour_version": (
            "behaviour_version behavior_version policy_versions min_global_steps weight_versions versions head_version"
        ),
        "behaviour_version_last": "behaviour_version_last behavior_version_last max_global_steps tail_version",
        "prompt_id": (
            "prompt_id prompt_idx prompt_index group_id group_index group uid task_id problem_id question_id "
            "query_id instance_id example_id qid"
        ),
        "response_id": "response_id completion_id sample_id request_id",
        "prompt": "prompt input question prompts prompt_ids prompt_token_ids",
        "tokens": "token_ids input_ids",
        "response": "completion output response completions",
        "length": (
            "length completion_length response_length completion_len response_len num_response_tokens "
            "n_response_tokens num_completion_tokens response_lengths n_tokens num_tokens l"
        ),
        "prompt_length": "prompt_length prompt_len num_prompt_tokens n_prompt_tokens",
        "total_length": "seqlen seq_len total_length total_len input_lengths",
        "truncated": "truncated is_truncated clipped finish_reason stop_reason termination_reason status",
        "reward": "reward score raw_reward token_level_scores rewards scores total_reward",
        "advantage": "advantage advantages adv a",
        "log_ratio": "log_ratio seq_log_ratio log_ratios token_log_ratios sum_log_ratio s",
        "new": "new_logprobs per_token_logps logprobs token_logprobs trainer_logprobs",
        "old": "old_logprobs old_action_log_probs prev_logprobs prox_logp action_log_probs",
        "sampler": (
            "rollout_log_probs sampling_per_token_logps sampler_logprobs vllm_logprobs inference_logprobs "
            "generation_logprobs behavior_logprobs output_token_logprobs"
        ),
        # of masks first those of the loss, which leave out more
        "mask": "loss_mask loss_masks token_loss_mask response_mask completion_mask action_mask mask",
        "token_weights": "vllm_is rollout_is_weights tis_weights importance_weights",
        "correction_weight": "correction_weight importance_sampling_ratio",
        "times_used": "times_used ppo_epoch epoch_idx",
        "entropy": "entropy entropies",
    }.items()
}
"""``new``, ``old`` and ``sampler`` are log-probabilities by the new and old weights and the sampler. These three,
``log_ratio`` and ``entropy`` hold in each row a number or a list over tokens. ``tokens`` holds the token ids of prompt
and response; those before the first that ``mask`` keeps identify the prompt. ``total_length`` less ``prompt_length`` is
the length. ``token_weights`` holds the weight of each token that a correction made."""
ROLES = {
    "sampler": re.compile(r"generat|rollout|sampl|infer|vllm|sglang|engine|behav"),
    "old": re.compile(r"prev|old|prox|action"),
    "new": re.compile(r"new|current|updated"),
}
"""Words in the name of a column of log-probabilities that tell whose they are, if no name above does."""
REFERENCE = re.compile(r"ref|teacher|base|init")  # words for a model that neither sampled nor trains


def canonical(name: str) -> str:
    """Return one spelling for all names of the same column: in lower case and, for log-probabilities, whatever the
    order of words and the spelling of "logprobs", as in ``new_logprobs``, ``Logp-New``, ``new_token_logprobs``."""
    name = name.lower()
    words = re.split(r"[\W_]+", re.sub(r"(?<![a-z])log[\W_]?p(?:rob(?:abilit(?:y|ies)|s)?|s)?(?![a-z])", "logp", name))
    return "_".join(sorted({*words} - {"per", "token", "tokens"})) if "logp" in words else name


def is_log_probability(name: str) -> bool:
    """Return whether a table's column of this name may hold log-probabilities of the policies that this project tells
    apart: sampler, old and new."""
    words = set(canonical(name).split("_"))
    statistics = {"diff", "difference", "abs", "mean", "max", "min", "std", "error", "kl", "ratio", "entropy"}
    return "logp" in words and "/" not in name and not words & statistics and not REFERENCE.search(name.lower())


def role_of(name: str) -> str:
    """Return whose log-probabilities a column holds by the words of its name: sampler, old, new; "" if undecided."""
    found = [role for role, words in ROLES.items() if words.search(name.lower())]
    return found[0] if len(found) == 1 and is_log_probability(name) else ""


def step_column(names: Collection[str]) -> str | None:
    """Return which of ``names`` names the step: "step", say, or a name such as "train/step"; None if none does."""
    parts = (re.fullmatch(r"(?:train|rollout|training|trainer|eval)/(.+)", name.lower()) for name in names)
    steps = {part[1]: name for part, name in zip(parts, names, strict=True) if part}
    plain = {name.lower(): name for name in names}
    return next((found[s] for found in (plain, steps) for s in COLUMNS["step"] if s in found), None)


CUT = re.compile(r"(?i).*(length|truncat|max_?(new_?)?tokens).*")
"""A reason why a response ended (finish_reason, stop_reason, status) that is the token limit."""
NUMBERS = [name for name, column in schema.LOG_COLUMNS.items() if column.kind not in ("string", "list")]
COLUMNS |= {name: (name,) for name in NUMBERS if name not in COLUMNS}  # these have no other names

TOKENS = ("log_ratio", "new", "old", "sampler")
"""Columns in which a table may hold a list with one number for each token of a response."""
MARKS = (*TOKENS, "behaviour_log_ratio", "prompt", "prompt_id", "response", "response_id", "advantage", "mask")
"""A file with one of these columns (under any known name) is a table of responses. A file with none of them is a log of
scalars if it has a column of steps and is not Parquet."""

METRICS: dict[str, str] = {
    theirs: ours
    for ours, names in {
        # Each key is our name of a metric. Its value lists those of TRL, verl, slime and NeMo-RL, without the phase.
        metric.REWARD: "reward critic/score/mean rollout/raw_reward",
        metric.EQUAL_REWARDS: "frac_reward_zero_std",
        metric.MEAN_LENGTH: (
            "completions/mean_length response_length/mean rollout/response_len/mean rollout/response_lengths "
            "mean_gen_tokens_per_sample"
        ),
        metric.TRUNCATED: (
            "completions/clipped_ratio response_length/clip_ratio rollout/truncated_ratio rollout/truncated "
            "truncation_rate"
        ),
        metric.ENTROPY: "entropy actor/entropy",
        metric.GRAD_NORM: "grad_norm actor/grad_norm",
        metric.LEARNING_RATE: "learning_rate actor/lr",
        metric.NUM_TOKENS: "num_tokens",
    }.items()
    for theirs in names.split()
}
"""This project's metric that means the same as another trainer's scalar."""
OWN = (metric.OUT_OF_BAND, metric.LOG_RATIO_MEAN, metric.LOG_RATIO_STD, metric.LOG_RATIO_DRIFT)
METRICS |= {name: name for name in OWN}  # a run that logged this project's own metrics to a tracker has them
FOREIGN = "imported/"
"""Prefix put before the original name of a scalar that has no counterpart among this project's metrics."""


def metric_name(name: str) -> tuple[str, str, str]:
    """Return the phase of another trainer's scalar, train or eval; its name without the phase; and the name under which
    it is stored, which is this project's metric with the same meaning or ``FOREIGN`` + its own."""
    phase = "eval" if name.startswith(("eval/", "eval_")) else "train"
    plain = re.sub("^(train/|eval/|eval_)", "", name)
    if plain in METRICS:
        return phase, plain, METRICS[plain] if phase == "train" else metric.EVAL + METRICS[plain]
    return phase, plain, FOREIGN + plain
