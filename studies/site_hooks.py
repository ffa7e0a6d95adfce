"""Hooks that mkdocs calls when it builds the site. They make README.md the first page, add the files outside docs/ that
pages link to, and turn formulas into MathML."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from latex2mathml.converter import convert

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import File, Files
    from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]


def outside(page: File) -> re.Pattern[str]:
    """Return a regular expression for a page's links to files outside docs/; its capture group is the file's path in
    the repository."""
    return re.compile(rf"\]\((?:\.\./){{{page.src_uri.count('/') + 1}}}([\w./-]+)\)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add README.md to the site as `index.md`, and each file outside docs/ that a page links to as a copy below
    `files/`. Links to docs/ in these files are changed to fit the files' new places."""
    from mkdocs.structure.files import File

    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    linked = set(re.findall(r"\]\((?!docs/|https?:|#)([\w./-]+)\)", readme))
    for page in files.documentation_pages():
        linked |= set(outside(page).findall(page.content_string))
    index = re.sub(r"\]\((?!docs/|https?:|#)([\w./-]+)\)", r"](files/\1)", readme).replace("](docs/", "](")
    files.append(File.generated(config, "index.md", content=index))
    for name in sorted(linked):
        text = (ROOT / name).read_text(encoding="utf-8")
        if name.endswith(".md"):  # a Markdown file outside docs/ links to docs/ from the repository's root
            text = text.replace("](docs/", f"]({'../' * (1 + name.count('/'))}")
        files.append(File.generated(config, f"files/{name}", content=text))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Turn GitHub's formulas into MathML and links to files outside docs/ into links to their copies."""
    if not page.file.src_uri.startswith("files/"):
        markdown = outside(page.file).sub(rf"]({'../' * page.file.src_uri.count('/')}files/\1)", markdown)
    # docs/python.md has a summary of each name of the Python API. Remove it: on the website, mkdocstrings shows the
    # name's whole docstring.
    if page.file.src_uri == "python.md":
        markdown = re.sub(r"^[^#\n:].*\n\n(?=:::)", "", markdown, flags=re.M)
    return formulas(markdown)


def formulas(markdown: str) -> str:
    """Return a page's text in which the formulas, marked as GitHub wants (``$`...`$`` or a block ``math``), are MathML.

    A formula within text is put into a ``<span>``, because Python-Markdown takes ``<math>`` at the beginning of a line
    for a block of its own; in a span the formula stays part of its paragraph.
    """
    markdown = re.sub(r"```math\n(.*?)\n```", lambda found: convert(found[1], display="block"), markdown, flags=re.S)
    return re.sub(r"\$`(.+?)`\$", lambda found: f"<span>{convert(found[1])}</span>", markdown)
