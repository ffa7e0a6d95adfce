"""The report in a real browser: no console error, nothing fetched, cut off or on top of something else."""

import pytest

from figures import draw_all
from figures.__main__ import described
from figures.page.report import write_report
from tests.browser import accessibility, look
from tests.figures.conftest import write_run

LONG = "a-name-without-any-place-to-break-" * 6
EVIL = "<script>console.error('run')</script><img src=http://evil.example/x.png>"


@pytest.fixture(scope="module")
def report(case_tables, tmp_path_factory):
    folder = tmp_path_factory.mktemp("browser")
    tables = case_tables("usual")
    names = ["acceptance_by_length", "cosine_by_rule", "variance_scaling"]
    drawn = draw_all(tables, folder / "figures", only=names)
    run = write_run(folder / LONG[:60], tables.frames, damage=[LONG], warnings=[EVIL])
    issue = {"id": "s_zero", "severity": "critical", "summary": f"{EVIL} {LONG} {'many words ' * 30}", "fix": LONG}
    part = {"claim": "1", "task": LONG, "hypothesis": EVIL, "seeds": 6, "mean": 0.1, "ci_low": 0.0, "ci_high": 0.2}
    claim = {"claim": "1", "verdict": "supported", "sentence": f"{EVIL} flat", "decides": f"{LONG}: {EVIL}"}
    claims = [claim, claim | {"claim": "2", "verdict": "refuted"}, claim | {"claim": "3", "verdict": "open"}]
    write_report(
        folder / "report.html",
        title=f"Report of {LONG}",
        runs=[run],
        diagnoses=[{"run": str(run), "issues": [issue] * 2, "clear": [], "not_checked": [], "notes": []}],
        folder=folder / "figures",
        captions=described(drawn),
        claims=claims,
        parts=[part] * 40,
        checks={"summary": "1 check: 1 pass", "rows": [{"id": "T7", "name": LONG, "verdict": "holds", "margin": 2.0}]},
        provenance={"command": LONG, "seeds": [0, 1]},
    )
    return folder / "report.html"


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (390, "dark")])
def test_the_report_in_a_browser(report, page, width, scheme):
    page.set_viewport_size({"width": width, "height": 900})
    page.emulate_media(color_scheme=scheme)
    page.goto(report.as_uri())
    seen = look(page)
    assert seen["problems"] == page.said == accessibility(page) == []
    assert page.asked == [report.as_uri()]
    assert seen["texts"] > 200


def test_the_page_is_at_most_2_mb(report):
    assert 1e5 < report.stat().st_size < 2e6
