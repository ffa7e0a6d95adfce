"""docs/coverage.md against its script: rows simulated anew agree, and a page that is wrong is seen."""

from __future__ import annotations

import re
from itertools import islice

from studies import coverage as study

PAGE = study.PAGE.read_text(encoding="utf-8")


def test_rows_simulated_anew_agree_with_the_page():
    assert study.disagreements(PAGE, islice(study.small_designs(), 2, 4), 40) == []


def test_a_page_that_is_wrong_or_lacks_a_row_is_seen():
    first, second = islice(study.small_designs(), 1, 3)
    row = "| " + " | ".join(study.labels(first)) + " | "
    wrong = re.sub(re.escape(row) + r"[0-9.]+", row + "0.600", PAGE)
    assert wrong != PAGE
    wrong = wrong.replace("| " + " | ".join(study.labels(second)), "| gone")
    found = study.disagreements(wrong, [first, second], 40)
    assert len(found) == 2
    assert "the page says 2" in found[0]
    assert "not on the page" in found[1]


def test_effective_sample_sizes_simulated_anew_agree_and_wrong_ones_are_seen():
    chosen = [("exact, one law", 20, 0.5), ("at most 2", 20, 0.25)]
    assert study.ess_disagreements(PAGE, chosen, 200) == []
    row = re.search(r"^\| exact, one law \| 20 \| 0.5 .*$", PAGE, re.MULTILINE)
    assert row is not None
    cells = row[0].split(" | ")
    for place, shown in ((4, "0.900 (0.870-0.920)"), (5, "0.950 (0.900-0.970)")):
        wrong = PAGE.replace(row[0], " | ".join([*cells[:place], shown, *cells[place + 1 :]]))
        (line,) = study.ess_disagreements(wrong, chosen, 200)
        assert ("logs have an interval" if place == 4 else "intervals hold") in line
    (line,) = study.ess_disagreements(PAGE.replace("| at most 2 | 20 | 0.25", "| gone"), chosen, 200)
    assert "not on the page" in line
