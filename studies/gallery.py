"""This script writes docs/gallery.md: every figure, with its picture and its three lines of code.

    python -m studies.gallery                                   # the page
    python -m studies.gallery --runs out/* --theory out/maps    # and the pictures, docs/images/gallery/
    python -m studies.gallery --runs out/none --only acceptance_by_position    # and one picture

The pictures on the page show two runs, of six rollouts without a clip and of five with fspo (`fspo train --rule.preset
none --rollouts 6`, ..., `fspo analyse`, `fspo sweep`), and the maps of `fspo maps --draws 2000`. The figure
acceptance_by_position shows another run, which logs tokens (`fspo train --rule.preset none --rollouts 6 --batch.prompts
96 --log.tokens true --log.score-minibatches 1,2,3 --log.audit-every 1`, `fspo analyse --rules rloo,gspo,fspo`). A test
compares the page with the list of figures and runs its code.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from figures import find_module, heading, of_ratio, of_runs, of_theory, parts
from figures.style import Style
from figures.tables import NothingToDraw, Tables, load, load_theory
from fspo.base.command_line import CommandParser
from fspo.base.errors import run_cli
from fspo.base.files import whole_file, write_text
from studies.reference_pages import DOCS

PAGE = DOCS / "gallery.md"
PICTURES = DOCS / "images" / "gallery"
CAPTIONS = PICTURES / "captions.json"
DPI = 110
OF_RUNS = 'tables.load(["out/none", "out/fspo"])'
MISSING = "No picture here: its table needs more than these runs have."
OF_TOKENS = "acceptance_by_position"
"""The figure whose table needs a run that logs tokens."""
KINDS = {
    "Of runs": (of_runs.FIGURES, "After `fspo analyse out/none out/fspo`.", OF_RUNS),
    "Of the theory": (of_theory.FIGURES, "After `fspo maps`.", 'tables.load_theory("out/proofs_check")'),
}
"""By heading of the page: the figures below it, a sentence that says what has to be run before, and the expression that
reads the figures' tables."""


def code(name: str, source: str) -> str:
    """Return the lines of Python that draw the figure ``name``; docs/gallery.md shows them below its picture."""
    return (
        f"from figures import draw_all, tables\n\nfound = {source}\n"
        f'draw_all(found, "out/figures", only=["{name}"], modules=["{name}"])'
    )


def page() -> str:
    """Return the text of docs/gallery.md."""
    captions = json.loads(CAPTIONS.read_text(encoding="utf-8"))
    found = [
        "# Gallery\n\nEvery figure, as PDF, PNG and a CSV file of its numbers. `fspo figures RUN` draws them all, and "
        "`fspo report RUN` puts them on a page with their captions. The pictures here are of six rollouts "
        "without a clip and five of fspo on the embedded task, and of small maps of the theory; that of "
        f"{OF_TOKENS} is of another run without a clip, which logs tokens. They show what a figure looks like, and are "
        "no evidence.\n\nThis page is written by "
        "`python -m studies.gallery`.\n"
    ]
    for title, (names, before, source) in KINDS.items():
        found.append(f"## {title}\n\n{before}\n")
        for name in names:
            module = find_module(name)
            picture = f"![{module.TITLE}](images/gallery/{name}.png)\n\n*{captions.get(name)}*"
            drawn = picture if name in captions else MISSING
            found.append(f"### {name}\n\n{module.TITLE}.\n\n{drawn}\n\n```python\n{code(name, source)}\n```\n")
    return "\n".join(found)


def draw(tables: Tables, names: Iterable[str]) -> dict[str, str]:
    """Draw the picture of each figure whose tables exist, and return the captions of the drawn figures."""
    style, captions = Style("neurips"), {}
    for name in names:
        module = find_module(name)
        try:
            first = parts(module, tables)[0][1]
            figure, caption = module.figure(first, style), module.caption(first).partition("\n\n")[0]
        except NothingToDraw as reason:
            print(f"no {heading(module, tables)}: {reason}")
            continue
        with style.context(), whole_file(PICTURES / f"{name}.png") as part:
            figure.savefig(part, format="png", dpi=DPI, metadata={"Software": None})
        captions[name] = caption + of_ratio(tables)
    return captions


def main() -> None:
    """Draw the gallery's pictures of the runs and maps that the options name, then write docs/gallery.md."""
    parser = CommandParser(prog="python -m studies.gallery", description=__doc__ or "")
    parser.add_argument("--runs", nargs="*", type=Path, default=[], help="analysed run folders")
    parser.add_argument("--theory", type=Path | None, help="folder that fspo maps wrote to")
    parser.add_argument("--only", type=list[str], default=[], help="figures to draw; all without the option")
    options = parser.parse_args()
    wanted = set(options.only or of_runs.FIGURES + of_theory.FIGURES)
    captions: dict[str, str] = json.loads(CAPTIONS.read_text(encoding="utf-8")) if CAPTIONS.exists() else {}
    if options.runs:
        captions |= draw(load(options.runs), [name for name in of_runs.FIGURES if name in wanted])
    if options.theory:
        captions |= draw(load_theory(options.theory), [name for name in of_theory.FIGURES if name in wanted])
    write_text(CAPTIONS, json.dumps(captions, indent=1, ensure_ascii=False, sort_keys=True) + "\n")
    write_text(PAGE, page())


if __name__ == "__main__":
    run_cli(main)
