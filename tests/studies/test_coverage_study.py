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
