"""The argument parser of all commands: its help keeps the line breaks of examples, its errors are one line."""

from __future__ import annotations

import re
from argparse import RawDescriptionHelpFormatter
from typing import Any, NoReturn

from jsonargparse import ArgumentParser, DefaultHelpFormatter

from fspo.base.errors import UserError

WRONG_VALUE = re.compile(r'Parser key "([\w.\-]+)": (.*)(?:Got value|Given value): ?(.*)$')
"""Pattern of jsonargparse's message about a wrong value, in one line; its groups are the key, the reason, the value."""


class HelpFormatter(DefaultHelpFormatter, RawDescriptionHelpFormatter):
    """Format help as jsonargparse does (types and defaults), and keep the line breaks of descriptions and examples."""


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

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        """Raise a UserError that points to ``--help``."""
        message = " ".join(message.split())
        if match := WRONG_VALUE.match(message):
            key, why, value = match.groups()
            message = wrong_value(f"--{key}", why, value.strip("'")) or message
        raise UserError(f"{message} ({self.prog} --help shows the options)") from ex


def wrong_value(key: str, why: str, value: str) -> str | None:
    """Return the message for a value of the wrong type; None if jsonargparse's reason ``why`` names no type."""
    kinds = dict.fromkeys(re.findall(r"Expected an? (?:<class '(\w+)'>|([\w.\[\], ]+?))(?= -|\.|$| Given)", why))
    wanted = [kind for pair in kinds for kind in pair if kind and kind != "NoneType"]
    if not wanted:
        return None
    if wanted[0] in {"list", "tuple"}:
        return f"{key} is {value!r}: give a list in brackets, such as '[{value.strip('[]() ')}]'"
    return f"{key} is {value!r}: give a value of type {' or '.join(wanted)}"
