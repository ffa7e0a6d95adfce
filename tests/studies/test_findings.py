"""What studies/findings.py publishes from runs and claims, and what README says of the published claims."""

import json
import shutil
from typing import get_args

import pandas as pd
import pytest

from analysis.options import Options
from analysis.run import analyse_runs
from analysis.stats.fair_exponent import ResponseSet
from fspo.base.errors import UserError
from studies import findings
from tests.record.make_record import LOGS


def claim(name, **more):
    said = {"id": name, "statement": f"{name} says.", "estimand": "2H - 1", "verdict": "refuted"}
    return said | {"estimate": 0.2, "ci_low": 0.1, "ci_high": 0.3, "details": {}} | more


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run folder with its analysis."""
    folder = tmp_path_factory.mktemp("runs") / "fspo-kl"
    shutil.copytree(LOGS / "fspo-kl", folder)
    analyse_runs([str(folder)], Options(draws=2))
    return folder


def write_reproduction(folder, run, claims):
    """Write what a finished reproduction of one task leaves: one run, its claims, report and figure."""
    (folder / "runs").mkdir(parents=True)
    claims = [*claims, *(claim(f"{share}-trend-{rival}") for share in (85, 95) for rival in ("rloo", "gspo"))]
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
        claim("log-variance"),
        claim("own-ends", estimate=None),
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
    exponents, parts = (pd.read_csv(results / f"{n}.csv") for n in ("fair_exponent", "trend_parts"))
    assert len(exponents) == len(get_args(ResponseSet)) * len(findings.SHARES)
    by_part = parts.pivot(index="share", columns="part", values="value")
    assert by_part[["drift", "scale", "shape"]].sum(axis=1).to_numpy() == pytest.approx(by_part["trend"], abs=1e-3)


def test_a_published_task_is_not_measured_again_until_its_claims_change(tmp_path, run, monkeypatch):
    out, results, measured = tmp_path / "out", tmp_path / "quick", []
    write_reproduction(out, run, [claim("log-variance")])
    real = findings.measured
    monkeypatch.setattr(findings, "measured", lambda path: measured.append(path.name) or real(path))
    for more in ({}, {}, {"verdict": "supported"}):
        said = {"catalogue": "abc", "commit": "0", "seeds": [11], "claims": [claim("log-variance", **more)]}
        (out / findings.JUDGED).write_text(json.dumps(said))
        findings.publish(out, results)
    assert measured == ["fspo-seed11"] * 2


def test_tasks_are_published_as_they_are_judged_and_stand_side_by_side(tmp_path, run):
    out, results = tmp_path / "out", tmp_path / "paper"
    for task, verdict in (("products", "supported"), ("chain-add", "refuted")):
        head = claim("C1", estimand=DECIDES, details={"atoms": {}}, verdict=verdict)
        write_reproduction(out / task, run, [head, claim("log-variance", verdict=verdict)])
    findings.publish(out, results)
    text = findings.page(results)
    assert "(`results/paper/`: tasks chain-add, products; seeds 11, commit" in text
    assert "| claim | chain-add | products |" in text
    assert "| C1 C1 says. | refuted | supported |" in text
    assert "Not judged yet: chain-add-64." in text
    assert "- On products: log-variance says. *Supported*" in text
    assert "| chain-add, A > 0 | " in text
    assert "| products, trend | " in text
    assert "On common logs of products:" in text
    assert "- **Rule** on products: as published, " in text
    assert findings.main_claims(results)[0]["verdict"] == "refuted"  # not all tasks are judged: the first one's
    last = claim("C1", estimand=DECIDES, details={"atoms": {}}, verdict="refuted")
    write_reproduction(out / "chain-add-64", run, [last, claim("log-variance")])
    pooled = [claim("C1", estimand=DECIDES, details={"atoms": {}}, verdict="inconclusive")]
    (out / "claims.json").write_text(json.dumps({"claims": pooled, "tasks": ["chain-add", "products"]}))
    with pytest.raises(UserError, match="not about all tasks"):
        findings.publish(out, results)
    (out / "claims.json").write_text(json.dumps({"claims": pooled, "tasks": [*findings.TASKS]}))
    findings.publish(out, results)
    assert findings.main_claims(results) == pooled
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
    assert findings.further(part, [part]) == said
    head = claim("C4", estimand=DECIDES, details={"atoms": {}})
    assert findings.further(head, [head, part]) == said


def test_parts_near_0_whose_margin_is_below_the_distance_seen_are_named():
    """own-ends says "below 0.5" and log-variance "within 0.1" of 0; 85-rloo-falls says nothing about being near 0."""

    def judged(task, *seen):
        found = [
            claim(name, margin=margin, details={"power": {"sentence": f"A true distance of {x} from the margin"}})
            for (name, margin), x in zip(
                (("log-variance", 0.1), ("own-ends", 0.5), ("85-rloo-falls", 0.0)), seen, strict=True
            )
        ]
        return findings.JudgedTask(task, {"claims": found}, *[pd.DataFrame()] * 3)

    said = findings.hardly_supported([judged("a", 0.11, 0.4, 9.0), judged("b", 0.3, 0.6, 9.0)])
    assert said == "on all tasks `log-variance`; on b `own-ends`"
    assert findings.hardly_supported([judged("", 0.09, 0.6, 9.0)]) == "`own-ends`"


def test_each_part_of_each_claim_stands_beside_its_verdicts():
    one, two = (
        findings.JudgedTask(task, {"claims": [claim("log-drift", verdict=verdict)]}, *[pd.DataFrame()] * 3)
        for task, verdict in (("a", "supported"), ("b", "refuted"))
    )
    text = findings.parts_of_claims([one, two])
    assert "| claim | part | a | b |" in text
    assert "| C4 | log-drift | supported | refuted |" in text
    assert "| C4 | log-normal | not judged | not judged |" in text


def test_the_sentences_of_readme_name_each_task_s_numbers(monkeypatch):
    leads = {"a": {"rloo": [0.1, 0.2, None], "gspo": [-0.1, 0.0, 0.3]}, "b": {"rloo": [0.1], "gspo": [-0.2]}}
    edges = {"a": {"A > 0": (0.5, 0.9), "A < 0": (0.1, 0.2)}, "b": {"A > 0": (0.7, 0.7), "A < 0": (-0.1, 0.3)}}
    own = {
        "a": {"LRE_2": (0.1, 0.2), "held-out reward": (0.8, 0.9)},
        "b": {"LRE_2": (0.3, 0), "held-out reward": (1, 0)},
    }
    found = [
        findings.JudgedTask(
            task,
            {
                "claims": [
                    claim(
                        f"{share}-trend-{rival}",
                        details={
                            "numbers": {
                                str(i): {"value": v, "p for": 0.02 if v == 0.1 else 0.03} for i, v in enumerate(values)
                            }
                        },
                    )
                    for rival, values in leads[task].items()
                    for share in (85, 95)
                ]
            },
            # the rows at 75 % must not count
            pd.DataFrame(
                [
                    {"responses": sign, "share": share, "value": value + (share == 0.75)}
                    for sign, values in edges[task].items()
                    for value in values
                    for share in (0.75, 0.85)
                ]
            ),
            pd.DataFrame(),
            pd.DataFrame(
                [
                    {"rule": rule, "at": "as published", "quantity": quantity, "value": value}
                    for quantity, values in own[task].items()
                    for rule, value in zip(("fspo", "gspo"), values, strict=True)
                ]
            ),
        )
        for task in ("a", "b")
    ]
    monkeypatch.setattr(findings, "read", lambda folder: found)
    said = findings.logs_line()
    assert "keeps 85 % of each of 4 logs, " in said
    assert (
        "than rloo's on 3 (clearly on 2) and than gspo's on 1 (0); where it keeps 95 %, on 3 (2) and on 1 (0). " in said
    )
    said = findings.edges_line()
    assert "at an exponent of 0.50 to 0.90 (a), 0.70 to 0.70 (b), " in said
    assert "its edge for A < 0 at 0.10 to 0.20 (a), -0.10 to 0.30 (b); T1's model without drift has 1/2." in said
    said = findings.rules_line()
    assert "(on a, b), LRE_2 is: fspo 0.100, 0.300; gspo 0.200, 0.000. " in said
    assert said.endswith("The held-out reward is: fspo 0.800, 1.000; gspo 0.900, 0.000.")


@pytest.mark.skipif(not findings.RESULTS.is_dir(), reason="no reproduction is published")
def test_the_page_and_readme_hold_the_published_verdicts():
    assert findings.PAGE.read_text() == findings.published()
    readme = (findings.ROOT / "README.md").read_text()
    lines = [
        *findings.verdict_lines(findings.main_claims(findings.RESULTS)),
        findings.logs_line(),
        findings.edges_line(),
        findings.rules_line(),
        findings.gain_line(),
        findings.language_model_line(),
    ]
    assert [line for line in lines if line not in readme] == []
    theory = (findings.ROOT / "docs" / "theory.md").read_text()
    assert "\n".join(findings.practice_lines()) in theory


@pytest.mark.skipif(not findings.RESULTS.is_dir(), reason="no reproduction is published")
def test_the_picture_of_readme_is_that_of_the_first_published_task():
    first = next(iter(findings.task_folders(findings.RESULTS).values()))
    assert findings.README_PICTURE.read_bytes() == (first / "acceptance_by_length.png").read_bytes()
    assert findings.README_PICTURE.name in (findings.ROOT / "README.md").read_text()


@pytest.mark.skipif(not findings.RESULTS.is_dir(), reason="no reproduction is published")
@pytest.mark.parametrize("share", findings.SHARES[1:])
def test_the_trend_that_is_split_is_the_one_that_the_claims_judge(share):
    """Two programs measure it, `trend_parts` and the tables that the atom fspo-flat reads. Their ranges may lie on two
    sides of one response in a window."""
    for judged in findings.read(findings.RESULTS):
        claims = {claim["id"]: claim["details"] for claim in judged.said["claims"]}
        numbers = claims[f"{100 * share:g}-fspo-flat"]["numbers"]
        parts = judged.parts.query("part == 'trend' and share == @share")
        assert dict(zip(parts["run"], parts["value"], strict=True)) == pytest.approx(
            {run: number["value"] for run, number in numbers.items()}, abs=4e-4
        )
