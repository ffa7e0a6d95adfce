"""The command ``fspo NAME ...``, which runs the command NAME. The module of a command is imported only when it runs."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import NamedTuple, NoReturn

from fspo import __version__
from fspo.base.errors import run_cli, unknown_name
from fspo.base.processes import end_with_launcher


class Command(NamedTuple):
    """A command of ``fspo``: the module and the function in it that run the command, its line in the list of commands
    (``summary``), and the arguments of an example."""

    module: str
    summary: str
    example: str
    function: str = "main"


GROUPS: dict[str, dict[str, Command]] = {
    "you want to see what it does": {
        "demo": Command("figures.demo", "a sound and a faulty simulated run", "--open"),
    },
    "you have a run, or a log of another trainer": {
        "import": Command(
            "analysis.importing.command", "make a run folder of another log", "rollouts.csv --output RUN"
        ),
        "doctor": Command("analysis.doctor.command", "what is wrong with a run, and the fix", "RUN"),
        "watch": Command("analysis.live.command", "a local page that follows runs as they train", "RUN"),
        "analyse": Command("analysis.__main__", "tables by response length", "RUN", "analyse_command"),
        "figures": Command("figures.__main__", "publication figures from the tables", "RUN --width neurips"),
        "report": Command("figures.page.command", "one page: who is clipped, what it does, issues", "RUN --open"),
        "calibrate": Command("analysis.rules.calibrate", "ranges that give all rules an equal clip rate", "RUN"),
        "sweep": Command("analysis.sweeps.command", "what other settings would have done", "RUN"),
    },
    "you want to train": {
        "plan": Command("fspo.plan.__main__", "memory of a run before it starts", "--config run.yaml"),
        "train": Command("fspo.train.__main__", "train with a clip rule, log each response", "--output RUN"),
        "evaluate": Command("fspo.evaluate.__main__", "benchmarks of finished models", "RUN --benchmarks math500"),
    },
    "you want the theory": {
        "check": Command("proofs_check.__main__", "check every statement of docs/theory.md", "--only T3,T7"),
    },
    "you review the paper": {
        "reproduce": Command("paper_repro", "every claim, with a verdict and a report", "--preset quick"),
    },
}
"""The commands of ``fspo``, grouped under headings that say what their user wants to do or has."""
COMMANDS = {name: command for group in GROUPS.values() for name, command in group.items()}
USAGE = """usage: fspo COMMAND ...   (fspo COMMAND --help shows its options)

Train language models with fair clip rules, and see by response length what any clip rule does.
{commands}
A list is written with commas: --rules rloo,gspo,fspo. A command whose packages are missing names the extra to install.
  fspo --version
"""


def usage() -> str:
    """Return the text of ``fspo --help``: a line for each command with an example."""
    lines = []
    for title, commands in GROUPS.items():
        lines.append(f"\n{title}:")
        for name, command in commands.items():
            lines.append(f"  {name:10} {command.summary:44} fspo {name} {command.example}")
    return USAGE.format(commands="\n".join(lines))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command ``fspo NAME ...``, or print the list of commands or the version.

    Returns the exit status.

    Raises UserError if no command has the given name."""
    name, *words = list(sys.argv[1:] if arguments is None else arguments) or ["--help"]
    if name in ("-h", "--help", "help"):
        print(usage(), end="")
        return 0
    if name == "--version":
        print(f"fspo {__version__}")
        return 0
    if name not in COMMANDS:
        raise unknown_name("command", name, tuple(COMMANDS))
    command = COMMANDS[name]
    # numpy reads this once. Threads that wait for each other cost more than they give on the small matrices here.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    return getattr(import_module(command.module), command.function)(words)


def script() -> NoReturn:
    """Run `main` with the words of the command line and exit with its status: the console script ``fspo``."""
    end_with_launcher()
    run_cli(main)


if __name__ == "__main__":
    script()
