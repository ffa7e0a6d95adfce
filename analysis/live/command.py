"""The command ``fspo watch RUN [RUN ...]``: serve a page on this machine that follows runs as their logs grow."""

from __future__ import annotations

from pathlib import Path

from fspo.base.arguments import checked_count
from fspo.base.command_line import CommandParser
from fspo.base.errors import UserError

PORT = 5006
EXAMPLES = """examples:
  fspo watch RUN                 then open the address that is printed
  fspo watch RUN_A RUN_B --port 5100 --open
"""


def build_parser() -> CommandParser:
    """Return the parser of ``fspo watch``."""
    parser = CommandParser(
        prog="fspo watch",
        description="Serve a page on this machine alone (127.0.0.1) that follows runs while they train: clip rate and\n"
        "acceptance by length, the law of S, mismatch, staleness, cosines, reward, and what the doctor finds.",
        examples=EXAMPLES,
    )
    parser.add_argument("runs", nargs="+", type=str, metavar="RUN", help="run folder; its log may begin later")
    parser.add_argument("--port", type=int, default=PORT, help="port of the page")
    parser.add_argument("--open", action="store_true", help="open the page in a browser")
    return parser


def main(arguments: list[str]) -> int:
    """Serve the page of ``fspo watch`` until the user interrupts it (Ctrl-C)."""
    args = build_parser().parse_args(arguments)
    checked_count("--port", args.port, 1, 65535, "ports below 1024 need rights of an administrator")
    for run in args.runs:
        if not Path(run).is_dir() and not Path(run).absolute().parent.is_dir():
            raise UserError(f"{run} is no folder, nor is the folder above it: give the run folder, or where it will be")
    if len({Path(run).resolve() for run in args.runs}) < len(args.runs):
        raise UserError("the same run folder is named twice: name each run once")
    from analysis.live.page import ADDRESS, make_server  # imported here, so that --help does not load bokeh

    server = make_server(args.runs, args.port)
    address = f"http://{ADDRESS}:{args.port}/"
    server.start()
    print(f"watching {', '.join(args.runs)}: {address} (Ctrl-C ends)", flush=True)
    for run in args.runs:
        if not Path(run).is_dir():
            print(f"{run} is not there yet: its panels fill when its log begins", flush=True)
    if args.open:
        server.show("/")
    try:
        server.io_loop.start()
    except KeyboardInterrupt:
        print("ended; the runs go on")
    finally:
        server.stop()
    return 0
