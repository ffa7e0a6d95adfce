"""The pages on the theory against the catalogue of checks, the Coq scripts and the presets."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

from analysis.claims.verdicts import ALPHA
from fspo.rules import CORRECTIONS, PRESETS
from proofs_check.catalogue import CHECKS, STATEMENTS
from proofs_check.formal.checks import CHECKS as FORMAL_CHECKS
from proofs_check.frame import Method

ROOT = Path(__file__).parents[2]
THEORY = (ROOT / "docs" / "theory.md").read_text(encoding="utf-8")
HOW_CHECKED = (ROOT / "docs" / "check_theory.md").read_text(encoding="utf-8")
STATED = re.compile(r'^<a id="t\d+"></a>\*\*(T\d+)\. ', re.M)
STATEMENT = re.compile(r"T\d|LRE_")
THEOREM = re.compile(r"^\s*(?:Theorem|Lemma|Corollary)\s+([\w']+)", re.M)
INLINE = re.compile(r"\$`(.+?)`\$")


@cache
def section(number: int) -> str:
    found = re.search(rf"^## {number}\. .*?(?=^## |\Z)", THEORY, re.M | re.S)
    assert found, f"docs/theory.md has no section {number}"
    return found[0]


def test_every_statement_is_stated_once_and_checked():
    assert sorted(STATED.findall(THEORY), key=lambda s: int(s[1:])) == list(STATEMENTS)


def test_the_table_of_methods_is_that_of_the_catalogue():
    assert re.findall(r"^\| ([a-z][a-z -]+) \| (?!what)", HOW_CHECKED.split("## How")[0], re.M) == [
        str(method) for method in Method
    ]


@pytest.mark.parametrize("statement", STATEMENTS)
def test_each_statement_says_how_each_of_its_methods_checks_it(statement):
    found = re.search(rf"^### {statement}\n.*?(?=^##)", HOW_CHECKED, re.M | re.S)
    assert found, f"docs/check_theory.md does not say how {statement} is checked"
    words = " ".join(re.findall(r"(?<!\*)\*([A-Za-z][a-z -]+):?\*(?!\*)", found[0])).lower()
    methods = {str(check.method) for check in CHECKS if check.statement == statement}
    assert len(methods) > 1
    for method in methods:
        assert method in words, f"{statement} is checked by the method {method!r}, of which its paragraph says nothing"


def test_theorems_named_are_those_of_coq():
    scripts = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "proofs_check" / "formal").glob("*.v"))
    proved = set(THEOREM.findall(scripts))
    named = set(re.findall(r"`((?:T\d+s?|LRE)_\w+|[a-z]+_\w+)`", INLINE.sub("", HOW_CHECKED)))
    assert named <= proved, f"no such theorem: {sorted(named - proved)}"
    asked = {name for check in FORMAL_CHECKS for name in check.run.keywords["theorems"]}
    helpers = {"LRE_inf_attained"}  # a lemma that other theorems need
    assert asked - helpers <= named, f"proved, and not named in docs/check_theory.md: {sorted(asked - helpers - named)}"
    # Coq checks a lemma with the theorems whose proofs use it
    used = {name for name in named if len(re.findall(rf"\b{name}\b", scripts)) > 1 and not STATEMENT.match(name)}
    assert named - used <= asked, f"no check asks Coq for: {sorted(named - used - asked)}"


def test_the_theory_page_agrees_with_the_presets():
    table = section(2).split("**Drift**")[0]
    for name, preset in PRESETS.items():
        (row,) = [line for line in table.splitlines() if f"`{name}`" in "".join(line.split("|")[1:2])]
        assert f"| {preset.rule.shape} |" in row
        if preset.rule.shape != "none":
            # rows that refer to another one state no range of their own
            stated = {float(x) for x in re.findall(r"(?<![\d.])0\.\d+", row)}
            ranges = {preset.rule.range_lo, preset.rule.range_hi}
            assert ranges <= stated or not stated or preset.rule.shape == "power"
        if preset.rule.gamma is not None:
            assert str(preset.rule.gamma) in row
        if preset.rule.shape != "none":
            assert preset.rule.outside in row
    for name, rule in CORRECTIONS.items():
        (row,) = [line for line in section(2).splitlines() if line.startswith(f"| `{name}` |")]
        cells = [cell.strip() for cell in row.strip("|").split("|")]
        weight = {"none": "none", "sequence": "$`e^{r_t}`$" if rule.level == "token" else "$`e^R`$"}[rule.weight]
        assert [cells[1], cells[2], cells[4], cells[5]] == [rule.on, rule.shape, weight, rule.outside]
        stated = {float(x) for x in re.findall(r"(?<![\d.])\d\.\d+", cells[3])}
        assert stated <= {rule.range_lo, rule.range_hi}
        assert stated or name == "mis"  # the page gives its edges


def test_the_theory_page_names_the_level_of_the_verdicts():
    assert f"With $`\\alpha={f'{ALPHA:g}'.removeprefix('0')}`$, the level of one side" in HOW_CHECKED
