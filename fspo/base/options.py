"""Configuration dataclasses: read from a YAML file and the command line, and written back to YAML.

jsonargparse parses, checks types and prints the help; `fspo.base.command_line` turns its errors into one line."""

from __future__ import annotations

import sys
from argparse import SUPPRESS
from collections.abc import Sequence
from dataclasses import asdict, fields, is_dataclass
from itertools import pairwise
from pathlib import Path
from textwrap import fill
from typing import Any, NoReturn, TypeVar, get_args, get_type_hints

import yaml

from fspo.base.command_line import CommandParser, dashed, rewritten
from fspo.base.errors import UserError, unknown_name
from fspo.base.files import write_text

ConfigT = TypeVar("ConfigT")
ALL = "all"
"""The word after ``--help`` that shows the options of all groups instead of one."""


def make_parser(cls: type, prog: str, description: str) -> CommandParser:
    """Build the parser of a configuration dataclass ``cls``: one option for each field, and ``--config FILE``. ``prog``
    is the command as a user types it, ``description`` says in ``--help`` what it does."""
    parser = CommandParser(prog, description, usage=f"{prog} [--config FILE] [--OPTION VALUE ...]")
    parser.add_argument("--config", action="config", help="YAML file; the command line wins over it")
    parser.add_class_arguments(cls, None)
    parser.gone = getattr(cls, "GONE", {})
    return parser


def parse(cls: type[ConfigT], args: Sequence[str] | None, parser: CommandParser | None = None) -> ConfigT:
    """Build a configuration dataclass from a command line with an optional ``--config FILE``.

    Parameters
    ----------
    args : sequence of str, optional
        The command line; by default the program's.
    parser : CommandParser, optional
        The command's parser, made by `make_parser`. Only ``--help`` and the end of an error need it: the default lacks
        the command's name and description.

    Raises
    ------
    UserError
        For an unknown option (the message suggests the nearest known one), a wrong type, an impossible value, or a
        file that is not a mapping of options to values or names an option twice.
    """
    parser = parser or make_parser(cls, "fspo train", "")
    given = sys.argv[1:] if args is None else args
    for word, following in pairwise([*given, ""]):
        if word in ("-h", "--help"):
            _show_help(parser, cls, "" if following.startswith("-") else following)
    # jsonargparse keeps the last of several values. The files come first, so that the command line wins over them.
    words = sorted(rewritten(parser, given), key=lambda word: not word.startswith("--config="))
    for file in (word.removeprefix("--config=") for word in words if word.startswith("--config=")):
        if Path(file).is_fifo() and not file.startswith("/dev/fd/"):  # what a shell's <(...) gives has a writer
            raise UserError(f"--config {file} is no regular file: name a YAML file")
    namespace = parser.parse_args(words)
    namespace.pop("config", None)
    _check_values(cls, namespace)
    with parser.one_line():
        values = parser.instantiate(namespace)
        return cls(**{field.name: getattr(values, field.name) for field in fields(cls)})  # type: ignore[arg-type]


def _show_help(parser: CommandParser, cls: type, part: str) -> NoReturn:
    """Print the help and end the program.

    If ``part`` is the name of a group, the help explains the options of this group; if it is "all", all options. If
    ``part`` is empty, the help explains the options outside groups and lists the names of the options in each group."""
    groups = {name: hint for name, hint in get_type_hints(cls).items() if is_dataclass(hint)}
    if part and part not in (*groups, ALL):
        raise unknown_name("group of options", part, [*groups, ALL])
    if part != ALL and groups:
        for action in parser._actions:
            top = action.dest.partition(".")[0]
            if (top != part) if part else (top in groups):
                action.help = SUPPRESS
        lines = [
            f"Options in groups are written --GROUP.NAME; {parser.prog} --help GROUP explains those of a group,",
            f"{parser.prog} --help {ALL} all options.",
        ]
        for name, hint in groups.items() if not part else ():
            options = option_names(hint)  # type: ignore[arg-type]
            leaves = [dashed(one) for one in options if not any(other.startswith(f"{one}.") for other in options)]
            lines.append(fill(f"{name}: {', '.join(leaves)}", 100, subsequent_indent="    ", break_on_hyphens=False))
        parser.epilog = "\n".join(lines)
    parser.print_help()
    sys.exit(0)


def _check_values(cls: type, namespace: Any, prefix: str = "") -> None:
    """Raise UserError for values that jsonargparse accepts wrongly: null for an option that needs a value, and a plain
    value for a group of options (``batch: 3``)."""
    for name, hint in get_type_hints(cls).items():
        value, key = getattr(namespace, name), prefix + name
        if value is None and type(None) not in get_args(hint):
            raise UserError(f"{key} is empty: give it a value, or leave it out")
        if is_dataclass(hint):
            if not hasattr(value, "__dict__"):
                raise UserError(f"{key} is {value!r}, but it is a group of options: set {key}.<option>")
            _check_values(hint, value, f"{key}.")  # type: ignore[arg-type]


def option_names(cls: type, prefix: str = "") -> list[str]:
    """Return the dotted names of all options of a configuration dataclass, groups included, each after ``prefix``."""
    names = []
    for name, hint in get_type_hints(cls).items():
        names.append(prefix + name)
        if is_dataclass(hint):
            names += option_names(hint, f"{prefix}{name}.")  # type: ignore[arg-type]
    return names


def to_dict(config: Any) -> dict[str, Any]:
    """Return a configuration dataclass as nested dicts of plain values, for config.yaml (tuples become lists)."""

    def plain(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: plain(item) for key, item in value.items()}
        return [plain(item) for item in value] if isinstance(value, list | tuple) else value

    return plain(asdict(config))


def save(config: Any, path: Path) -> None:
    """Write a configuration, with the values of all its options, as YAML to ``path``, whole or not at all."""
    write_text(path, yaml.safe_dump(to_dict(config), sort_keys=False))
