"""What every command line of the suite has in common: help that keeps its examples' lines, errors of one line."""

from __future__ import annotations

import re
from argparse import RawDescriptionHelpFormatter
from typing import Any, NoReturn

from jsonargparse import ArgumentParser, DefaultHelpFormatter

from fspo.base.errors import UserError

WRONG_VALUE = re.compile(r'Parser key "([\w.\-]+)": (.*)(?:Got value|Given value): ?(.*)$')
"""jsonargparse's complaint about a value, in one line: the key, why, the value."""


class HelpFormatter(DefaultHelpFormatter, RawDescriptionHelpFormatter):
    """jsonargparse's help (types and defaults) with the line breaks of descriptions and examples kept."""


class CommandParser(ArgumentParser):
    """A parser whose errors are a `UserError`, for `fspo.base.errors.run_cli`: one line and exit status 2.

    Parameters
    ----------
    prog : str
        The command as a user types it.
    description : str
        What it does; line breaks are kept.
    examples : str
        Command lines, shown below the options as they are.
    """

    def __init__(self, prog: str | None = None, description: str = "", examples: str = "", **options: Any) -> None:
        options = {"formatter_class": HelpFormatter, "allow_abbrev": False, "epilog": examples or None} | options
        super().__init__(prog=prog, description=description, **options)

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        """Raise a UserError that names the way to the options."""
        message = " ".join(message.split())
        if match := WRONG_VALUE.match(message):
            key, why, value = match.groups()
            message = wrong_value(f"--{key}", why, value.strip("'")) or message
        raise UserError(f"{message} ({self.prog} --help shows the options)") from ex


def wrong_value(key: str, why: str, value: str) -> str | None:
    """What to give in the place of a value of the wrong type; None if ``why`` does not name a type."""
    kinds = dict.fromkeys(re.findall(r"Expected an? (?:<class '(\w+)'>|([\w.\[\], ]+?))(?= -|\.|$| Given)", why))
    wanted = [kind for pair in kinds for kind in pair if kind and kind != "NoneType"]
    if not wanted:
        return None
    if wanted[0] in {"list", "tuple"}:
        return f"{key} is {value!r}: give a list in brackets, such as '[{value.strip('[]() ')}]'"
    return f"{key} is {value!r}: give a value of type {' or '.join(wanted)}"
