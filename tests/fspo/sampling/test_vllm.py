"""The vllm engine against a real vLLM server on the CPU: `make test-vllm`; without its environment they are skipped."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import tiny_run
import torch
from filelock import FileLock

from analysis.__main__ import main as analysis
from fspo.base.errors import UserError
from fspo.config import SamplingConfig
from fspo.gradlog import read_log
from fspo.sampling import vllm
from fspo.sampling.sample import Responses, sample
from fspo.tasks import Rewards
from fspo.train.checkpoint import list_checkpoints
from tests.fspo.sampling.test_sample import plain_logprobs
from tests.fspo.sampling.vllm_server import Running, missing, serve

real = pytest.mark.skipif(bool(missing()), reason=missing())
EOS = [1, 2]
PROMPTS = [[5, 6, 7]] * 8 + [[8, 9]] * 8 + [[3, 4, 5, 6, 7, 8, 9, 10, 11]] * 24
STALE = ("--batch.staleness", "1")
TOLERANCE = 2e-5
"""Nats, of a token's log-prob: both sides compute in float32; ours differ from each other by as much."""


def net(seed: int = 0) -> Any:
    """A small Qwen3 whose heads have the least size that vLLM's CPU kernels know; its responses vary."""
    return tiny_run.model(seed, head_dim=32)


def draw(
    model: Any, server: Running, folder: Path, temperature: float = 1.0, steps: int = 24, top_p: float = 1.0
) -> Responses:
    config = SamplingConfig(
        temperature, steps, "vllm", top_p=top_p, vllm_url=server.url, vllm_weights=str(folder), vllm_timeout=120
    )
    keys = np.arange(len(PROMPTS))
    return sample(model, PROMPTS, keys, seed=1, rollout=0, config=config, eos_token_id=EOS, pad_token_id=0)


def errors(model: Any, found: Responses, temperature: float) -> np.ndarray:
    """Differences of the server's log-probs from ours, of all tokens."""
    rows = zip(PROMPTS, found.tokens, found.logprobs, strict=True)
    return np.concatenate([b - plain_logprobs(model, p, t, temperature).numpy() for p, t, b in rows])


def moved(model: Any, by: float = 0.05) -> None:
    """Change every weight in place, as an optimizer does."""
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(by * torch.randn(p.shape, generator=generator))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("served") / "weights"
    vllm.write_weights(net(), folder)
    return folder


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[Running]:
    with serve(folder) as running:
        yield running


@real
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_tokens_are_valid_and_log_probs_are_those_of_the_sampling_law(
    server: Running, folder: Path, temperature: float
) -> None:
    model = net()
    found = draw(model, server, folder, temperature)
    assert found.truncated.any()
    assert not found.truncated.all()
    for tokens, truncated in zip(found.tokens, found.truncated, strict=True):
        assert 1 <= len(tokens) <= 24
        assert tokens.min() >= 0
        assert tokens.max() < 24
        assert not np.isin(tokens[:-1], EOS).any()
        assert truncated == (tokens[-1] not in EOS)
        assert not truncated or len(tokens) == 24
    assert np.abs(errors(model, found, temperature)).max() < TOLERANCE
    wrong = errors(model, found, 1.7 - temperature)  # control: the other temperature's log-probs
    assert np.abs(wrong).max() > 1000 * TOLERANCE
    # the responses to one prompt differ from each other
    for first, last in ((0, 8), (8, 16), (16, 40)):
        assert len({tuple(row.tolist()) for row in found.tokens[first:last]}) > (last - first) // 2


@real
def test_weights_sent_after_an_update_are_those_that_sample(
    server: Running, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, before = net(), net()
    draw(model, server, folder)
    moved(model)
    with monkeypatch.context() as patch:  # control: nothing is sent, so the old weights sample
        patch.setattr(vllm.Server, "send", lambda *_: None)
        found = draw(model, server, folder)
    assert np.abs(errors(model, found, 1.0)).max() > 0.1
    assert np.abs(errors(before, found, 1.0)).max() < TOLERANCE
    found = draw(model, server, folder)
    assert np.abs(errors(model, found, 1.0)).max() < TOLERANCE
    assert np.abs(errors(before, found, 1.0)).max() > 0.1


@real
def test_a_server_that_does_not_serve_the_folder_is_refused(server: Running, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"does not serve .*other, to which the weights are written: start it with `"):
        draw(net(), server, tmp_path / "other")


@real
def test_raw_log_probs_are_refused(tmp_path: Path) -> None:
    folder = tmp_path / "weights"
    vllm.write_weights(net(), folder)
    refused = pytest.raises(UserError, match=r"log-probs of another distribution .*--logprobs-mode processed_logprobs")
    with serve(folder, logprobs="raw_logprobs") as running, refused:
        draw(net(), running, folder)


@real
def test_a_server_that_hangs_is_one_line(server: Running, folder: Path) -> None:
    model = net()
    draw(model, server, folder)
    os.killpg(server.process.pid, signal.SIGSTOP)
    try:
        config = SamplingConfig(1.0, 8, "vllm", vllm_url=server.url, vllm_weights=str(folder), vllm_timeout=1.0)
        with pytest.raises(UserError, match=r"no vLLM server answers at .*timed out"):
            sample(model, PROMPTS, np.arange(40), seed=1, rollout=0, config=config, eos_token_id=EOS, pad_token_id=0)
    finally:
        os.killpg(server.process.pid, signal.SIGCONT)


class Alternating(tiny_run.Digits):
    """A task whose rewards are 0 and 1 in turn, so that each rollout moves the weights, whatever the server samples."""

    def score(self, examples: Any, responses: Any, finished: Any) -> Rewards:
        return Rewards(np.arange(len(responses)) % 2.0, ["ok"] * len(responses))


def train(output: Path, server: Running, folder: Path, *more: str) -> subprocess.Popen[str]:
    """The tiny run in a process of its own."""
    arguments = ["--sampling.engine", "vllm", "--sampling.vllm_url", server.url, "--sampling.vllm_weights", str(folder)]
    script = (
        "import sys, tiny_run; from fspo.base.errors import run_cli; from tests.fspo.sampling.test_vllm import *; "
        "run_cli(lambda: tiny_run.trainer(sys.argv[1], *sys.argv[2:], net=net(), task=Alternating()).train() and None)"
    )
    here = [str(Path(__file__).parents[1]), str(Path(__file__).parents[3])]
    return subprocess.Popen(
        [sys.executable, "-c", script, str(output), *arguments, *("--checkpoint_every", "1"), *STALE, *more],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(here)},
    )


@real
def test_a_killed_server_is_one_line_and_the_run_goes_on_with_a_new_one(
    server: Running, folder: Path, tmp_path: Path
) -> None:
    """The last test of the server that they share."""
    run = tmp_path / "run"
    vllm._locks.pop(folder).release()
    child = train(run, server, folder, "--rollouts", "100000")
    until = time.monotonic() + 400
    while len(list_checkpoints(run)) < 2 and child.poll() is None and time.monotonic() < until:
        time.sleep(0.05)
    server.kill()
    _, err = child.communicate(timeout=400)
    assert child.returncode == 2, err
    errors_told = [line for line in err.splitlines() if line.startswith("error:")]
    assert len(errors_told) == 1
    assert "Traceback" not in err
    assert f"no vLLM server answers at {server.url}" in errors_told[0]
    assert "--resume true (the last checkpoint is kept)" in errors_told[0]
    kept = list_checkpoints(run)[-1]
    done = int(kept.name.removeprefix("step-")) // 4  # updates of a rollout
    assert done >= 2
    weights = (kept / "model.safetensors").read_bytes()

    with serve(folder) as second:  # on another port
        child = train(run, second, folder, "--rollouts", str(done + 2), "--resume", "true", "--keep_checkpoints", "9")
        _, err = child.communicate(timeout=400)
    assert child.returncode == 0, err
    assert (kept / "model.safetensors").read_bytes() == weights
    lines = tiny_run.metrics(run, "train")
    assert [line["rollout"] for line in lines] == list(range(done + 2))
    rows = read_log(run).table.to_pandas()
    assert sorted(set(rows.rollout)) == list(range(done + 2))
    assert analysis([str(run), "--on", "engine", "--draws", "2"]) == 0  # which lengths a correction would cut
    table = pd.read_csv(run / "analysis-on-engine" / "acceptance.csv")
    assert {"mis", "geo-mask", "engine-sqrt"} <= set(table["rule"])
    assert table["bin"].max() > 0
    mismatch = rows.engine_log_ratio[rows.times_used == 0]
    assert np.abs(mismatch).max() < 24 * TOLERANCE  # the weights that sampled are those that train, in every rollout
    assert (mismatch != 0).any()
    assert rows[rows.rollout == 2].staleness_log_ratio.abs().max() > 0.01  # other weights than those that train


# -- without a server -----------------------------------------------------------------------------------------------


def test_no_server_is_one_line_that_says_how_to_start_it(tmp_path: Path) -> None:
    folder = tmp_path / "weights"
    nobody = f"http://127.0.0.1:{tiny_run.free_ports(1)[0]}"
    config = SamplingConfig(engine="vllm", max_new_tokens=8, vllm_url=nobody, vllm_weights=str(folder))
    with pytest.raises(UserError) as caught:
        sample(net(), PROMPTS, np.arange(40), seed=1, rollout=0, config=config, eos_token_id=1, pad_token_id=0)
    text = str(caught.value)
    assert text.startswith(f"no vLLM server answers at {nobody} (")
    assert (
        f"`VLLM_SERVER_DEV_MODE=1 python -m vllm.entrypoints.openai.api_server --model {folder} --dtype bfloat16 "
        "--logprobs-mode processed_logprobs --skip-tokenizer-init --host 127.0.0.1 "
        f"--port {nobody.rsplit(':')[-1]}`"
    ) in text
    assert "\n" not in text
    from transformers import AutoModelForCausalLM

    written = AutoModelForCausalLM.from_pretrained(folder)  # so that the command finds the model
    for mine, other in zip(net().parameters(), written.parameters(), strict=True):
        assert torch.equal(mine, other)


def test_a_folder_with_a_model_of_somebody_is_left_alone(tmp_path: Path) -> None:
    net(seed=1).save_pretrained(tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(UserError, match=r"holds files that this program did not write: .*sampling\.vllm_weights"):
        vllm.write_weights(net(), tmp_path)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_two_runs_cannot_share_a_folder(tmp_path: Path) -> None:
    folder = tmp_path / "weights"
    folder.mkdir()
    (folder / vllm.MARK).touch()
    refused = pytest.raises(UserError, match=r"another run sends its weights through .*weights: give each run")
    with FileLock(folder / ".lock"), refused:
        vllm.write_weights(net(), folder)
    assert not (folder / "model.safetensors").exists()


def test_files_of_an_earlier_model_are_not_left_to_be_loaded(tmp_path: Path) -> None:
    """A model that was saved in several files, then in one: a server loads every file that it finds."""
    folder = tmp_path / "weights"
    vllm.write_weights(net(), folder)
    (folder / "model-00001-of-00002.safetensors").write_bytes(b"old")
    (folder / "model.safetensors.index.json").write_text("{}")
    vllm.write_weights(net(seed=1), folder)
    names = {path.name for path in folder.iterdir()}
    assert "model.safetensors" in names
    assert not {name for name in names if name.startswith(("model-", "model.safetensors.", ".part"))}


def test_several_processes_and_adapters_are_refused() -> None:
    for processes, lora in ((2, False), (1, True)):
        with pytest.raises(UserError, match="one training process without LoRA"):
            vllm.check_alone(processes, lora)
    vllm.check_alone(1, False)


def test_an_address_that_is_none_is_refused() -> None:
    for url in ("localhost:8000", "http://localhost:eight"):
        with pytest.raises(UserError, match=r"sampling\.vllm_url is '.*': write http://HOST:PORT"):
            SamplingConfig(vllm_url=url)
