"""The documents against the repository: statements, files, commands, names and numbers that they give are right."""

from __future__ import annotations

import csv
import re
import runpy
import shlex
import subprocess
import sys
from pathlib import Path
from typing import get_args

import pytest
from latex2mathml.converter import convert

from fspo.__main__ import COMMANDS as COMMANDS_OF_FSPO
from fspo.config.rule import CorrectionConfig, RuleConfig
from fspo.gradlog.metric_names import METRICS
from fspo.rules import CORRECTIONS, PRESETS, Drift, Outside, Rule
from fspo.rules.gone import GONE_PRESETS
from fspo.stats.intervals import PERCENT

ROOT = Path(__file__).parents[1]
PAGES = ("README.md", *sorted(str(path.relative_to(ROOT)) for path in (ROOT / "docs").rglob("*.md")))
INLINE = re.compile(r"\$`(.+?)`\$")
BLOCK = re.compile(r"```math\n(.*?)\n```", re.S)
WRITTEN_BY_A_RUN = ("out/", "runs/", "figures/", "checks/", "RUN/")
"""Folders that a command makes: named in the documents, not kept in the repository."""


def page(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def test_the_readme_is_one_screen_and_lists_every_page():
    readme = page("README.md")
    assert len(readme.splitlines()) <= 100
    shown = readme.split("## Documents")[1]
    folders = {path.name for path in (ROOT / "docs").iterdir() if path.is_dir()}  # a page lists those of its folder
    assert {name for name in PAGES if name.startswith("docs/") and name.split("/")[1] not in folders} <= set(
        links(shown)
    )


@pytest.mark.parametrize("name", PAGES)
def test_formulas_parse(name):
    text = page(name)
    outside = BLOCK.sub("", text)
    assert outside.count("$`") == outside.count("`$") == len(INLINE.findall(outside)), "an inline formula is open"
    formulas = INLINE.findall(outside) + BLOCK.findall(text)
    for formula in formulas:
        assert "<math" in convert(formula), formula
        bare = re.sub(r"\\[{}]", "", formula)
        assert bare.count("{") == bare.count("}"), f"braces: {formula}"
        assert len(re.findall(r"\\left\b", formula)) == len(re.findall(r"\\right\b", formula)), f"fences: {formula}"
        unknown = set(re.findall(r"\\([A-Za-z]+)", formula)) - COMMANDS
        assert not unknown, f"{formula} uses {sorted(unknown)}: add it to COMMANDS if GitHub draws it"
    for line in outside.splitlines():
        if line.startswith("|"):
            assert not any("|" in formula for formula in INLINE.findall(line)), f"a bar cuts the cell: {line}"
    assert "\\$" not in text
    assert "$$" not in text


COMMANDS = set(
    """
    Big Lambda top mathcal int partial times approx
    Phi hat lceil Vert alpha bar beta big cdot chi cos delta dots epsilon eta exp frac gamma ge in infty kappa
    lVert lambda langle le log mathbb mathrm max mid min mu nabla ne pi pm prod propto psi qquad rVert rceil rangle rho
    sigma sim sin sqrt sum sup tau text tfrac theta to varphi
    """.split()  # noqa: SIM905
)
"""Commands of LaTeX that MathJax, which GitHub uses, draws."""


def links(text: str) -> list[str]:
    return [link for link in re.findall(r"\]\(([^)\s]+)\)", text) if "://" not in link]


@pytest.mark.parametrize("name", PAGES)
def test_links_lead_somewhere(name):
    for link in links(page(name)):
        path, _, anchor = link.partition("#")
        target = (ROOT / name).parent / path if path else ROOT / name
        assert target.is_file(), link  # a page of the site cannot show a folder
        if anchor:
            headings = re.findall(r"^#+ (.*)$", target.read_text(encoding="utf-8"), re.M)
            known = {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
            known |= set(re.findall(r'<a id="(\w+)">', target.read_text(encoding="utf-8")))
            assert anchor in known, link


@pytest.mark.parametrize("name", PAGES)
def test_files_named_exist(name):
    for word in re.findall(r"`([\w.\-/]+/[\w.\-/]*)`", page(name)):
        if not word.startswith(WRITTEN_BY_A_RUN) and word.split("/")[0] in TOP:
            assert (ROOT / word).exists(), word


def test_names_stand_in_the_files_that_the_page_on_developing_says():
    found = re.findall(r"((?:`[\w.]+`(?:, | and )?)+) (?:in|of) `([\w./-]+\.\w+)`", page("docs/developing.md"))
    assert len(found) > 20
    missing = [
        f"{name} in {file}"
        for names, file in found
        for name in re.findall(r"`([\w.]+)`", names)
        if not re.search(rf"\b{re.escape(name)}\b", page(file))
    ]
    assert missing == []


TOP = {path.name for path in ROOT.iterdir() if not path.name.startswith(".") and path.name != "out"}


SUBCOMMANDS = ("calibrate", "doctor", "import", "sweep")


def commands(text: str) -> list[list[str]]:
    """The words of every ``python -m`` command, script and ``fspo NAME`` in a page, without their comments."""
    named = "|".join(COMMANDS_OF_FSPO)
    found = re.findall(rf"(python (?:-m )?[\w./]+[^`\n]*|(?<![\w/.-])fspo (?:{named})\b[^`\n]*)", text)
    found = [f"python -m {line}" if line.startswith("fspo") else line for line in found]
    found = [re.split(" {2,}", line)[0] for line in found]  # notes stand apart
    return [shlex.split(line.replace("...", ""), comments=True) for line in found]


def programs() -> dict[tuple[str, ...], set[str]]:
    """Each program named in the documents, and the options that it is given there."""
    known: dict[tuple[str, ...], set[str]] = {}
    for name in PAGES:
        for words in commands(page(name)):
            program = tuple(words[1:3] if words[1] == "-m" else words[1:2])
            if program[-1] == "fspo" or (program[-1] == "analysis" and words[3:] and words[3] in SUBCOMMANDS):
                program = (*program, words[3])
            options = {word.split("=")[0] for word in words if word.startswith("--")}
            known.setdefault(program, set()).update(options)
    return known


@pytest.mark.parametrize("program", programs(), ids=" ".join)
@pytest.mark.filterwarnings("ignore:.*found in sys.modules:RuntimeWarning")
def test_commands_named_run_and_know_their_options(program, monkeypatch, capsys):
    if program[0] == "-m":  # here, as a process of its own for each would import torch and transformers again
        part = ["all"] if program[-1] in ("fspo.train", "fspo.plan", "train", "plan") else []
        monkeypatch.setattr(sys, "argv", [*program[1:], "--help", *part])
        with pytest.raises(SystemExit) as stop:
            runpy.run_module(program[1], run_name="__main__")
        assert not stop.value.code
        shown = capsys.readouterr().out
    else:
        command = [sys.executable, *program, "--help"]
        shown = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=True).stdout
    missing = {option for option in programs()[program] if option not in shown}
    assert not missing, f"{' '.join(program)} knows no {sorted(missing)}"


def test_the_presets_are_listed_whole():
    assert {*PRESETS, *CORRECTIONS, *GONE_PRESETS} <= set(re.findall(r"`([\w-]+)`", page("docs/rules.md")))
    for config, names in ((RuleConfig, PRESETS), (CorrectionConfig, ("none", *CORRECTIONS))):
        help_text = re.search(r"preset : str\n(.*?)\n    \w+ :", config.__doc__ or "", re.S)
        assert help_text
        assert help_text[1].strip().rstrip(".").replace(",", " ").split() == list(names)


def test_the_help_names_every_drift_and_every_way_outside_the_band():
    ways, drifts = ("{" + ", ".join(f'"{n}"' for n in get_args(names)) + "}" for names in (Outside, Drift))
    for config in (Rule, RuleConfig, CorrectionConfig):
        assert f"outside : {ways}" in (config.__doc__ or "")
        assert f"drift : {drifts}" in (config.__doc__ or "")
    for name in (*get_args(Outside), *get_args(Drift)):
        assert f"`{name}`" in page("docs/rules.md")


TASKS = ("chain-add", "chain-add-64", "products")
QUANTITIES = {"A != 0": "trend of A != 0", "all": "trend"}


def change(task: str, rule: str, clipped: str, responses: str = "A != 0") -> float:
    """Percentage points by which the clip rate changes for each doubling of the length, of the judged runs."""
    table = csv.DictReader((ROOT / "results" / "paper" / task / "rules.csv").open(encoding="utf-8"))
    key = {"rule": rule, "at": f"{1 - int(clipped[:-2]) / 100:g}", "quantity": QUANTITIES[responses]}
    (row,) = [row for row in table if key.items() <= row.items()]
    return -100 * float(row["value"])


def cells(text: str, head: str) -> list[list[str]]:
    """The rows of the table that begins with ``head``."""
    rows = text.split(f"| {head} |")[1].split("\n\n")[0].splitlines()[2:]
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]


def test_numbers_of_the_findings_and_of_the_readme_are_those_of_the_results():
    for responses, clipped, rule, *said in cells(page("docs/findings.md"), "responses | share clipped"):
        assert said == [f"{change(task, rule, clipped, responses):.1f}" for task in TASKS]
    for rule, *said in cells(page("README.md"), "rule | 5 % clipped"):
        for clipped, numbers in zip(("5 %", "15 %"), said, strict=True):
            assert numbers == ", ".join(f"{change(task, rule, clipped):.1f}" for task in TASKS)


def test_documents_name_the_confidence_level():
    for name in PAGES:
        assert set(re.findall(r"(\d+ %) intervals?", page(name))) <= {PERCENT}, name


def test_metrics_named_in_documents_exist():
    """A name with a slash that is no file is a metric's. A word in capitals, * or ... stands for any part of it."""
    metrics = [(name, re.compile(re.sub(r"\b(?:[A-Z]{4,}|I)\b", r"[\\w*.]+", name))) for name in METRICS]
    named = 0
    for name in PAGES:
        for word in re.findall(r"`([a-z_]{2,}/[\w*./]+)`", page(name)):
            if (ROOT / word).exists() or word.startswith(WRITTEN_BY_A_RUN):
                continue
            named += 1
            whole = re.compile(re.sub(r"\*|\.\.\.", r"[\\w/]+", word))
            assert any(one.fullmatch(word) or whole.fullmatch(metric) for metric, one in metrics), f"{name}: {word}"
    assert named > 3


@pytest.mark.parametrize("name", PAGES)
def test_pages_close_their_code_blocks_and_name_no_home_folder(name):
    text = page(name)
    assert text.count("```") % 2 == 0
    assert "/home/" not in text
