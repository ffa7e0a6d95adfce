# pyright: reportMissingImports=false
"""Make a verl run write the gradient log, with its own loss and options unchanged: `ObservedLossConfig`.

    actor_rollout_ref.actor.policy_loss._target_=fspo.integrations.verl.ObservedLossConfig
    +actor_rollout_ref.actor.policy_loss.observe=/shared/out/run

verl makes its actors from the class ``ActorRolloutRefWorker.actor_worker_cls``. A process that reads the configuration
above replaces that class by a subclass that sees the arguments of verl's loss. Written against verl 0.9.1."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from verl.utils import tensordict_utils as tu
from verl.workers.config import PolicyLossConfig
from verl.workers.utils.padding import no_padding_2_padding

from fspo.base.errors import UserError
from fspo.base.keyed_noise import hashed
from fspo.gradlog import GradLogWriter
from fspo.gradlog.files import file_name, log_paths, rollout_of
from fspo.integrations.shared import UpdateMemory, remembers
from fspo.integrations.verl_batch import (
    FACTOR,
    gathered,
    mean_factor,
    padded,
    rewards,
    token_mean,
    versions,
    whole_mask,
)
from fspo.integrations.verl_rules import BYPASS, clip_of, correction_of
from fspo.objective import Mismatch, objective
from fspo.rules import Rule
from fspo.train.log_rows import ResponseColumns, UpdateColumns, log_rows

ROW = "fspo_row"
"""Name of a column that is added to verl's batch: a response's index among its process's responses of a rollout."""
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
    # The default of this option is None: with verl's default, the log's header would name a correction that the user
    # did not set.
    rollout_correction: Any = None

    def __post_init__(self) -> None:
        if self.observe is not None:
            if not str(self.observe).strip():
                raise UserError("policy_loss.observe is empty: name a folder, or leave it out")
            watch_actors(str(self.observe))


def watch_actors(run: str | None) -> None:
    """Have verl's actors in this process log to the run folder ``run`` (None: no log), and let a rule whose band
    depends on earlier updates learn from them."""
    from verl.workers.engine_workers import ActorRolloutRefWorker

    base = ActorRolloutRefWorker.actor_worker_cls
    if issubclass(base, _ObservedWorker):
        base = base.__mro__[2]
    ActorRolloutRefWorker.actor_worker_cls = type(f"Observed{base.__name__}", (_ObservedWorker, base), {"run": run})


class _ObservedWorker:
    """Mixin for verl's training worker, put in by `watch_actors`: gives responses numbers, logs each loss call."""

    run: str | None
    _log: _ActorLog | None = None
    _memory: UpdateMemory | None = None
    _first = 0
    _updates = 0

    def set_loss_fn(self: Any, loss_fn: Callable[..., Any]) -> None:
        """Wrap verl's loss function: log each call, and give a rule that learns the numbers of the call's responses."""
        config = getattr(loss_fn, "keywords", {}).get("config") or getattr(loss_fn, "config", None)
        policy_loss: Any = getattr(config, "policy_loss", None)
        rule = policy_loss.clip_rule() if hasattr(policy_loss, "memory") else None
        if rule is not None and remembers(rule):
            policy_loss.memory = self._memory = UpdateMemory(rule, partial(gathered, self.engine))

        def heard(*args: Any, **kwargs: Any) -> Any:
            if self._memory is not None:
                self._memory.response_id = kwargs["data"][ROW].cpu().numpy() + self._first
            out = loss_fn(*args, **kwargs)
            if self._log is not None:
                self._log.append(kwargs["model_output"], kwargs["data"])
            return out

        self._actor_config = config
        super().set_loss_fn(heard)  # type: ignore[misc]

    def train_mini_batch(self: Any, data: Any) -> Any:
        """Let verl make its updates on one rollout, and log their rows."""
        data[ROW] = torch.arange(len(data))
        self._updates, self._first = 0, self.engine.get_data_parallel_rank() * len(data)
        if self._memory is not None:
            self._memory.begin_rollout()
        if self.run is not None and self.engine.is_mp_src_rank_with_outputs():
            with _survived(f"rollout {_rollout(self.engine)} is not logged", but=UserError):
                self._log = _ActorLog(self.run, self.engine, self._actor_config, data)
        try:
            return super().train_mini_batch(data)  # type: ignore[misc]
        finally:
            if self._log is not None:
                self._log.flush()
                self._log = None

    def train_batch(self: Any, data: Any) -> Any:
        """Let verl make one update, and learn the drift and the range of the next update from its responses."""
        out = super().train_batch(data)  # type: ignore[misc]
        if self._memory is not None:
            self._memory.end_update(moved=self._updates > 0)
        self._updates += 1
        return out

    def save_checkpoint(self: Any, local_path: str, *args: Any, **kwargs: Any) -> Any:
        """Write verl's checkpoint; if the rule's band is adaptive, write the band's state to the same folder."""
        out = super().save_checkpoint(local_path, *args, **kwargs)  # type: ignore[misc]
        if self._memory is not None and torch.distributed.get_rank() == 0:
            self._memory.save(local_path)
        return out

    def load_checkpoint(self: Any, local_path: str | None, *args: Any, **kwargs: Any) -> Any:
        """Load verl's checkpoint; if the rule's band is adaptive, load the band's state from the same folder."""
        if self._memory is not None:
            self._memory.load(local_path)
        return super().load_checkpoint(local_path, *args, **kwargs)  # type: ignore[misc]


class _ActorLog:
    """Collects and writes the gradient log's rows of one rollout on one data-parallel rank.

    If logging fails, a warning is given and no further row of the rollout is logged; the run goes on.

    Parameters
    ----------
    data : TensorDict
        This rank's responses of the rollout, with their indices in the column `ROW`.

    Raises
    ------
    UserError
        At the first rollout, if the folder holds the log of another run.
    """

    def __init__(self, run: str, engine: Any, config: Any, data: Any) -> None:
        self.rank, self.n = engine.get_data_parallel_rank(), len(data)
        world = engine.get_data_parallel_size()
        self.rollout = _rollout(engine)
        _check_folder(run, self.rollout, self.rank)
        policy_loss: Any = getattr(config, "policy_loss", {})
        self.rule, mode = clip_of(config), policy_loss.get("loss_mode", None)
        self.bypass, self.unknown = mode == BYPASS, Rule("none", name=f"verl-{mode}")
        self.memory: UpdateMemory | None = getattr(policy_loss, "memory", None)
        named = {"rule": self.rule, "correction": correction_of(policy_loss.get("rollout_correction", None))}
        header = {name: rule.to_dict() for name, rule in named.items() if rule is not None}
        self.writer = GradLogWriter(run, rank=self.rank, metadata=header)
        # An update takes mini_batch_size responses, over all ranks; verl passes over each rollout `epochs` times.
        self.per_update = max(int(tu.get(data, "mini_batch_size", self.n * world)) // world, 1)
        self.updates = self.n // self.per_update * int(tu.get(data, "epochs", 1))
        self.seen = 0
        self.used = np.zeros(self.n, np.int64)
        self.broken = False
        self.response_id = (self.rollout * world + self.rank) * self.n + np.arange(self.n)
        uid = tu.get(data, "uid")
        prompts = [str(u) for u in uid] if uid is not None else [str(p.tolist()) for p in data["prompts"].unbind()]
        self.prompt_id = np.array([hashed(p) for p in prompts])
        self.versions = versions(data, self.rollout)
        self.reward = rewards(data)
        batch = padded(data, "response_mask", "advantages")
        A, differ = token_mean(batch["advantages"], batch["response_mask"].to(torch.bool))
        if bool(differ.any()):
            _logger.warning("fspo: advantages differ by token; the log's A is their mean over a response")
        self.advantages = A.cpu()

    def append(self, model_output: Any, data: Any) -> None:
        """Add the rows of one microbatch; the arguments are those that verl passes to its loss."""
        if self.broken:
            return
        self.broken = True
        with _survived(f"no further rows of rollout {self.rollout} are logged"), torch.no_grad():
            self._append(model_output, data)
            self.broken = False

    def _append(self, model_output: Any, data: Any) -> None:
        place, since = data[ROW].cpu().numpy(), self.seen // self.per_update
        new = no_padding_2_padding(model_output["log_probs"], data)
        batch = padded(data, "response_mask", "old_log_probs", "rollout_log_probs", FACTOR)
        old, kept = batch["old_log_probs"], batch["response_mask"].to(torch.bool)
        mask, A = whole_mask(data, kept), self.advantages[place].to(old.device)
        sampler = None if self.bypass else batch.get("rollout_log_probs", None)
        mismatch = None if sampler is None else Mismatch.of(old, sampler, mask, old)
        rule, m = self.rule or self.unknown, None
        if self.memory is not None:
            rule, m = self.memory.online.rule, self.memory.centre
        found = objective(new, old, mask, A, rule, m=m, mismatch=mismatch).records.to_numpy()
        if sampler is not None:
            known = (self.versions[:, place] == self.rollout).all(0)  # the old weights sampled all of the response
            for name in ("engine_log_ratio", "engine_sum_sq", "engine_k3_sum", "staleness_log_ratio"):
                found[name] = np.where(known, found[name], np.nan)
            found["correction_weight"] = mean_factor(batch.get(FACTOR, None), kept, mask)
        limit, step = tu.get(data, "max_response_len"), self.rollout * self.updates + since
        first, last = self.versions[:, place] * self.updates
        rows = log_rows(
            UpdateColumns(self.rollout, step, _whole_numbers(first), rule, "train", since, self.used[place]),
            ResponseColumns(
                prompt_id=self.prompt_id[place],
                response_id=self.response_id[place],
                truncated=None if limit is None else found["length"] >= limit,
                reward=None if self.reward is None else self.reward[place],
                advantage=A.cpu().numpy(),
                entropy=None,
            ),
            found,
            known=self.rule is not None,
        )
        rows["behaviour_version_last"] = _whole_numbers(last)
        if data["response_mask"].is_nested:  # drop the empty responses with which verl's default trainer pads a batch
            real = mask.any(1).cpu().numpy()
            rows = {
                name: [x for x, is_real in zip(values, real, strict=True) if is_real] if np.ndim(values) else values
                for name, values in rows.items()
            }
        self.writer.append(rows)
        self.used[place] += 1
        self.seen += len(place)

    def flush(self) -> None:
        """Write the rollout's rows to this rank's file of the gradient log."""
        with _survived(f"rollout {self.rollout} is not logged"):
            self.writer.flush(self.rollout)


@contextmanager
def _survived(lost: str, but: type[Exception] | tuple[()] = ()) -> Iterator[None]:
    """Turn an error in a ``with`` block into a warning that says what is ``lost``; raise errors of type ``but``."""
    try:
        yield
    except but:
        raise
    except Exception as error:
        _logger.warning("fspo: %s: %r", lost, error)


def _rollout(engine: Any) -> int:
    """Return the number of the present rollout.

    verl's learning-rate scheduler steps once for each rollout and is restored from a checkpoint, so its count is the
    rollout's number in a resumed run too."""
    return int(engine.lr_scheduler.last_epoch)


def _check_folder(run: str, rollout: int, rank: int) -> None:
    """Remove this rank's log files of the rollouts from ``rollout`` on, which a resumed run repeats.

    Raises UserError if ``rollout`` is 0 and there is such a file: it then belongs to another run."""
    for path in log_paths(run):
        number = rollout_of(path)
        if path.name == file_name(number, rank) and number >= rollout:
            if rollout == 0:
                raise UserError(
                    f"{path.parent} holds another run's gradient log: set policy_loss.observe to a new folder"
                )
            path.unlink()


def _whole_numbers(values: np.ndarray) -> list[int | None]:
    return [int(v) if np.isfinite(v) else None for v in values]
