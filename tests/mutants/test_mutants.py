"""The table of mutants fits the sources, and its runner tells a killed mutant from one that survives."""

import json
import subprocess
from pathlib import Path

import pytest

from tests.mutants.drawn import PAGE, RESULT, SEED, TESTS, code_of, name_of, page, reasons
from tests.mutants.run import ROOT, Mutant, read_mutants, run


@pytest.mark.parametrize("mutant", read_mutants(), ids=lambda mutant: mutant.name)
def test_the_text_of_a_mutant_stands_once_in_its_file_and_its_tests_exist(mutant: Mutant) -> None:
    source = (ROOT / mutant.file).read_text(encoding="utf-8")
    assert mutant.of(source) != source
    for test in mutant.tests:
        file, _, function = test.partition("::")
        assert f"def {function.partition('[')[0]}(" in (ROOT / file).read_text(encoding="utf-8") or not function


def test_names_are_unique() -> None:
    names = [mutant.name for mutant in read_mutants()]
    assert len(set(names)) == len(names)


@pytest.mark.slow
def test_a_real_run_kills_tells_survivors_and_goes_on(tmp_path: Path) -> None:
    root = tmp_path / "repository"
    root.mkdir()
    (root / "margins.py").write_text("MARGIN = 0.01\nNAME = 'margin'\n")
    (root / "test_margins.py").write_text("from margins import MARGIN\n\n\ndef test_it():\n    assert MARGIN == 0.01\n")
    subprocess.run(["git", "init", "-q", str(root)], check=True)
    mutants = [
        Mutant("margin", "margins.py", "0.01", "0.02", ("test_margins.py::test_it",)),
        Mutant("name", "margins.py", "'margin'", "'other'", ("test_margins.py::test_it",)),
    ]
    broken = Mutant("import", "margins.py", "0.01", "1 / 0", ("test_margins.py",))
    state = tmp_path / "state" / "mutants.json"
    assert run([broken, *mutants[:1]], root, state) == {
        "import": "test_margins.py",
        "margin": "test_margins.py::test_it",
    }
    assert run(mutants, root, state) == {"margin": "test_margins.py::test_it", "name": ""}
    assert (root / "margins.py").read_text().startswith("MARGIN = 0.01")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tests.mutants.run.fails", None)
        assert run(mutants, root, state, jobs=2) == {
            "margin": "test_margins.py::test_it",
            "name": "",
        }  # known: no test runs
    (root / "margins.py").write_text("MARGIN = 0.02\n")
    with pytest.raises(SystemExit, match="fails without any mutant"):
        run(mutants[:1], root, state)


def test_changes_of_annotations_are_no_changes_of_the_code() -> None:
    source = "def f(x: int | None = 1) -> int | None:\n    y: int | str = x | 2\n    return y\n"
    assert code_of(source.replace("int |", "int &").replace("| None:", "^ None:")) == code_of(source)
    assert code_of(source.replace("x | 2", "x & 2")) != code_of(source)
    assert (
        name_of("a.py", source, source.replace("x | 2", "x & 2"))
        == "a.py: y: int | str = x | 2 -> y: int | str = x & 2"
    )


def test_every_file_that_changes_are_drawn_from_has_tests_and_every_harmless_change_its_line() -> None:
    for room, tests in TESTS.items():
        assert (ROOT / room).exists()
        assert all((ROOT / test).exists() for test in tests)
    for name, why in reasons().items():
        file, _, change = name.partition(": ")
        assert change.split(" -> ")[0] in (ROOT / file).read_text(encoding="utf-8")
        assert why


def test_the_page_counts_by_hand() -> None:
    killed = {
        "fspo/theory/lemma.py: a -> b": "test",
        "fspo/rules/rule.py: a -> b": "",
        "fspo/rules/rule.py: c -> e -> d -> e": "",
    }
    last = {"cosmic_ray": "8", "commit": "b" * 40, "places": 1000, "seed": 2, "killed_by": killed}
    earlier = last | {"commit": "a" * 40, "seed": 1, "killed_by": {"fspo/rules/rule.py: e -> f": "test"}}
    text = page([earlier, last], {"fspo/rules/rule.py: a -> b": "same"})
    assert "noticed: 1 of 3: 0.333 [0.008, 0.906]" in text  # Clopper and Pearson's tables
    assert "without 1 harmless: 1 of 2: 0.500 [0.013, 0.987]" in text
    assert "- seed 1, commit aaaaaaaaaaaa: 1 of 1: 1.000 [0.025, 1.000]" in text
    assert "- `fspo/rules/rule.py: a` became `b`: same" in text
    assert "- `fspo/rules/rule.py: c -> e` became `d -> e`: **not noticed**" in text
    assert "Tests were then written against the survivors that" in text
    assert "Tests were then written against the survivors that" not in page([last | {"seed": SEED}], {})
    assert "Earlier draws" not in page([last], {})


def test_the_published_page_is_that_of_the_published_draws() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(json.loads(RESULT.read_text(encoding="utf-8")), reasons())
