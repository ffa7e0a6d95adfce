"""FSPO: Fair Sequence Policy Optimization (arXiv 2509.09177). Importing this package pulls in no torch.

``fspo.load_run``, ``fspo.analyse`` and ``fspo.doctor`` take a run folder or a DataFrame and return DataFrames;
``fspo.Rule`` and ``fspo.preset`` are the clip rules, ``fspo.GradLogWriter`` writes a log from another training loop,
``fspo.Trainer`` with ``fspo.TrainConfig`` trains. Each of these names is imported when it is first used."""

from importlib import import_module
from typing import Any

__version__ = "0.3.0.dev0"
PLACES = {
    "GradLogWriter": "fspo.gradlog",
    "Rule": "fspo.rules",
    "TrainConfig": "fspo.config",
    "Trainer": "fspo.train.trainer",
    "analyse": "analysis.api",
    "doctor": "analysis.api",
    "load_run": "analysis.api",
    "preset": "fspo.rules",
}
"""The module of each name that is imported when it is first used."""


def __getattr__(name: str) -> Any:
    if name not in PLACES:
        raise AttributeError(f"module 'fspo' has no attribute {name!r}")
    return getattr(import_module(PLACES[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *PLACES])
