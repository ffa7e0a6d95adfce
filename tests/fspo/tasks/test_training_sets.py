"""Known training sets and benchmarks: real small files in the layouts of the originals."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fspo.base.errors import UserError
from fspo.tasks import make_task
from fspo.tasks.known_sets import BENCHMARKS, BOXED, TRAINING_SETS, known_options


def dapo(number: int, answer: str = "34") -> dict[str, Any]:
    said = f"Solve problem {number}.\n\nRemember to put your answer on its own line."
    truth = {"ground_truth": answer, "style": "rule-lighteval/MATH_v2"}
    return {"prompt": [{"content": said, "role": "user"}], "reward_model": truth, "ability": "MATH"}


DEEPSCALER = {"problem": "What is $\\frac{1}{4}+\\frac{1}{4}$?", "answer": "\\frac{1}{2}", "solution": "Add them."}
GSM8K = {"question": "Natalia sold 48 clips.", "answer": "She sold 48/2 = <<48/2=24>>24 clips.\n#### 1,072"}
AIME25 = {"problem": "Find the sum of all bases.", "answer": 70, "id": 0}
CAPITALS = {"ID": "2024-II-4", "Problem": "Let x, y, z be positive.", "Solution": "33", "Answer": 33}


def write(path: Path, rows: list[Any]) -> str:
    pq.write_table(pa.Table.from_pylist(rows), path)
    return str(path)


@pytest.mark.parametrize(
    ("row", "answer"),
    [
        (dapo(1), "34"),
        (DEEPSCALER, "\\frac{1}{2}"),
        (AIME25, "70"),
        (CAPITALS, "33"),
        ({"prompt": "1+1", "answer": "2", "question": "not this"}, "2"),
        ({"prompt": "1+1", "solution": "2"}, "2"),
    ],
)
def test_columns_are_found_by_themselves(tmp_path: Path, row: dict[str, Any], answer: str) -> None:
    path = write(tmp_path / "rows.parquet", [row])
    example = make_task("dataset", {"path": path, "eval_share": 0.0}).example("train", 0)
    assert example.answer == answer
    said = next(row[name] for name in ("prompt", "question", "problem", "Problem") if name in row)
    assert example.prompt == said


def test_named_columns_win(tmp_path: Path) -> None:
    row = {"prompt": "p", "answer": "a", "problem": "q", "result": {"value": "r"}, "a.b": 1}
    path = write(tmp_path / "rows.parquet", [row])

    def found(**columns: str) -> tuple[object, str]:
        example = make_task("dataset", {"path": path, "eval_share": 0.0, **columns}).example("train", 0)
        return example.prompt, example.answer

    assert found() == ("p", "a")
    assert found(prompt_column="problem") == ("q", "a")
    assert found(answer_column="result.value") == ("p", "r")
    assert found(answer_column="a.b") == ("p", "1")
    for column in ("result.none", "prompt.x"):
        with pytest.raises(UserError, match=f"column '{column}' is missing"):
            found(answer_column=column)


def test_gsm8k_by_name(tmp_path: Path) -> None:
    task = make_task("gsm8k", {"path": write(tmp_path / "gsm.parquet", [GSM8K]), "eval_share": 0.0})
    example = task.example("train", 0)
    assert (example.prompt, example.answer) == (GSM8K["question"] + BOXED, "1,072")


def test_dapo_by_name_drops_its_repeats_and_judges_by_math(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    rows = [dapo(i) for i in range(10)] * 3 + [dapo(3, "35")]
    path = write(tmp_path / "dapo.parquet", rows)
    task: Any = make_task("dapo-math-17k", {"path": path, "eval_share": 0.2, "judge": {"workers": 1}})
    try:
        assert task.name == "dapo-math-17k"
        assert (task.size("train"), task.size("eval")) == (8, 2)
        assert "21 of 31 rows repeat a prompt and are left out (1 of them with another answer" in caplog.text
        rewards = task.score([task.example("train", 0)] * 2, ["Answer: 034", "Answer: 35"], [True] * 2)
        assert (rewards.values.tolist(), rewards.status) == ([1, 0], ["ok"] * 2)
    finally:
        task.close()


def test_every_known_set_is_a_legal_configuration() -> None:
    from fspo.tasks import build_config
    from fspo.tasks.dataset import DatasetConfig

    for known in (*TRAINING_SETS.values(), *BENCHMARKS.values()):
        assert build_config(DatasetConfig, known, "option").judge.verifier == "math"


def test_options_over_a_known_set() -> None:
    known = TRAINING_SETS["gsm8k"]
    merged = known_options(known, {"judge": {"workers": 7}, "suffix": ""})
    assert merged["judge"] == {"verifier": "math", "workers": 7}
    assert (merged["suffix"], merged["subset"], merged["eval_split"]) == ("", "main", "test")
    on_disk = known_options(known, {"path": "x.jsonl", "split": "mine"})
    assert ("subset" in on_disk, "eval_split" in on_disk, on_disk["split"]) == (False, False, "mine")
