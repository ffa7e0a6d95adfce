"""Past versions of the weights, from which a run with ``batch.staleness`` above 0 samples its responses."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from fspo.distributed.layout import layout_of
from fspo.distributed.tensors import Tensors, local
from fspo.train.checkpoint import trainable


class Versions:
    """Copies on the CPU of the trainable weights: the present ones, and those before each of the last rollouts, as many
    as ``staleness`` says. With sharded weights a process copies its own shards.
    The number of a version is the number of updates before it.

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

        Copies of older weights that no rollout will sample from any more are dropped."""
        parts = trainable(self.model) if self.staleness else {}
        present = {name: local(p).detach().to("cpu", copy=True) for name, p in parts.items()}
        self._kept = [*self._kept, (version, present)][-self.staleness - 1 :]

    @property
    def sampling(self) -> int:
        """Number of the version of the weights that samples the next rollout: the oldest kept version."""
        return self._kept[0][0]

    @property
    def stale(self) -> bool:
        """Whether the next rollout is sampled from past weights and not from the present ones."""
        return len(self._kept) > 1

    @contextmanager
    def sampling_weights(self) -> Iterator[None]:
        """Put the weights that sample the next rollout into the model for the ``with`` block.

        After the block the model holds the present weights again. The block must not change weights."""
        if not self.stale:
            yield
            return
        self._put(self._kept[0][1])
        try:
            yield
        finally:
            self._put(self._kept[-1][1])

    def past(self) -> Iterator[int]:
        """Put each past version of the weights into the model in turn, the oldest first, and yield its number.

        At the end the present weights are put back. The consumer must take all versions and change no weights."""
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
