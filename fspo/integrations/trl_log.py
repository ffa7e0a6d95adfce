"""The gradient log of a TRL run, under ``output_dir/gradlog``: one row for each response and update."""

from __future__ import annotations

from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fspo import gradlog
from fspo.base.errors import UserError
from fspo.base.files import whole_file
from fspo.config import ScoreConfig
from fspo.gradlog.files import log_paths, rollout_of
from fspo.gradlog.schema import OF_THE_RULE
from fspo.objective import Records
from fspo.policy.score_hooks import ScoreHooks
from fspo.policy.scores import Scores
from fspo.rules import Rule
from fspo.train.log_rows import ResponseColumns, UpdateColumns, log_rows

PREFIX = "fspo_"
"""Prefix of the names of the tensors that this project adds to TRL's batches; TRL shuffles them with the responses."""


def keep_steps_before(run: str | Path, step: int) -> int:
    """Remove log rows of updates >= ``step``, which a resumed run repeats; return the number of the next rollout.

    Raises
    ------
    UserError
        If ``step`` is 0 and the folder already holds a log, which then belongs to another run.
    """
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    following = 0
    for path in log_paths(run):
        if step == 0:
            raise UserError(
                f"{path.parent} holds the gradient log of another run: choose another output_dir, or go on with "
                "train(resume_from_checkpoint=True)"
            )
        table = pq.read_table(path)
        kept = table.filter(pc.less(table["step"], step))  # type: ignore[attr-defined]
        if not len(kept):
            path.unlink()
            continue
        if len(kept) < len(table):
            with whole_file(path) as part:
                pq.write_table(kept, part, compression="zstd")
        following = max(following, 1 + rollout_of(path))
    return following


class TrlLog:
    """Writes the gradient log of a TRL run: numbers rollouts and responses, and writes the rows of this process.

    Parameters
    ----------
    run : str
        ``output_dir``.
    rank, world : int
        Number of this process, and number of processes.
    rule : Rule, optional
        The clip rule; None if the trainer's loss applies none of our rules. The columns `OF_THE_RULE` are then null.
    correction : Rule, optional
        The correction of the sampler's mismatch, if the loss applies one.
    label : str
        Text for the column ``rule`` if ``rule`` is None.
    metadata : dict
        Further entries of the log's header.
    model : Module, optional
        Unwrapped model, which sets the width of the sketches; None if no score is ever taken.
    """

    def __init__(
        self,
        run: str,
        *,
        rank: int,
        world: int,
        rule: Rule | None,
        correction: Rule | None = None,
        label: str = "",
        metadata: dict[str, Any],
        model: torch.nn.Module | None = None,
    ) -> None:
        self.rank, self.world, self.label = rank, world, label
        self.rule, self.correction = rule, correction
        self.scores = ScoreConfig()
        width = 0
        if model is not None:
            width = ScoreHooks(model, width=self.scores.width, projection=self.scores.projection).sketcher.width
        header = {"scores": asdict(self.scores), "trainer": f"trl {version('trl')}", **metadata}
        header |= {name: r.to_dict() for name, r in (("rule", rule), ("correction", correction)) if r is not None}
        self.writer = gradlog.GradLogWriter(run, rank=rank, width=width, metadata=header)
        self.rollout, self.start_step = -1, 0

    def begin_rollout(self, step: int) -> None:
        """Write the rows of the last rollout and begin the next one, before which ``step`` updates were done."""
        self.flush()
        self.rollout += 1
        self.start_step = step

    def flush(self, *, keep: bool = False) -> None:
        """Write the rows collected so far; with ``keep`` they stay in memory too, because the rollout goes on."""
        self.writer.flush(self.rollout, keep=keep)

    def ids(self, rows: int, generations: int, device: torch.device) -> dict[str, Tensor]:
        """Return the numbers, unique over the run, of the prompts and responses that this process has in a new rollout.

        The responses to one prompt follow each other.
        """
        index = self.rank * rows + torch.arange(rows, device=device)
        first = self.rollout * rows * self.world
        return {
            PREFIX + "prompt_id": (first + index) // generations,
            PREFIX + "response_id": first + index,
        }

    def append(
        self,
        inputs: dict[str, Any],
        records: Records,
        *,
        step: int,
        times_used: int,
        entropy: Tensor | None,
        scores: Scores | None,
        behaviour_version: np.ndarray | None = None,
        tokens: dict[str, list[np.ndarray]] | None = None,
    ) -> None:
        """Add the rows of one microbatch to the gradient log.

        Parameters
        ----------
        inputs : dict
            TRL's microbatch with the columns ``fspo_prompt_id`` and ``fspo_response_id`` (from `ids`), ``fspo_reward``
            and ``fspo_truncated``.
        records : Records
        entropy : Tensor (B,), optional
            Mean entropy of the policy over a response's tokens, nats.
        behaviour_version : array (B,), optional
            Number of updates done on the weights before they sampled each response; by default the number done before
            the rollout.
        tokens : dict of lists of B arrays, optional
            Columns of token log-ratios (`fspo.objective.token_columns`).
        """
        rule = self.rule or Rule("none", name=self.label)
        since = step - self.start_step
        carried = ("prompt_id", "response_id", "reward", "truncated")
        responses = ResponseColumns(
            **{name: inputs[PREFIX + name].cpu().numpy() for name in carried},
            advantage=inputs["advantages"].float().cpu().numpy(),
            entropy=None if entropy is None else entropy.cpu().numpy(),
        )
        source = rule.drift_source if rule.needs_stats else "none"
        update = UpdateColumns(self.rollout, step, self.start_step, rule.label, source, "train", since, times_used)
        found = records.to_numpy()
        rows = log_rows(update, responses, found, drift=found["drift"], tokens=tokens, scores=scores)
        unknown = OF_THE_RULE if self.rule is None else ()
        if behaviour_version is not None:
            rows["behaviour_version"] = behaviour_version
        self.writer.append({name: None if name in unknown else value for name, value in rows.items()})
