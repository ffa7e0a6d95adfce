"""Sample the responses that a rollout trains on.

Prompts come from the training stream in its order. Prompts that are too long are skipped, so a rollout always has
``batch.prompts`` groups. Skipped prompts are counted, and so are, by length bin too, responses that get no gradient by
``batch.drop``. The position in the stream is one number in the state of the run, so a resumed run goes on with the next
prompt."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from transformers import PreTrainedModel

from fspo.advantages import GroupStats
from fspo.base.errors import UserError
from fspo.config import TrainConfig
from fspo.gradlog import metric_names as metric
from fspo.rollouts.batches import RolloutBatch
from fspo.rollouts.collect import Collector, Prompts, give_advantages
from fspo.rollouts.metric_sums import Counts, add_drops, add_rollout
from fspo.tasks import prompt_order

# The run stops if 20 x ``batch.prompts`` prompts were read in a row and still too few of them are short enough.
_MOST_DRAWN = 20


@dataclass
class DrawnRollout:
    """A rollout, with counts of its groups and of the prompts that were read and left out for it.

    Attributes
    ----------
    batch : RolloutBatch
        The responses of as many groups as the option ``batch.prompts`` says, with advantages.
    groups : GroupStats
        Number of these groups, and of those among them whose rewards are all equal.
    position : int
        Number of the next prompt in the stream.
    too_long, passed : int
        Number of prompts that were too long, and number of all prompts that were read for this rollout.
    """

    batch: RolloutBatch
    groups: GroupStats
    position: int
    too_long: int
    passed: int

    def count(self, counts: Counts, config: TrainConfig) -> None:
        """Add to ``counts`` the rollout's rewards, lengths, skipped prompts and responses dropped by ``batch.drop``."""
        add_rollout(counts, self.batch, self.groups)
        counts.add(metric.TOO_LONG, self.too_long, self.passed)
        if config.batch.drop:
            add_drops(counts, self.batch, config.log.length_edges)


def draw(
    collector: Collector, model: PreTrainedModel, config: TrainConfig, *, rollout: int, step: int, position: int
) -> DrawnRollout:
    """Sample and verify a rollout from prompt ``position`` of the stream on; every process gets all its responses.
    ``step`` is the version of the weights in ``model``: the number of updates that made them.

    Raises UserError if nearly every prompt exceeds ``task.max_prompt_tokens``."""
    prompts, following, too_long = next_prompts(collector, config, position, config.batch.prompts)
    batch = collector.collect(model, prompts, config.batch.responses, stream="train", rollout=rollout, step=step)
    groups = give_advantages(batch, config.rule.advantage_estimator(), config.batch.drop)
    return DrawnRollout(batch, groups, following, too_long, following - position)


def next_prompts(collector: Collector, config: TrainConfig, position: int, count: int) -> tuple[Prompts, int, int]:
    """Return the next ``count`` prompts that fit from ``position`` on, the position after them, how many did not."""
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
