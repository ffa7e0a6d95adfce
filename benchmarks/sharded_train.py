"""`fspo train` with FSDP2 on a CPU, where accelerate would not shard.

    torchrun --nproc_per_node 2 benchmarks/sharded_train.py --config fspo/presets/qwen3-8b-random.yaml ...

accelerate's state is set by hand, as in the tests (`tests/fspo/tiny_run.py`); all that follows is its own path.
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
