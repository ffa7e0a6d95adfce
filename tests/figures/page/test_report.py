"""The report: one static file, all text escaped, its sentences and tables by hand."""

import re
import shutil

import pandas as pd
import pytest

from analysis.run import analyse_runs
from figures.page import story
from figures.page.command import write
from figures.page.report import SECTIONS, decision, issues, plain, table, write_report
from figures.tables import load
from fspo.base.errors import UserError
from fspo.gradlog.files import log_paths
from tests.analysis.conftest import Plan, write_log
from tests.figures.conftest import write_run

EVIL = "<script>alert('x')</script> & <img src=http://evil.example/x.png>"
KEYS = {"run": "one", "trained_rule": "none", "seed": 1, "outside": "drop", "use": "first", "reason": ""}
PART = {"claim": "1", "task": "chain-add", "hypothesis": "slope above 0", "seeds": 6, "mean": 0.125, "ci_low": -0.5}
PART |= {"ci_high": 0.75}
CLAIM = {"claim": "1", "verdict": "open", "sentence": EVIL, "decides": "chain-add: slope above 0"}


def acceptance(rule: str, source: str, short: float, long: float, target: float = 0.95) -> list[dict]:
    same = {**KEYS, "rule": rule, "source": source, "target": target, "subset": "nonzero", "measure": "update"}
    return [
        same | {"bin": i, "bin_lo": lo, "bin_hi": hi, "estimate": a, "ci_low": a - 0.01, "ci_high": a + 0.01}
        for i, (lo, hi, a) in enumerate([(4, 16, short), (16, 64, (short + long) / 2), (64, 257, long)])
    ]


@pytest.fixture
def run(tmp_path):
    """An analysed run with the tables that the page reads, and one drawn figure."""
    folder = tmp_path / "one"
    rows = [
        *acceptance("fspo", "trained", 0.9, 0.8),
        *acceptance("rloo", "matched", 0.98, 0.9),
        *acceptance("rloo", "matched", 0.5, 0.5, 0.85),
        *acceptance("gspo", "matched", 0.9, 0.98),
    ]
    cosine = {**KEYS, "rule": "fspo", "source": "matched", "target": 0.95, "bin": -1}
    cosine |= {"estimate": 0.9, "ci_low": 0.8, "ci_high": 0.95}
    write_run(folder, {"acceptance": pd.DataFrame(rows), "cosine": pd.DataFrame([cosine])}, warnings=[EVIL])
    (folder / "metrics.jsonl").write_text('{"rollout": 0, "reward": 0.25}\n{"rollout": 1, "reward": 0.5}\n')
    (tmp_path / "figures").mkdir()
    (tmp_path / "figures/acceptance_by_length.png").write_bytes(b"any bytes")
    (tmp_path / "figures/acceptance_by_length.csv").write_text(f'rule,estimate\n"{EVIL}",0.5\n')
    return folder


DRAWN = {"name": "acceptance_by_length", "title": EVIL, "caption": EVIL, "skipped": ""}
CAPTIONS = [
    DRAWN | {"numbers": "acceptance_by_length.csv"},
    {"name": "error_split", "title": "Error", "caption": "", "skipped": "no scores"},
]
SOUND = {"run": "one", "issues": [], "clear": ["a", "b"], "not_checked": [], "notes": []}
FOUND = {**SOUND, "issues": [{"id": "s_zero", "severity": "critical", "summary": EVIL, "fix": "log S"}]}


def written(run, **more):
    path = run.parent / "report.html"
    given = {"diagnoses": [FOUND], "captions": CAPTIONS, "claims": [CLAIM], "parts": [PART]} | more
    lines = write_report(path, title=EVIL, runs=[run], folder=run.parent / "figures", **given)
    assert lines == [f"one: {EVIL}"]
    return path.read_text()


def test_the_page_is_static_whole_and_escaped(run):
    page = written(run)
    assert "<script" not in page
    assert "http:" not in page.replace("src=http://evil.example", "")
    assert page.count("<img src=http") == 0
    assert page.count("data:image/png;base64,") == page.count(";base64,YW55IGJ5dGVz") == 1  # "any bytes"
    for tag in ("section", "table", "details", "figure", "dl", "ol"):
        assert page.count(f"<{tag}") == page.count(f"</{tag}>")
    assert re.findall(r'<h2 id="s\d">(.*?)</h2>', page) == [*SECTIONS]


def test_the_page_shows_claims_figures_issues_and_numbers(run):
    page = written(run, checks={"summary": "1 check: 1 fail", "rows": [{"id": "T7", "verdict": "fails"}]})
    assert "? open" in page
    assert "chain-add: slope above 0; found 0.12 [−0.50, 0.75], 6 seeds" in page
    assert "Not drawn: Error: no scores" in page
    assert "Theory: 1 check: 1 fail." in page
    assert "<td>critical</td>" in page
    assert "The numbers of this figure (1 row)" in page
    assert "Every hypothesis of the claims on every task (1 row)" in page


def test_sentences_by_hand(run):
    """Bins of 4 to 15 tokens and of 64 to 256; clip rate = 1 - acceptance."""
    tables = load([run]).frames
    who, direction, health = story.sentences(tables, [FOUND])
    assert who == (
        "As trained (A ≠ 0, first epoch), fspo clips 10.0 % of the shortest responses (4 to 15 tokens) and 20.0 % of "
        "the longest (64 to 256). At 5 % clipped (run one), the clip rate of the shortest responses (4 to 15 tokens) "
        "and of the longest (64 to 256) is 2.0 % and 10.0 % under rloo, 10.0 % and 2.0 % under gspo."
    )
    assert direction.endswith("the clipped with the unclipped gradient is 0.900 [0.800, 0.950] under fspo.")
    assert health == f"Health checks: one: critical s_zero, {EVIL}. Fix: log S."
    assert story.health([SOUND, SOUND]) == "Health checks: sound (4 checks without an issue)."
    unknown = tables["acceptance"].assign(estimate=float("nan"))
    assert story.sentences(tables | {"acceptance": unknown}, [SOUND])[0].startswith("These runs do not show")
    empty = pd.DataFrame()
    assert story.sentences({"acceptance": empty, "cosine": empty}, [SOUND])[0].startswith("These runs do not show")


def test_a_log_that_has_grown_is_analysed_again_first(tmp_path):
    run, longer = (write_log(tmp_path / str(n), Plan(rollouts=n, width=0)) for n in (1, 2))
    analyse_runs([run])
    shutil.copy(log_paths(longer)[-1], run / "gradlog")
    with pytest.raises(UserError, match=r"has grown from 1024 to 2048 rows: run `fspo analyse .*` again"):
        write([run], tmp_path / "report.html")


def test_tables_and_text_by_hand():
    assert [plain(x) for x in (None, float("nan"), True, 12345, -0.00123456, [1, "a"], {"b": 2.0})] == [
        *("–", "–", "yes", "12,345", "−0.001235", "1, a", "b 2")
    ]
    found = table("t", [{"a_b": i, "c": None} for i in range(5)], "rest", most=2)
    assert found["columns"] == ["a b", "c"]
    assert (found["numeric"], found["count"], found["left"]) == ([True, False], 5, "rest")
    assert len(found["rows"]) == 2
    assert table("t", [{"a": 1}], "rest")["left"] == ""
    assert [row["severity"] for row in issues([SOUND, FOUND])] == ["critical", ""]
    assert decision(CLAIM | {"decides": "elsewhere"}, [PART]) == "elsewhere"


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("one/analysis/summary.json", b"{}x"),
        ("one/analysis/acceptance.parquet", b"{}x"),
        ("one/analysis/acceptance.parquet", None),
        ("figures/acceptance_by_length.png", None),
    ],
)
def test_damaged_files_are_named_with_the_fix(run, name, content):
    file = run.parent / name
    file.write_bytes(content) if content else file.unlink()
    first = "move it away, then " if file.suffix == ".json" else ""
    with pytest.raises(UserError, match=f"{re.escape(file.name)} cannot be read: {first}run .*again"):
        written(run)
