"""The ``vllm`` engine of `fspo.sampling.sample.sample`: responses are sampled by a vLLM server over HTTP.

The server runs in another process with another Python environment. The trainer writes the weights to a folder that the
server can read, and then tells the server to load them again. This works without a GPU too. A server on another machine
needs the folder under the same path on a shared file system.

vLLM draws its own random numbers. So its responses differ from those of the other engines, and a resumed run draws
other responses in the rollouts that it repeats. How far its log-probs are from the trainer's is logged as
``engine_log_ratio``. Training uses its log-probs only in a correction."""

from __future__ import annotations

import http.client
import json
import os
import shlex
import shutil
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
from accelerate import PartialState
from filelock import FileLock, Timeout
from safetensors import SafetensorError
from transformers import PreTrainedModel
from transformers.utils.logging import disable_progress_bar

from fspo.base.errors import UserError
from fspo.base.files import writing
from fspo.config import SamplingConfig

MARK = "written-by-fspo"
"""Name of a file by which the trainer marks the folder of weights as written by itself.

A folder with files but without this file may hold another person's model, so the trainer writes nothing to it."""
REQUEST_PROMPTS = 32
"""Number of prompts in one request to the server; all requests of a rollout are sent at once."""

_locks: dict[Path, FileLock] = {}
"""Folder of weights -> the lock that keeps other processes from writing there while this process runs."""


@dataclass(frozen=True)
class Server:
    """A running vLLM server and the folder of weights that it serves.

    Attributes
    ----------
    url : str
        Address of the server.
    folder : Path
        Absolute path of the model folder that the server serves.
    timeout : float
        Seconds that one request may take.
    """

    url: str
    folder: Path
    timeout: float

    def command(self) -> str:
        """Return the shell command that starts the vLLM server, for the user to run."""
        address = urlsplit(self.url)
        return (
            "VLLM_SERVER_DEV_MODE=1 python -m vllm.entrypoints.openai.api_server "
            f"--model {shlex.quote(str(self.folder))} --dtype bfloat16 --logprobs-mode processed_logprobs "
            f"--skip-tokenizer-init --host {address.hostname} --port {address.port or 80}"
        )

    def ask(self, path: str, body: dict[str, Any] | None = None) -> Any:
        """Send a request to the address ``path`` of the server and return the JSON of the reply: POST if there is a
        ``body``, else GET.

        Raises UserError if the server does not answer in time, or answers with an error."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url.rstrip("/") + path, data, {"Content-Type": "application/json"})
        # The user runs the server, so ask it directly even if the environment names a proxy.
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        again = (
            f"start it with `{self.command()}` and give the same command again, in training with --resume true (the "
            "last checkpoint is kept)"
        )
        try:
            with opener.open(request, timeout=self.timeout) as reply:
                return json.loads(reply.read() or b"null")
        except urllib.error.HTTPError as error:
            text = " ".join(error.read().decode(errors="replace").split())[:300]
            raise UserError(f"the vLLM server at {self.url} refused {path} ({error.code} {text}): {again}") from error
        except (OSError, http.client.HTTPException, ValueError) as error:
            why = " ".join(str(getattr(error, "reason", None) or error).split()) or type(error).__name__
            raise UserError(f"no vLLM server answers at {self.url} ({why}): {again}") from error

    def model(self) -> str:
        """Return the name under which the vLLM server serves the model in ``folder``.

        Raises UserError if the server serves another model."""
        reply = self.ask("/v1/models")
        for served in reply.get("data", []) if isinstance(reply, dict) else []:
            if (root := served.get("root")) and Path(root).resolve() == self.folder:
                return served["id"]
        raise UserError(
            f"the vLLM server at {self.url} does not serve {self.folder}, to which the weights are written: start it "
            f"with `{self.command()}`"
        )

    def send(self, model: PreTrainedModel, end: int) -> str:
        """Write the model's weights, have the server load them, and return the name under which it serves the model.

        As a test the server then samples one token where only the end token ``end`` is allowed. Its log-prob must be 0,
        as it is if the server reports log-probs of the distribution that it samples from. Raises UserError if it is
        not, or if the server fails."""
        write_weights(model, self.folder)
        name = self.model()
        self.ask("/collective_rpc", {"method": "reload_weights"})
        self.ask("/reset_prefix_cache", {})
        only = {"temperature": 1.0, "max_tokens": 1, "allowed_token_ids": [end]}
        if abs(self.complete(name, [[end]], only)[0][1][0]) > 1e-6:
            raise UserError(
                f"the vLLM server at {self.url} gives log-probs of another distribution than it samples: start it with "
                f"`{self.command()}`"
            )
        return name

    def complete(self, name: str, prompts: list[list[int]], options: dict[str, Any]) -> list[tuple[list, list]]:
        """Sample one response to each prompt (token ids) with the model that the server calls ``name``; return each
        response's tokens and log-probs (nats), in the order of the prompts. ``options`` are added to the request.

        Raises UserError if a response, a token or a log-prob is missing."""
        body = {"model": name, "prompt": prompts, "logprobs": 0, "return_token_ids": True}
        # The server has no tokenizer, so it must return token ids and no text.
        body |= {"return_tokens_as_token_ids": True, "detokenize": False}
        # vLLM takes options that a request leaves out from the model's generation configuration, so name them all here.
        body |= {"top_p": 1.0, "top_k": 0, "min_p": 0.0, "repetition_penalty": 1.0}
        reply = self.ask("/v1/completions", body | options)
        found: list[tuple[list, list]] = [([], [])] * len(prompts)
        try:
            for choice in reply["choices"]:
                found[choice["index"]] = choice["token_ids"], choice["logprobs"]["token_logprobs"]
        except (KeyError, TypeError, IndexError) as error:
            raise UserError(f"the server at {self.url} answers in another form than vLLM 0.32: install that") from error
        if not all(tokens and len(tokens) == len(logprobs) and None not in logprobs for tokens, logprobs in found):
            raise UserError(f"the vLLM server at {self.url} left out tokens or log-probs: start it again")
        return found


def run_vllm(
    model: PreTrainedModel, prompts: list[list[int]], server: Server, config: SamplingConfig, eos: list[int]
) -> Iterator[tuple[np.ndarray, np.ndarray, bool]]:
    """Send the model's weights to the server, then sample a response, which a token in ``eos`` ends, to each prompt.

    Yields for each response its tokens int64 (L,), their log-probs float32 (L,), nats, under the distribution that
    drew them (0 if greedy), and whether the token limit ended it. Raises UserError if the server is silent or fails."""
    check_alone(PartialState().num_processes, hasattr(model, "peft_config"))
    name = server.send(model, eos[0])
    # Give no seed: it would apply to a request, so equal prompts in the request would get equal responses.
    options = {"temperature": config.temperature, "top_p": config.top_p, "max_tokens": config.max_new_tokens}
    options |= {"ignore_eos": True, "stop_token_ids": eos}
    parts = [prompts[first : first + REQUEST_PROMPTS] for first in range(0, len(prompts), REQUEST_PROMPTS)]

    def ask(part: list[list[int]]) -> list[tuple[list, list]]:
        return server.complete(name, part, options)

    with ThreadPoolExecutor(len(parts)) as pool:
        for rows in pool.map(ask, parts):
            for tokens, logprobs in rows:
                values = np.array(logprobs, np.float32) * (config.temperature > 0)
                yield np.array(tokens, np.int64), values, tokens[-1] not in eos


def check_alone(processes: int, lora: bool) -> None:
    """Raise UserError if several processes train or if LoRA is used; the vllm engine supports neither."""
    if processes > 1 or lora:
        raise UserError("the vllm engine serves one training process without LoRA: set the sampling engine to 'auto'")


def write_weights(model: PreTrainedModel, folder: Path) -> None:
    """Write the model to the folder that a server serves.

    Each file is written to a subfolder first and then moved into place, so the server never reads a partial file.

    Raises UserError if the folder holds files that this program did not write, if another process writes to it, or if
    it cannot be written."""
    if folder.is_dir() and any(folder.iterdir()) and not (folder / MARK).exists():
        raise UserError(
            f"{folder} holds files that this program did not write: name a new or empty "
            "folder with sampling.vllm_weights"
        )
    part = folder / ".part"
    with writing(folder, SafetensorError):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / MARK).touch()
        _claim(folder)
        shutil.rmtree(part, ignore_errors=True)
        disable_progress_bar()  # transformers' bar of saved files would stand in the trainer's own
        model.save_pretrained(part)
        new = {path.name for path in part.iterdir()}
        for old in folder.glob("model*.safetensors*"):
            if old.name not in new:
                old.unlink()
        for name in new:
            os.replace(part / name, folder / name)
        part.rmdir()


def _claim(folder: Path) -> None:
    """Lock the folder until this process ends; raise UserError if another process has locked it to write to it."""
    if folder in _locks:
        return
    lock = FileLock(folder / ".lock")
    try:
        lock.acquire(blocking=False)
    except Timeout as error:
        raise UserError(
            f"another run sends its weights through {folder}: give each run a vLLM server (sampling.vllm_url) and a "
            "folder (sampling.vllm_weights) of its own"
        ) from error
    _locks[folder] = lock
