"""The documents against the repository: statements, files, commands, names and numbers that they give are right."""

from __future__ import annotations

import csv
import re
import shlex
from pathlib import Path

import pytest

from fspo.__main__ import COMMANDS as COMMANDS_OF_FSPO
from fspo.config.rule import CorrectionConfig, RuleConfig
from fspo.rules import CORRECTIONS, PRESETS
from fspo.rules.gone import GONE_PRESETS
from fspo.stats.intervals import PERCENT
from tests.fspo.base.test_command_line import shown

ROOT = Path(__file__).parents[1]
PAGES = ("README.md", "CONTRIBUTING.md", *sorted(str(path.relative_to(ROOT)) for path in (ROOT / "docs").rglob("*.md")))
WRITTEN_BY_A_RUN = ("out/", "runs/", "figures/", "checks/", "RUN/")
"""Folders that a command makes: named in the documents, not kept in the repository."""
TOP = {path.name for path in ROOT.iterdir() if not path.name.startswith(".") and path.name != "out"}
SUBCOMMANDS = ("calibrate", "doctor", "import", "sweep")


def page(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


@pytest.mark.parametrize("name", PAGES)
def test_links_lead_somewhere(name):
    for link in re.findall(r"\]\(([^)\s:]+)\)", page(name)):  # without addresses of the web
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


def test_names_stand_in_the_files_that_contributing_says():
    found = re.findall(r"((?:`[\w.]+`(?:, | and | or )?)+) (?:in|of) `([\w./-]+\.\w+)`", page("CONTRIBUTING.md"))
    assert len(found) > 15
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
    return [shlex.split(line.replace("...", "").rstrip(" \\"), comments=True) for line in found]


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
    part = ["all"] if program[-1] in ("fspo.train", "fspo.plan", "train", "plan") else []
    found = shown(program, monkeypatch, capsys, *part)
    missing = {option for option in programs()[program] if option not in found}
    assert not missing, f"{' '.join(program)} knows no {sorted(missing)}"


def test_the_presets_are_listed_whole():
    assert {*PRESETS, *CORRECTIONS, *GONE_PRESETS} <= set(re.findall(r"`([\w-]+)`", page("docs/rules.md")))
    for config, names in ((RuleConfig, PRESETS), (CorrectionConfig, ("none", *CORRECTIONS))):
        help_text = re.search(r"preset : str\n(.*?)\n    \w+ :", config.__doc__ or "", re.S)
        assert help_text
        assert help_text[1].strip().rstrip(".").replace(",", " ").split() == list(names)


def cells(text: str, head: str) -> list[list[str]]:
    """The rows of the table that begins with ``head``."""
    rows = text.split(f"| {head} |")[1].split("\n\n")[0].splitlines()[2:]
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]


def of_seeds(name: str, scale: float = 1, digits: int = 2, task: str = "chain-add", **key: str) -> str:
    """A mean over seeds of a task with its interval, as documents print it."""
    table = csv.DictReader((ROOT / "results" / "paper" / f"means_of_{name}.csv").open(encoding="utf-8"))
    key |= {"task": task, "runs": "unclipped"}
    (row,) = [row for row in table if key.items() <= row.items()]
    mean, low, high = (f"{scale * float(row[c]):.{digits}f}" for c in ("mean", "ci_low", "ci_high"))
    return f"{mean}{' %' if scale != 1 else ''} [{low}, {high}]"


def test_numbers_with_intervals_are_those_of_the_results():
    """Each is the mean of some number of results/paper, with its interval, to the digits that the page shows."""
    told = set()
    for name in ("means_of_estimates", "means_of_numbers", "differences"):
        for row in csv.DictReader((ROOT / "results" / "paper" / f"{name}.csv").open(encoding="utf-8")):
            for scale, unit, digits in ((1, "", 2), (1, "", 3), (1, "", 4), (100, " %", 1)):
                ends = [round(scale * float(row[c] or "nan"), digits) + 0.0 for c in ("mean", "ci_low", "ci_high")]
                told.add("{:.{d}f}{} [{:.{d}f}, {:.{d}f}]".format(ends[0], unit, *ends[1:], d=digits))
    for name in ("README.md", "docs/findings.md"):
        shown = re.findall(r"-?\d+\.\d+(?: %)? \[-?\d+\.\d+, -?\d+\.\d+\]", page(name))
        assert len(shown) > 5
        assert set(shown) <= told, set(shown) - told


def test_what_the_tables_and_sentences_say_is_so():
    tasks = ("chain-add", "chain-add-64", "products")
    for rule, *said in cells(page("README.md"), f"rule | {' | '.join(tasks)}"):
        factor = {"estimand": "factor a doubling", "rule": rule, "clip_rate": "0.05"}
        assert said == [of_seeds("estimates", **factor, task=task) for task in tasks]
    table = list(csv.DictReader((ROOT / "results" / "paper" / "differences.csv").open(encoding="utf-8")))
    equal = [
        r for r in table if (r["runs"], r["quantity"], r["less"]) == ("equal", "reward, mean over rollouts", "fspo")
    ]
    below = max(float(r["ci_high"]) for r in equal if r["rule"] in ("rloo", "gspo"))
    assert f"at most {below:.3f} below (95 % bound)" in page("README.md")
    told = "each rule clips 9 to 12 % of A < 0, less than 1 % of A > 0"
    assert told in page("README.md")
    for rule in ("rloo", "gspo", "fspo"):
        for task in tasks:
            of_sign = {"quantity": "clip rate", "rule": rule, "setting": "5%", "task": task}
            assert 9 <= float(of_seeds("numbers", 100, 1, responses="A < 0", **of_sign).split()[0]) <= 12
            assert float(of_seeds("numbers", 100, 1, responses="A > 0", **of_sign).split()[0]) < 1
        for rate in ("5%", "15%"):
            quantity = "share of the loss between strata of length"
            low = of_seeds("numbers", 1, 4, quantity=quantity, rule=rule, setting=rate).split("[")[1].split(",")[0]
            assert float(low) < 0


def test_documents_name_the_confidence_level():
    for name in PAGES:
        assert set(re.findall(r"(\d+ %) intervals?", page(name))) <= {PERCENT}, name
