"""A killed run goes on to bit-identical weights, metrics and gradient log; an existing run is never overwritten."""

import shutil
from pathlib import Path

import pytest
import tiny_run

from fspo.base.errors import UserError
from fspo.gradlog import read_log
from fspo.gradlog.metrics_file import MetricsFile
from fspo.train.checkpoint import list_checkpoints
from fspo.train.folder_owner import mark

# A lagged drift, a range that learns, a correction, prompts that are passed over: more state to get wrong.
ARGUMENTS = [
    *("--rollouts", "5", "--checkpoint_every", "2", "--keep_checkpoints", "1", "--eval.every", "2"),
    *("--rule.preset", "fspo-kl", "--rule.drift_source", "lagged", "--rule.adapt", "range", "--rule.target", "0.8"),
    *("--correction.preset", "engine-sqrt", "--task.max_prompt_tokens", "6", "--batch.drop", "[truncated]"),
]


def same(run: Path, other: Path) -> None:
    assert tiny_run.metrics(run) == tiny_run.metrics(other)
    assert read_log(run, phases=None).table.equals(read_log(other, phases=None).table)
    assert [p.name for p in list_checkpoints(run)] == [p.name for p in list_checkpoints(other)]
    for name in ("model.safetensors", "optimizer.safetensors", "state.json"):
        assert (list_checkpoints(run)[-1] / name).read_bytes() == (list_checkpoints(other)[-1] / name).read_bytes()
    assert (run / "model" / "model.safetensors").read_bytes() == (other / "model" / "model.safetensors").read_bytes()
    assert not list(run.rglob("*.part*"))
    assert not list(run.rglob(".part*"))


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("whole") / "run"
    assert tiny_run.in_child(run, *ARGUMENTS) == [0], tiny_run.child_log(run)
    lines = tiny_run.metrics(run, "train")
    assert all(line["prompts/too_long"] > 0 < line["dropped/truncated"] for line in lines)
    assert tiny_run.child_log(run).count("prompts exceed task.max_prompt_tokens=6: passed over") == 1  # not each time
    return run


@pytest.mark.parametrize(
    ("point", "count"),
    [
        ("update", 3),  # before the first checkpoint
        ("log", 4),
        ("metrics", 6),
        ("checkpoint", 2),  # the first checkpoint's moments
        ("before-rename", 2),
        ("remove", 1),
    ],
)
def test_killed_run_resumes_bit_by_bit(whole: Path, tmp_path: Path, point: str, count: int) -> None:
    run = tmp_path / "run"
    assert tiny_run.in_child(run, *ARGUMENTS, kill=(point, count)) == [-9], tiny_run.child_log(run)
    assert not (run / "model").exists()
    assert tiny_run.in_child(run, *ARGUMENTS, "--resume", "true") == [0], tiny_run.child_log(run)
    same(run, whole)


def test_a_finished_run_is_made_longer(whole: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    assert tiny_run.in_child(run, *ARGUMENTS, "--rollouts", "2", "--eval.every", "2") == [0], tiny_run.child_log(run)
    first = (run / "model" / "model.safetensors").read_bytes()
    assert tiny_run.in_child(run, *ARGUMENTS, "--resume", "true") == [0], tiny_run.child_log(run)
    assert (run / "model" / "model.safetensors").read_bytes() != first  # a longer run saves its model anew
    same(run, whole)


def test_finished_run_resumes_to_nothing(whole: Path) -> None:
    before = {p: p.read_bytes() for p in whole.rglob("*") if p.is_file()}
    assert tiny_run.in_child(whole, *ARGUMENTS, "--resume", "true") == [0], tiny_run.child_log(whole)
    after = {p: p.read_bytes() for p in whole.rglob("*") if p.is_file()}
    changed = {p.name for p in before.keys() | after.keys() if before.get(p) != after.get(p)}
    assert changed <= {"config.yaml", "run.json"}  # they say resume: true, and the process that writes


@pytest.mark.parametrize("trace", ["metrics.jsonl", "gradlog/rollout-00000000-rank-0000.parquet", "config.yaml"])
def test_existing_run_is_refused_and_kept(tmp_path: Path, trace: str) -> None:
    path = tmp_path / "run" / trace
    path.parent.mkdir(parents=True)
    mark(tmp_path / "run")
    path.write_text("[precious")
    with pytest.raises(UserError, match=r"holds a run already.*--resume true.*--output"):
        tiny_run.trainer(tmp_path / "run")
    cause = "no valid YAML" if path.suffix == ".yaml" else rf"holds {path.name} but no config\.yaml"
    with pytest.raises(UserError, match=cause):
        tiny_run.trainer(tmp_path / "run", "--resume", "true")
    assert path.read_text() == "[precious"


def test_resume_under_other_settings_is_refused(tmp_path: Path) -> None:
    tiny_run.trainer(tmp_path / "run")
    with pytest.raises(UserError, match=r"rule\.preset=fspo, not rloo.*--config"):
        tiny_run.trainer(tmp_path / "run", "--resume", "true", "--rule.preset", "rloo")


def test_a_start_that_fails_leaves_the_folder_free(tmp_path: Path) -> None:
    run = tmp_path / "run"
    with pytest.raises(UserError):
        tiny_run.trainer(run, net=tiny_run.model(vocabulary=10))
    tiny_run.trainer(run)  # no complaint about a run that never started


TORN = ["metrics.jsonl", "gradlog/rollout-00000002-rank-0000.parquet"]


@pytest.mark.parametrize("name", TORN)
def test_what_is_torn_stays_out_and_is_made_again_without_its_checkpoint(
    tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--checkpoint_every", "1", "--keep_checkpoints", "9"]
    run, whole = tmp_path / "run", tmp_path / "whole"
    tiny_run.trainer(whole, *options, "--rollouts", "5").train()
    tiny_run.trainer(run, *options, "--rollouts", "3").train()
    file = run / name
    file.write_bytes(file.read_bytes()[:-20])
    for rollouts in ("3", "4", "5"):
        before = {p: p.read_bytes() for p in run.glob("gradlog/*")}
        capsys.readouterr()
        tiny_run.trainer(run, *options, "--rollouts", rollouts, "--resume", "true").train()
        said = capsys.readouterr().err
        assert f"warning: {file.name}" in said
        assert "it stays out, unless you remove the checkpoints after it" in said
        assert before.items() <= {p: p.read_bytes() for p in run.glob("gradlog/*")}.items()
    numbers = [row["rollout"] for row in MetricsFile(run).of_phase("train")]
    assert numbers == ([0, 1, 3, 4] if name == "metrics.jsonl" else [0, 1, 2, 3, 4])
    saved = (run / "config.yaml").read_text()
    with pytest.raises(UserError, match="has 5 rollouts already"):
        tiny_run.trainer(run, "--rollouts", "2", "--resume", "true")
    assert (run / "config.yaml").read_text() == saved
    for after in list_checkpoints(run)[2:]:
        shutil.rmtree(after)
    tiny_run.trainer(run, *options, "--rollouts", "5", "--resume", "true").train()
    assert "stays out" not in capsys.readouterr().err
    same(run, whole)
