"""Check that runs which are compared by the claims about published rules differ only in the rule and the seed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from analysis.claims.catalogue import LEARNT
from fspo.gradlog.run_folder import saved_config
from fspo.rules import COMPARED, PRESETS, Rule

FREE = {
    *("output", "seed", "threads", "cpu", "processes", "resume", "trackers", "checkpoint_every", "keep_checkpoints"),
    "rule.preset",
}
"""Options in which compared runs may differ: the rule, the seed, and those that change no number of a run."""
RANGES = {"rule.range_lo", "rule.range_hi"}
"""Options that differ between rules; `unlike` compares them with those of the run's preset alone."""
OF_RULE = {f"rule.{field.name}" for field in fields(Rule)}


def unlike(runs: Iterable[Path]) -> str:
    """Say which option differs between the compared runs, or which option of a run's rule is not its preset's.

    Return "" if there is none. The options of `FREE` (the seed, say) may differ. Run folders without config.yaml, such
    as imported ones, and runs of rules that are neither in `COMPARED` nor in `LEARNT` are not checked.
    """
    every = {Path(run).name: dict(_options(saved_config(run))) for run in runs}
    found = {name: options for name, options in every.items() if options.get("rule.preset") in (*COMPARED, *LEARNT)}
    for name, options in found.items():
        preset = PRESETS[options["rule.preset"]].rule
        for option in sorted(OF_RULE & options.keys()):
            if options[option] not in (None, getattr(preset, option.removeprefix("rule."))):
                return f"{name} has {option} {options[option]}, which is not its preset's"
        first, given = next(iter(found.items()))
        for option in sorted((given.keys() | options.keys()) - FREE - RANGES):
            if (one := given.get(option)) != (other := options.get(option)):
                return (
                    f"the compared runs differ in more than the rule: {option} is {one} in {first}, {other} in {name}"
                )
    return ""


def _options(tree: Mapping[str, Any], stem: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the options of a nested configuration by name, as in ``optim.learning_rate``."""
    for name, value in tree.items():
        if isinstance(value, dict):
            yield from _options(value, f"{stem}{name}.")
        else:
            yield f"{stem}{name}", value
