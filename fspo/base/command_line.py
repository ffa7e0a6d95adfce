"""The argument parser of all commands. It takes option names with dashes or underscores and lists with commas, keeps
the line breaks of examples in the help, and reports an error in one line.
"""

from __future__ import annotations

import re
import shlex
import sys
from argparse import Action, RawDescriptionHelpFormatter
from argparse import ArgumentParser as PlainParser
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import UnionType
from typing import Any, NoReturn, Union, get_args, get_origin

from jsonargparse import ArgumentParser, DefaultHelpFormatter

from fspo.base.errors import UserError, unknown_name

WRONG_VALUE = re.compile(r'Parser key "([\w.\-]+)": (.*)(?:Got value|Given value): ?(.*)$')
"""Pattern of jsonargparse's message about a wrong value, in one line; its groups are the key, the reason, the value."""


class HelpFormatter(DefaultHelpFormatter, RawDescriptionHelpFormatter):
    """Format help as jsonargparse does (types and defaults), keep the line breaks of descriptions and examples, and
    write options with dashes.
    """

    def _format_action_invocation(self, action: Action) -> str:
        text = super()._format_action_invocation(action)
        return re.sub(r"--[\w.]+", lambda option: dashed(option[0]), text)


class CommandParser(ArgumentParser):
    """An argument parser that raises `UserError`, which `fspo.base.errors.run_cli` prints as one line with status 2.

    Parameters
    ----------
    prog : str
        The command as a user types it.
    description : str
        What the command does; line breaks are kept.
    examples : str
        Example command lines, shown below the options with their line breaks.
    """

    def __init__(self, prog: str | None = None, description: str = "", examples: str = "", **options: Any) -> None:
        options = {"formatter_class": HelpFormatter, "allow_abbrev": False, "epilog": examples or None} | options
        super().__init__(prog=prog, description=description, **options)

    def parse_args(self, args: Sequence[str] | None = None, *others: Any, **options: Any) -> Any:
        """Parse a command line, by default the program's, after `rewritten` has put it into jsonargparse's syntax."""
        return super().parse_args(rewritten(self, sys.argv[1:] if args is None else args), *others, **options)

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        """Raise a UserError about a wrong command line. For an unknown option it suggests a known one; otherwise it
        points to ``--help``.
        """
        message = " ".join(message.split())
        if match := WRONG_VALUE.match(message):
            key, why, value = match.groups()
            message = wrong_value(on_command_line(key), why, value.strip("'")) or message
        if match := re.match(r"unrecognized arguments?: --([\w.\-]+)", message, re.IGNORECASE):
            names = [long[0][2:] for action in self._actions if (long := _long(action))]
            raise unknown_name("option", match[1], names, on_command_line)
        raise UserError(f"{message} ({self.prog} --help shows the options)") from ex


def _long(action: Action) -> list[str]:
    """Return those names of an option (an argparse action) that begin with two dashes, without --print_shtab, which
    jsonargparse adds.
    """
    return [name for name in action.option_strings if re.fullmatch(r"--(?!print.shtab)[\w.\-]+", name)]


def wrong_value(key: str, why: str, value: str) -> str | None:
    """Return the message for a value of the wrong type; None if jsonargparse's reason ``why`` names no type."""
    kinds = dict.fromkeys(re.findall(r"Expected (?:an? )?(?:<class '(\w+)'>|([\w.\[\], ]+?))(?= -|\.|$| Given)", why))
    wanted = [kind for pair in kinds for kind in pair if kind and kind != "NoneType"]
    if not wanted:
        return None
    if any(kind.startswith("dict") for kind in wanted):
        return f"{key} is {value!r}: give NAME=VALUE pairs with commas between them"
    return f"{key} is {value!r}: give a value of type {' or '.join(wanted)}"


def dashed(option: str) -> str:
    """Return an option's name as help and documents write it: ``--optim.learning-rate`` for the field
    ``optim.learning_rate`` of a configuration.
    """
    return option.replace("_", "-")


def on_command_line(name: str) -> str:
    """Return an option's name as it stands on a command line: ``--optim.learning-rate`` for ``optim.learning_rate``."""
    return "--" + dashed(name)


def next_step(command: str, places: Iterable[str | Path], options: str = "") -> str:
    """Return the last line that a command prints: the command to run next, on the files or folders ``places``."""
    return " ".join(["next: fspo", command, *(shlex.quote(str(place)) for place in places)]) + options


def rewritten(parser: PlainParser, words: Sequence[str]) -> list[str]:
    """Return the command line ``words`` in jsonargparse's syntax, with the option names that ``parser`` declares.

    A user may write a name with dashes or underscores, a list as ``rloo,fspo``, and a mapping as
    ``log_ratio=my_S,reward=accuracy``. jsonargparse wants brackets around a list and braces around a mapping, so they
    are added. A value that begins with a bracket or a brace is left as it is.
    """
    known = {dashed(name): name for name in parser._option_string_actions}
    found: list[str] = []
    action: Action | None = None
    for word in words:
        name, equals, value = word.partition("=")
        if action is not None:
            found.append(_bracketed(action, word))
            action = None
        elif name.startswith("--") and dashed(name) in known:
            name = known[dashed(name)]
            action = parser._option_string_actions[name]
            found.append(f"{name}={_bracketed(action, value)}" if equals else name)
            action = None if equals or action.nargs is not None else action
        elif name.startswith("--") and "." in name:  # --group.name, of which the parser declares only --group
            found.append("--" + name[2:].replace("-", "_") + equals + value)
        else:
            found.append(word)
    return found


def _bracketed(action: Action, value: str) -> str:
    hint = getattr(action, "_typehint", None)
    kinds = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    origins = [get_origin(kind) for kind in kinds]
    if value.startswith(("[", "{")) or (value == "null" and type(None) in kinds):
        return value
    if list in origins or tuple in origins:
        return f"[{value}]"
    if dict in origins and "=" in value:
        return "{" + value.replace("=", ": ") + "}"
    return value
