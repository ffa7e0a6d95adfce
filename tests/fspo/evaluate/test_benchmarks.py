"""``fspo evaluate``: real tiny models on small files in the benchmarks' own formats."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from fspo.base.errors import UserError, run_cli
from fspo.evaluate import __main__ as evaluate
from fspo.evaluate.accuracy import pass_at_k
from fspo.models.load import LoraOptions, load_model, load_tokenizer
from fspo.tasks.verify import math_factory
from fspo.train import checkpoint
from tests.fspo.train.test_train_cli import saved_model

MATH500 = [
    {"problem": f"{i} + 1 =", "solution": "s", "answer": f"{i + 1}", "subject": "Algebra", "level": 1}
    for i in range(1, 8)
]
AIME = [{"id": i, "problem": f"{i} + {i} =", "answer": 2 * i} for i in range(1, 5)] + [
    {"id": 9, "problem": "1 " * 60, "answer": 33}  # too long
]
MEASURES = ["avg@4", "pass@2", "pass@4"]
SUMS, BOTH = "sums.jsonl", "sums.jsonl,doubles.parquet"
COMMON = ["--max_new_tokens", "12", "--max_prompt_tokens", "40", "--samples", "4"]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two models, one of them as a run folder exports it, and two benchmarks on disk."""
    folder = tmp_path_factory.mktemp("place")
    saved_model(folder / "base")
    saved_model(folder / "run" / "model")
    from safetensors.torch import load_file, save_file

    weights = folder / "run" / "model" / "model.safetensors"
    torch.manual_seed(1)
    save_file({k: v + 0.05 * torch.randn_like(v) for k, v in load_file(weights).items()}, weights, {"format": "pt"})
    (folder / "disk").mkdir()
    (folder / "disk" / "sums.jsonl").write_text("".join(json.dumps(row) + "\n" for row in MATH500))
    pq.write_table(pa.Table.from_pylist(AIME), folder / "disk" / "doubles.parquet")
    return folder


def run(place: Path, output: str, *more: str, models: tuple[str, ...] = ("base", "run"), which: str = SUMS) -> Path:
    names = ",".join(str(place / "disk" / name) for name in which.split(","))
    words = [*(str(place / m) for m in models), "--benchmarks", names]
    assert evaluate.main([*words, "--output", str(place / output), *COMMON, *more]) == 0
    return place / output


def lines(output: Path, benchmark: str, model: str = "base") -> list[dict[str, Any]]:
    path = next(p for p in output.glob(f"answers/*/{benchmark}.jsonl") if p.parent.name.endswith(model))
    return [json.loads(line) for line in path.read_text().splitlines()][1:]


@pytest.fixture(scope="module")
def whole(place: Path) -> Path:
    return run(place, "whole", which=BOTH)


def test_the_table_is_that_of_the_responses(whole: Path, place: Path) -> None:
    table = pd.read_csv(whole / "results.csv").set_index(["benchmark", "model", "measure"])
    judge = math_factory()
    for model in ("base", "run"):
        rows = lines(whole, "sums", model)
        assert [row["prompt"] for row in rows] == list(range(7))
        marks = np.array([[judge(text, MATH500[row["prompt"]]["answer"]) for text in row["responses"]] for row in rows])
        assert marks.tolist() == [row["rewards"] for row in rows]
        label = next(m for m in table.index.levels[1] if str(m).endswith(model))
        assert table.loc["sums", label, "avg@4"]["value"] == pytest.approx(marks.mean())
        for k in (2, 4):
            expected = pass_at_k(4, marks.sum(1), k).mean()
            assert table.loc["sums", label, f"pass@{k}"]["value"] == pytest.approx(expected)
        first = table.loc["sums", label, "avg@4"]
        lengths = np.array([row["lengths"] for row in rows])
        assert first["mean_length"] == pytest.approx(lengths.mean())
        assert first["truncated"] == pytest.approx(np.mean([row["truncated"] for row in rows]))
        assert 0 < first["truncated"] < 1
        assert lengths.max() == 12
        assert first["ci_lo"] <= first["value"] <= first["ci_hi"]


def test_prompts_too_long_count_as_wrong_and_are_counted(whole: Path) -> None:
    rows = lines(whole, "doubles")
    assert [row["too_long"] for row in rows] == [False] * 4 + [True]
    assert "responses" not in rows[4]
    table = pd.read_csv(whole / "results.csv")
    found = table[(table.benchmark == "doubles") & (table.measure == "avg@4")].iloc[0]
    assert (found.too_long, found.prompts) == (1, 5)
    assert found.value == pytest.approx(np.sum([row["rewards"] for row in rows[:4]]) / 20)


def test_nothing_missing_loads_no_model(
    place: Path, whole: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fspo.evaluate.run.load_model", None)
    run(place, "whole", which=BOTH)
    printed = [line.split()[:3] for line in capsys.readouterr().out.splitlines()]
    assert printed[0] == ["benchmark", "model", "measure"]
    assert [row[::2] for row in printed[1:]] == [[b, m] for b in ("sums", "doubles") for m in MEASURES * 2]


def test_killed_at_any_byte_it_goes_on_to_the_same_answers(place: Path, whole: Path) -> None:
    """Every whole line is kept and never answered again; the noise belongs to the prompt, so the rest is the same."""
    reference = next(p for p in whole.glob("answers/*/sums.jsonl") if p.parent.name.endswith("base"))
    text = reference.read_bytes()
    for cut in (len(text) // 3, text.rfind(b"\n", 0, -1) + 1):
        path = place / f"cut{cut}" / reference.relative_to(whole)
        path.parent.mkdir(parents=True)
        path.write_bytes(text[:cut])
        before = text[:cut].rfind(b"\n") + 1
        run(place, f"cut{cut}", "--batch_size", "8", models=("base",))
        assert path.read_bytes()[:before] == text[:before]
        assert lines(place / f"cut{cut}", "sums") == lines(whole, "sums")


def test_answers_of_other_settings_are_not_mixed(place: Path, whole: Path) -> None:
    with pytest.raises(UserError, match=r"made with temperature 1.0, not 0.5: choose another --output"):
        run(place, "whole", "--temperature", "0.5")
    path = place / "damaged" / next(whole.glob("answers/*base/sums.jsonl")).relative_to(whole)
    path.parent.mkdir(parents=True)
    path.write_text("{broken\n{}\n")
    with pytest.raises(UserError, match=r"is damaged .*: remove it"):
        run(place, "damaged", models=("base",))
    assert path.read_text() == "{broken\n{}\n"
    head = json.loads(next(whole.glob("answers/*base/sums.jsonl")).read_text().splitlines()[0])
    path.write_text(json.dumps(head | {"temperature": 0.5}) + "\n")  # of a start that failed before its first answer
    assert lines(run(place, "damaged", models=("base",)), "sums") == lines(whole, "sums")


def test_other_weights_are_another_model(place: Path) -> None:
    weights = saved_model(place / "mine") / "model.safetensors"
    run(place, "other", models=("mine",))
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    with pytest.raises(UserError, match="made with model"):
        run(place, "other", models=("mine",))


def test_neither_hub_nor_file(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("datasets.config.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    words = [str(place / "base"), "--benchmarks", "aime25"]
    with pytest.raises(SystemExit) as stopped:
        run_cli(lambda: evaluate.main([*words, "--output", str(tmp_path / "o")]))
    assert stopped.value.code == 2
    said = capsys.readouterr().err.strip().splitlines()
    assert said[-1].startswith("error: benchmark aime25: the hub cannot give it: save it as aime25.jsonl or")
    assert not (tmp_path / "o").exists()


def test_adapters_of_a_run_are_evaluated_on_their_model(tmp_path: Path) -> None:
    """A run folder whose ``model`` holds adapters alone; answered greedily, they give what the whole model gives."""
    base = saved_model(tmp_path / "base")
    net = load_model(str(base), lora=LoraOptions(rank=2))
    with torch.no_grad():
        for name, p in net.named_parameters():
            if "lora_B" in name:
                p.copy_(torch.randn(p.shape, generator=torch.Generator().manual_seed(1)))
    tokenizer = load_tokenizer(base)
    checkpoint.export(tmp_path / "adapters", net, tokenizer)
    assert not (tmp_path / "adapters" / "model" / "config.json").exists()
    net.merge_and_unload().save_pretrained(tmp_path / "merged")  # type: ignore[operator]
    tokenizer.save_pretrained(tmp_path / "merged")
    file = tmp_path / "mine.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in MATH500))
    names = ("base", "adapters", "merged")
    words = [*(str(tmp_path / name) for name in names), "--benchmarks", str(file), *COMMON, "--samples", "1"]
    assert evaluate.main([*words, "--temperature", "0", "--output", str(tmp_path / "out")]) == 0
    texts = {name: [row["responses"] for row in lines(tmp_path / "out", "mine", name)] for name in names}
    assert texts["adapters"] == texts["merged"] != texts["base"]
