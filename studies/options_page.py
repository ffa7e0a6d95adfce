"""This script writes docs/options.md: every option of every command, read from the code that defines the option.

Run ``make pages``; a test compares the page with the code.
"""

from __future__ import annotations

import argparse
import types
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from fspo.base.files import write_text
from fspo.base.options import make_parser
from fspo.config import LoraOptions, TrainConfig
from fspo.config.machine import PlanConfig
from fspo.repro.options import ReproductionOptions
from fspo.train.__main__ import NOISE_FLOOR

PAGE = Path(__file__).parents[1] / "docs" / "options.md"
PARSERS = {
    "python -m fspo.evaluate": "fspo.evaluate.__main__",
    "python -m analysis": "analysis.__main__",
    "python -m analysis sweep": "analysis.sweeps.counterfactual",
    "python -m analysis calibrate": "analysis.rules.calibrate",
    "python -m analysis import": "analysis.importing.command",
    "python -m analysis doctor": "analysis.doctor.command",
    "python -m proofs_check": "proofs_check.__main__",
    "python -m proofs_check.maps": "proofs_check.maps.__main__",
    "python -m figures": "figures.__main__",
}
"""Commands and the modules whose function ``build_parser`` defines their options."""
INTRODUCTION = """# Options

Written by `make pages` from the dataclasses and parsers of the code; a test compares them.

`python -m fspo.train` and `python -m fspo.plan` read a YAML file (`--config FILE`) and the command line, which wins:
`--batch.prompts 32` is `batch: {prompts: 32}` in the file. A number in brackets is the range: `(` and `)` leave the end
out, `[` and `]` hold it. `null` leaves an optional value out.
"""
Row = tuple[str, str, str, str]


def type_text(hint: Any) -> str:
    """Describe an option's type by the values that a user may write."""
    origin, parts = get_origin(hint), get_args(hint)
    if origin is Literal:
        return ", ".join(f"`{part}`" for part in parts)
    if origin in (Union, types.UnionType):
        return " or ".join("null" if part is type(None) else type_text(part) for part in parts)
    if origin in (list, tuple):
        return f"list of {type_text(parts[0])}"
    if is_dataclass(hint):
        return "group"
    return {str: "text", bool: "true or false", None: "text", dict: "mapping"}.get(
        origin or hint, getattr(hint, "__name__", str(hint))
    )


def default_text(value: Any) -> str:
    """Return a default as YAML writes it."""
    if value is None or value == argparse.SUPPRESS:
        return ""
    if isinstance(value, list | tuple):
        return "`[" + ", ".join(map(str, value)) + "]`"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    return f"`{value}`" if value != "" else ""


def ranges(cls: type, prefix: str = "") -> dict[str, str]:
    """Return the allowed range of each numeric option of a configuration class, by the option's dotted name."""
    found: dict[str, str] = {}
    hints = get_type_hints(cls)
    for field in fields(cls):
        if "range" in field.metadata:
            found[prefix + field.name] = str(field.metadata["range"])
        if is_dataclass(hints[field.name]):
            found |= ranges(hints[field.name], f"{prefix}{field.name}.")
    return found


def rows(parser: argparse.ArgumentParser, bounds: dict[str, str], prefix: str = "") -> Iterator[Row]:
    """Yield option, type, default and meaning of each argument of a parser."""
    for action in parser._actions:
        hint = getattr(action, "_typehint", action.type)
        named = [name for name in action.option_strings if name.startswith("--")]
        if action.help in (None, argparse.SUPPRESS) or action.dest in ("help", "print_config") or "Help" in str(action):
            continue
        # Skip jsonargparse's action that reads a group of options from a file, because it is no option.
        if type(action).__name__ == "_ActionConfigLoad":
            continue
        name = f"--{prefix}{named[0][2:]}" if named else str(action.metavar or action.dest)
        kind = " ".join(f"`{choice}`" for choice in action.choices) if action.choices else type_text(hint)
        if action.dest in bounds:
            number, _, others = kind.partition(" or ")
            kind = f"{number} in {bounds[action.dest]}" + (f" or {others}" if others else "")
        meaning = " ".join(str(action.help).replace("%%", "%").split())
        yield f"`{name}`", kind, default_text(action.default), meaning


def table(found: list[Row]) -> str:
    """Return options as a Markdown table."""
    lines = [("option", "type", "default", "meaning"), ("---",) * 4, *found]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def configured(cls: type, title: str) -> list[Row]:
    """Return option, type, default and meaning of each field of a configuration class."""
    return list(rows(make_parser(cls, title, ""), ranges(cls)))


def page() -> str:
    """Return the text of docs/options.md."""
    train = configured(TrainConfig, "python -m fspo.train")
    lora = [
        row
        for row in rows(make_parser(LoraOptions, "lora", ""), ranges(LoraOptions), "model.lora.")
        if row[0] != "`--model.lora.config`"
    ]
    place = next(i for i, row in enumerate(train) if row[0] == "`--model.lora`")
    train[place + 1 : place + 1] = lora
    measure = "measure what numerics alone do to S, in OUTPUT/noise, instead of training"
    train.append((f"`{NOISE_FLOOR}`", "flag", "", measure))
    known = {row[0] for row in train}
    plan = [row for row in configured(PlanConfig, "python -m fspo.plan") if row[0] not in known]
    parts = [
        INTRODUCTION,
        "## python -m fspo.train\n\n" + table(train),
        "\n## python -m fspo.plan\n\nThe options of `python -m fspo.train`, and:\n\n" + table(plan),
    ]
    for title, module in PARSERS.items():
        parts.append(f"\n## {title}\n\n" + table(list(rows(import_module(module).build_parser(), {}))))
    parts.append("\n## python paper_repro.py\n\n" + table(configured(ReproductionOptions, "python paper_repro.py")))
    return "\n".join(parts) + "\n"


if __name__ == "__main__":
    write_text(PAGE, page())
