"""What studies/findings.py publishes from runs and claims, and what README says of the published claims."""

import json
import shutil

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from analysis.options import Options
from analysis.run import analyse_runs
from figures.style import Style
from fspo.base.errors import UserError
from studies import findings, reproduction_tables
from studies import findings_tables as tables
from studies import findings_verdicts as verdicts
from studies.findings_picture import acceptance_figure, source_of
from studies.findings_verdicts import JudgedTask
from tests.record.make_record import LOGS


def claim(name, **more):
    said = {"id": name, "statement": f"{name} says.", "estimand": "2H - 1", "verdict": "refuted"}
    return said | {"estimate": 0.2, "ci_low": 0.1, "ci_high": 0.3, "details": {}} | more


TREND_PARTS = ("rloo-falls", "gspo-rises", "fspo-flat", "trend-rloo", "trend-gspo")
"""Parts of the claims whose numbers the page's sentences read, at each share, of all responses and of A != 0."""


def trends(**values):
    """Claims with the numbers of `TREND_PARTS`: by name of the part the value, p for and p against of each log."""
    found = []
    for share in (85, 95):
        for tag in (f"{share}", f"{share}-update"):
            for part in TREND_PARTS:
                of_logs = values.get(part.replace("-", "_"), [(-0.1, 0.5, 0.5)])
                numbers = {f"log{i}": {"value": v, "p for": p, "p against": q} for i, (v, p, q) in enumerate(of_logs)}
                found.append(claim(f"{tag}-{part}", details={"numbers": numbers}))
    return found


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run folder with its analysis, called a run without a clip."""
    folder = tmp_path_factory.mktemp("runs") / "fspo-kl"
    shutil.copytree(LOGS / "fspo-kl", folder)
    analyse_runs([str(folder)], Options(draws=2))
    return folder


@pytest.fixture(autouse=True)
def few_resamples(monkeypatch):
    """Ten resamples instead of hundreds: intervals are not what these tests look at."""
    real = reproduction_tables.interval
    monkeypatch.setattr(reproduction_tables, "interval", lambda of, cluster: real(of, cluster, 10))
    exponents = reproduction_tables.fair_exponents
    monkeypatch.setattr(
        reproduction_tables,
        "fair_exponents",
        lambda rows, shares, responses="all", resamples=0: exponents(rows, shares, responses, resamples=10),
    )
    monkeypatch.setattr(reproduction_tables, "UNCLIPPED", "fspo-kl")  # the committed log's rule


def write_reproduction(folder, run, claims):
    """Write what a finished reproduction of one task leaves: one run, its claims, report and figure."""
    (folder / "runs").mkdir(parents=True)
    (folder / "runs" / "fspo-seed11").symlink_to(run)
    said = {"catalogue": "abc", "commit": "0123456789abcdef", "seeds": [11], "claims": claims}
    (folder / findings.JUDGED).write_text(json.dumps(said))
    (folder / findings.REPORT).write_text(f"the report of {folder.name}")
    (folder / findings.PICTURE).parent.mkdir()
    (folder / findings.PICTURE).write_bytes(b"a picture")
    return said


DECIDES = "of 1 atoms the one that decides, log-variance: exponent"


def test_a_reproduction_is_published_as_tables_and_a_page(tmp_path, run):
    out, results = tmp_path / "out", tmp_path / "quick"
    with pytest.raises(UserError, match="make repro"):
        findings.publish(out, results)
    power = {"sentence": "A true distance of 0.13 from the margin 0.1 is seen in every log."}
    claims = [
        claim("C1", estimand=DECIDES, details={"atoms": {}, "power": power}),
        claim("log-variance", margin=0.1),
        claim("own-ends", estimate=None),
        *trends(),
    ]
    said = write_reproduction(out, run, claims)
    findings.publish(out, results)
    text = findings.page(results)
    assert "`fspo reproduce --preset quick` (`results/quick/`: seeds 11, commit\n0123456789ab, catalogue abc)" in text
    decided = "log-variance: 2H - 1 0.200 [0.100, 0.300]; claimed within 0.1"
    assert f"| C1 C1 says. | refuted | {decided} | one number | 0.13 |" in text
    unknown = "refuted | rollouts missed unknown; claimed below 0.5 | one number | none |"
    assert f"| own-ends | own-ends says. | {unknown}" in text
    assert "- log-variance says. *Refuted*" in text
    assert json.loads((results / "claims.json").read_text()) == said
    assert (results / "report.html").read_text() == "the report of out"
    parts = pd.read_csv(results / "trend_parts.csv")
    by_part = parts.pivot(index=["responses", "share"], columns="part", values="value")
    assert by_part[["drift", "scale", "shape"]].sum(axis=1).to_numpy() == pytest.approx(by_part["trend"], abs=1e-3)


def test_a_task_is_measured_again_only_if_its_runs_change(tmp_path, run, monkeypatch):
    out, results, measured = tmp_path / "out", tmp_path / "quick", []
    write_reproduction(out, run, [claim("log-variance")])
    real = findings.tables_of_task
    monkeypatch.setattr(findings, "tables_of_task", lambda runs, step: measured.append(len(runs)) or real(runs, step))
    findings.publish(out, results)
    (results / "report.html").unlink()
    (results / "law.csv").write_text("other rows")
    said = {"catalogue": "abc", "commit": "0", "seeds": [11], "claims": [claim("log-variance", verdict="supported")]}
    (out / findings.JUDGED).write_text(json.dumps(said))
    findings.publish(out, results)
    assert measured == [1]
    assert (results / "report.html").is_file()
    assert (results / "law.csv").read_text().startswith("run,")
    assert json.loads((results / "claims.json").read_text()) == said
    (out / "runs" / "fspo-seed12").symlink_to(run)
    findings.publish(out, results)
    assert measured == [1, 2]


def test_claims_are_published_after_their_tables(tmp_path, run, monkeypatch):
    out, results = tmp_path / "out", tmp_path / "quick"
    write_reproduction(out, run, [claim("log-variance")])
    monkeypatch.setattr(findings, "tables_of_task", lambda runs, step: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        findings.publish(out, results)
    assert not (results / "claims.json").exists()


def test_tasks_are_published_as_they_are_judged_and_stand_side_by_side(tmp_path, run):
    out, results = tmp_path / "out", tmp_path / "paper"
    for task, verdict in (("products", "supported"), ("chain-add", "refuted")):
        head = claim("C1", estimand=DECIDES, details={"atoms": {}}, verdict=verdict)
        write_reproduction(out / task, run, [head, claim("log-variance", verdict=verdict, margin=0.1), *trends()])
    findings.publish(out, results)
    text = findings.page(results)
    assert "(`results/paper/`: tasks chain-add, products; seeds 11, commit" in text
    assert "| claim | chain-add | products |" in text
    assert "| C1 C1 says. | refuted | supported |" in text
    assert "Not judged yet: chain-add-64." in text
    assert "over all tasks" not in text
    assert "- On products: log-variance says. *Supported*" in text
    assert "| chain-add, A > 0 | " in text
    assert "| products, A != 0, trend | " in text
    assert "On common logs of products:" in text
    assert "- **Rule** on products: as published, " in text
    assert verdicts.main_claims(results)[0]["verdict"] == "refuted"  # not all tasks are judged: the first one's
    last = claim("C1", estimand=DECIDES, details={"atoms": {}}, verdict="refuted")
    write_reproduction(out / "chain-add-64", run, [last, claim("log-variance", margin=0.1), *trends()])
    pooled = [claim("C1", estimand=DECIDES, details={"atoms": {}}, verdict="inconclusive")]
    (out / "claims.json").write_text(json.dumps({"claims": pooled, "tasks": ["chain-add", "products"]}))
    with pytest.raises(UserError, match="not about all tasks"):
        findings.publish(out, results)
    (out / "claims.json").write_text(json.dumps({"claims": pooled, "tasks": [*findings.TASKS]}))
    findings.publish(out, results)
    assert verdicts.main_claims(results) == pooled
    text = findings.page(results)
    assert "| claim | over all tasks | chain-add | chain-add-64 | products |" in text
    assert "| C1 C1 says. | inconclusive | refuted | refuted | supported |" in text
    assert "Not judged yet" not in text


def test_a_claim_s_line_says_how_many_logs_alone_would_support_and_refute_it():
    ps = {"a": (0.01, 0.99), "b": (0.5, 0.5), "c": (0.99, 0.001), "d": (1.0, 1.0)}
    values = {"a": 0.05, "b": 0.1, "c": 0.2, "d": None}
    numbers = {log: {"value": values[log], "p for": p, "p against": q} for log, (p, q) in ps.items()}
    part = claim("log-variance", details={"numbers": numbers})
    said = "0.050 to 0.200; c decides; 1 support, 1 refute, of 4 | none |"
    assert verdicts.further(part, [part]) == said
    head = claim("C4", estimand=DECIDES, details={"atoms": {}})
    assert verdicts.further(head, [head, part]) == said


def test_parts_that_hold_at_0_and_whose_margin_is_below_the_distance_seen_are_named():
    """own-ends says "below 0.5", log-variance "within 0.1" of 0, own-reward-rloo "above -0.02"; 85-rloo-falls says
    nothing that holds at 0."""
    parts = (("log-variance", 0.1), ("own-ends", 0.5), ("own-reward-rloo", -0.02), ("85-rloo-falls", 0.0))

    def judged(task, *seen):
        found = [
            claim(name, margin=margin, details={"power": {"sentence": f"A true distance of {x} from the margin"}})
            for (name, margin), x in zip(parts, seen, strict=True)
        ]
        return JudgedTask(task, {"claims": found}, {})

    said = verdicts.hardly_supported([judged("a", 0.11, 0.4, 0.03, 9.0), judged("b", 0.3, 0.6, 0.01, 9.0)])
    assert said == "on all tasks `log-variance`; on a `own-reward-rloo`; on b `own-ends`"
    assert verdicts.hardly_supported([judged("", 0.09, 0.6, 0.0, 9.0)]) == "`own-ends`"


def test_each_part_of_each_claim_stands_beside_its_verdicts():
    one, two = (
        JudgedTask(task, {"claims": [claim("log-drift", verdict=verdict)]}, {})
        for task, verdict in (("a", "supported"), ("b", "refuted"))
    )
    text = verdicts.parts_of_claims([one, two])
    assert "| claim | part | a | b |" in text
    assert "| C4 | log-drift | supported | refuted |" in text
    assert "| C4 | log-normal | not judged | not judged |" in text


def test_the_trends_of_the_rules_stand_in_a_table_and_are_counted_both_ways():
    a = trends(
        rloo_falls=[(-0.08, 0, 1), (-0.06, 0, 1)],
        fspo_flat=[(0.0, 0, 1), (0.02, 0, 1)],
        trend_rloo=[(0.08, 0.01, 1), (0.04, 0.3, 0.7)],
        trend_gspo=[(-0.01, 0.9, 0.01), (None, 1, 1)],
    )
    found = [JudgedTask("a", {"claims": a}, {}), JudgedTask("b", {"claims": trends()}, {})]
    lines = verdicts.trend_lines(found)
    assert lines[0] == "| change for each doubling of L | rule | a | b |"
    same = "-0.100 (-0.100 to -0.100)"
    assert f"| A != 0, 95 % left alone | rloo | -0.070 (-0.080 to -0.060) | {same} |" in lines
    assert f"| all, 85 % in the band | fspo | 0.010 (0.000 to 0.020) | {same} |" in lines
    assert len(lines) == 2 + 3 * 4
    head, _, of_rloo, *_ = verdicts.mean_trend_lines(found)
    shares = "A != 0, 95 % left alone | A != 0, 85 % left alone | all, 95 % in the band | all, 85 % in the band"
    assert head == f"| on common logs, change for each doubling of L (a, b) | {shares} |"
    assert of_rloo == "| rloo | -0.070, -0.100 | -0.070, -0.100 | -0.070, -0.100 | -0.070, -0.100 |"
    head, _, at_95, *_, all_85 = verdicts.trend_counts(found)
    assert head.startswith("| trend of | rloo's falls | gspo's rises | fspo's is within 0.01 of 0 | fspo's is smaller")
    assert at_95 == "| A != 0, 95 % left alone | 3 (2, 0) | 0 (0, 0) | 1 (2, 0) | 2 (1, 0) | 0 (0, 1) |"
    assert all_85.startswith("| all, 85 % in the band | 3 (2, 0) | 0 (0, 0) | 1 (2, 0) |")
    assert verdicts.number_of_logs(found) == 3


def test_the_sentences_of_readme_name_each_task_s_numbers():
    edges = {"a": {"A > 0": (0.5, 0.9), "A < 0": (0.1, 0.2)}, "b": {"A > 0": (0.7, 0.7), "A < 0": (-0.1, 0.3)}}
    found = []
    for task, of_signs in edges.items():
        rows = [  # the rows at 75 % must not count
            {"responses": sign, "share": share, "value": value + (share == 0.75), "low": value, "high": value}
            for sign, values in {"A != 0": (0.4, 0.6), **of_signs}.items()
            for value in values
            for share in (0.75, 0.85)
        ]
        law = [
            {"responses": name, "run": run, "bin_lo": at, "share": share}
            for run, shares in (("x", (0.2, 0.8)), ("y", (0.4, 0.6)))
            for name, of_set in (("all", (1, 1)), ("A != 0", shares))
            for at, share in zip((1, 100), of_set, strict=True)
        ]
        names = (*reproduction_tables.SETS, "predicted")
        curve = [
            {"responses": name, "share": share, "value": i + share, "low": np.nan, "high": np.nan}
            for i, name in enumerate(names)
            for share in (0.85, 0.95)
        ]
        made = {"fair_exponent": rows, "law": law, "exponent_curve": curve}
        found.append(JudgedTask(task, {}, {name: pd.DataFrame(some) for name, some in made.items()}))
    said = tables.edges_line(found)
    assert "its fair exponent for them is 0.40 to 0.60 (a), 0.40 to 0.60 (b), lowest" in said
    upper = "its upper edge alone (A > 0) is 0.50 to 0.90 (a), 0.70 to 0.70 (b), with its interval above 1/2 in 3 of 4"
    assert f"{upper} runs and below in 0, and" in said
    assert "its lower edge (A < 0) 0.10 to 0.20 (a), -0.10 to 0.30 (b), above in 0 and below in 4. Of" in said
    said = tables.why_line(found)
    assert "on a A = 0 in 70 % of the shortest and 30 % of the longest responses, and the fair exponent of all" in said
    assert "of all responses is 0.850, no interval, where T19 predicts 3.850; that of A != 0, cut at" in said
    assert "on the side of A, is 2.850, no interval, and 1.850, no interval if both edges count" in said


def test_the_law_of_s_by_hand(monkeypatch):
    """Two lengths: S/sqrt(L) is -3 or 3 where A != 0, of a fifth of the short and all of the long, else 0."""
    number = 400
    length = np.repeat([4.0, 100.0], number)
    A = np.where(length == 100, 1.0, np.tile([1.0, 0, 0, 0, 0], 2 * number // 5))
    S = np.where(A != 0, np.tile([3.0, 3.0, 3.0, 3.0, -3.0, -3.0, -3.0, -3.0], number // 4), 0.0) * np.sqrt(length)

    class Some:
        def __init__(self, **columns):
            vars(self).update(columns)

        def take(self, which):
            return Some(**{name: x[which] for name, x in vars(self).items()})

    rows = Some(S=S, A=A, length=length, rollout=np.zeros(2 * number, int))
    law = pd.DataFrame(reproduction_tables.law_rows(rows)).set_index(["responses", "bin_mean"])
    assert list(law["share"]) == [1, 1, 0.2, 1]
    moved = law.loc["A != 0"]
    assert moved["q85"].to_numpy() == pytest.approx([1, 1])  # |S|/sqrt(L) over its root mean square
    assert moved["sd"].to_numpy() == pytest.approx([1, 1])
    every = law.loc["all"]
    scale = np.sqrt((0.2 * 9 + 9) / 2)
    assert every["sd"].to_numpy() == pytest.approx([np.sqrt(0.2) * 3 / scale, 3 / scale])
    assert every["near"].to_numpy() == pytest.approx([0.8, 0])
    assert every["q75"].to_numpy() == pytest.approx([0, 3 / scale])


def test_rows_of_runs_that_are_put_together_keep_their_rollouts_and_clusters_apart(run):
    rows = reproduction_tables.moved(reproduction_tables.load_run(run))
    both = reproduction_tables.together([rows, rows])
    assert len(both) == 2 * len(rows)
    assert len(np.unique(both.cluster)) == 2 * len(np.unique(rows.cluster))
    assert len(np.unique(both.rollout)) == 2 * len(np.unique(rows.rollout))
    assert list(both.S[len(rows) :]) == list(rows.S)


@pytest.mark.skipif(not findings.RESULTS.is_dir(), reason="no reproduction is published")
def test_the_page_and_readme_hold_the_published_verdicts():
    assert findings.PAGE.read_text() == findings.published()
    readme = (findings.ROOT / "README.md").read_text()
    assert [line for line in findings.readme_lines() if line not in readme] == []
    theory = (findings.ROOT / "docs" / "theory.md").read_text()
    assert "\n".join(verdicts.practice_lines(verdicts.read(findings.RESULTS))) in theory


@pytest.mark.skipif(not findings.RESULTS.is_dir(), reason="no reproduction is published")
def test_the_picture_of_readme_is_that_of_the_first_published_task():
    with Image.open(findings.README_PICTURE) as picture:
        assert picture.info["Description"] == source_of(verdicts.read(findings.RESULTS)[0])
    assert findings.README_PICTURE.name in (findings.ROOT / "README.md").read_text()


def test_the_picture_of_readme_shows_three_rules_of_each_run_and_leaves_out_all_lengths_together():
    bins = [(2, 9, 8), (9, 24, 16), (2, 24, 12)]
    rows = [
        {"run": run, "rule": rule, "target": target, "measure": measure, "bin_lo": lo, "bin_hi": hi, "bin_mean": mean}
        | {"estimate": target - (mean == 16) * (rule == "rloo") * (measure == "update") / 10}
        for run in ("x", "y")
        for rule in ("rloo", "gspo", "fspo", "fspo-kl")
        for target in (0.95, 0.85)
        for measure in ("band", "update")
        for lo, hi, mean in bins
    ]
    made = acceptance_figure(JudgedTask("a", {}, {"acceptance": pd.DataFrame(rows)}), Style("neurips"))
    above, *_, below = made.axes
    assert above.get_title(loc="left") + above.get_title() == "A ≠ 0, 95 % left alone"
    ends = {ax: [np.asarray(x.get_ydata())[1] for x in ax.lines if x.get_marker() != "None"] for ax in (above, below)}
    assert sorted(ends[above]) == pytest.approx([0.85] * 2 + [0.95] * 4)
    assert ends[below] == pytest.approx([0.85] * 6)


@pytest.mark.skipif(not findings.RESULTS.is_dir(), reason="no reproduction is published")
@pytest.mark.parametrize("share", reproduction_tables.SHARES[1:])
def test_the_trend_that_is_split_is_the_one_that_the_claims_judge(share):
    """Two programs measure it, `trend_parts` and the tables that the atom fspo-flat reads. Their ranges may lie on two
    sides of one response in a window."""
    for judged in verdicts.read(findings.RESULTS):
        details = {claim["id"]: claim["details"] for claim in judged.claims}
        numbers = details[f"{100 * share:g}-fspo-flat"]["numbers"]
        parts = judged.tables["trend_parts"].query("part == 'trend' and share == @share and responses == 'all'")
        assert dict(zip(parts["run"], parts["value"], strict=True)) == pytest.approx(
            {run: number["value"] for run, number in numbers.items()}, abs=4e-4
        )


def test_the_picture_shows_each_task(tmp_path):
    curve = pd.DataFrame(
        [
            {"responses": name, "share": share, "value": 0.5 + share / 10, "low": 0.4, "high": 0.7}
            for name in (*reproduction_tables.SETS, "predicted")
            for share in reproduction_tables.CURVE_SHARES
        ]
    )
    findings.draw([JudgedTask(task, {}, {"exponent_curve": curve}) for task in ("a", "b")], tmp_path / "x.png")
    assert (tmp_path / "x.png").stat().st_size > 10_000
