"""What every command line of the suite has in common: help that keeps its examples' lines, errors of one line."""

from __future__ import annotations

from argparse import RawDescriptionHelpFormatter
from typing import Any, NoReturn

from jsonargparse import ArgumentParser, DefaultHelpFormatter

from fspo.base.errors import UserError
from fspo.base.options import WRONG_VALUE, wrong_value


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
