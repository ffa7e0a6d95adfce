# pyright: reportMissingImports=false
"""A verl run that keeps its own loss and options, and also writes the gradient log: `ObservedLossConfig`.

    actor_rollout_ref.actor.policy_loss._target_=fspo.integrations.verl.ObservedLossConfig
    +actor_rollout_ref.actor.policy_loss.observe=/shared/out/run

verl makes its actors from the class ``ActorRolloutRefWorker.actor_worker_cls``. A process that reads the configuration
above replaces that class by a subclass that sees the arguments of verl's loss. Written against verl 0.9.1.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from verl.utils import tensordict_utils as tu
from verl.workers.config import PolicyLossConfig
from verl.workers.utils.padding import no_padding_2_padding, response_to_nested

from fspo.base.errors import UserError
from fspo.base.keyed_noise import hashed
from fspo.gradlog import GradLogWriter
from fspo.gradlog.files import file_name, log_paths, rollout_of
from fspo.gradlog.schema import LOG_COLUMNS
from fspo.integrations.fixed import token_mean
from fspo.integrations.verl_rules import BYPASS, clip_of, correction_of
from fspo.objective import Mismatch, apply_rule, objective
from fspo.rules import Rule

ROW = "fspo_row"
"""Name of a column that is added to verl's batch: the place of a response in its process's part of the rollout."""
_OF_RULE = ("lo", "hi", "drift", "band_accept", "side", "multiplier", "weight")
_logger = logging.getLogger(__name__)


@dataclass
class ObservedLossConfig(PolicyLossConfig):
    """verl's `PolicyLossConfig` with the option ``observe``; the loss stays the one that ``loss_mode`` names.

    Parameters
    ----------
    observe : str, optional
        Run folder that the gradient log is written to, one file for each rollout and data-parallel rank; processes on
        several machines need a shared file system. None: no log.
    rollout_correction : optional
        Set it to ``${algorithm.rollout_correction}``, so that the log's header names verl's correction.
    """

    observe: str | None = None
    rollout_correction: Any = None  # verl's own default would name a correction that the user did not set

    def __post_init__(self) -> None:
        if self.observe is not None:
            if not str(self.observe).strip():
                raise UserError("policy_loss.observe is empty: name a folder, or leave it out")
            watch_actors(str(self.observe))


def watch_actors(run: str | None) -> None:
    """Have verl's actors of this process apply our correction, if one is set, and log to ``run`` (None: no log)."""
    from verl.workers.engine_workers import ActorRolloutRefWorker

    base = ActorRolloutRefWorker.actor_worker_cls
    if issubclass(base, _ObservedWorker):
        base = base.__mro__[2]
    ActorRolloutRefWorker.actor_worker_cls = type(f"Observed{base.__name__}", (_ObservedWorker, base), {"run": run})


class _ObservedWorker:
    """Mixin for verl's training worker, put in by `watch_actors`: numbers responses and logs every call of the loss."""

    run: str | None
    _log: _ActorLog | None = None

    def set_loss_fn(self: Any, loss_fn: Callable[..., Any]) -> None:
        """Wrap verl's loss function, so that each call is logged and uses our correction's weights, if one is set."""
        config = getattr(loss_fn, "keywords", {}).get("config") or getattr(loss_fn, "config", None)
        correction = _ours(config)

        def heard(*args: Any, **kwargs: Any) -> Any:
            if correction is not None:
                kwargs["data"] = _weighed(kwargs["data"], correction)
            out = loss_fn(*args, **kwargs)
            if self._log is not None:
                self._log.append(kwargs["model_output"], kwargs["data"])
            return out

        self._actor_config = config
        super().set_loss_fn(heard)  # type: ignore[misc]

    def train_mini_batch(self: Any, data: Any) -> Any:
        """Let verl make its updates on one rollout, and write their rows to the gradient log."""
        if self.run is not None and self.engine.is_mp_src_rank_with_outputs():
            self._log = _ActorLog(self.run, self.engine, self._actor_config, data)
        try:
            return super().train_mini_batch(data)  # type: ignore[misc]
        finally:
            if self._log is not None:
                self._log.flush()
                self._log = None


class _ActorLog:
    """Collects and writes the gradient log's rows of one rollout on one data-parallel rank.

    A failure to log ends the log of this rollout with a warning, and never the run.

    Parameters
    ----------
    data : TensorDict
        This rank's responses of the rollout; the column `ROW` is added to it.

    Raises
    ------
    UserError
        At the first rollout, if the folder holds the log of another run.
    """

    def __init__(self, run: str, engine: Any, config: Any, data: Any) -> None:
        self.rank, self.n = engine.get_data_parallel_rank(), len(data)
        world = engine.get_data_parallel_size()
        # verl's learning-rate scheduler steps once for each rollout and is restored from a checkpoint, so its count is
        # the rollout's number in a resumed run too.
        self.rollout = int(engine.lr_scheduler.last_epoch)
        _check_folder(run, self.rollout, self.rank)
        policy_loss = getattr(config, "policy_loss", None)
        self.rule = clip_of(config)
        self.bypass = policy_loss is not None and policy_loss.get("loss_mode", None) == BYPASS
        header: dict[str, Any] = {} if self.rule is None else {"rule": self.rule.to_dict()}
        verls = None if policy_loss is None else correction_of(policy_loss.get("rollout_correction", None))
        correction = _ours(config) or verls
        if correction is not None:
            header["correction"] = correction.to_dict()
        self.label = f"verl-{policy_loss.get('loss_mode', None)}" if policy_loss is not None else "verl"
        self.writer = GradLogWriter(run, rank=self.rank, metadata=header)
        # An update takes mini_batch_size responses, over all ranks; verl passes over each rollout `epochs` times.
        self.per_update = max(int(tu.get(data, "mini_batch_size", self.n * world)) // world, 1)
        self.updates = self.n // self.per_update * int(tu.get(data, "epochs", 1))
        self.seen = 0
        self.used = np.zeros(self.n, np.int64)
        self.broken = False
        data[ROW] = torch.arange(self.n)
        self.response_id = (self.rollout * world + self.rank) * self.n + np.arange(self.n)
        uid = tu.get(data, "uid")
        prompts = [str(u) for u in uid] if uid is not None else [str(p.tolist()) for p in data["prompts"].unbind()]
        self.prompt_id = np.array([hashed(p) for p in prompts])
        # verl numbers the versions of the weights by rollouts. A negative number, or one above that of this rollout, is
        # logged as unknown.
        versions = [tu.get(data, name) or [None] * self.n for name in ("min_global_steps", "max_global_steps")]
        self.versions = np.array([[np.nan if v is None else float(v) for v in column] for column in versions])
        self.versions[(self.versions < 0) | (self.versions > self.rollout)] = np.nan

    def append(self, model_output: Any, data: Any) -> None:
        """Add the rows of one microbatch; the arguments are those that verl passes to its loss."""
        if self.broken:
            return
        try:
            with torch.no_grad():
                self._append(model_output, data)
        except Exception as error:  # an error in logging must not stop verl's run
            self.broken = True
            _logger.warning("fspo: no further rows of rollout %d are logged: %r", self.rollout, error)

    def _append(self, model_output: Any, data: Any) -> None:
        place = data[ROW].cpu().numpy()
        new = no_padding_2_padding(model_output["log_probs"], data)
        optional = ("rollout_log_probs", "rollout_is_weights", "token_level_scores")
        names = ["response_mask", "old_log_probs", "advantages", *(name for name in optional if name in data)]
        batch = data.select(*names).to_padded_tensor()
        old, kept = batch["old_log_probs"], batch["response_mask"].to(torch.bool)
        mask = kept if tu.get(data, "multi_turn", True) else _whole(data, kept)
        advantages, differ = token_mean(batch["advantages"], kept)
        if bool(differ.any()):
            _logger.warning("fspo: advantages differ by token; the log's A is their mean over a response")
        sampler, since = batch.get("rollout_log_probs", None), self.seen // self.per_update
        step = self.rollout * self.updates + since
        first, last = self.versions[:, place]
        rows: dict[str, Any] = {}
        mismatch = None
        if sampler is not None:
            same = torch.as_tensor((first == self.rollout) & (last == self.rollout) & (not self.bypass))
            mismatch = Mismatch.of(old, sampler, mask, old)
            rows["correction_weight"] = _factor(batch.get("rollout_is_weights", None), kept, mask)
        records = objective(new, old, mask, advantages, self.rule or Rule("none"), mismatch=mismatch).records
        found = {name: values for name, values in records.to_numpy().items() if name in LOG_COLUMNS}
        if sampler is not None:
            for name in ("engine_log_ratio", "engine_sum_sq", "engine_k3_sum", "staleness_log_ratio"):
                found[name] = np.where(same.numpy(), found[name], np.nan)
        if self.rule is None:
            found = {name: values for name, values in found.items() if name not in _OF_RULE}
        scores = batch.get("token_level_scores", None)
        limit = tu.get(data, "max_response_len")
        self.writer.append(
            {
                **rows,
                **found,
                "rollout": self.rollout,
                "step": step,
                "policy_version": step,
                "updates_since_rollout": since,
                "times_used": self.used[place],
                "phase": "train",
                "prompt_id": self.prompt_id[place],
                "response_id": self.response_id[place],
                "behaviour_version": _whole_numbers(first * self.updates),
                "behaviour_version_last": _whole_numbers(last * self.updates),
                "advantage": advantages.cpu().numpy(),
                "reward": None if scores is None else scores.double().sum(1).cpu().numpy(),
                "truncated": None if limit is None else found["length"] >= limit,
                "rule": self.label if self.rule is None else self.rule.label,
                "drift_source": "none",
                "score_status": "not_taken",
            }
        )
        self.used[place] += 1
        self.seen += len(place)

    def flush(self) -> None:
        """Write the rollout's rows to this rank's file of the gradient log."""
        try:
            self.writer.flush(self.rollout)
        except Exception as error:
            _logger.warning("fspo: rollout %d is not logged: %r", self.rollout, error)


def _ours(config: Any) -> Rule | None:
    """Return the correction by this project that a verl actor's configuration asks for; None if it asks for none."""
    found = getattr(getattr(config, "policy_loss", None), "correction_rule", None)
    return None if found is None else found()


def _weighed(data: Any, correction: Rule) -> Any:
    """Return verl's microbatch with our correction's factor for each token in verl's column ``rollout_is_weights``."""
    if "rollout_is_weights" in data:
        raise UserError(
            f"algorithm.rollout_correction.rollout_is and policy_loss.correction {correction.label!r} would both weigh "
            "a response: leave one out"
        )
    if "rollout_log_probs" not in data:
        raise UserError(
            f"policy_loss.correction {correction.label!r} needs the sampler's log-probs: set "
            "actor_rollout_ref.rollout.calculate_log_probs=true"
        )
    batch = data.select("response_mask", "old_log_probs", "advantages", "rollout_log_probs").to_padded_tensor()
    mask, old = batch["response_mask"].to(torch.bool), batch["old_log_probs"]
    tokens = Mismatch.of(old, batch["rollout_log_probs"], mask).behaviour
    factor = apply_rule(correction, tokens, mask, token_mean(batch["advantages"], mask)[0]).clipped_weight
    factor = ((factor if factor.ndim == 2 else factor[:, None]) * mask).to(old.dtype)
    out, like = data.copy(), data["response_mask"]
    out["rollout_is_weights"] = response_to_nested(factor, like) if like.is_nested else factor
    return out


def _check_folder(run: str, rollout: int, rank: int) -> None:
    """Refuse another run's log, and remove this rank's files of rollouts that a resumed run repeats."""
    for path in log_paths(run):
        number = rollout_of(path)
        if path.name == file_name(number, rank) and number >= rollout:
            if rollout == 0:
                raise UserError(
                    f"{path.parent} holds another run's gradient log: set policy_loss.observe to a new folder"
                )
            path.unlink()


def _whole(data: Any, like: Tensor) -> Tensor:
    """Return the mask (B, T) of all response tokens, including those that a correction by verl has masked out."""
    responses = data["responses"]
    if responses.is_nested:
        length = responses.offsets().diff()
    else:
        length = data["attention_mask"][:, data["prompts"].shape[1] :].sum(1)
    return torch.arange(like.shape[1], device=like.device) < length[:, None].to(like.device)


def _factor(weights: Tensor | None, kept: Tensor, mask: Tensor) -> np.ndarray:
    """Return the mean factor (B,) that verl's correction left on the gradient of a response's tokens."""
    factor = kept.double() if weights is None else weights.double() * kept
    return (factor.sum(1) / mask.sum(1).clamp(min=1)).cpu().numpy()


def _whole_numbers(values: np.ndarray) -> list[int | None]:
    return [int(v) if np.isfinite(v) else None for v in values]
