"""The command ``fspo demo``: simulate a sound training run and a faulty one, analyse their logs, and write a report
with the doctor's diagnosis."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from fspo.base.command_line import CommandParser, next_step
from fspo.base.errors import run_cli

DEFECT = "old_recomputed"
"""Defect of the faulty run, named as the doctor's check for it: each update computes the old log-probs again."""
ROLLOUTS, UPDATES, PROMPTS, GROUP, SEED = 6, 8, 32, 8, 0
MARK = "demo.json"
"""File that marks a folder as written by ``fspo demo``, which may then replace the folder's runs."""
FIGURES = ("acceptance_by_length", "variance_scaling")


def build_parser() -> CommandParser:
    """Return the parser of ``fspo demo``."""
    parser = CommandParser(
        prog="fspo demo",
        description="Simulate two runs, a sound and a faulty one; analyse them, ask the doctor and write a report.",
        examples="examples:\n  fspo demo\n  fspo demo --output out/demo --open\n",
    )
    parser.add_argument("--output", type=str, default="out/demo", help="folder of the runs and of report.html")
    parser.add_argument("--open", action="store_true", help="open the report in a browser")
    return parser


def simulate(run: Path, *, recomputed: bool) -> None:
    """Simulate a run of the rule fspo and write its gradient log into the run folder ``run``.

    Each token's log-ratio is a random walk: an update adds a normal step of mean -sigma^2 / 2 and standard deviation
    sigma, so that E[e^S] = 1 in the first epoch. It also raises S of each response that it trains on in proportion to
    A. With ``recomputed`` the old log-probs are those of the present weights at each update, so that S is always 0."""
    import numpy as np

    from fspo.advantages import advantages
    from fspo.gradlog import GradLogWriter
    from fspo.rules import preset, token_k3

    rng, rule, n, sigma = np.random.default_rng(SEED), preset("fspo").rule, PROMPTS * GROUP, 0.008
    writer = GradLogWriter(run, metadata={"rule": rule.to_dict(), "seed": SEED, "aggregation": "response"})
    prompt, minibatches = np.repeat(np.arange(PROMPTS), GROUP), UPDATES // 2
    for rollout in range(ROLLOUTS):
        level = rng.uniform(np.log(16), np.log(512), PROMPTS)[prompt]
        length = np.maximum(np.round(np.exp(level + 0.3 * rng.standard_normal(n))), 2).astype(int)
        reward = (rng.random(n) < rng.beta(1, 1, PROMPTS)[prompt]).astype(float)
        A = advantages(reward, prompt, "grpo")[0]
        starts = np.cumsum(length) - length
        walk = np.zeros(int(length.sum()))
        old = walk.copy()
        for update in range(UPDATES):
            old = walk.copy() if recomputed else old
            at = np.flatnonzero(prompt * minibatches // PROMPTS == update % minibatches)
            s = walk - old
            S, square, k3 = (np.add.reduceat(x, starts)[at] for x in (s, s**2, token_k3(s)))
            done, step = rule.apply(S, length[at].astype(float), A[at]), rollout * UPDATES + update
            rows = {"rollout": rollout, "step": step, "updates_since_rollout": update, "phase": "train"}
            rows |= {"times_used": update // minibatches, "prompt_id": prompt[at], "response_id": rollout * n + at}
            rows |= {"length": length[at], "reward": reward[at], "advantage": A[at], "rule": rule.label}
            rows |= {"log_ratio": S, "sum_sq_log_ratio": square, "k3_sum": k3, "band_accept": done.in_band}
            writer.append(rows | {name: getattr(done, name) for name in ("lo", "hi", "side", "multiplier", "weight")})
            walk += sigma * rng.standard_normal(len(walk)) - sigma**2 / 2
            pull = np.zeros(n)
            pull[at] = 0.02 * A[at] / length[at]
            walk += np.repeat(pull, length)
        writer.flush(rollout)


def main(arguments: Sequence[str] | None = None) -> int:
    """Simulate a sound and a faulty run, analyse both, ask the doctor about them, write the report, print its path."""
    args = build_parser().parse_args(arguments)
    # Use one thread, because on small arrays more threads would wait for each other.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    import json
    import shutil

    from analysis.options import Options
    from analysis.run import analyse_runs
    from figures.page.command import show, write
    from fspo.base.files import refuse_foreign, write_text
    from fspo.rules import COMPARED

    folder = Path(args.output)
    refuse_foreign(folder, {MARK: '"defect"'}, "fspo demo", "--output")
    write_text(folder / MARK, json.dumps({"seed": SEED, "defect": DEFECT}) + "\n")
    runs = [folder / "sound", folder / "faulty"]
    for run in runs:
        shutil.rmtree(run, ignore_errors=True)
        simulate(run, recomputed=run.name == "faulty")
    analyse_runs(runs, Options(rules=COMPARED, targets=(0.85, 0.95), draws=2))
    page = folder / "report.html"
    print(*write(runs, page, FIGURES, "FSPO: a sound and a faulty run, simulated"), f"report: {page}", sep="\n")
    print(next_step("doctor", runs[1:]))
    if args.open:
        show(page)
    return 0


if __name__ == "__main__":
    run_cli(main)
