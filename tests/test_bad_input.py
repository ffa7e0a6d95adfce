"""Bad input to the commands: each gives one line with a fix, and nothing is written or overwritten."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import paper_repro
from analysis.__main__ import main as analysis
from figures.__main__ import main as figures
from figures.page.command import main as report
from fspo.base.errors import run_cli
from fspo.evaluate import __main__ as evaluate
from fspo.plan import __main__ as plan
from fspo.rules import preset
from fspo.train import __main__ as train
from proofs_check.__main__ import main as proofs_check
from tests.analysis.conftest import Plan, write_log

HUGE = str(2**70)
ENVIRONMENT = os.environ | {"PYTHONPATH": str(Path(paper_repro.__file__).parent)}
COMMANDS: dict[str, Callable[[list[str]], object]] = {
    "analysis": analysis,
    "doctor": lambda a: analysis(["doctor", *a]),
    "import": lambda a: analysis(["import", *a]),
    "calibrate": lambda a: analysis(["calibrate", *a]),
    "sweep": lambda a: analysis(["sweep", *a]),
    "proofs": lambda a: proofs_check([*a, "--no-progress"]),
    "figures": figures,
    "report": report,
    "repro": paper_repro.main,
    "train": lambda a: train.main(["--model.name_or_path", "/nowhere/model", *a]),
    "plan": plan.main,
    "evaluate": lambda a: evaluate.main([*a] if "--benchmarks" in a else [*a, "--benchmarks", "math500"]),
}
BAD = """
train --rollout 3 -> did you mean --rollouts? (fspo train --help shows the options)
train --batch.promts 3 -> did you mean --batch.prompts?
train --preset gspo -> did you mean --rule.preset or --correction.preset?
train --no-such 3 -> unrecognized arguments: --no-such 3 (fspo train --help
train --output --resume true -> expected one argument
train --output "" -> output is ''
train --seed {huge} -> seed is 1180591620717411303424: use 4294967295 or less
train --seed -1 -> seed is -1: use 0 or more
train --seed 1.5 -> option seed: Expected a <class 'int'>. Got value: 1.5
train --rollouts 0 -> rollouts is 0: use 1 or more
train --rule fspo -> write --rule.OPTION VALUE, as in --rule.preset fspo
train --rule.name fspo -> did you mean --rule.preset?
train --optim.lr 1 -> did you mean --optim.learning-rate?
calibrate none --target .05 -> for 5 % clipped give 0.95
train --batch "{{prompts: 4, prompts: 8}}" -> 'prompts' stands twice: keep one
train --batch.prompts 2 --batch.minibatches 4 -> minibatches=4 exceeds
train --optim.learning-rate -1e-3 -> optim.learning_rate is -0.001: use 0 or more
train --optim.max_grad_norm 0 -> use .inf, or a number above 0
train --optim.beta2 1.0 -> optim.beta2 is 1.0: use a number below 1
train --sampling.temperature 0 -> temperature must be > 0
train --sampling.precision bfloat16 --model.dtype bfloat16 -> set sampling.precision to same
train --rule.preset fspo_kl -> did you mean 'fspo-kl'
train --rule.preset rloo --batch.responses 1 -> set batch.responses to 2
train --rule.outside trunkate -> Expected a typing.Literal['drop', 'truncate'
train --rule.range_hi .nan -> rule.range_hi is nan
train --rule.constant_length 7 -> constant_length belongs to
train --correction.preset tiss -> did you mean 'tis'
train --correction.range_lo 0.1 -> set correction.preset
train --correction.preset mis --correction.range_lo 2 -> at most 1 (no lower edge)
train --correction.preset tis --correction.range_lo .5 -> set outside='mask'
train --log.length_edges [1,5,5] -> log.length_edges
train --log.length_edges [] -> length_edges
train --log.score_minibatches [-5] -> names update -5
train --log.score_minibatches [8] -> names update 8, but a rollout has the updates 0 to 7
train --model.lora.rank 0 -> model.lora.rank is 0: use 1 or more
train --config . -> Path is not a file
train --config /nowhere/run.yaml -> File does not exist: '/nowhere/run.yaml'
train --config list.yaml -> Unexpected config
train --config binary.yaml -> codec can't decode
train --config pipe.yaml -> pipe.yaml is no regular file
train --output file/run -> choose another --output
train --output file -> --output file is a file: name a folder
train --output full -> full holds files and no run.json, so it is no run folder: name a new or an empty --output
train --output begun -> begun holds a run already (config.yaml): add --resume true
plan --machine.gpus 0 -> machine.gpus is 0: use 1 or more
plan --machine.memory 1e400 -> machine.memory is inf: use 1000000 or less
plan --model.name_or_path /nowhere/model -> no shape of '/nowhere/model': give a folder with config.json
evaluate m --temperature .nan -> temperature is nan
evaluate m --output "" -> is empty
evaluate m --benchmarks "" -> --benchmarks is empty
evaluate m --benchmarks maths500 -> unknown benchmark 'maths500': did you mean 'math500'
evaluate m --benchmarks math500,x/math500.jsonl -> two of --benchmarks have the same name
evaluate m --benchmarks none.jsonl -> no file none.jsonl
evaluate m --no-such 1 -> no-such
analysis -> runs
analysis missing -> missing
analysis file -> file
analysis empty -> empty
analysis torn -> torn
analysis none --seed -1 -> --seed -1 must be at least 0
analysis none --draws 1000000000 -> --draws 1000000000 must be at least 1
analysis none --bins 0 -> --bins 0 must be at least 1
analysis none --edges [.nan,5,9] -> edges
analysis none --edges [9,5,1] -> edges
analysis none --rules [fspoo] -> did you mean 'fspo'
analysis none --rules [fspo,fspo] -> rules
analysis none --targets [2] -> targets
analysis none --targets [.nan] -> targets
analysis none --by entropi -> did you mean 'entropy'
analysis none --by user.colour -> the log has no column 'user.colour'
analysis none --by difficulty -> --by difficulty is gone, because bins are of a column of the log: log the number
analysis none --by time -> --by time is gone, because bins are of a column of the log: give --by rollout
analysis none --on engin -> did you mean 'engine'
analysis none --on total -> --on total is gone: use update
analysis none --on engine -> --on engine: the log has no engine_log_ratio: let
analysis foreign-file -> analysis is a file: name a folder
sweep foreign-file -> analysis is a file: name a folder
analysis none --rules [grpo] -> choose from
analysis none --window 0 -> at least 1 rollout
analysis none --bims 4 -> did you mean --bins?
analysis foreign -> did not write it, so it is not overwritten
doctor torn -> torn
doctor none --fail-on trunkation -> did you mean 'truncation'
doctor -> required: runs
doctor empty -> no gradient log
doctor no/run --follow -> neither this run folder nor its parent exists
doctor none none --follow -> start fspo doctor for each
doctor badyaml -> config.yaml is no valid YAML
doctor aliases -> an alias stands for another value: write it out
doctor none --json file -> did not write it, so it is not overwritten
import empty.csv -> Empty CSV file
import noise.parquet -> cannot be read
import none --output again -> holds a gradient log already
import missing --output again -> does not exist
import empty --output again -> holds no log
import table.csv --aggregation sum -> choose from response, token
import table.csv --range-lo 0.1 -> belong to a rule
import table.csv --updates-per-rollout 0 -> at least 1 update
import table.csv --print_shtb a -> unrecognized arguments: --print_shtb a (
import double.csv -> names the column 'length' twice
import table.csv --output full -> full
import table.csv --colums a=b -> did you mean --columns?
import table.csv --rule ppo -> is the rule 'grpo'
import table.csv --rule fspo --range-hi .nan -> range_hi
import table.csv --columns {{length:nothing}} -> nothing
calibrate clipped -> trained with rule 'fspo', which clips
calibrate none --target .nan -> target
calibrate none --rules [fspoo] -> did you mean 'fspo'
calibrate none --output file -> did not write it, so it is not overwritten
sweep foreign -> did not write it, so it is not overwritten
sweep none --only [outsid] -> outside
proofs --out foreign-checks -> did not write it, so it is not overwritten
proofs --out /dev/null/x -> cannot write /dev/null/x: Not a directory
proofs --out full -> name a new or an empty folder
proofs --seed -1 -> seed
proofs --only T99 -> choose from
proofs --only T7 --method simulatd -> did you mean 'simulated'
proofs --only T11 --jobs 0 -> at least 1
proofs --strictt -> did you mean --strict?
analysis pipe -> rollout-00000009-rank-0000.parquet: it is no regular file
analysis twice -> rollout-00000009-rank-0000.parquet: its column length stands twice
doctor pipe-metrics -> metrics.jsonl is no regular file: move it away
doctor loop -> loop does not exist
import pipe.yaml -> pipe.yaml is no regular file
import inf.csv -> length is inf in row 1 (1 of 2 rows hold no whole number from 0 to 2147483647)
import utf16.csv -> it is not text in UTF-8
import nul.csv -> must hold numbers, not
import header.csv -> neither a response nor a scalar
import deep.jsonl -> maximum recursion depth exceeded
import torn.jsonl.gz -> cannot be read
import table.csv --output table.csv -> is there already
import table.csv --output table.csv/run -> Not a directory
analysis none none-link -> the same run folder is named twice
figures no-summary -> summary.json cannot be read: move it away, then run `fspo analyse no-summary` again
report no-table -> acceptance.parquet cannot be read: run `fspo analyse no-table` again
report {long} -> File name too long
train --output {long} -> File name too long
figures none -> none
figures missing -> does not exist: give a run folder
figures none none -> named twice
figures none --by entropy -> --by entropy` first
figures none --by entropi -> did you mean 'entropy'
report none --output file -> did not write it, so it is not overwritten
figures --theory --output full -> name a new or an empty folder
figures --theory --width neurip -> did you mean 'neurips'
figures --theory --only [cosine_tightnes] -> did you mean 'cosine_tightness'
repro --width a3 -> a3
repro --output /dev/null -> is a file: name a folder
repro --output foreign-repro -> none that fspo reproduce wrote
repro --preset slow -> 'quick'
repro --jbos 2 -> did you mean --jobs?
repro --tasks [products] -> preset quick has only chain-add
repro --preset paper --tasks [product] -> did you mean 'products'
repro --force analyse -> unknown stage 'analyse': did you mean 'analysis'
"""
CASES = [tuple(part.strip() for part in line.split("->", 1)) for line in BAD.strip().splitlines()]
FILES = [
    ("a: b: c\n", "mapping values are not allowed here"),
    ("task:\n  options: {a: 1, a: 2}\n", "'a' stands twice"),
    ("task: {options: &a {x: *a}}\n", "an alias stands for another value: write it out"),
    ("rollouts: 3\nbatch:\n", "batch is empty: give it a value, or leave it out"),
    ('output: "a\\0b"\n', "output is 'a\\x00b'"),
    ("batch: 3\n", "batch is 3, but it is a group of options: set batch.<option>"),
    ("seed: 2020-01-01\n", "option seed"),
    ("1: 2\n", "Key must be a string"),
    ("rollouts: !!python/object:os.system 3\n", "could not determine a constructor"),
    ("x: " + "[" * 3000, "recursion depth"),
    ("rolouts: 3\n", "Option 'rolouts' is not accepted: did you mean --rollouts?"),
    ("batch: {promts: 3}\n", "did you mean --batch.prompts?"),
    ("optim: {learning_rate: .inf}\n", "optim.learning_rate is inf"),
    ("config: other.yaml\n", "option config"),
]


def write_run(path: Path, rule: str) -> None:
    """A log of 64 responses before and after one update."""
    write_log(path, Plan(rule=preset(rule).rule, rollouts=1, prompts=16, group=4, minibatches=1, width=0))


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with runs, good and bad, and with files that are not ours."""
    root = tmp_path_factory.mktemp("bad")
    for name in ("none", "torn", "foreign", "foreign-file", "badyaml", "aliases"):
        write_run(root / name, "none")
    write_run(root / "clipped", "fspo")
    for file in (root / "torn" / "gradlog").glob("*.parquet"):
        file.write_bytes(file.read_bytes()[:200])
    folders = ("empty", "full", "foreign/analysis", "foreign-checks", "foreign-repro/quick/runs")
    for folder in (*folders, "pipe/gradlog", "twice/gradlog", "begun"):
        (root / folder).mkdir(parents=True, exist_ok=True)
    for name in ("file", "full/notes.txt", "foreign-file/analysis"):
        (root / name).write_text("mine\n")
    (root / "foreign-checks/proofs_check.json").write_text('{"mine": 1}')
    (root / "foreign/analysis/acceptance.csv").write_text("mine,not,yours\n1,2,3\n")
    (root / "foreign-repro/quick/runs/mine.txt").write_text("mine")
    (root / "badyaml/config.yaml").write_text("rule: [")
    os.mkfifo(root / "pipe/gradlog/rollout-00000009-rank-0000.parquet")
    column = pa.array([1, 2])
    twice = pa.Table.from_arrays([column, column], ["length", "length"], metadata={"fspo.schema": "1.1"})
    pq.write_table(twice, root / "twice/gradlog/rollout-00000009-rank-0000.parquet")
    for name, damaged in (("no-table", "acceptance.parquet"), ("no-summary", "summary.json")):
        write_run(root / name, "none")
        assert analysis([str(root / name), "--rules", "[fspo]"]) == 0
        (root / name / "analysis" / damaged).write_text("{}")
    (root / "table.csv").write_text("prompt_id,length,log_ratio,advantage\n0,5,0.1,1\n0,6,-0.1,-1\n")
    (root / "empty.csv").write_text("")
    (root / "double.csv").write_text("prompt_id,length,log_ratio,length\n1,2,0.5,3\n")
    (root / "noise.parquet").write_bytes(b"\x00" * 64)
    nested = [f"m{i}: &m{i} {{l: *m{i - 1}, r: *m{i - 1}}}\n" for i in range(1, 25)]  # 2^24 values in 600 bytes
    (root / "aliases/config.yaml").write_text("m0: &m0 {x: 1}\n" + "".join(nested))
    (root / "list.yaml").write_text("- a\n- b\n")
    write_run(root / "pipe-metrics", "none")
    for name in ("pipe.yaml", "pipe-metrics/metrics.jsonl"):
        os.mkfifo(root / name)
    for name, target in (("loop", "loop"), ("none-link", "none")):
        (root / name).symlink_to(target)
    rows = (root / "table.csv").read_text()
    (root / "inf.csv").write_text(rows.replace("0,5,", "0,inf,"))
    (root / "utf16.csv").write_text(rows, encoding="utf-16")
    (root / "nul.csv").write_text(rows.replace("-1", "-\0"))
    (root / "header.csv").write_text(rows.splitlines()[0] + "\n")
    (root / "deep.jsonl").write_text('{"a":' + "[" * 100_000 + "\n")
    (root / "torn.jsonl.gz").write_bytes(b"\x1f\x8b\x08torn")
    (root / "binary.yaml").write_bytes(b"\xff\xfe\x00rollouts")
    (root / "begun/config.yaml").write_text("rollouts: 3\n")
    (root / "begun/run.json").write_text("{}")
    return root


def contents(root: Path) -> dict[str, bytes | None]:
    return {str(p.relative_to(root)): p.read_bytes() if p.is_file() else None for p in sorted(root.rglob("*"))}


def refused(command: Callable[[], object], root: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """The line of a refused command, after checks that it is one and that nothing was written."""
    before = contents(root)
    with pytest.raises(SystemExit) as stop:
        run_cli(command)  # type: ignore[arg-type]
    said = capsys.readouterr()
    assert stop.value.code == 2, said.err
    assert said.err.startswith("error: ")
    assert said.err.count("\n") == 1
    assert 20 < len(said.err) < 1200
    assert said.out == ""
    assert contents(root) == before
    return said.err


@pytest.mark.parametrize(("words", "message"), CASES, ids=[words for words, _ in CASES])
def test_one_line_and_nothing_written(
    words: str, message: str, place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(place)
    command, *arguments = shlex.split(words.format(huge=HUGE, long="x" * 300))
    assert message in refused(lambda: COMMANDS[command](arguments), place, capsys)


@pytest.mark.parametrize(("text", "message"), FILES, ids=[text[:30] for text, _ in FILES])
def test_a_wrong_file(text: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "run.yaml"
    file.write_text(text)
    assert message in refused(lambda: train.main(["--config", str(file)]), tmp_path, capsys)


@pytest.mark.parametrize(
    ("code", "said", "status"),
    [
        ("open('/nowhere/a\\nb')", "error: /nowhere/a b: No such file or directory: check the path\n", 2),
        ("open('a' * 300)", "File name too long: give a shorter name\n", 2),
        ("print('x' * 10**6)", "error: the output: No space left on device: make room", 2),
        ("1 / 0", "error: ZeroDivisionError: division by zero (an error of this program: FSPO_TRACEBACK=1", 1),
    ],
)
def test_an_error_of_the_system_or_of_the_program_is_one_line(code: str, said: str, status: int) -> None:
    program = f"from fspo.base.errors import run_cli; run_cli(lambda: {code})"
    with Path("/dev/full").open("w") as full:
        given: dict[str, Any] = {"stdout": full, "stderr": subprocess.PIPE, "text": True, "check": False}
        done = subprocess.run([sys.executable, "-c", program], env=ENVIRONMENT, **given)
        raised = subprocess.run([sys.executable, "-c", program], env=ENVIRONMENT | {"FSPO_TRACEBACK": "1"}, **given)
    assert done.returncode == status
    assert said in done.stderr
    assert done.stderr.count("\n") == 1
    assert "Traceback" in raised.stderr


def test_a_folder_that_may_not_be_read_is_no_empty_log() -> None:
    """As another user, since root may read everything; pytest's own folders are closed to others."""
    with TemporaryDirectory() as place:
        log = Path(place) / "run/gradlog"
        log.mkdir(parents=True)
        Path(place).chmod(0o755)
        log.chmod(0o700 if os.getuid() == 0 else 0)
        code = "import os; from fspo.gradlog.files import log_paths; from fspo.base.errors import run_cli\n"
        code += f"os.getuid() or os.setuid(65534)\nrun_cli(lambda: log_paths('{place}/run'))"
        command = [sys.executable, "-c", code]
        done = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, check=False)
        log.chmod(0o700)
    assert (done.returncode, "Permission denied" in done.stderr) == (2, True), done.stderr


@pytest.mark.parametrize("where", ["2>&-", "2>/dev/full"])
def test_messages_that_cannot_be_written_end_no_work(where: str) -> None:
    code = "import sys; from fspo.base.errors import run_cli; "
    code += "run_cli(lambda: print('x' * 10**6, sys.stderr.isatty(), file=sys.stderr) or print('done'))"
    command = f"{shlex.quote(sys.executable)} -c {shlex.quote(code)} {where}"
    done = subprocess.run(command, shell=True, env=ENVIRONMENT, stdout=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "done\n")


def test_a_reader_that_ends_first_is_no_traceback() -> None:
    code = "from fspo.base.errors import run_cli; run_cli(lambda: print('x' * 10**6))"
    command = f"set -o pipefail; {shlex.quote(sys.executable)} -c {shlex.quote(code)} | head -c 1"
    done = subprocess.run(["bash", "-c", command], env=ENVIRONMENT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (141, "x", "")


def test_what_the_commands_wrote_may_be_written_again(place: Path, tmp_path: Path) -> None:
    out = str(tmp_path / "out")
    checks = ["--only", "T2", "--method", "closed form", "--out", out, "--no-progress", "--jobs", "1"]
    for _ in range(2):
        assert proofs_check(checks) == 0
        assert analysis([str(place / "none"), "--rules", "[fspo]"]) == 0
        assert analysis(["doctor", str(place / "none"), "--json", str(tmp_path / "doctor.json")]) in (0, 1)
        assert analysis(["calibrate", str(place / "none"), "--output", str(tmp_path / "ranges.json")]) == 0
