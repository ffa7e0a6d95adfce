"""Every next command that a command prints runs on what is there, whatever was imported."""

import shlex

import numpy as np
import pytest

from fspo.__main__ import main
from tests.analysis.importing.made import write
from tests.analysis.importing.test_import_tokens import pairs


def responses(number=80):
    """A table of four rollouts, each with five prompts of four responses, without log-probabilities."""
    rng = np.random.default_rng(0)
    place = np.arange(number)
    return {
        "step": place // 20,
        "prompt_id": place // 4,
        "reward": rng.integers(0, 2, number).astype(float),
        "advantage": rng.normal(size=number),
    }


def tokens(*names, number=80):
    rng = np.random.default_rng(1)
    old, sampler = pairs(responses=number)
    lengths = rng.integers(5, 30, number)
    found = {"old": old, "sampler": sampler, "new": np.minimum(old + 0.02 * rng.normal(size=old.shape), 0)}
    cut = {name: [row[:n].tolist() for row, n in zip(found[name], lengths, strict=True)] for name in names}
    return {f"{name}_logprobs": rows for name, rows in cut.items()}


def sums(*names, number=80):
    lists = tokens(*names, number=number)
    lengths = {"length": [len(row) for row in next(iter(lists.values()))]}
    return lengths | {name: [sum(row) for row in rows] for name, rows in lists.items()}


UPDATES = {"updates_since_rollout": np.ones(80, int)}
VERSIONS = {"policy_version": np.arange(80) // 20, "behaviour_version": np.arange(80) // 20}
OLDER = VERSIONS | {"behaviour_version": np.arange(80) // 20 - (np.arange(80) % 4 > 0)}
METRICS = {"step": np.arange(20), "train/reward": np.linspace(0, 1, 20), "grad_norm": np.full(20, 0.5)}
ENGINE, BEHAVIOUR = (f"doctor, analyse --on {on}, figures --on {on}" for on in ("engine", "behaviour"))
INPUTS = {
    "tokens of three": (
        responses() | UPDATES | tokens("new", "old", "sampler"),
        "doctor, analyse, analyse --on behaviour, report, figures --on behaviour, sweep",
    ),
    "tokens without S": (responses() | tokens("old", "sampler"), BEHAVIOUR),
    "sums with versions": (responses() | sums("old", "sampler") | VERSIONS, ENGINE),
    "sums, E known in a quarter": (responses() | sums("old", "sampler") | OLDER, BEHAVIOUR),
    "S alone": (responses() | UPDATES | sums("new", "old"), "doctor, analyse, report, sweep"),
    "no length": ({k: v for k, v in (responses() | sums("new", "old")).items() if k != "length"}, "doctor"),
    "no log-probs": (responses() | {"length": np.arange(80) + 1}, "doctor"),
    "one column of log-probs": (responses() | sums("old"), "doctor"),
    "no advantages": (
        {k: v for k, v in (responses() | tokens("old", "sampler")).items() if k not in ("reward", "advantage")},
        BEHAVIOUR,
    ),
    "S is 0": (responses() | {"length": np.arange(80) + 1, "log_ratio": np.zeros(80)}, "doctor"),
    "S is 0 in epochs": (
        responses() | {"length": np.arange(80) + 1, "log_ratio": np.zeros(80), "times_used": np.arange(80) % 2},
        "doctor, analyse, report, sweep",
    ),
    "scalars": (METRICS, "doctor"),
}


@pytest.mark.usefixtures("no_pixels")
@pytest.mark.parametrize("name", INPUTS)
def test_the_next_commands_run(name, tmp_path, monkeypatch, capsys):
    table, expected = INPUTS[name]
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "made.jsonl", table)
    waiting, done = ["fspo import made.jsonl --output run"], []
    for command in waiting:
        words = shlex.split(command)
        assert main(words[1:]) in (0, 1), command
        done.append(" ".join(word for word in words[1:] if word != "run"))
        said = capsys.readouterr()
        lines = (said.out + said.err).splitlines()
        found = [line.removeprefix("next: ") for line in lines if line.startswith("next: ")]
        waiting += [line for line in found if line not in waiting]
    assert done[1:] == expected.split(", ")
