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

from fspo.__main__ import COMMANDS
from fspo.base.command_line import dashed
from fspo.base.files import write_text
from fspo.base.options import make_parser
from fspo.config import LoraOptions, TrainConfig
from fspo.config.machine import PlanConfig
from fspo.repro.options import ReproductionOptions
from fspo.train.__main__ import NOISE_FLOOR

PAGE = Path(__file__).parents[1] / "docs" / "options.md"
CLASSES = {"train": TrainConfig, "plan": PlanConfig, "reproduce": ReproductionOptions}
"""Configuration classes by command. A class holds the allowed range of each numeric option; commands that are not named
have no such class."""
INTRODUCTION = """# Options

Written by `make pages` from the dataclasses and parsers of the code; a test compares them.

`fspo train` and `fspo plan` read a YAML file (`--config FILE`) and the command line, which wins:
`--sampling.top-p 0.9` is `sampling: {top_p: 0.9}` in the file. A list is written with commas, `--rules rloo,fspo`, a
mapping as `--columns reward=accuracy,log_ratio=my_S`. A number in brackets is the range: `(` and `)` leave the end
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
    """Return an option's default value as YAML writes it."""
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
    for field in fields(cls) if is_dataclass(cls) else ():
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
        # Skip the action that jsonargparse adds to read a group of options from a file: it sets no option of its own.
        if type(action).__name__ == "_ActionConfigLoad":
            continue
        name = dashed(f"--{prefix}{named[0][2:]}") if named else str(action.metavar or action.dest)
        kind = " ".join(f"`{choice}`" for choice in action.choices) if action.choices else type_text(hint)
        if action.nargs == 0:
            kind = "flag"
        if action.dest in bounds:
            number, _, others = kind.partition(" or ")
            kind = f"{number} in {bounds[action.dest]}" + (f" or {others}" if others else "")
        meaning = " ".join(str(action.help).replace("%%", "%").split())
        yield f"`{name}`", kind, default_text(action.default), meaning


def table(found: list[Row]) -> str:
    """Return a Markdown table of command-line options, one line for each option in ``found``: name, type, default and
    meaning.
    """
    lines = [("option", "type", "default", "meaning"), ("---",) * 4, *found]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def page() -> str:
    """Return the text of docs/options.md."""
    shown: dict[str, list[Row]] = {}
    for name, command in COMMANDS.items():
        shown[name] = list(rows(import_module(command.module).build_parser(), ranges(CLASSES.get(name, object))))
    lora = [
        row
        for row in rows(make_parser(LoraOptions, "lora", ""), ranges(LoraOptions), "model.lora.")
        if row[0] != "`--model.lora.config`"
    ]
    place = next(i for i, row in enumerate(shown["train"]) if row[0] == "`--model.lora`")
    shown["train"][place + 1 : place + 1] = lora
    measure = "measure what numerics alone do to S, in OUTPUT/noise, instead of training"
    shown["train"].append((f"`{NOISE_FLOOR}`", "flag", "", measure))
    known = {row[0] for row in shown["train"]}
    shown["plan"] = [row for row in shown["plan"] if row[0] not in known]
    parts = [INTRODUCTION]
    for name, found in shown.items():
        said = "The options of `fspo train`, and:\n\n" if name == "plan" else ""
        parts.append(f"\n## fspo {name}\n\n{said}{table(found)}")
    return "\n".join(parts) + "\n"


if __name__ == "__main__":
    write_text(PAGE, page())
