"""Pool the claims of several tasks, if the tasks were judged alike, and write them to a claims.json of its own."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import fields
from pathlib import Path
from typing import Any

from analysis.claims.catalogue import claims_about, digest_of_catalogue
from analysis.claims.judge import Claim, commit, over_tasks
from analysis.tables.files import write_json
from fspo.base.errors import UserError

FIELDS = {field.name for field in fields(Claim)}
UNLIKE = "claims of tasks can be pooled only if the tasks were judged alike, but"


def pool_tasks(files: Mapping[str, Path], path: Path, again: str) -> tuple[list[Claim], dict[str, list[Claim]]]:
    """Pool the claims of several tasks (`over_tasks`) and write them to the file ``path``, with the list ``tasks``.

    Nothing is written unless the tasks were judged alike (`refuse_unlike`).

    Parameters
    ----------
    files : mapping of str to Path
        The claims.json of each task. It lies in the folder of the task, which also holds the folder ``runs``.
    again : str
        The command that trains and judges the tasks, and then pools them; it takes ``--tasks`` and ``--seeds``.

    Returns
    -------
    pooled : list of Claim
        The claims over all tasks.
    judged : dict of str to list of Claim
        The claims of each task.

    Raises
    ------
    UserError
        If the tasks were not judged alike, or a file is no claims.json of this version.
    """
    said = {task: _read(file, _judge_anew([file], again)) for task, file in files.items()}
    judged = {task: [Claim(**claim) for claim in content.pop("claims")] for task, content in said.items()}
    refuse_unlike(files, said, judged, again)
    pooled = over_tasks(judged)
    write_json(path, said[next(iter(files))] | {"tasks": [*files], "claims": [claim.to_dict() for claim in pooled]})
    return pooled, judged


def refuse_unlike(
    files: Mapping[str, Path], said: Mapping[str, dict[str, Any]], judged: Mapping[str, Sequence[Claim]], again: str
) -> None:
    """Raise UserError unless all tasks were judged by one catalogue and one commit of the code, have the same claims,
    and have runs with the same seeds.

    Another commit may have made other tables of the same runs, which no hash of the catalogue shows. So other commits
    are refused too, although many change nothing. Files that name the same commit with changed files (``+``), or all an
    unknown one, are taken for alike, although their code may differ.

    Parameters
    ----------
    files, again
        As for `pool_tasks`.
    said : mapping of str to dict
        What the file of each task says beside its claims: ``catalogue``, ``commit`` and ``seeds``.
    judged : mapping of str to sequence of Claim
        The claims of each task.
    """
    for what, now in (("catalogue", digest_of_catalogue()), ("commit", commit())):
        of_task = {task: content[what] for task, content in said.items()}
        if differing := _differing(of_task):
            stale = [files[task] for task in files if of_task[task] != now]
            raise UserError(f"{UNLIKE} {what} is {differing}: {_judge_anew(stale, again)}")
    ids = {task: [claim.id for claim in claims] for task, claims in judged.items()}
    expected = [part.id for parts in claims_about("update") for part in parts]
    if _differing(ids):
        others = [task for task in files if ids[task] != expected]
        cure = _judge_anew([files[task] for task in others], again)
        raise UserError(f"{UNLIKE} the claims of {' and '.join(others)} are not those of the catalogue: {cure}")
    seeds = {task: ",".join(f"{seed:g}" for seed in content["seeds"]) for task, content in said.items()}
    if differing := _differing(seeds):
        every = ",".join(f"{seed:g}" for seed in sorted({s for content in said.values() for s in content["seeds"]}))
        fewer = ",".join(task for task in files if seeds[task] != every)
        cure = f"start `{again} --tasks {fewer} --seeds {every}`, with other options as before"
        raise UserError(f"{UNLIKE} seeds are {differing}: {cure}")


def _differing(of_task: Mapping[str, Any]) -> str:
    """Say how tasks differ in a thing such as their seeds, which ``of_task`` holds for each task: what the first task
    has, and what the first task unlike it has. Return "" if all tasks are alike."""
    (first, usual), *others = of_task.items()
    return next((f"{usual} in {first}, {other} in {task}" for task, other in others if other != usual), "")


def _judge_anew(files: Iterable[Path], again: str) -> str:
    """Return the words that tell a user to make some files claims.json anew."""
    places = [(shlex.quote(str(file.parent / "runs")), shlex.quote(str(file))) for file in files]
    commands = "; ".join(f"fspo analyse {runs}/* --claims {file}" for runs, file in places)
    return f"judge anew with `{commands}`, then start `{again}` again"


def _read(file: Path, cure: str) -> dict[str, Any]:
    """Return the content of a file claims.json. Raise UserError if this version did not write the file; ``cure`` is the
    part of the message that says what to do then."""
    with suppress(ValueError, TypeError, KeyError, AttributeError):
        content = json.loads(file.read_text(encoding="utf-8"))
        if content.keys() >= {"catalogue", "commit", "seeds"} and all(c.keys() == FIELDS for c in content["claims"]):
            return content
    raise UserError(f"{file} holds no claims as this version writes them: remove it, {cure}")
