"""The argument parser of all commands. It takes option names with dashes or underscores and lists with commas, keeps
the line breaks of examples in the help, and reports an error in one line."""

from __future__ import annotations

import re
import shlex
import sys
from argparse import Action, ArgumentError, RawDescriptionHelpFormatter
from argparse import ArgumentParser as PlainParser
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from pathlib import Path
from textwrap import shorten
from types import UnionType
from typing import Any, Union, get_args, get_origin

import yaml
from jsonargparse import ArgumentParser, DefaultHelpFormatter, get_loader, set_loader

from fspo.base.errors import UserError
from fspo.base.strict_yaml import StrictLoader

_plain_load = get_loader("yaml")
_MODE = "yaml without repeated names"


def _strict_load(text: str) -> Any:
    """Load YAML as jsonargparse does, after `StrictLoader` has accepted it."""
    yaml.compose(text, Loader=StrictLoader)
    return _plain_load(text)


set_loader(_MODE, _strict_load, (yaml.YAMLError,))


class HelpFormatter(DefaultHelpFormatter, RawDescriptionHelpFormatter):
    """Format help as jsonargparse does (types and defaults), keep the line breaks of descriptions and examples, and
    write options with dashes."""

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

    Attributes
    ----------
    gone : mapping
        Options of earlier releases, as ``group.option`` or ``group.option=value`` -> what to do.
    """

    def __init__(self, prog: str | None = None, description: str = "", examples: str = "", **options: Any) -> None:
        options = {"formatter_class": HelpFormatter, "allow_abbrev": False, "epilog": examples or None} | options
        options = {"exit_on_error": False, "parser_mode": _MODE} | options
        super().__init__(prog=prog, description=description, **options)
        self.gone: Mapping[str, str] = {}

    def parse_args(self, args: Sequence[str] | None = None, *others: Any, **options: Any) -> Any:
        """Parse a command line, by default the program's, after putting it into jsonargparse's syntax (`rewritten`)."""
        with self.one_line():
            return super().parse_args(rewritten(self, sys.argv[1:] if args is None else args), *others, **options)

    @contextmanager
    def one_line(self) -> Iterator[None]:
        """Turn jsonargparse's errors inside a ``with`` block into a UserError: the message in one line, with the
        options nearest to an unknown one, or with what to do instead of one of an earlier release (``gone``)."""
        try:
            yield
        except UserError:
            raise
        except (ArgumentError, ValueError, TypeError, RecursionError) as error:
            said = re.sub(r'Parser key "([\w.\-]+)":', r"option \1:", shorten(str(error), 600, placeholder=" ..."))
            named = re.search(
                r"(?:unrecognized arguments: --|(?:Group '(?P<group>[\w.]+)' does not accept o|O)ption ')"
                r"(?P<name>[\w.\-]+)",
                said,
            )
            name = ".".join(filter(None, named.group("group", "name"))).replace("-", "_") if named else ""
            for gone, instead in self.gone.items():
                option, _, value = gone.partition("=")
                if option == name or (value and re.search(rf"option {option}: .*value: {value}\b", said)):
                    raise UserError(f"{gone} is gone: {instead}") from error
            if named and (near := self._near(name)):
                said += f": did you mean {' or '.join(f'--{dashed(option)}' for option in near)}?"
            elif of_group := re.search(r"option (\w+): Unable to load config ['\"]\w*['\"]", said):
                group = f"--{of_group[1]}"
                said = f"{group} names a group of options: write {group}.OPTION VALUE, as in --rule.preset fspo"
            raise UserError(f"{said} ({self.prog} --help shows the options)") from error

    def _near(self, name: str) -> list[str]:
        """Return the options nearest to an unknown one: the preset of its group (``rule.name`` -> ``rule.preset``),
        those with the same last part (``preset`` -> ``rule.preset`` and ``correction.preset``), or the most similar
        one."""
        known = [
            action.option_strings[-1][2:].rstrip("+").replace("-", "_")
            for action in self._actions
            if action.option_strings and not action.option_strings[-1].startswith("--print")
        ]
        known = [option for option in known if not any(other.startswith(f"{option}.") for other in known)]
        group, _, last = name.rpartition(".")
        if (usual := f"{group}.{ {'name': 'preset', 'lr': 'learning_rate'}.get(last) }") in known:
            return [usual]
        same = [other for other in known if other.rpartition(".")[2] == last]
        return same or get_close_matches(name, known, n=1, cutoff=0.5)


def dashed(option: str) -> str:
    """Return an option's name as help and documents write it: ``--optim.learning-rate`` for the field
    ``optim.learning_rate`` of a configuration."""
    return option.replace("_", "-")


def next_step(command: str, places: Iterable[str | Path], options: str = "") -> str:
    """Return the line ``next: fspo COMMAND PLACE ...`` that a command prints last; ``options`` is appended as it is."""
    return " ".join(["next: fspo", command, *(shlex.quote(str(place)) for place in places)]) + options


def rewritten(parser: PlainParser, words: Sequence[str]) -> list[str]:
    """Return the command line ``words`` in jsonargparse's syntax, with the option names that ``parser`` declares.

    A user may write a name with dashes or underscores, a list as ``rloo,fspo``, and a mapping as
    ``log_ratio=my_S,reward=accuracy``. jsonargparse wants brackets around a list and braces around a mapping, so they
    are added. A value that begins with a bracket or a brace is left as it is. An option and its value become one word,
    so that a value may begin with a dash, such as -1e-3."""
    known = {dashed(name): name for name in parser._option_string_actions}
    found: list[str] = []
    waiting: Action | None = None
    for word in words:
        name, equals, value = word.partition("=")
        if waiting is not None and not word.startswith("--"):
            found[-1] += "=" + _bracketed(waiting, word)
            waiting = None
        elif name.startswith("--") and dashed(name) in known:
            action = parser._option_string_actions[known[dashed(name)]]
            found.append(known[dashed(name)] + (f"={_bracketed(action, value)}" if equals else ""))
            waiting = None if equals or action.nargs is not None else action
        else:
            if name.startswith("--") and "." in name:  # --group.name, of which the parser declares only --group
                word = "--" + name[2:].replace("-", "_") + equals + value
            found.append(word)
            waiting = None
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
