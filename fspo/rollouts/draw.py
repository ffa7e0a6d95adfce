"""Sample the responses that a rollout trains on, and fresh responses to the prompts of an update (an audit).

Prompts come from the training stream in its order. Prompts that are too long are skipped, so a rollout always has
``batch.prompts`` groups. With ``batch.redraws`` a group whose rewards are all equal is replaced by a group of a further
prompt (dynamic sampling, Yu et al. 2025, arXiv:2503.14476). Skipped prompts, replaced groups and responses without a
gradient are counted; the responses are also counted by length bin. The position in the stream is one number in the
state of the run, so a resumed run goes on with the next prompt.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from accelerate.utils import gather_object
from transformers import PreTrainedModel

from fspo.advantages import GroupStats
from fspo.base.errors import UserError
from fspo.config import TrainConfig
from fspo.gradlog import metric_names as metric
from fspo.rollouts.batches import RolloutBatch, join
from fspo.rollouts.collect import ALONE, Collector, Prompts, dropped, give_advantages
from fspo.rollouts.counts import Counts, add_drops, add_rollout
from fspo.sampling.picking import Progress
from fspo.tasks import prompt_order

NO_SIGNAL = "no_signal"
# The run stops if 20 x ``batch.prompts`` prompts were read in a row and still too few of them are short enough.
_MOST_DRAWN = 20


@dataclass
class DrawnRollout:
    """A rollout, and counts of the prompts and groups that it left out.

    Attributes
    ----------
    batch : RolloutBatch
        ``batch.prompts`` groups, with advantages.
    groups : GroupStats
        Number of these groups, and of those among them whose rewards are all equal.
    position : int
        Number of the next prompt in the stream.
    too_long, passed : int
        Number of prompts that were too long, and number of all prompts that were read from the stream.
    redrawn : list of RolloutBatch
        Groups with equal rewards that were replaced by others.
    rounds : int
        Number of times that further prompts were drawn to replace such groups.
    """

    batch: RolloutBatch
    groups: GroupStats
    position: int
    too_long: int
    passed: int
    redrawn: list[RolloutBatch] = field(default_factory=list)
    rounds: int = 0

    def count(self, counts: Counts, config: TrainConfig) -> None:
        """Add the metrics of the rollout to ``counts``: rewards, lengths, and how many prompts were skipped, responses
        left out and groups replaced."""
        add_rollout(counts, self.batch, self.groups)
        counts.add(metric.TOO_LONG, self.too_long, self.passed)
        reasons: list[str] = [*config.batch.drop, *([ALONE] if "failed" in config.batch.drop else [])]
        lengths, why = [self.batch.lengths], [dropped(self.batch, config.batch.drop)]
        if config.batch.redraws:
            reasons.append(NO_SIGNAL)
            lengths += [part.lengths for part in self.redrawn]
            why += [np.full(len(part), NO_SIGNAL) for part in self.redrawn]
            every = [self.batch, *self.redrawn]
            counts.add(metric.REWARD_SAMPLED, sum(part.rewards.sum() for part in every), sum(map(len, every)))
            counts.add(metric.REDRAWN_GROUPS, sum(len(np.unique(part.prompt_ids)) for part in self.redrawn))
            counts.add(metric.REDRAWN_ROUNDS, self.rounds)
        if reasons:
            add_drops(counts, np.concatenate(lengths), np.concatenate(why), reasons, config.log.length_edges)


def draw(
    collector: Collector,
    model: PreTrainedModel,
    config: TrainConfig,
    *,
    rollout: int,
    step: int,
    position: int,
    progress: Callable[[int], Progress] | None = None,
) -> DrawnRollout:
    """Sample and verify a rollout; every process gets all its responses.

    Parameters
    ----------
    position : int
        Number of the stream's next prompt.
    progress : callable, optional
        Takes a number of responses and returns the progress callback of `fspo.sampling.sample.sample`.

    Raises
    ------
    UserError
        If nearly every prompt exceeds ``task.max_prompt_tokens``.
    """
    wanted, responses = config.batch.prompts, config.batch.responses
    first, too_long = position, 0
    kept: list[RolloutBatch] = []
    redrawn: list[RolloutBatch] = []
    for round_ in range(config.batch.redraws + 1):
        prompts, position, passed_over = next_prompts(collector, config, position, wanted)
        too_long += passed_over
        shown = progress(len(prompts.examples) * responses) if progress else None
        part = collector.collect(model, prompts, responses, stream="train", rollout=rollout, step=step, progress=shown)
        teaches = has_signal(part)
        ids = np.unique(part.prompt_ids)
        fillers = ids[~teaches] if round_ == config.batch.redraws else ids[:0]
        stays = np.isin(part.prompt_ids, np.concatenate([ids[teaches], fillers]))
        kept.append(part.take(stays))
        if not stays.all():
            redrawn.append(part.take(~stays))
        wanted -= int(teaches.sum()) + len(fillers)
        if wanted == 0:
            break
    batch = join(kept)
    groups = give_advantages(batch, config.rule.advantage_estimator(), config.batch.drop)
    return DrawnRollout(batch, groups, position, too_long, position - first, redrawn, round_)


def draw_audit(
    collector: Collector,
    model: PreTrainedModel,
    config: TrainConfig,
    batch: RolloutBatch,
    rows: np.ndarray,
    *,
    step: int,
) -> RolloutBatch:
    """Sample fresh responses to the prompts of a minibatch with the present weights: a second estimate of its update.

    The minibatch must be at its first use. Then its gradient with importance weights and the gradient of the fresh
    responses (w = 1) estimate the same true update (docs/theory.md section 5, "Which truth").

    Parameters
    ----------
    rows : (n,) int
        Rows of ``batch`` in this process's part of the minibatch. The prompts of all processes' parts are used.
    """
    ids = np.unique(batch.prompt_ids[np.concatenate(gather_object([rows]))])
    first, count = int(ids.min()), int(ids.max() - ids.min()) + 1
    indices = prompt_order(collector.task.size("train"), config.seed, first, count)[ids - first]
    prompts = collector.prompts("train", indices, ids)
    fresh = collector.collect(
        model,
        prompts,
        config.batch.responses,
        stream="audit",
        rollout=batch.rollout,
        step=step,
        sampling=collector.sampling.of_policy(),
    )
    give_advantages(fresh, "rloo" if config.batch.responses > 1 else "dr_grpo", config.batch.drop)
    return fresh


def has_signal(batch: RolloutBatch) -> np.ndarray:
    """Return for each of P groups, in the order of the prompt numbers, whether its rewards differ, (P,) bool.

    Rewards of responses whose verification failed are left out.
    """
    _, group = np.unique(batch.prompt_ids, return_inverse=True)
    known = batch.reward_status == "ok"
    low, high = np.full(group.max() + 1, np.inf), np.full(group.max() + 1, -np.inf)
    np.minimum.at(low, group[known], batch.rewards[known])
    np.maximum.at(high, group[known], batch.rewards[known])
    return high > low


def next_prompts(collector: Collector, config: TrainConfig, position: int, count: int) -> tuple[Prompts, int, int]:
    """Return the stream's next ``count`` prompts that fit, the position after them, and the number of too long ones."""
    found, first = Prompts([], [], np.zeros(0, np.int64)), position
    while (lacking := count - len(found.examples)) > 0:
        if position - first >= _MOST_DRAWN * config.batch.prompts:
            raise UserError(
                f"{'every prompt exceeds' if not found.examples else 'nearly every prompt exceeds'} "
                f"task.max_prompt_tokens={config.task.max_prompt_tokens}: raise it"
            )
        ids = np.arange(position, position + lacking)
        indices = prompt_order(collector.task.size("train"), config.seed, position, lacking)
        more = collector.prompts("train", indices, ids, none_fits=True)
        position += lacking
        found = Prompts(
            found.examples + more.examples,
            found.tokens + more.tokens,
            np.concatenate([found.ids, more.ids]),
            found.too_long + more.too_long,
        )
    return found, position, found.too_long
