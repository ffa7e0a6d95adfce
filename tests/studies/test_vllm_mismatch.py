"""docs/mismatch.md against its numbers, and the numbers against laws that are known."""

from __future__ import annotations

import json

import numpy as np
import pytest

from studies import vllm_mismatch as study


def test_the_page_says_what_the_numbers_say() -> None:
    results = json.loads(study.RESULTS.read_text(encoding="utf-8"))
    page = study.PAGE.read_text(encoding="utf-8")
    assert study.section(results).rstrip() in page
    results["bfloat16"]["exponent"][0] += 0.01
    assert study.section(results).rstrip() not in page


@pytest.mark.parametrize("H", [0.5, 1.0])
def test_a_known_law_is_found(H: float) -> None:
    rng = np.random.default_rng(3)
    length = rng.integers(1, 265, 6000).astype(float)
    E = -0.001 * length + 0.01 * length**H * rng.standard_normal(len(length))
    found = study.measured(study.Mismatch(E, length, np.arange(6000) // 3000, np.arange(6000) // 4))
    assert [row["responses"] for row in found["rows"][:-1]] == np.histogram(length, study.EDGES)[0].tolist()
    value, low, high = found["exponent"]
    assert low < H < high
    assert high - low < 0.1
    for row in found["rows"][1:-1]:
        assert row["mean"][1] < -0.001 * row["length"] < row["mean"][2]
        assert row["sd"][0] == pytest.approx(0.01 * row["length"] ** H, rel=0.12)
    assert value == pytest.approx(H, abs=0.05)


def test_tokens_are_counted_where_they_stand() -> None:
    """Responses of 20 tokens whose first 15 have squares of 4 and the others of 9."""
    squares = [[60.0, 45.0, 0.0, 0.0, 0.0, 0.0]] * 12
    total = [1.0, -1.0] * 6
    prompts = [i // 2 for i in range(12)]
    found = study.measured_tokens({"prompt": prompts, "length": [20] * 12, "sum": total, "squares": squares})
    assert found["tokens"] == 240
    assert [rms[0] for rms in found["rms_by_position"][:2]] == pytest.approx([2.0, 3.0])
    assert found["rms_by_length"][1][0] == pytest.approx(np.sqrt(105 / 20))
    assert found["variance_over_squares"][0] == pytest.approx(1 / 105)


def test_only_its_own_section_is_written(tmp_path, monkeypatch) -> None:
    page = tmp_path / "page.md"
    monkeypatch.setattr(study, "PAGE", page)
    study.write_section(f"{study.TITLE}\n\nfirst\n")
    page.write_text(page.read_text() + "\n## Another\n\nkept\n")
    study.write_section(f"{study.TITLE}\n\nsecond\n")
    assert page.read_text() == f"# Engine mismatch\n\n{study.TITLE}\n\nsecond\n\n## Another\n\nkept\n"
