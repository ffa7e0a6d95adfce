"""Start and stop a vLLM server on the CPU, in its own Python environment (`make .vllm/ready`), for tests and
the study of the mismatch."""

from __future__ import annotations

import os
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from fspo.base.errors import UserError

PYTHON = Path(os.environ.get("VLLM_ENV") or Path(__file__).resolve().parents[3] / ".vllm") / "bin" / "python"
"""Python of vLLM's environment: that of the variable VLLM_ENV, or the one that `make .vllm/ready` makes."""
STARTS_WITHIN = 400.0
"""Seconds within which a server must answer. The embedded model's server takes about 20 on an idle core."""


@dataclass
class Running:
    """A vLLM server that answers requests.

    Attributes
    ----------
    url : str
        Address to which requests are sent.
    process : subprocess.Popen
        The server's process.
    """

    url: str
    process: subprocess.Popen[bytes]

    def kill(self) -> None:
        """Kill the server and the engine's process, which the server started."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, 9)
            self.process.wait()


def missing() -> str:
    """Say why no vLLM server can be started; return "" if one can."""
    return "" if (PYTHON.parent.parent / "ready").exists() else f"no vLLM in {PYTHON.parent.parent}: make test-vllm"


@contextmanager
def serve(folder: Path, *, dtype: str = "float32", logprobs: str = "processed_logprobs") -> Iterator[Running]:
    """Serve a model folder on a free port of this machine while a ``with`` block runs; its output goes to FOLDER.log.

    Raises
    ------
    UserError
        If vLLM is not installed, or the server ends or does not answer within `STARTS_WITHIN` seconds.
    """
    if why := missing():
        raise UserError(why)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [str(PYTHON), "-m", "vllm.entrypoints.openai.api_server", "--model", str(folder)]
    command += ["--dtype", dtype, "--logprobs-mode", logprobs, "--host", "127.0.0.1", "--port", str(port)]
    command += ["--enforce-eager", "--skip-tokenizer-init"]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment |= {"VLLM_SERVER_DEV_MODE": "1", "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
    log = folder.with_name(f"{folder.name}.log")
    with log.open("wb") as file:
        # The server gets its own session, so that the engine's process can be killed together with the server.
        process = subprocess.Popen(
            command, stdout=file, stderr=file, env=environment, cwd=folder, start_new_session=True
        )
    running = Running(f"http://127.0.0.1:{port}", process)
    try:
        _wait(running, log)
        yield running
    finally:
        running.kill()


def _wait(running: Running, log: Path) -> None:
    until = time.monotonic() + STARTS_WITHIN
    while time.monotonic() < until and running.process.poll() is None:
        try:
            with urllib.request.urlopen(f"{running.url}/health", timeout=5):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.5)
    raise UserError(f"the vLLM server did not start: see {log}")
