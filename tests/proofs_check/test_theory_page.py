"""The pages on the theory against the catalogue of checks, the Coq scripts and the presets."""

import re
from functools import cache
from pathlib import Path

from analysis.claims.verdicts import ALPHA
from analysis.tables.files import TABLES
from fspo.rules import CORRECTIONS, PRESETS
from proofs_check.catalogue import STATEMENTS

ROOT = Path(__file__).parents[2]
THEORY = (ROOT / "docs" / "theory.md").read_text(encoding="utf-8")
HOW_CHECKED = (ROOT / "docs" / "check_theory.md").read_text(encoding="utf-8")
STATED = re.compile(r'^<a id="t\d+"></a>\*\*(T\d+)\. ', re.M)


@cache
def section(number: int) -> str:
    found = re.search(rf"^## {number}\. .*?(?=^## |\Z)", THEORY, re.M | re.S)
    assert found, f"docs/theory.md has no section {number}"
    return found[0]


def test_every_statement_is_stated_once_and_checked():
    assert sorted(STATED.findall(THEORY), key=lambda s: int(s[1:])) == list(STATEMENTS)


def test_each_row_of_the_bridge_names_a_check_or_a_table_that_exists():
    bridge = THEORY.split("| the paper says |")[1].split("\n\n")[0].splitlines()[2:]
    assert len(bridge) > 8
    for row in bridge:
        see = row.strip("| ").split("|")[-1]
        tables, checks = re.findall(r"table `(\w+)`", see), re.findall(r"\bT\d+", see)
        assert tables or checks, row
        assert set(tables) <= set(TABLES), row
        assert set(checks) <= set(STATEMENTS), row
        columns = set(re.findall(r"`(\w+)`", see)) - set(tables)
        assert columns <= {name for table in tables for name in TABLES[table]._fields}, row


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
            assert preset.rule.outside in row
        if preset.rule.gamma is not None:
            assert str(preset.rule.gamma) in row
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
