"""This script writes the pages of docs/ that list what the code declares: those of `PAGES`.

    python studies/reference_pages.py

The meaning of a column, a metric or a command stands in the code alone; tests compare the pages with it.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from importlib import import_module
from inspect import getdoc
from pathlib import Path
from typing import Any

import figures
import fspo
from analysis.claims.judge import Claim
from analysis.importing import names as known
from analysis.rules.calibrate import CalibratedRange
from analysis.sweeps.counterfactual import SweepRow
from analysis.tables.columns import BinKey, CaseKey, RuleKey, RunKey, columns, names
from analysis.tables.files import TABLES
from figures.style import Style, looks
from figures.tables import load
from fspo.__main__ import GROUPS
from fspo.base.command_line import CommandParser
from fspo.base.errors import run_cli
from fspo.base.files import write_text
from fspo.gradlog.files import file_name
from fspo.gradlog.metric_names import METRICS
from fspo.gradlog.run_folder import GRADLOG
from fspo.gradlog.run_folder import METRICS as METRICS_FILE
from fspo.gradlog.schema import LOG_COLUMNS, REQUIRED, SCHEMA_VERSION, USER_PREFIX
from proofs_check.catalogue import CHECKS, STATEMENTS
from proofs_check.frame import Method
from proofs_check.maps.tables import MAP_COLUMNS as MAPS

DOCS = Path(__file__).resolve().parents[1] / "docs"
GENERATED = "This page is written by `python studies/reference_pages.py`; change the code that it names.\n"
KEYS: dict[str, Any] = {"run": RunKey, "rule": RuleKey, "case": CaseKey, "bin": BinKey}
ELSEWHERE: dict[str, Any] = {
    "sweep.csv": SweepRow,
    "claims.json": Claim,
    "calibrate": CalibratedRange,
}
"""Classes that declare the columns of tables and JSON files which other commands than `fspo analyse` write, by the name
that docs/tables.md gives the table or file."""


def grid(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a head and rows as a Markdown table."""
    lines = [list(head), ["---"] * len(head), *([str(cell).replace("|", "\\|") for cell in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def section(title: str, row: Any) -> str:
    """Return a table's part of docs/tables.md: what one of its rows is, then its columns.

    Some sets of columns, such as ``RunKey`` and ``CaseKey``, occur in several tables. They are described once on the
    page; here the text only names such a set and links to its description.
    """
    ours = set(names(row))
    within = {key: set(names(kind)) for key, kind in KEYS.items() if kind is not row and set(names(kind)) <= ours}
    largest = [key for key in within if not any(within[key] < other for other in within.values())]
    shared = set().union(*within.values())
    words = " and ".join(f"[{key}](#key-{key})" for key in largest)
    lead = f"Columns of {words}, and:\n\n" if largest else ""
    rows = ((f"`{c.name}`", c.meaning, c.unit) for c in columns(row) if c.name not in shared)
    return f"{title}\n\n{getdoc(row)}\n\n{lead}{grid(('column', 'meaning', 'unit'), rows)}"


def tables_page() -> str:
    """Return the text of docs/tables.md."""
    parts = [
        "# Tables\n",
        "Every column of every table, with its meaning and unit. Empty cells are missing numbers; the column `reason` "
        "says why.\n\n" + GENERATED,
        "`fspo analyse RUN` writes `RUN/analysis/NAME.csv` and the same as `NAME.parquet`, `--by X` writes "
        "`RUN/analysis-by-X/`, `--on R` writes `RUN/analysis-on-R/`, in which S stands for that ratio (engine: E; "
        "behaviour: D + E; total: S + D + E), every response counts once, at first use, and corrections take the place "
        "of clip rules. A table without rows has its columns still. Estimates have intervals `ci_low`, `ci_high`"
        " (or `NAME_ci_low`, `NAME_ci_high`).\n",
        "## Keys\n",
        "Columns that several tables share.\n",
        *(section(f"### Key {name}", row) for name, row in KEYS.items()),
        "## Tables of an analysed run\n",
        *(section(f"### {name}", row) for name, row in TABLES.items()),
        "## Of other commands\n",
        *(section(f"### {name}", row) for name, row in ELSEWHERE.items()),
        "## Of the theory's maps\n",
        "`fspo maps` writes them as CSV; meanings name the unit where there is one.\n",
        *(
            f"### {name}\n\n{grid(('column', 'meaning'), ((f'`{c}`', m) for c, m in t.items()))}"
            for name, t in MAPS.items()
        ),
    ]
    return "\n".join(parts)


def log_format_page() -> str:
    """Return the text of docs/log_format.md."""
    version = "{}.{}".format(*SCHEMA_VERSION)
    rows = (
        (f"`{name}`", kind, meaning, unit, "no" if name in REQUIRED else "yes", since)
        for name, (kind, meaning, unit, since) in LOG_COLUMNS.items()
    )
    return f"""# The gradient log

Schema {version}. A reader takes every minor version of its major version, and refuses another major version by name.
{GENERATED}
## Files

`RUN/{GRADLOG}/{file_name(12, 0)}`: one Parquet file for each rollout and process, one row for each response and
update. A file is written whole under a temporary name and renamed, so a killed run leaves no half file.

## Header

Each file's Arrow schema metadata holds `fspo.schema`, the version, and `fspo.run`, a JSON object: `rule` (the fields of
`fspo.rules.Rule`; without it the rows of the rule that trained are left out), `seed`, and `scores` (how the scores were
taken: `mode`, `width`). Each column's metadata holds `doc`, its meaning and unit.

## Columns

A column that is not required may be null or missing. A user's own columns are named `{USER_PREFIX}NAME`; they are
numbers or text, one value for each row.

{grid(("column", "type", "meaning", "unit", "may be null", "since"), rows)}
## Read it

```python
import pandas as pd

log = pd.read_parquet("RUN/{GRADLOG}")  # all files, sketches included
log = pd.read_parquet("RUN/{GRADLOG}", columns=["phase", "times_used", "length", "log_ratio", "advantage"])
first_use = log.query("phase == 'train' and times_used == 0")
```

`fspo.gradlog.read_log("RUN")` reads it with damaged files named and left out, and `GradLogWriter` writes it. A row's
sketch is `score_norm` times `score_unit`. Sketches of different rollouts have different projections: never add them.
"""


def import_page() -> str:
    """Return the text of docs/import.md."""
    columns = ((f"`{n}`", ", ".join(f"`{a}`" for a in aliases)) for n, aliases in known.COLUMNS.items())
    scalars = [(f"`{theirs}`", f"`{ours}`", "the same") for theirs, ours in known.METRICS.items()]
    kept = {**known.DIFFERENT, **known.MISMATCH}
    scalars += [(f"`{theirs}`", f"`{known.FOREIGN}{theirs}`", why) for theirs, why in kept.items()]
    return f"""# Other trainers' logs

`fspo import SOURCE --output RUN` makes a run folder of another trainer's output folder or of one file:
tables with one row for each response (Parquet, CSV, JSON lines), scalars (JSON lines, CSV, TensorBoard) and
`trainer_state.json`. It prints which columns it used, which ratios it could make and which diagnostics lack what.
{GENERATED}
## Ratios

Columns that the table has | what the log gets
--- | ---
`log_ratio`, or `new` and `old` | S
`old` and `sampler` | D + E
`new`, `old` and `sampler` | S, D + E, and the total S + D + E
`new` and `sampler` | at a rollout's first update, where `old` is `new`: S = 0 and D + E. At later ones neither.
`policy_version` and `behaviour_version` as well | E where the old weights have the version that sampled: D is 0 there

Of lists of tokens the log also gets sums of squares and of k3 (`--tokens true`: the log-ratios of each token). What
cannot be made is null. `fspo analyse RUN --on behaviour` then analyses that ratio.

- TRL: `sampling_per_token_logps`, `old_per_token_logps` and `per_token_logps` with `completion_mask`.
- verl: `rollout_log_probs`, `old_log_probs`, `log_probs` with `response_mask`; `min_global_steps` and
  `max_global_steps` are versions in rollouts, which `--updates-per-rollout` turns into updates.
- prime-rl (`enable_token_export = true`, then import `RUN/token_exports`): `trainer_logprobs` and `inference_logprobs`.
  A step is one update, so S is 0 and the ratio in prime-rl's loss is D + E. The tokens before the first of
  `loss_mask` tell prompts apart; a second sequence of one rollout counts as a prompt of its own.

## Columns

`--columns log_ratio=my_S` names what is missing here. Case is ignored; of several names the first that the table
has is taken. A name of log-probabilities may have its words in any order, and `logprobs` may be spelt `logps` or
`log_probs`: `logp_new` is `new_logprobs`. CSV may be separated by commas, semicolons or tabs; a cell may hold a list as
JSON, Python or numpy writes it, or numbers with spaces between them. A table with a row for each token is refused, with
the line of pandas that makes one row of each response.

{grid(("column", "names"), columns)}
## Scalars

{grid(("theirs", "in metrics.jsonl", "meaning"), scalars)}"""


def metrics_page() -> str:
    """Return the text of docs/metrics.md."""
    rows = ((f"`{name}`", metric.meaning, metric.unit) for name, metric in METRICS.items())
    return f"""# Metrics

Every metric that `fspo train` writes to `RUN/{METRICS_FILE}`, a line for each rollout and each evaluation, and hands to
[trackers](watch.md#the-same-bins-in-trackers). A line also has `phase` (train or eval), `rollout` and `step` (updates
made). A metric that cannot be made, or whose option is off, is missing. A word in capitals stands for several names. I
is the number of a bin of `--log.length-edges`, from 0. A metric that means the same as in TRL has TRL's name.
{GENERATED}
{grid(("metric", "meaning", "unit"), rows)}"""


def commands_page() -> str:
    """Return the text of docs/commands.md."""
    parts = [f"# Commands\n\n`fspo --help` lists them, `fspo COMMAND --help` is what stands here.\n{GENERATED}"]
    for title, commands in GROUPS.items():
        parts.append(f"## If {title}\n")
        for name, command in commands.items():
            parser = import_module(command.module).build_parser()
            text, _, examples = "\n\n".join(filter(None, (parser.description, parser.epilog))).partition("examples:\n")
            shown = re.sub(r"^  ", "", examples.rstrip(), flags=re.M)
            parts.append(
                f"### fspo {name}\n\n{text.strip()}\n\n```text\n{shown}\n```\n\n[Its options](options.md#fspo-{name})\n"
            )
    return "\n".join(parts)


def checks_page() -> str:
    """Return the text of docs/checks.md: which check tests which statement, by which method, with which controls."""
    rows = []
    for s in STATEMENTS:
        of = Counter(check.method for check in CHECKS if check.statement == s)
        rows.append((f"[{s}](#{s.lower()})", ", ".join(f"{of[method]} {method}" for method in Method if of[method])))
    parts = [
        f"# All checks\n\nThe {len(CHECKS)} checks of `fspo check`: how many each method has of each statement,\n"
        "then each with its controls, the same check with the claim made false, which must fail.\n[Check the theory]"
        "(check_theory.md) says what the methods are and what they do.\n"
        f"{GENERATED}\n{grid(('id', 'checks'), rows)}"
    ]
    for s in STATEMENTS:
        rows = ((str(c.method), c.name, "; ".join(c.controls)) for c in CHECKS if c.statement == s)
        plain = ([re.sub(r"([*<])", r"\\\1", cell) for cell in row] for row in rows)
        parts.append(
            f"## {s}\n\n[The statement](theory.md#{s.lower()}), [how it is checked](check_theory.md#{s.lower()})\n\n"
            + grid(("method", "what is checked", "controls that must fail"), plain)
        )
    return "\n".join(parts)


PYTHON = {f"fspo.{name}": getattr(fspo, name) for name in sorted(fspo.PLACES)} | {
    "figures.draw_all": figures.draw_all,
    "figures.tables.load": load,
    "figures.style.Style": Style,
    "figures.style.looks": looks,
}
"""Functions and classes that docs/python.md describes, by the name that a user writes."""


def python_page() -> str:
    """Return the text of docs/python.md; mkdocstrings fills in what follows ``:::`` when the site is built."""
    parts = [
        "# Python\n\nWhat `import fspo` offers, and the functions that draw figures. Each name is imported when it is "
        f"first used; `import fspo` brings no torch.\n\n{GENERATED}"
    ]
    for name, thing in PYTHON.items():
        first = (getdoc(thing) or "").split("\n\n")[0].replace("\n", " ")
        parts.append(f"## {name}\n\n{first}\n\n::: {thing.__module__}.{thing.__name__}\n")
    return "\n".join(parts)


PAGES = {
    "python.md": python_page,
    "tables.md": tables_page,
    "log_format.md": log_format_page,
    "import.md": import_page,
    "metrics.md": metrics_page,
    "commands.md": commands_page,
    "checks.md": checks_page,
}


def main() -> None:
    """Write the pages of `PAGES` into docs/."""
    CommandParser(prog="python studies/reference_pages.py", description=__doc__ or "").parse_args()
    for name, page in PAGES.items():
        write_text(DOCS / name, page())
        print(DOCS / name)


if __name__ == "__main__":
    run_cli(main)
