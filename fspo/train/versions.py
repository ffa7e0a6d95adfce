"""Past weights, from which a run samples that is behind on purpose (``batch.staleness``)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch

from fspo.distributed.layout import layout_of
from fspo.distributed.tensors import Tensors, local, shard_like, whole_state
from fspo.train.checkpoint import Version, trainable


class Versions:
    """Copies on the CPU of the trainable weights at the ends of the last rollouts: past versions, and the present one.

    With sharded weights a process copies its own shards.

    Parameters
    ----------
    model : torch.nn.Module
        The model before accelerate wraps it.
    staleness : int
        Number of rollouts that the sampling weights are behind; with 0 no tensors are kept.
    past : sequence of (int, dict), optional
        Versions with full tensors that a checkpoint has kept, the oldest first.
    """

    def __init__(self, model: torch.nn.Module, staleness: int, past: Sequence[Version] = ()) -> None:
        self.model, self.staleness = model, staleness
        like = trainable(model)
        self._kept = [(v, {name: local(shard_like(x, like[name])).cpu() for name, x in one.items()}) for v, one in past]

    def add(self, version: int) -> None:
        """Keep a copy of the present weights under ``version``, the number of updates made so far.

        Copies of older weights that no rollout will sample from any more are dropped.
        """
        parts = trainable(self.model) if self.staleness else {}
        present = {name: local(p).detach().to("cpu", copy=True) for name, p in parts.items()}
        self._kept = [*self._kept, (version, present)][-self.staleness - 1 :]

    @property
    def sampling(self) -> int:
        """The version that samples the next rollout: the oldest one that is kept."""
        return self._kept[0][0]

    @property
    def stale(self) -> bool:
        """Whether the next rollout is sampled from weights of the past and not from the present ones."""
        return len(self._kept) > 1

    @contextmanager
    def sampling_weights(self) -> Iterator[None]:
        """Put the weights that sample the next rollout into the model during the ``with`` block, then the present ones.

        The block must not change weights.
        """
        if not self.stale:
            yield
            return
        self._put(self._kept[0][1])
        try:
            yield
        finally:
            self._put(self._kept[-1][1])

    def past(self, keep: bool) -> list[Version]:
        """Return, for a checkpoint, the past versions of the weights: full tensors on the process with ``keep``, and
        on all others none.

        Every process must call it, because sharded tensors are gathered.
        """
        found = []
        for version, weights in self._kept[:-1]:
            self._put(weights)
            # Copy the tensors, because on a CPU full tensors share the model's memory.
            full = whole_state(trainable(self.model), keep)
            found.append((version, {name: value.clone() for name, value in full.items()}))
        if found:
            self._put(self._kept[-1][1])
        return found

    def _put(self, weights: Tensors) -> None:
        layout_of(self.model).settle()
        parameters = trainable(self.model)
        with torch.no_grad():
            for name, value in weights.items():
                local(parameters[name]).copy_(value)
