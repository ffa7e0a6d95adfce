"""All options of a run as typed dataclasses, filled from a YAML file and the command line. Nothing here imports torch.

jsonargparse parses the options, checks their types and prints the help (fspo/base/options.py). The range of each number
is declared with its option. When a dataclass is made, it checks these ranges and refuses values that contradict each
other."""

from fspo.config.batch import BatchConfig
from fspo.config.log import LogConfig, ScoreConfig
from fspo.config.model import Dtype, LoraOptions, ModelConfig, WarmupConfig
from fspo.config.optimizer import OptimConfig
from fspo.config.rule import CorrectionConfig, ObjectiveConfig, RuleConfig
from fspo.config.sampling import ENGINES, Engine, Precision, SamplingConfig
from fspo.config.task import EvalConfig, TaskConfig
from fspo.config.train import TrainConfig
