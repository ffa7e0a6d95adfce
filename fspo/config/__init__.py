"""Every option of a run: typed dataclasses, filled from a YAML file and the command line. Nothing here imports torch.

jsonargparse parses, checks types and prints the help (fspo/base/options.py). What it cannot know is checked when a
dataclass is made: the range of each number, which stands with its option, and values that contradict each other.
"""

from fspo.config.groups import BatchConfig, EvalConfig, OptimConfig, TaskConfig
from fspo.config.log import LogConfig, ScoreConfig
from fspo.config.model import Dtype, LoraOptions, ModelConfig, WarmupConfig
from fspo.config.rule import ObjectiveConfig, RuleConfig
from fspo.config.sampling import ENGINES, Engine, SamplingConfig
from fspo.config.train import TrainConfig

__all__ = [
    "ENGINES",
    "BatchConfig",
    "Dtype",
    "Engine",
    "EvalConfig",
    "LogConfig",
    "LoraOptions",
    "ModelConfig",
    "ObjectiveConfig",
    "OptimConfig",
    "RuleConfig",
    "SamplingConfig",
    "ScoreConfig",
    "TaskConfig",
    "TrainConfig",
    "WarmupConfig",
]
