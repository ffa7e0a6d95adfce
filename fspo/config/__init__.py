"""One configuration for a training run: typed dataclasses, filled from a YAML file and the command line.

jsonargparse parses, checks types and prints the help; what it cannot know (values that contradict each other)
is checked in ``__post_init__``. The command line wins over the file.
"""

from fspo.config.groups import BatchConfig, EvalConfig, LogConfig, ModelConfig, OptimConfig, RuleConfig, TaskConfig
from fspo.config.train import TrainConfig

__all__ = [
    "BatchConfig",
    "EvalConfig",
    "LogConfig",
    "ModelConfig",
    "OptimConfig",
    "RuleConfig",
    "TaskConfig",
    "TrainConfig",
]
