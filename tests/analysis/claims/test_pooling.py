"""Claims of several tasks are pooled if the tasks were judged alike, and refused with the cure if not."""

import json

import pytest

from analysis.claims import pooling
from analysis.claims.pooling import pool_tasks
from analysis.tables.files import write_json
from fspo.base.errors import UserError
from tests.analysis.claims.made import claim

AGAIN = "fspo reproduce --preset paper --output o"
TASKS = ("chain-add", "chain-add-64", "products")


@pytest.fixture
def files(tmp_path, monkeypatch):
    """Three tasks that were judged alike by the present code; one change of the last one is what a test is about."""
    monkeypatch.setattr(pooling, "digest_of_catalogue", lambda: "now")
    monkeypatch.setattr(pooling, "commit", lambda: "head")
    said = {"catalogue": "now", "commit": "head", "seeds": [21.0, 22.0]}
    found = {task: tmp_path / task / "claims.json" for task in TASKS}
    for file in found.values():
        claims = [claim(0.01, 0.9, name).to_dict() for name in ("C1", "C2")]
        write_json(file, said | {"claims": claims})
    return found


def change(file, **changes):
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


def refused(files, folder):
    """The one line with which the pooling is refused; nothing may be written."""
    with pytest.raises(UserError) as error:
        pool_tasks(files, folder / "claims.json", AGAIN)
    (line,) = str(error.value).splitlines()
    assert not (folder / "claims.json").exists()
    return line


def anew(folder, *tasks):
    places = [folder / task for task in tasks]
    commands = "; ".join(f"fspo analyse {place}/runs/* --claims {place}/claims.json" for place in places)
    return f"judge anew with `{commands}`, then start `{AGAIN}` again"


def test_tasks_that_were_judged_alike_are_pooled(files, tmp_path):
    pooled, judged = pool_tasks(files, tmp_path / "claims.json", AGAIN)
    assert [(found.id, found.verdict) for found in pooled] == [("C1", "supported"), ("C2", "supported")]
    assert [*judged] == [*TASKS]
    written = json.loads((tmp_path / "claims.json").read_text())
    assert (written["catalogue"], written["commit"], written["seeds"]) == ("now", "head", [21, 22])
    assert written["tasks"] == [*TASKS]
    assert [found["id"] for found in written["claims"]] == ["C1", "C2"]


@pytest.mark.parametrize(("what", "now"), [("catalogue", "now"), ("commit", "head")])
def test_another_catalogue_or_commit_is_refused_and_judged_anew(files, tmp_path, what, now):
    """Whichever task is the stale one, it is the one that the cure names."""
    change(files["products"], **{what: "old"})
    line = refused(files, tmp_path)
    assert f"but {what} is {now} in chain-add, old in products: {anew(tmp_path, 'products')}" in line
    for task in ("chain-add", "chain-add-64"):
        change(files[task], **{what: "older"})
    line = refused(files, tmp_path)
    assert f"older in chain-add, old in products: {anew(tmp_path, *TASKS)}" in line
    change(files["products"], **{what: now})
    assert refused(files, tmp_path).endswith(anew(tmp_path, "chain-add", "chain-add-64"))


def test_tasks_of_one_old_commit_are_pooled(files, tmp_path):
    """The code may go on after all tasks were judged."""
    for file in files.values():
        change(file, commit="old")
    assert len(pool_tasks(files, tmp_path / "claims.json", AGAIN)[0]) == 2


def test_other_seeds_are_refused_and_trained(files, tmp_path):
    change(files["products"], seeds=[21.0, 23.0])
    line = refused(files, tmp_path)
    assert "seeds are 21,22 in chain-add, 21,23 in products" in line
    assert f"`{AGAIN} --tasks {','.join(TASKS)} --seeds 21,22,23`" in line
    change(files["products"], seeds=[21.0, 22.0, 23.0])  # the others lack one
    assert f"`{AGAIN} --tasks chain-add,chain-add-64 --seeds 21,22,23`" in refused(files, tmp_path)


@pytest.mark.parametrize("names", [("C1",), ("C2", "C1"), ("C1", "C2", "C3"), ("M1", "C2")])
def test_other_claims_are_refused(files, tmp_path, monkeypatch, names):
    """Fewer or more, in another order, or others, as `fspo analyse --on engine` judges them."""
    monkeypatch.setattr(pooling, "claims_about", lambda on: ([claim(1, 1)], [claim(1, 1, "C2")]))
    change(files["products"], claims=[claim(0.01, 0.9, name).to_dict() for name in names])
    line = refused(files, tmp_path)
    assert f"the claims of products are not those of the catalogue: {anew(tmp_path, 'products')}" in line


@pytest.mark.parametrize("content", ["", "[]", '{"claims": []}', None])
def test_a_file_of_another_version_is_refused(files, tmp_path, content):
    if content is None:
        change(files["products"], claims=[{"id": "C1"}])
    else:
        files["products"].write_text(content)
    line = refused(files, tmp_path)
    assert line.startswith(f"{files['products']} holds no claims as this version writes them: remove it, judge anew")


def test_a_file_that_was_pooled_before_stays_when_tasks_are_refused(files, tmp_path):
    pool_tasks(files, tmp_path / "claims.json", AGAIN)
    before = (tmp_path / "claims.json").read_bytes()
    change(files["products"], catalogue="old")
    with pytest.raises(UserError):
        pool_tasks(files, tmp_path / "claims.json", AGAIN)
    assert (tmp_path / "claims.json").read_bytes() == before
