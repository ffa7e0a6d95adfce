"""Run `fspo train` with FSDP2 on a CPU, where accelerate by itself would not shard the model.

    torchrun --nproc_per_node 2 benchmarks/sharded_train.py --config fspo/presets/qwen3-8b-random.yaml ...

The script sets accelerate's state by hand, as the tests do (`tests/fspo/tiny_run.py`). From there on, accelerate shards
as it would on GPUs.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "fspo"))

import tiny_run  # pyright: ignore[reportMissingImports]

from fspo.base.errors import run_cli
from fspo.base.processes import end_with_launcher
from fspo.train.__main__ import main

if __name__ == "__main__":
    end_with_launcher()
    tiny_run.shard()
    run_cli(main)
