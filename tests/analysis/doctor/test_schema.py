"""What ``--json`` writes is as doctor.schema.json says."""

import json
from importlib.resources import files

import pytest

from analysis.doctor.command import main
from analysis.doctor.issues import SCHEMA_VERSION
from tests.analysis.doctor.planted import DEFECTS, Plan, write_run

SCHEMA = json.loads(files("analysis.doctor").joinpath("doctor.schema.json").read_text())
TYPES = {"object": dict, "array": list, "string": str, "integer": int, "number": (int, float), "null": type(None)}


def wrong(value, schema, place="$"):
    """Return the places at which a value is not as the schema asks for, for the keywords that this schema uses."""
    if "$ref" in schema:
        schema = SCHEMA["$defs"][schema["$ref"].rpartition("/")[2]]
    known = {"type", "properties", "required", "additionalProperties", "items", "enum", "const", "description"}
    assert schema.keys() <= known | {"$schema", "$defs", "title"}
    if "const" in schema and value != schema["const"]:
        return [place]
    if "enum" in schema and value not in schema["enum"]:
        return [place]
    kinds = schema.get("type", list(TYPES))
    if not any(isinstance(value, TYPES[kind]) for kind in ([kinds] if isinstance(kinds, str) else kinds)):
        return [place]
    found = []
    if isinstance(value, dict):
        properties = schema["properties"]
        assert schema["additionalProperties"] is False
        found += [f"{place}.{name}" for name in {*schema["required"]} ^ value.keys()]
        found += [
            p for name in value.keys() & properties for p in wrong(value[name], properties[name], f"{place}.{name}")
        ]
    if isinstance(value, list):
        found += [p for i, item in enumerate(value) for p in wrong(item, schema["items"], f"{place}[{i}]")]
    return found


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    runs = [write_run(folder / name, plan, 0) for name, plan in (("a", Plan()), ("b", DEFECTS["s_zero"]))]
    main([*map(str, runs), "--json", str(folder / "doctor.json")])
    return json.loads((folder / "doctor.json").read_text())


def test_the_file_is_as_its_schema_says(written):
    assert len(written) == 2
    assert written[1]["issues"]
    assert wrong(written, SCHEMA) == []
    assert written[0]["schema"] == SCHEMA_VERSION


@pytest.mark.parametrize(
    ("spoil", "place"),
    [
        (lambda d: d.pop("worst"), "$[1].worst"),
        (lambda d: d.update(more=1), "$[1].more"),
        (lambda d: d.update(schema="2.0"), "$[1].schema"),
        (lambda d: d["issues"][0].update(severity="bad"), "$[1].issues[0].severity"),
        (lambda d: d["issues"][0].update(since="3"), "$[1].issues[0].since"),
        (lambda d: d["issues"][0]["evidence"][0].update(value="x"), "$[1].issues[0].evidence[0].value"),
    ],
)
def test_the_schema_refuses_what_differs(written, spoil, place):
    spoiled = json.loads(json.dumps(written))
    spoil(spoiled[1])
    assert wrong(spoiled, SCHEMA) == [place]
