"""The documents against the repository: checks, theorems, files and commands that they name exist, formulas parse."""

from __future__ import annotations

import re
import runpy
import shlex
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
from latex2mathml.converter import convert
from markdown import markdown

from analysis.claims.catalogue import LRE_MARGIN
from analysis.claims.evidence import ALPHA
from analysis.tables.acceptance import TREND_MARGIN
from fspo.__main__ import COMMANDS as COMMANDS_OF_FSPO
from fspo.config import OptimConfig, TaskConfig
from fspo.config.rule import CorrectionConfig, RuleConfig
from fspo.gradlog.metric_names import METRICS
from fspo.repro.options import ReproductionOptions
from fspo.repro.presets import TASKS
from fspo.rules import CORRECTIONS, PRESETS, Drift, Outside, Rule
from fspo.rules.clip import MAX_EXPONENT
from fspo.stats.intervals import PERCENT
from fspo.tasks import _BUILDERS
from fspo.tasks.sets import TRAINING_SETS
from proofs_check.catalogue import CHECKS, STATEMENTS
from proofs_check.formal.checks import CHECKS as FORMAL_CHECKS
from proofs_check.frame import Method
from proofs_check.maps.fairness import rows_of
from proofs_check.maps.settings import setting
from studies.site_hooks import formulas

ROOT = Path(__file__).parents[1]
PAGES = ("README.md", *sorted(str(path.relative_to(ROOT)) for path in (ROOT / "docs").rglob("*.md")))
THEORY = (ROOT / "docs" / "theory.md").read_text(encoding="utf-8")
HOW_CHECKED = (ROOT / "docs" / "check_theory.md").read_text(encoding="utf-8")
STATED = re.compile(r'^<a id="t\d+"></a>\*\*(T\d+)\. ', re.M)
STATEMENT = re.compile(r"T\d|LRE_")
THEOREM = re.compile(r"^\s*(?:Theorem|Lemma|Corollary)\s+([\w']+)", re.M)
INLINE = re.compile(r"\$`(.+?)`\$")
BLOCK = re.compile(r"```math\n(.*?)\n```", re.S)
WRITTEN_BY_A_RUN = ("out/", "runs/", "figures/", "checks/", "RUN/")
"""Folders that a command makes: named in the documents, not kept in the repository."""


def page(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


@cache
def section(number: int) -> str:
    found = re.search(rf"^## {number}\. .*?(?=^## |\Z)", THEORY, re.M | re.S)
    assert found, f"docs/theory.md has no section {number}"
    return found[0]


def test_every_statement_is_stated_once_and_checked():
    assert sorted(STATED.findall(THEORY), key=lambda s: int(s[1:])) == list(STATEMENTS)
    assert [int(statement[1:]) for statement in STATEMENTS] == [i + 1 for i in range(len(STATEMENTS))]


def test_the_table_of_methods_is_that_of_the_catalogue():
    assert re.findall(r"^\| ([a-z][a-z -]+) \| (?!what)", HOW_CHECKED, re.M) == [str(method) for method in Method]


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
    scripts = "".join(page(path) for path in (ROOT / "proofs_check" / "formal").glob("*.v"))
    proved = set(THEOREM.findall(scripts))
    named = set(re.findall(r"`((?:T\d+s?|LRE)_\w+|[a-z]+_\w+)`", INLINE.sub("", HOW_CHECKED)))
    assert named <= proved, f"no such theorem: {sorted(named - proved)}"
    asked = {name for check in FORMAL_CHECKS for name in check.run.keywords["theorems"]}
    helpers = {"LRE_inf_attained"}  # a lemma that other theorems need
    assert asked - helpers <= named, f"proved, and not named in docs/check_theory.md: {sorted(asked - helpers - named)}"
    # Coq checks a lemma with the theorems whose proofs use it
    used = {name for name in named if len(re.findall(rf"\b{name}\b", scripts)) > 1 and not STATEMENT.match(name)}
    assert named - used <= asked, f"no check asks Coq for: {sorted(named - used - asked)}"


def test_numbers_of_the_base_case_are_those_of_the_map():
    point = setting("exponent", 0.5)
    rows = rows_of(point, ("band", "update", "weight"), np.random.default_rng(0), 0)
    found = {(row["measure"], row["rule"]): row["lre_inf"] for row in rows if row["target"] == 0.85}
    rules = ("fspo-kl", "fspo", "power-0.75", "fspo-tilted", "linear", "fixed")
    lines = {line.split("|")[1].strip(): line for line in section(9).splitlines() if line.startswith("| `")}
    for words, measure in (("`a_band`", "band"), ("`a_upd`, drop", "update"), ("`b`, two-sided drop", "weight")):
        stated = [float(cell) for cell in lines[words].strip("|").split("|")[1:]]
        assert stated == pytest.approx([found[measure, rule] for rule in rules], abs=5e-4)


def test_numbers_of_the_real_run_are_those_of_the_reproduction():
    found = re.search(r"^## What it found here$.*?(?=^## )", page("README.md"), re.M | re.S)
    assert found
    table = "\n".join(line for line in section(10).splitlines() if line.startswith("|"))
    known = set(re.findall(r"-?\d+\.\d+", page("docs/findings.md")))
    for text in (table, found[0]):
        numbers = re.findall(r"-?\d*\.\d+", re.sub(r"\$`.*?`\$", "", text))
        assert len(numbers) > 8
        assert set(numbers) <= known, f"not in docs/findings.md: {sorted(set(numbers) - known)}"


def test_a_line_of_the_site_may_begin_with_a_formula():
    sources = [text for text in THEORY.split("\n\n") if re.search(r"^\$`", text, re.M)]
    assert sources
    assert markdown(formulas("\n\n".join(sources))).count("<p>") == len(sources)


def test_the_readme_is_one_screen_and_lists_every_page():
    readme = page("README.md")
    assert len(readme.splitlines()) <= 100
    listed = readme.split("## Documents")[1]
    folders = {path.name for path in (ROOT / "docs").iterdir() if path.is_dir()}  # a page lists those of its folder
    assert {name for name in PAGES if name.startswith("docs/") and name.split("/")[1] not in folders} <= set(
        links(listed)
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
    Big Phi hat lceil Vert alpha bar beta big cdot chi cos delta dots epsilon eta exp frac gamma ge in infty kappa
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
    assert len(found) > 80
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


def test_documents_speak_of_the_methods_and_the_commands_that_exist():
    from proofs_check.__main__ import main

    for words in commands(THEORY):
        if words[1:3] == ["-m", "proofs_check"] and "RUN" not in words:
            assert main([*words[3:], "--list"]) == 0


def test_the_presets_are_listed_whole():
    """In docs/train.md, and in the docstring that gives the option its help and its line in docs/options.md."""
    listed = re.search(r"\(`--rule\.preset`\): `([^`]+)`", page("docs/train.md"))
    assert listed
    assert sorted(listed[1].split()) == sorted(PRESETS)
    for config, names in ((RuleConfig, PRESETS), (CorrectionConfig, ("none", *CORRECTIONS))):
        help_text = re.search(r"preset : str\n(.*?)\n    \w+ :", config.__doc__ or "", re.S)
        assert help_text
        assert help_text[1].strip().rstrip(".").replace(",", " ").split() == list(names)


def test_the_help_names_every_task_and_every_way_outside_the_band():
    for name in (*_BUILDERS, *TRAINING_SETS):
        assert f'"{name}"' in (TaskConfig.__doc__ or "")
        assert f"`{name}`" in page("docs/train.md")
    for name in TASKS:
        assert re.search(rf"tasks : .*?\W{name}[,\s]", ReproductionOptions.__doc__ or "", re.S)
    ways, drifts = ("{" + ", ".join(f'"{n}"' for n in get_args(names)) + "}" for names in (Outside, Drift))
    for config in (Rule, RuleConfig, CorrectionConfig):
        assert f"outside : {ways}" in (config.__doc__ or "")
        assert f"drift : {drifts}" in (config.__doc__ or "")
    (row,) = [line for line in page("docs/glossary.md").splitlines() if line.startswith("| outside |")]
    for way in get_args(Outside):
        assert f"- `{way}`: " in section(2)
        assert f"`{way}` (" in row
    for drift in get_args(Drift):
        assert f"| `{drift}` | " in section(2)


def test_documents_name_the_confidence_level():
    for name in ("README.md", "docs/theory.md", "docs/glossary.md", "docs/evaluate.md"):
        assert set(re.findall(r"(\d+ %) intervals?", page(name))) <= {PERCENT}, name
    assert f"With $`\\alpha={f'{ALPHA:g}'.removeprefix('0')}`$, the probability of error of one end" in section(11)


def test_documents_name_the_margins_of_the_claims():
    trend, lre = (f"{margin:g}".removeprefix("0") for margin in (TREND_MARGIN, LRE_MARGIN))
    assert f"the trend, within {trend} for each doubling of $`L`$, and $`LRE_\\infty`$, below {lre} with" in THEORY


def test_metrics_named_in_documents_exist():
    """A name with a slash that is no file is a metric's. A word in capitals, * or ... stands for any part of it."""
    metrics = [(name, re.compile(re.sub(r"\b(?:[A-Z]{4,}|I)\b", r"[\\w*.]+", name))) for name in METRICS]
    named = 0
    for name in (name for name in PAGES if name not in ("docs/metrics.md", "docs/import.md")):
        for word in re.findall(r"`([a-z_]{2,}/[\w*./]+)`", page(name)):
            if (ROOT / word).exists() or word.startswith(WRITTEN_BY_A_RUN):
                continue
            named += 1
            whole = re.compile(re.sub(r"\*|\.\.\.", r"[\\w/]+", word))
            assert any(one.fullmatch(word) or whole.fullmatch(metric) for metric, one in metrics), f"{name}: {word}"
    assert named > 3


def test_the_site_has_every_page():
    """As mkdocs asks when it builds the site; here without building it."""
    listed = set(re.findall(r": ([\w/-]+\.md)$", page("mkdocs.yml"), re.M))
    pages = {name.removeprefix("docs/") for name in PAGES if name.startswith("docs/")}
    assert listed - {"index.md", "files/CONTRIBUTING.md", "files/CHANGELOG.md"} == pages


def test_documents_name_the_cap_of_the_exponent():
    assert f"exponent is held at {MAX_EXPONENT:.0f}" in page("docs/glossary.md")
    assert f"is capped at {MAX_EXPONENT:.0f} before the exponential" in page("docs/theory.md")
    assert f"e^{MAX_EXPONENT:.0f}" in page("docs/train.md")
    assert f"e^{MAX_EXPONENT:.0f}" in (OptimConfig.__doc__ or "")


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


@pytest.mark.parametrize("name", PAGES)
def test_pages_close_their_code_blocks_and_name_no_home_folder(name):
    text = page(name)
    assert text.count("```") % 2 == 0
    assert "/home/" not in text
