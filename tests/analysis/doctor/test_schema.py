"""What ``--json`` writes is as doctor.schema.json says."""

import json
from importlib.resources import files

import pytest
from jsonschema import Draft202012Validator

from analysis.doctor.command import main
from analysis.doctor.issues import SCHEMA_VERSION
from tests.analysis.doctor.planted import DEFECTS, Plan, write_run

SCHEMA = json.loads(files("analysis.doctor").joinpath("doctor.schema.json").read_text())


def wrong(value):
    """Return the places at which a value is not as the schema asks for."""
    return [error.json_path for error in Draft202012Validator(SCHEMA).iter_errors(value)]


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    runs = [write_run(folder / name, plan, 0) for name, plan in (("a", Plan()), ("b", DEFECTS["s_zero"]))]
    main([*map(str, runs), "--json", str(folder / "doctor.json")])
    return json.loads((folder / "doctor.json").read_text())


def test_the_file_is_as_its_schema_says(written):
    assert len(written) == 2
    assert written[1]["issues"]
    assert wrong(written) == []
    assert written[0]["schema"] == SCHEMA_VERSION
    for part in SCHEMA["$defs"].values():
        assert (part["additionalProperties"], {*part["required"]}) == (False, {*part["properties"]})


@pytest.mark.parametrize(
    ("spoil", "place"),
    [
        (lambda d: d.update(schema="2.0"), "$[1].schema"),
        (lambda d: d["issues"][0].update(severity="bad"), "$[1].issues[0].severity"),
        (lambda d: d["issues"][0].update(since="3"), "$[1].issues[0].since"),
        (lambda d: d["issues"][0]["evidence"][0].update(value="x"), "$[1].issues[0].evidence[0].value"),
    ],
)
def test_the_schema_refuses_what_differs(written, spoil, place):
    spoiled = json.loads(json.dumps(written))
    spoil(spoiled[1])
    assert wrong(spoiled) == [place]
