"""Hooks that mkdocs calls when it builds the site (make docs).

README.md becomes the first page, files outside docs/ that pages link to become pages or copies, formulas become MathML,
and the pages of `GENERATED` are made from the code that declares what they list."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from contextlib import redirect_stdout, suppress
from inspect import getdoc
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from latex2mathml.converter import convert

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import File, Files
    from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]


def grid(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a head and rows as a Markdown table."""
    lines = [list(head), ["---"] * len(head), *([re.sub(r"([|<*])", r"\\\1", str(c)) for c in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def help_text(*words: str) -> str:
    """Return what ``fspo WORDS`` prints, in lines of at most 100 characters."""
    from fspo.__main__ import main

    os.environ["COLUMNS"] = "100"
    with redirect_stdout(StringIO()) as out, suppress(SystemExit):
        main(words)
    return out.getvalue()


def commands_page() -> str:
    """Return the page of commands: the help of each, which lists all its options."""
    from fspo.__main__ import GROUPS

    parts = ["# Commands and options", "What `fspo COMMAND --help` prints."]
    for title, commands in GROUPS.items():
        parts.append(f"## If {title}")
        for name in commands:
            shown = help_text(name, "--help")
            if f"fspo {name} --help all" in shown:
                shown = help_text(name, "--help", "all")
            parts.append(f"### fspo {name}\n\n```text\n{shown.strip()}\n```")
    return "\n\n".join(parts) + "\n"


def tables_page() -> str:
    """Return the page of tables: what a row of each table is, and each of its columns with its meaning and unit."""
    from analysis.tables.files import TABLES
    from analysis.tables.typed_rows import BinKey, CaseKey, RuleKey, RunKey, columns, names

    keys: dict[str, Any] = {"run": RunKey, "rule": RuleKey, "case": CaseKey, "bin": BinKey}
    parts = [
        "# Tables",
        "`fspo analyse RUN` writes `RUN/analysis/NAME.csv` and `NAME.parquet`. Tables share the columns of the keys.",
    ]
    for name, row in {**{f"Key {name}": key for name, key in keys.items()}, **TABLES}.items():
        within = {key: set(names(kind)) for key, kind in keys.items() if kind is not row}
        within = {key: shared for key, shared in within.items() if shared <= set(names(row))}
        largest = [key for key in within if not any(within[key] < other for other in within.values())]
        lead = f"Columns of key {' and key '.join(largest)}, and:\n\n" if largest else ""
        own = [column for column in columns(row) if column.name not in set().union(*within.values())]
        rows = ((f"`{column.name}`", column.meaning, column.unit) for column in own)
        parts.append(f"## {name}\n\n{getdoc(row)}\n\n{lead}{grid(('column', 'meaning', 'unit'), rows)}")
    return "\n\n".join(parts)


def log_page() -> str:
    """Return the page of the gradient log: the columns of the log and the metrics beside it."""
    from fspo.gradlog.files import file_name
    from fspo.gradlog.metric_names import METRICS
    from fspo.gradlog.run_folder import GRADLOG
    from fspo.gradlog.schema import LOG_COLUMNS, REQUIRED, SCHEMA_VERSION, USER_PREFIX

    rows = (
        (f"`{name}`", kind, meaning, unit, "no" if name in REQUIRED else "yes")
        for name, (kind, meaning, unit) in LOG_COLUMNS.items()
    )
    metrics = ((f"`{name}`", metric.meaning, metric.unit) for name, metric in METRICS.items())
    return f"""# The gradient log

Schema {".".join(map(str, SCHEMA_VERSION))}; older minor versions are read. `RUN/{GRADLOG}/{file_name(12, 0)}`: one
Parquet file for each rollout and process, one row for each response and update. Its metadata holds the version and the
rule. A user's own columns are named `{USER_PREFIX}NAME`.

{grid(("column", "type", "meaning", "unit", "may be null"), rows)}
## Metrics

A line of `metrics.jsonl` for each rollout and evaluation. A word in capitals stands for several names, I for a bin.

{grid(("metric", "meaning", "unit"), metrics)}"""


def import_page() -> str:
    """Return the page of names that ``fspo import`` knows."""
    from analysis.importing import names as known

    columns = ((f"`{name}`", "`" + "`, `".join(aliases) + "`") for name, aliases in known.COLUMNS.items())
    scalars = [(f"`{theirs}`", f"`{ours}`") for theirs, ours in known.METRICS.items()]
    return f"""# Names that import knows

{grid(("column", "names"), columns)}
## Scalars

Others are kept as `{known.FOREIGN}` and their name.

{grid(("theirs", "in metrics.jsonl"), scalars)}"""


def checks_page() -> str:
    """Return the page of the theory's checks: by statement the method, what is checked, and its near misses."""
    from proofs_check.catalogue import CHECKS, STATEMENTS

    parts = ["# All checks", "What `fspo check` runs. A near miss is a false neighbour of the statement."]
    for statement in STATEMENTS:
        found = [(str(c.method), c.name, "; ".join(c.near_misses)) for c in CHECKS if c.statement == statement]
        rows = grid(("method", "what is checked", "near misses"), found)
        parts.append(f"## {statement}\n\n[The statement](theory.md#{statement.lower()})\n\n{rows}")
    return "\n\n".join(parts)


def python_page() -> str:
    """Return the page of the Python API; mkdocstrings fills in what follows ``:::``."""
    import figures
    import fspo
    from figures.style import Style
    from figures.tables import load

    listed = {f"fspo.{name}": getattr(fspo, name) for name in sorted(fspo.PLACES)}
    listed |= {"figures.draw_all": figures.draw_all, "figures.tables.load": load, "figures.style.Style": Style}
    parts = (f"## {name}\n\n::: {thing.__module__}.{thing.__name__}\n" for name, thing in listed.items())
    return "\n".join(["# Python\n", *parts])


GENERATED = {
    "commands.md": commands_page,
    "tables.md": tables_page,
    "log_format.md": log_page,
    "import.md": import_page,
    "checks.md": checks_page,
    "python.md": python_page,
}
"""Pages that stand on the site alone, by name, with the functions that return their texts."""


def outside(page: File) -> re.Pattern[str]:
    """Return a regular expression for a page's links to files outside docs/; its group is the file's path."""
    return re.compile(rf"\]\((?:\.\./){{{page.src_uri.count('/') + 1}}}([\w./-]+)\)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add README.md as `index.md`, the pages of `GENERATED`, and each file outside docs/ that a page links to as a copy
    below `files/`, with its links to docs/ changed to fit its new place."""
    from mkdocs.structure.files import File

    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    linked = set(re.findall(r"\]\((?!docs/|https?:|#)([\w./-]+)\)", readme))
    for page in files.documentation_pages():
        linked |= set(outside(page).findall(page.content_string))
    index = re.sub(r"\]\((?!docs/|https?:|#)([\w./-]+)\)", r"](files/\1)", readme).replace("](docs/", "](")
    files.append(File.generated(config, "index.md", content=index))
    for name, made in GENERATED.items():
        files.append(File.generated(config, name, content=made()))
    for name in sorted(linked):
        content = (ROOT / name).read_bytes()
        if name.endswith(".md"):  # a Markdown file outside docs/ links to docs/ from the repository's root
            content = content.replace(b"](docs/", f"]({'../' * (1 + name.count('/'))}".encode())
        files.append(File.generated(config, f"files/{name}", content=content))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Turn GitHub's formulas into MathML and links to files outside docs/ into links to their copies."""
    if not page.file.src_uri.startswith("files/"):
        up = "../" * page.file.src_uri.count("/")
        markdown = markdown.replace(f"]({up}../README.md", f"]({up}index.md")
        markdown = outside(page.file).sub(rf"]({up}files/\1)", markdown)
    return formulas(markdown)


def formulas(markdown: str) -> str:
    """Return a page's text in which the formulas, marked as GitHub wants (``$`...`$`` or a block ``math``), are MathML.

    A formula within text is put into a ``<span>``: Python-Markdown takes ``<math>`` at the beginning of a line for a
    block of its own."""
    markdown = re.sub(r"```math\n(.*?)\n```", lambda found: convert(found[1], display="block"), markdown, flags=re.S)
    return re.sub(r"\$`(.+?)`\$", lambda found: f"<span>{convert(found[1])}</span>", markdown)
