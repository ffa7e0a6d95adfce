"""The command that trains a policy: ``accelerate launch -m fspo.train --config FILE`` or ``fspo train ...``."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from fspo.base.command_line import CommandParser, next_step
from fspo.base.errors import run_cli
from fspo.base.options import make_parser, parse
from fspo.base.processes import end_with_launcher
from fspo.config import TrainConfig
from fspo.gradlog.run_folder import CONFIG, MODEL
from fspo.models.shapes import EMBEDDED, check_place
from fspo.tasks import make_task, teaching_task
from fspo.train.folder_owner import check_folder

# Let idle OpenMP threads sleep: threads that spin can slow another process on the same CPU by a factor of a hundred.
# OpenMP reads this variable once, so it is set before torch loads.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

EXAMPLES = """Train a language model with a sequence-level clip rule and log every response.

examples:
  fspo train --output out/fspo --rule.preset fspo
  fspo train --config out/fspo/config.yaml --resume true --rollouts 60
  fspo train --model.name-or-path Qwen/Qwen3-0.6B --task.name gym:chain_sum --rule.preset fspo-kl
  fspo train --config out/fspo/config.yaml --noise-floor
      one rollout at learning rate 0: what numerics alone do to S, into out/fspo/noise
  torchrun --nproc_per_node 2 -m fspo.train --output out/two --threads 1
  accelerate launch --config_file fspo/presets/accelerate/fsdp2.yaml -m fspo.train --config run.yaml
"""

NOISE_FLOOR = "--noise-floor"
"""The flag that asks for a measurement of the noise floor instead of training.

The flag is no setting of a run, so it is not part of the run's configuration."""


def build_parser() -> CommandParser:
    """Return the parser of ``fspo train``. It does not know the flag ``--noise-floor``, which `main` reads itself."""
    return make_parser(TrainConfig, "fspo train", EXAMPLES)


def main(args: list[str] | None = None) -> int:
    """Parse the command line, then train or measure the noise floor; return the exit status."""
    words = list(sys.argv[1:] if args is None else args)
    noise_floor = NOISE_FLOOR in words
    config = parse(TrainConfig, [w for w in words if w != NOISE_FLOOR], build_parser())
    if noise_floor:
        from fspo.train.noise_floor import measure

        folder = measure(config)
        print(f"noise floor: {folder}", next_step("analyse", [config.output]), sep="\n", file=sys.stderr)
        return 0
    if os.environ.get("RANK", "0") == "0":  # refuse what is wrong before the seconds that it takes to load torch
        check_folder(Path(config.output), config)
        check_place(config.model.name_or_path, config.task.name)
        check_place(config.model.tokenizer or EMBEDDED)
        config.tracker_names()
    build = teaching_task if config.model.name_or_path == EMBEDDED else make_task
    task = build(config.task.name, config.task.options)
    from fspo.train.trainer import Trainer

    try:
        trainer = Trainer(config, task=task)
        if config.resume and trainer.is_main:
            done = trainer.state.rollout
            text = f"goes on after {done} rollouts" if done else "has no checkpoint: it begins at its first rollout"
            print(f"{config.output} {text}", file=sys.stderr)
        trainer.train()
    except KeyboardInterrupt:
        from fspo.train.checkpoint import list_checkpoints

        kept = list_checkpoints(Path(config.output))
        options = ["--config", str(Path(config.output) / CONFIG), "--resume", "true"]
        print(
            f"interrupted: this command goes on from {kept[-1].name}"
            if kept
            else "interrupted before the first checkpoint (--checkpoint-every): this command begins anew",
            next_step("train", options),
            sep="\n",
            file=sys.stderr,
        )
        return 130
    except RuntimeError as error:  # gloo and NCCL raise RuntimeError when another process of the run has ended
        if "onnection closed by peer" not in str(error) and "onnection reset" not in str(error):
            raise
        print("stopped: another process of this run ended; its own line says why", file=sys.stderr)
        return 1
    if trainer.is_main:
        model = f"run: {config.output}; model and tokenizer for transformers: {Path(config.output) / MODEL}"
        command = "analyse" if config.batch.updates > 1 else "doctor"  # with one update a rollout every S is 0
        print(model, next_step(command, [config.output]), sep="\n")
    return 0


if __name__ == "__main__":
    end_with_launcher()
    run_cli(main)
