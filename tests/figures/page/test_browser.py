"""The report in a real browser: no console error, nothing fetched, cut off or on top of something else."""

from __future__ import annotations

from dataclasses import replace

import pytest

from figures import draw_all
from figures.page.report import Picture, Section, write_report
from tests.browser import accessibility, look

LONG = "a-name-without-any-place-to-break-" * 6
EVIL = "<script>console.error('run')</script><img src=http://evil.example/x.png>"


@pytest.fixture(scope="module")
def report(case_tables, tmp_path_factory):
    folder = tmp_path_factory.mktemp("browser")
    names = ["acceptance_by_length", "cosine_by_rule", "variance_scaling"]
    drawn = draw_all(case_tables("usual"), folder, only=names)
    pictures = [Picture(d.png, d.title, d.caption, d.numbers, chart=d.name) for d in drawn if d.png]
    evil = folder / "evil.csv"
    evil.write_text(pictures[0].numbers.read_text().replace(",gspo,", f",</script>{EVIL},"))
    pictures[0] = replace(pictures[0], numbers=evil)
    assert len(pictures) == 3
    row = {"run": LONG, "finding": f"{EVIL} {'many words ' * 30}", "value": 0.125, "cure": "none"}
    claim = {"id": "C1", "statement": f"flat {EVIL}", "verdict": "supported", "estimate": 0.5, "estimand": LONG}
    return write_report(
        folder / "report.html",
        title=f"Report of {LONG}",
        sentences=[("Sensitivity", "One sentence."), ("Theory", LONG)],
        lead=pictures[0],
        sections=[
            Section(
                "Who is cut?",
                claims=[claim | {"details": {"slopes": {"fspo": {"value": 0.5, "low": 0.25, "high": 0.75}}}}],
                figures=pictures[1:2],
            ),
            Section("Sensitivity", figures=pictures[2:]),
            Section("Findings", [EVIL, LONG], [("What was found", [row] * 3), ("Long", [row] * 40)]),
            Section("Theory", tables=[("Checks", [{"id": LONG, "margin": 2}])]),
        ],
        samples=[{"title": "sample", "response": f"12+3=15\n{EVIL}\n{LONG}", "reward": 1.0}],
        provenance={"command": LONG, "seeds": [0, 1]},
    )


def show(page, report, width=1280, **media):
    page.set_viewport_size({"width": width, "height": 900})
    page.emulate_media(**media)
    page.goto(report.as_uri())
    page.set_default_timeout(10_000)
    page.wait_for_selector("figure[data-drawn]")


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (1280, "dark"), (390, "light"), (390, "dark")])
def test_the_report_in_a_browser(report, page, width, scheme):
    show(page, report, width, color_scheme=scheme)
    seen = look(page)
    assert seen["problems"] == page.said == accessibility(page) == []
    assert page.asked == [report.as_uri()]
    assert seen["texts"] > 200


def test_values_by_keyboard_and_by_mouse(report, page):
    show(page, report)
    panel = page.locator(".panel").first
    marks, told = panel.locator(".points_marks path"), panel.locator("output")
    names = marks.evaluate_all("all => all.map((mark) => mark.getAttribute('aria-label'))")
    assert len(names) > 5
    for _ in range(40):
        page.keyboard.press("Tab")
        if marks.first.evaluate("mark => mark === document.activeElement"):
            break
    assert told.inner_text() == names[0]
    for key, at in (
        ("ArrowRight", 1),
        ("ArrowRight", 2),
        ("ArrowLeft", 1),
        ("End", -1),
        ("ArrowRight", -1),
        ("Home", 0),
    ):
        page.keyboard.press(key)
        assert told.inner_text() == names[at]
    page.keyboard.press("Tab")  # one stop for the chart, whatever its number of points
    assert not marks.first.evaluate("mark => mark.parentElement.contains(document.activeElement)")
    marks.last.hover()  # nothing is drawn on top of the last
    assert told.inner_text() == names[-1]


def test_a_rule_off_and_on_by_keyboard(report, page):
    show(page, report)
    button = page.locator(".rules button").filter(has_text="rloo").first
    shown = page.locator(".panel").first.locator(".points_marks path[aria-label^='rloo']")
    before = shown.count()
    assert before > 0
    button.focus()
    for state, count in (("false", 0), ("true", before)):
        page.keyboard.press("Space")
        assert button.get_attribute("aria-pressed") == state
        page.wait_for_function(
            'count => document.querySelectorAll(".panel")[0].querySelectorAll(".points_marks '
            "path[aria-label^='rloo']\").length === count",
            arg=count,
        )
    assert page.locator(".panel").first.locator("path[tabindex='0']").count() == 1


def test_captions_tell_what_is_shown_and_the_hint_stands_once(report, page):
    show(page, report)
    hint = page.get_by_text("Point at a mark").locator("visible=true")
    caption = page.locator("figcaption").first
    assert hint.count() == 1
    assert "joined by lines" in caption.inner_text()
    assert "Gaussian law" not in caption.inner_text()
    page.emulate_media(media="print")
    assert hint.count() == 0
    assert "joined by lines" not in caption.inner_text()
    assert "Gaussian law" in caption.inner_text()


def test_print_and_no_script_show_the_figures(report, page, chromium):
    show(page, report)
    assert page.locator("figure.live img").first.is_hidden()
    page.emulate_media(media="print")
    assert page.locator("figure.live img").first.is_visible()
    assert page.locator(".charts").first.is_hidden()
    plain = chromium.new_page(java_script_enabled=False)
    plain.goto(report.as_uri())
    assert plain.locator("figure img").first.is_visible()
    assert plain.locator(".rules").first.is_hidden()
    plain.close()


def test_the_page_is_at_most_4_mb(report):
    assert 1e6 < report.stat().st_size < 4e6


@pytest.mark.parametrize("width", [1280, 390])
def test_each_claim_shows_its_estimate_once_in_the_summary(report, page, width):
    page.set_viewport_size({"width": width, "height": 900})
    page.goto(report.as_uri())
    row = page.locator("table.claims tbody tr").first
    assert row.inner_text().count("0.5") == 1  # what is hidden is not in it
    box = row.get_by_text("0.5", exact=True).locator("visible=true").bounding_box()
    assert box["x"] + box["width"] <= width


def test_the_look_sees_what_is_wrong(page, tmp_path):
    bad = tmp_path / "bad.html"
    bad.write_text(
        "<!DOCTYPE html><body style='margin:0'><p style='position:absolute;top:0;left:0'>one on top</p>"
        "<p style='position:absolute;top:2px;left:0'>of another</p><p style='position:absolute;left:380px;top:200px;"
        "white-space:nowrap'>sticks out on the right</p><p style='color:#eee;margin-top:300px'>too pale</p>"
        "<img src='no.png' alt='a'>"
        "<script>console.error('broken'); nothing()</script>"
    )
    page.set_viewport_size({"width": 390, "height": 900})
    page.goto(bad.as_uri())
    problems = " ".join([*page.said, *look(page)["problems"], *accessibility(page)])
    for words in (
        "overlap: one on top | of another",
        "console error: broken",
        "page error: nothing is not defined",
        "image not shown: a",
        "cut off",
        "px wide",
        "color-contrast",
        "html-has-lang",
    ):
        assert words in problems
    assert page.asked == [bad.as_uri(), (tmp_path / "no.png").as_uri()]
