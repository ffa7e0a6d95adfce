"""The documents against the repository: statements, files, commands, names and numbers that they give are right."""

from __future__ import annotations

import csv
import re
import runpy
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from fspo.__main__ import COMMANDS as COMMANDS_OF_FSPO
from fspo.config.rule import CorrectionConfig, RuleConfig
from fspo.rules import CORRECTIONS, PRESETS
from fspo.rules.gone import GONE_PRESETS
from fspo.stats.intervals import PERCENT

ROOT = Path(__file__).parents[1]
PAGES = ("README.md", *sorted(str(path.relative_to(ROOT)) for path in (ROOT / "docs").rglob("*.md")))
WRITTEN_BY_A_RUN = ("out/", "runs/", "figures/", "checks/", "RUN/")
"""Folders that a command makes: named in the documents, not kept in the repository."""


def page(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


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


TOP = {path.name for path in ROOT.iterdir() if not path.name.startswith(".") and path.name != "out"}


SUBCOMMANDS = ("calibrate", "doctor", "import", "sweep")


def test_names_stand_in_the_files_that_the_page_on_developing_says():
    found = re.findall(r"((?:`[\w.]+`(?:, | and | or )?)+) (?:in|of) `([\w./-]+\.\w+)`", page("docs/developing.md"))
    assert len(found) > 20
    missing = [
        f"{name} in {file}"
        for names, file in found
        for name in re.findall(r"`([\w.]+)`", names)
        if not re.search(rf"\b{re.escape(name)}\b", page(file))
    ]
    assert missing == []


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


TASKS = ("chain-add", "chain-add-64", "products")
QUANTITIES = {"A != 0": "trend of A != 0", "all": "trend"}


def change(task: str, rule: str, clipped: str, responses: str = "A != 0") -> float:
    """Percentage points by which the clip rate changes for each doubling of the length, of the judged runs."""
    table = csv.DictReader((ROOT / "results" / "first-design" / task / "rules.csv").open(encoding="utf-8"))
    key = {"rule": rule, "at": f"{1 - int(clipped[:-2]) / 100:g}", "quantity": QUANTITIES[responses]}
    (row,) = [row for row in table if key.items() <= row.items()]
    return -100 * float(row["value"])


def cells(text: str, head: str) -> list[list[str]]:
    """The rows of the table that begins with ``head``."""
    rows = text.split(f"| {head} |")[1].split("\n\n")[0].splitlines()[2:]
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]


def of_seeds(name: str, scale: float = 1, digits: int = 2, **key: str) -> str:
    """A mean over seeds of chain-add with its interval, as documents print it."""
    table = csv.DictReader((ROOT / "results" / "paper" / f"means_of_{name}.csv").open(encoding="utf-8"))
    key |= {"task": "chain-add", "runs": "unclipped"}
    (row,) = [row for row in table if key.items() <= row.items()]
    mean, low, high = (f"{scale * float(row[c]):.{digits}f}" for c in ("mean", "ci_low", "ci_high"))
    return f"{mean}{' %' if scale != 1 else ''} [{low}, {high}]"


def test_numbers_of_the_first_design_are_those_of_the_results():
    for responses, clipped, rule, *said in cells(page("docs/findings.md"), "responses | share clipped"):
        assert said == [f"{change(task, rule, clipped, responses):.1f}" for task in TASKS]


def test_numbers_of_the_second_design_are_those_of_the_results():
    findings, readme = page("docs/findings.md"), page("README.md")
    rows = {rule: said for rule, *said in cells(findings, "rule | clip rate for each doubling, 5 % clipped")}
    for rule, *said in cells(readme, "rule | 5 % clipped"):
        factor = {"estimand": "factor a doubling", "rule": rule}
        expected = [of_seeds("estimates", **factor, clip_rate=rate) for rate in ("0.05", "0.15")]
        signs = [{"quantity": "clip rate", "rule": rule, "setting": "5%", "responses": s} for s in ("A < 0", "A > 0")]
        assert said == expected
        assert rows[rule] == [f"x{x}" for x in expected] + [of_seeds("numbers", 100, 1, **sign) for sign in signs]
    for rule in ("gspo", "fspo", "rloo"):
        assert of_seeds("numbers", quantity="cosine", rule=rule, setting="5%") in findings
    learnt = of_seeds("estimates", estimand="factor a doubling", rule="fspo-adaptive", clip_rate="0.05")
    assert f"x{learnt}" in findings
    default = [
        of_seeds("numbers", 100, 0, quantity="clip rate", responses="A != 0", rule=rule, setting="default").split()[0]
        for rule in ("fspo", "rloo", "gspo")
    ]
    assert "fspo and rloo clip {} and {} % of these responses, gspo {} %".format(*default) in findings
    # README rounds: 10 % of A < 0 and less than 1 % of A > 0 under each rule; about a tenth of the loss due to length.
    assert "each rule clips 10 % of the responses with A < 0 and less than 1 % of those with A > 0" in readme
    assert "About a tenth of the squared loss of direction is due to length" in readme
    for rule in ("rloo", "gspo", "fspo"):
        of_sign = {"quantity": "clip rate", "rule": rule, "setting": "5%"}
        assert of_seeds("numbers", 100, 0, responses="A < 0", **of_sign).startswith("10 %")
        assert float(of_seeds("numbers", 100, 1, responses="A > 0", **of_sign).split()[0]) < 1
        for rate in ("5%", "15%"):
            share = of_seeds("numbers", quantity="share of the loss due to length", rule=rule, setting=rate)
            assert 0.05 < float(share.split()[0]) < 0.15
    for responses, rate in (("A < 0", "5%"), ("A > 0", "5%"), ("A != 0", "5%"), ("A != 0", "15%"), ("A != 0", "30%")):
        assert of_seeds("numbers", quantity="fair exponent", responses=responses, setting=rate) in findings


def test_documents_name_the_confidence_level():
    for name in PAGES:
        assert set(re.findall(r"(\d+ %) intervals?", page(name))) <= {PERCENT}, name
