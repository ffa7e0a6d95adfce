"""One word for one thing: the words of docs/glossary.md, and not those that they replaced.

Columns of logs, values of options and names in code stand between backticks and are left out: old logs stay readable.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator

from tests.test_budget import ROOT, tracked

OLD = {
    r"(left|leaves?|leaving) (\w+ ){0,2}alone": "not clipped",
    r"cuts?|cutting": "clipped; of a correction: masked",
    r"first[- ]uses?": "first epoch",
    r"reused": "of later epochs",
    r"matched (acceptances?|ranges?)|at (one|the same) (acceptance|clip rate|rate)": "at an equal clip rate",
    r"as published": "at the default range",
    r"laws?": "distribution",
    r"windows?": "block of rollouts",
    r"atoms?|headlines?": "hypothesis, claim",
    r"trends?": "slope",
    r"distance seen": "smallest detectable effect",
    r"healthy|sick": "sound, faulty",
    r"findings?": "issue",
    r"cures?|cured": "fix",
    r"stale|staleness": "policy lag",
    r"behaviou?r (log-)?ratio": "rollout-policy ratio",
    r"(true|clipped) updates?": "unclipped or clipped gradient",
    r"(still|moving) (responses?|ones?)": "unchanged, changed",
    r"direction kept": "cosine with the unclipped gradient",
    r"(negative|positive) controls?": "near miss",
}
"""Old words, as regular expressions of whole words, and what is said instead."""
ANY = re.compile(rf"\b({'|'.join(OLD)})\b", re.IGNORECASE)
ALLOWED = (
    r"\bcuts? (off|into|after|short|to)\b",  # responses at the length limit, files, what is divided
    r"\bcut (\w+ ){0,2}at the length limit\b",
    r"\blaw of large numbers\b",
    r"\b(sliding|attention) windows?\b",
    r"\bcut -d\b",  # the program
    r"(\]\(|studies[./]|docs/|^# |\[|^ +- Findings: )[Ff]indings\b",  # the page and the script of that name
    r"(table|row class|Tables?) trend\b|\btrend: the unit|\[\"trend\"\]",
    r"(option|--batch\.|with) staleness\b",
)
"""Where an old word is the field's word or a name."""
HISTORY = ("CHANGELOG.md",)
"""What tells of old versions in their words."""
LATER = ("analysis/importing/",)
"""What still has old words."""


def prose_of_python(source: str) -> Iterator[tuple[int, str]]:
    """The lines of a module's docstrings, comments and texts of more than one word, with their numbers."""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value.strip():
            for number, line in enumerate(node.value.splitlines()):
                yield node.lineno + number, line


def left(name: str) -> list[tuple[int, str, str]]:
    """Line, old word and new word of each old word in a file."""
    text = (ROOT / name).read_text(encoding="utf-8")
    found = []
    for number, line in prose_of_python(text) if name.endswith(".py") else enumerate(text.splitlines(), 1):
        line = re.sub(
            r"``.*?``|`[^`]*`|--[\w.-]+|https?:\S+|\]\([^)]*\)|^ +[\w, ]+ : .*", "``", line
        )  # and "name : type"
        if not ANY.search(line):
            continue
        for pattern in ALLOWED:
            line = re.sub(pattern, "", line)
        for pattern, new in OLD.items():
            found += [(number, match[0], new) for match in re.finditer(rf"\b({pattern})\b", line, re.IGNORECASE)]
    return found


FILES = [
    name
    for name in (*tracked("*.py"), *tracked("*.md"), *tracked("*.yml"))
    if not name.startswith(("tests/", "results/", "typings/", *LATER)) and name not in HISTORY
]


def test_no_old_word_is_left() -> None:
    lines = [f"{name}:{line}: {old}: say {new}" for name in FILES for line, old, new in left(name)]
    assert not lines, "\n".join(lines)
