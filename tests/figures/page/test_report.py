"""The report: one file, all text escaped, no network, figures inside."""

from __future__ import annotations

import base64
import re
from html.parser import HTMLParser
from io import BytesIO

import numpy as np
import pytest
from PIL import Image

from figures.of_runs.lre_by_rule import figure
from figures.page.report import Picture, Section, estimate_text, plain, write_report
from figures.style import Style, save
from fspo.base.errors import UserError

EVIL = "<script>alert('x')</script> & <img src=http://evil.example/x.png>"
CLAIMS = [
    {
        "id": "C1",
        "statement": "acceptance is flat",
        "verdict": "supported",
        "estimate": -0.00123456,
        "ci_low": -0.0061,
        "ci_high": 0.0037,
        "margin": 0.01,
        "details": {
            "slopes": {"fspo": {"value": 0.5, "low": 0.25, "high": None, "seeds": 2}, "rloo": {"value": None}},
            "fspo 90 %": {"value": 0.125, "low": 0.0625, "high": 0.75},
            "holds": {"variance": True, "drift": False},
        },
        "runs": [{"run": "fspo", "slope": 0.25, "note": EVIL}, {"run": "rloo", "slope": None}],
    },
    {"id": "C2", "statement": EVIL, "verdict": "refuted", "estimate": 1.5},
    {"id": "C5", "statement": "training is as good", "verdict": "inconclusive", "reason": "1 seed"},
]


class Reader(HTMLParser):
    """Tags, attributes and visible text; wrongly nested tags fail."""

    VOID = ("meta", "img", "br")

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict]] = []
        self.text: list[str] = []
        self.open: list[str] = []

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)


@pytest.fixture(scope="module")
def picture(case_tables, tmp_path_factory):
    style = Style("icml-column")
    return save(figure(case_tables("one"), style), tmp_path_factory.mktemp("picture"), "lre", style)[1]


@pytest.fixture
def page(tmp_path, picture):
    numbers = tmp_path / "lre.csv"
    numbers.write_text(
        "rule,target,estimate,ci_low,ci_high,reason\n"
        f'fspo,0.95,0.125,0.0625,0.25,\n"{EVIL}",0.95,0.5,0.375,0.75,\nnone,0.95,,,,too few\n'
    )
    path = write_report(
        tmp_path / "out" / "report.html",
        title=f"Report {EVIL}",
        sentences=[("Who is cut?", "In short."), ("Nothing to say", EVIL)],
        lead=Picture(picture, "LRE by rule", f"caption {EVIL}", numbers, f"details {EVIL}"),
        sections=[
            Section("Who is cut?", claims=CLAIMS),
            Section("Findings", notes=[EVIL]),
            Section("Nothing to say"),
            Section("Tables", tables=[("Runs", [{"run": EVIL, "reward": 0.123456}, {"extra": True}]), ("Empty", [])]),
        ],
        samples=[{"title": "sample 1", "response": f"12+3=15\n{EVIL}"}],
        provenance={"seeds": [0, 1], "command": EVIL},
    )
    return path.read_text()


def read(page: str) -> Reader:
    reader = Reader()
    reader.feed(page)
    assert reader.open == []
    return reader


def test_all_text_is_escaped(page):
    reader = read(page)
    assert "script" not in {tag for tag, _ in reader.tags}
    assert "".join(reader.text).count("<script>alert('x')</script>") == 13  # shown as text, wherever it was given


def test_nothing_is_fetched(page):
    reader = read(page)
    sources = [a[k] for _, a in reader.tags for k in ("src", "href", "action", "data") if k in a]
    assert sources
    assert all(s.startswith(("#", "data:image/png;base64,")) for s in sources)
    assert not {"link", "iframe", "object", "form"} & {tag for tag, _ in reader.tags}
    style = re.search(r"<style>(.*?)</style>", page, re.S)
    assert style is not None
    assert "url(" not in style.group(1)
    assert "@import" not in style.group(1)


def test_figures_are_inside(page, picture):
    (image,) = [a for tag, a in read(page).tags if tag == "img"]
    shown = Image.open(BytesIO(base64.b64decode(image["src"].split(",", 1)[1]))).convert("L")
    drawn = Image.open(picture).convert("RGB").convert("L")
    assert shown.size == drawn.size
    assert np.abs(np.asarray(shown, float) - np.asarray(drawn, float)).mean() < 1
    assert image["alt"] == "LRE by rule"


def test_claims_verdicts_and_numbers(page):
    text = re.sub(r"\s+", " ", " ".join(read(page).text))
    for words in ("✓ supported", "✗ refuted", "? inconclusive"):
        assert text.count(words) == 3  # tally, summary, the claim itself: in words, not by colour alone
    assert "−0.001235 [−0.0061, 0.0037]" in text
    order = ("In short.", "Figure 1.", "Verdicts", "acceptance is flat", "Findings", "Tables", "Runs")
    places = [text.rindex(words) for words in order]  # the last place: links and the summary's table come before
    assert places == sorted(places)
    assert "Nothing to say" in text
    links = [a["href"] for tag, a in read(page).tags if tag == "a"]
    assert "#who-is-cut" in links
    assert "#nothing-to-say" not in links  # an empty section is left out, and no link leads to it
    assert text.index("Runs") < text.index("sample 1") < text.index("Provenance", text.index("sample 1"))
    assert "0.1235" in text
    assert "0.5 [0.25, –]" in text  # nested details: a table of intervals, a line each for the others
    assert "fspo 90 % 0.125 [0.0625, 0.75]" in text
    assert "variance yes, drift no" in text


def test_a_power_statement_is_a_sentence_and_its_parts_a_table(tmp_path):
    power = {"detectable": 0.0123, "sentence": "These runs would have seen <0.012>.", "parts": {"slopes: fspo": 0.0456}}
    claim = {"id": "C1", "statement": "flat", "verdict": "inconclusive", "details": {"power": power}}
    text = write_report(tmp_path / "r.html", title="t", sections=[Section("s", claims=[claim])]).read_text()
    assert "<dd>These runs would have seen &lt;0.012&gt;.</dd>" in text
    assert "power of each estimate" in text
    assert re.search(r"<td>slopes: fspo</td><td class=\"number\">0.0456</td>", text)
    assert "0.0123" not in text


def test_values_as_text():
    assert plain(None) == plain(float("nan")) == "–"
    assert plain(True) == plain(np.bool_(True)) == "yes"
    assert plain(np.int64(1234567)) == "1,234,567"
    assert plain(2026) == "2026"
    assert plain(np.float32(-0.25)) == "−0.25"
    assert plain(float("-inf")) == "−∞"
    assert plain({"a": [1, 2.5], "b": "x"}) == "a 1, 2.5, b x"
    assert estimate_text({"estimate": 0.5}) == "0.5"
    assert estimate_text({"estimate": None, "ci_low": 1}) == ""
    assert estimate_text({"estimate": 0.5, "ci_low": 0.25, "ci_high": None}) == "0.5 [0.25, –]"


def test_an_empty_report_and_bad_figures(tmp_path):
    path = write_report(tmp_path / "r.html", title="empty")
    assert "Verdicts" not in "".join(read(path.read_text()).text)
    with pytest.raises(UserError, match="is missing: run fspo figures again"):
        write_report(tmp_path / "r.html", title="t", lead=Picture(tmp_path / "no.png", "", ""))
    (tmp_path / "no.png").write_text("hello")
    with pytest.raises(UserError, match="is no PNG"):
        write_report(tmp_path / "r.html", title="t", lead=Picture(tmp_path / "no.png", "", ""))
    assert path.read_text().startswith("<!DOCTYPE html>")  # the whole report of before is still there


def test_a_figure_is_followed_by_its_details_and_numbers(page):
    text = re.sub(r"\s+", " ", " ".join(read(page).text))
    assert "More about figure 1 details" in text
    assert re.search(r"<details[^>]*><summary>More about figure 1</summary>", page)
    assert "The numbers of figure 1 (3 rows)" in text
    assert "In every row: target 0.95." in text
    assert "fspo 0.125 [0.0625, 0.25]" in text
    assert "none – too few" in text  # a rule's name, no missing value


def test_long_numbers_are_cut_with_a_word_and_broken_ones_are_refused(tmp_path, picture):
    long, broken = tmp_path / "long.csv", tmp_path / "broken.csv"
    long.write_text("x\n" + "\n".join(map(str, range(300))))
    broken.write_text('x,y\n"1')
    path = write_report(tmp_path / "r.html", title="t", lead=Picture(picture, "a", "b", long))
    assert "The first 250 of 300 rows; all are in long.csv." in path.read_text()
    assert path.read_text().count("<tr><td") == 250
    with pytest.raises(UserError, match=r"broken\.csv of a figure cannot be read"):
        write_report(tmp_path / "r.html", title="t", lead=Picture(picture, "a", "b", broken))


def test_a_section_holds_tables_and_figures(tmp_path, picture):
    theory = Section(
        "Theory at work",
        tables=[("Checks", [{"id": "T7", "note": EVIL}])],
        figures=[Picture(picture, "Tightness", f"second {EVIL}")],
    )
    path = write_report(
        tmp_path / "report.html",
        title="Report",
        lead=Picture(picture, "LRE by rule", "first"),
        sections=[theory, Section("Tables", tables=[("Runs", [{"run": "a"}])])],
    )
    page = path.read_text()
    reader = read(page)
    tags = [tag for tag, _ in reader.tags]
    text = re.sub(r"\s+", " ", " ".join(reader.text))
    order = ("Figure 1. LRE by rule.", "Figure 2. Tightness.", "Checks (1 row)", "Runs (1 row)")
    assert [text.index(words) for words in order] == sorted(text.index(words) for words in order)
    assert ("a", {"href": "#theory-at-work"}) in reader.tags
    assert 'id="theory-at-work"' in page
    assert "script" not in tags
    assert tags.count("img") == 2
    assert "".join(reader.text).count("<script>alert('x')</script>") == 2


def test_atoms_stand_in_the_first_headline_that_names_them_and_an_unnamed_one_alone(tmp_path):
    atoms = {"85-flat": {"verdict": "refuted"}, "95-flat": {"verdict": "supported"}}
    claims = [
        {"id": "C1", "statement": "flat", "verdict": "refuted", "details": {"atoms": atoms}},
        {"id": "C2", "statement": "small", "verdict": "refuted", "details": {"atoms": {"85-flat": {}}}},
        *({"id": name, "statement": "an atom", **atom} for name, atom in atoms.items()),
        {"id": "85-alone", "statement": "alone", "verdict": "inconclusive"},
    ]
    page = write_report(tmp_path / "r.html", title="t", sections=[Section("s", claims=claims)]).read_text()
    rows = re.findall(r"<tr><td>(.*?)</tr>", page[: page.index("<nav")], re.S)
    assert [re.findall(r'href="#(.*?)"', row) for row in rows] == [
        ["claim-c1", "claim-85-flat", "claim-95-flat"],
        ["claim-c2"],
        ["claim-85-alone"],
    ]
    assert [
        page.count(f'id="{name}"') for name in ("claim-c1", "claim-85-flat", "claim-95-flat", "claim-85-alone")
    ] == [1] * 4
    assert re.findall(r"</span> (\d+)</li>", page) == ["1", "3", "1"]  # supported, refuted, inconclusive
