"""The command ``fspo watch RUN``: serve a page on this machine that follows a run as its log grows."""

from __future__ import annotations

from pathlib import Path

from fspo.base.command_line import CommandParser
from fspo.base.errors import UserError
from fspo.base.number_checks import checked_count

PORT = 5006


def build_parser() -> CommandParser:
    """Return the parser of ``fspo watch``."""
    parser = CommandParser(
        prog="fspo watch",
        description="Serve a page on this machine alone (127.0.0.1) that follows a run while it trains: clip rate and\n"
        "acceptance by length, spread of S, mismatch, reward, and what the doctor finds.",
        examples="examples:\n  fspo watch RUN --port 5100        then open the address that is printed\n",
    )
    parser.add_argument("run", type=str, metavar="RUN", help="run folder; its log may begin later")
    parser.add_argument("--port", type=int, default=PORT, help="port of the page")
    return parser


def main(arguments: list[str]) -> int:
    """Serve the page of ``fspo watch`` until the user interrupts it (Ctrl-C)."""
    args = build_parser().parse_args(arguments)
    run = Path(args.run)
    checked_count("--port", args.port, 1, 65535, "ports below 1024 need rights of an administrator")
    if not run.is_dir() and not run.absolute().parent.is_dir():
        raise UserError(f"{run} is no folder, nor is the folder above it: give the run folder, or where it will be")
    from analysis.live.page import ADDRESS, make_server  # imported here, so that --help does not load bokeh

    server = make_server(run, args.port)
    server.start()
    print(f"watching {run}: http://{ADDRESS}:{args.port}/ (Ctrl-C ends)", flush=True)
    if not run.is_dir():
        print(f"{run} is not there yet: the panels fill when its log begins", flush=True)
    try:
        server.io_loop.start()
    except KeyboardInterrupt:
        print("ended; the run goes on")
    finally:
        server.stop()
    return 0
