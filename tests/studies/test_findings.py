"""studies/findings.py: what it publishes from runs and claims; and what README says of the published claims."""

import json

import pandas as pd
import pytest

from fspo.base.errors import UserError
from studies import findings
from tests.record.make_record import LOGS


def claim(name, **more):
    said = {"id": name, "statement": f"{name} says.", "estimand": "2H - 1", "verdict": "refuted"}
    return said | {"estimate": 0.2, "ci_low": 0.1, "ci_high": 0.3, "details": {}} | more


def test_a_reproduction_is_published_as_tables_and_a_page(tmp_path):
    out, results, target = tmp_path / "out", tmp_path / "results", tmp_path / "findings.md"
    with pytest.raises(UserError, match="make repro"):
        findings.publish(out, results, target)
    (out / "runs").mkdir(parents=True)
    (out / "runs" / "fspo-seed11").symlink_to(LOGS / "fspo-kl")
    decides = "of 1 atoms the one that decides, log-variance: exponent"
    power = {"sentence": "A true distance of 0.13 from the margin 0.1 is seen in every log."}
    claims = [
        claim("C1", estimand=decides, details={"atoms": {}, "power": power}),
        claim("log-variance"),
        claim("own-ends", estimate=None),
    ]
    said = {"catalogue": "abc", "commit": "0123456789abcdef", "seeds": [11], "claims": claims}
    (out / "claims.json").write_text(json.dumps(said))
    findings.publish(out, results, target)
    text = target.read_text()
    assert "| C1 C1 says. | refuted | 2H - 1 0.200 [0.100, 0.300]; claimed within 0.1 | one number | 0.13 |" in text
    unknown = "refuted | rollouts missed unknown; claimed below 0.5 | one number | none |"
    assert f"| own-ends | own-ends says. | {unknown}" in text
    assert "- log-variance says. *Refuted*" in text
    assert json.loads((results / "claims.json").read_text()) == said
    exponents, parts = (pd.read_csv(results / f"{n}.csv") for n in ("fair_exponent", "trend_parts"))
    assert len(exponents) == 3 * len(findings.SHARES)
    by_part = parts.pivot(index="share", columns="part", values="value")
    assert by_part[["drift", "scale", "shape"]].sum(axis=1).to_numpy() == pytest.approx(by_part["trend"], abs=1e-3)


@pytest.mark.skipif(not findings.RESULTS.is_dir(), reason="no reproduction is published in results/quick")
def test_the_page_and_readme_hold_the_published_verdicts():
    said = json.loads((findings.RESULTS / "claims.json").read_text())
    assert findings.PAGE.read_text() == findings.published()
    readme = (findings.ROOT / "README.md").read_text()
    lines = [*findings.verdict_lines(said["claims"]), findings.edges_line(), findings.language_model_line()]
    assert [line for line in lines if line not in readme] == []


@pytest.mark.skipif(not findings.RESULTS.is_dir(), reason="no reproduction is published in results/quick")
@pytest.mark.parametrize("share", findings.SHARES[1:])
def test_the_trend_that_is_split_is_the_one_that_the_claims_judge(share):
    """Two programs measure it, `trend_parts` and the tables that the atom fspo-flat reads. Their ranges may lie on two
    sides of one response in a window."""
    said = json.loads((findings.RESULTS / "claims.json").read_text())["claims"]
    judged = next(claim for claim in said if claim["id"] == f"{100 * share:g}-fspo-flat")["details"]["numbers"]
    parts = pd.read_csv(findings.RESULTS / "trend_parts.csv").query("part == 'trend' and share == @share")
    assert dict(zip(parts["run"], parts["value"], strict=True)) == pytest.approx(
        {run: number["value"] for run, number in judged.items()}, abs=4e-4
    )
