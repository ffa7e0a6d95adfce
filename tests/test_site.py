"""The site: its pages made from code hold every name, its list of pages is whole, its formulas are MathML."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

from markdown import markdown

import fspo
from analysis.importing import names as known
from analysis.tables.files import TABLES
from analysis.tables.typed_rows import columns
from docs.hooks import GENERATED, formulas
from fspo.__main__ import COMMANDS
from fspo.gradlog.metric_names import METRICS
from fspo.gradlog.schema import LOG_COLUMNS
from proofs_check.catalogue import CHECKS

DOCS = Path(__file__).parents[1] / "docs"


def test_a_line_of_the_site_may_begin_with_a_formula():
    paragraphs = (DOCS / "theory.md").read_text(encoding="utf-8").split("\n\n")
    sources = [text for text in paragraphs if re.search(r"^\$`", text, re.M)]
    assert sources
    assert markdown(formulas("\n\n".join(sources))).count("<p>") == len(sources)


def test_pages_made_from_code_hold_each_name():
    made = {name: write() for name, write in GENERATED.items()}
    for name, row in TABLES.items():
        (part,) = re.findall(rf"^## {name}\n.*?(?=^## |\Z)", made["tables.md"], re.M | re.S)
        shown = re.findall(r"^\| `(\w+)` \| \S", part, re.M)
        assert len(set(shown)) == len(shown)
        assert all(f"| `{column.name}` | " in made["tables.md"] and column.unit for column in columns(row))
    log, metrics = made["log_format.md"].split("## Metrics")
    imported = made["import.md"].split("## Scalars")[0]
    for text, names in ((log, LOG_COLUMNS), (metrics, METRICS), (imported, known.COLUMNS)):
        assert [name for name in names if text.count(f"\n| `{name}` |") != 1] == []
    for name, command in COMMANDS.items():
        (part,) = re.findall(rf"^### fspo {name}\n.*?(?=^### |\Z)", made["commands.md"], re.M | re.S)
        for action in importlib.import_module(command.module).build_parser()._actions:
            for option in action.option_strings:
                if re.fullmatch(r"--(?!print.shtab)[\w.]+", option) and action.help != "==SUPPRESS==":
                    assert option.replace("_", "-") in part, f"fspo {name} {option}"
    assert all(f"\n## fspo.{name}\n" in made["python.md"] for name in fspo.PLACES)
    assert len(re.findall(r"^\| (?!method|---)", made["checks.md"], re.M)) == len(CHECKS)


def test_the_site_has_every_page():
    """As mkdocs asks when it builds the site; here without building it."""
    shown = set(re.findall(r": ([\w/-]+\.md)$", (DOCS.parent / "mkdocs.yml").read_text(encoding="utf-8"), re.M))
    pages = {path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md")}
    assert shown - {"index.md", "files/CONTRIBUTING.md", "files/CHANGELOG.md", *GENERATED} == pages
