"""Past weights, from which a run samples that is behind on purpose (``batch.staleness``)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from fspo.distributed.layout import layout_of
from fspo.distributed.tensors import Tensors, local
from fspo.train.checkpoint import trainable


class Versions:
    """Copies on the CPU of the trainable weights at the ends of the last rollouts: past versions, and the present one.

    With sharded weights a process copies its own shards.

    Parameters
    ----------
    model : torch.nn.Module
        The model before accelerate wraps it.
    staleness : int
        Number of rollouts that the sampling weights are behind; with 0 no tensors are kept.
    """

    def __init__(self, model: torch.nn.Module, staleness: int) -> None:
        self.model, self.staleness = model, staleness
        self._kept: list[tuple[int, Tensors]] = []

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

    def past(self) -> Iterator[int]:
        """Put each past version of the weights into the model in turn and yield its number; then the present weights.

        The consumer must take all versions and change no weights.
        """
        try:
            for version, weights in self._kept[:-1]:
                self._put(weights)
                yield version
        finally:
            if self.stale:
                self._put(self._kept[-1][1])

    def _put(self, weights: Tensors) -> None:
        layout_of(self.model).settle()
        parameters = trainable(self.model)
        with torch.no_grad():
            for name, value in weights.items():
                local(parameters[name]).copy_(value)
