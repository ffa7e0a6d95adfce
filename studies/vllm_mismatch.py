"""The engine mismatch E of a vLLM server against the float32 trainer, by length: writes a section of docs/mismatch.md.

Trains the embedded model twice from the same start, with responses of a vLLM server on this machine's CPU: once in
bfloat16, once in float32, the control. ``make test-vllm`` makes the server's environment. Runs that are done are kept
under --output.

    python -m studies.vllm_mismatch --output out/vllm_mismatch
"""

from __future__ import annotations

import argparse
import json
import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from analysis.tables.columns import Interval
from analysis.tables.moments import exponent, standardized, update_scale, variance_interval
from figures.style import DPI, LOOKS, Style
from fspo.base.errors import run_cli
from fspo.base.files import whole_file, write_text
from fspo.base.options import parse
from fspo.config import TrainConfig
from fspo.gradlog import read_log
from fspo.models.load import load_model
from fspo.models.warmup import warm_up
from fspo.policy.logprobs import make_batch, token_log_probs
from fspo.sampling.sample import sample
from fspo.sampling.vllm import write_weights
from fspo.stats.bins import Bins
from fspo.stats.clusters import dense, ratios
from fspo.stats.intervals import PERCENT, mean_interval
from fspo.train.trainer import Trainer
from studies.vllm_server import serve

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "mismatch.md"
IMAGE = ROOT / "docs" / "images" / "vllm_mismatch.png"
RESULTS = ROOT / "studies" / "results" / "vllm_mismatch.json"
TITLE = "## vLLM in bfloat16 against float32"
EDGES = (1, 16, 32, 64, 128, 192, 265)
FRESH_PROMPTS = 256
"""Number of prompts whose responses are measured token by token after the training."""
DTYPES = ("bfloat16", "float32")


@dataclass
class Mismatch:
    """E of responses: the trainer's log-prob minus the server's, nats.

    Attributes
    ----------
    E, length : array (N,)
    rollout, cluster : int array (N,)
        A cluster is a prompt of a rollout.
    """

    E: np.ndarray
    length: np.ndarray
    rollout: np.ndarray
    cluster: np.ndarray


def trained(dtype: str, rollouts: int, output: Path, threads: int) -> Path:
    """Train with a server of this dtype unless the run exists, then measure single tokens (tokens.json)."""
    run, folder = output / dtype, output / f"{dtype}-weights"
    if (run / "tokens.json").is_file():
        return run
    write_weights(load_model(warm_up()), folder)
    with serve(folder, dtype=dtype) as server:
        arguments = ["--output", str(run), "--rollouts", str(rollouts), "--resume", "true", "--threads", str(threads)]
        arguments += ["--eval.every", "0", "--log.score_every", "0", "--trackers", "[]", "--checkpoint_every", "1"]
        arguments += ["--sampling.engine", "vllm", "--sampling.vllm_url", server.url]
        arguments += ["--sampling.vllm_weights", str(folder)]
        config = parse(TrainConfig, arguments, prog="vllm_mismatch", description="")
        trainer = Trainer(config)
        trainer.train()
        write_text(run / "tokens.json", json.dumps(token_mismatch(trainer)) + "\n")
    return run


def token_mismatch(trainer: Trainer) -> dict[str, list[Any]]:
    """Log-ratios of single tokens on fresh responses: of each response its prompt, length, sum and sum of squares.

    ``squares`` has one entry for each range of positions in the response, as `EDGES` cut lengths.
    """
    config, collector = trainer.config, trainer.collector
    ids = 1_000_000 + np.arange(FRESH_PROMPTS)
    prompts = collector.prompts("train", ids, ids)
    cluster = np.repeat(np.arange(len(ids)), config.batch.responses)
    tokens = [prompts.tokens[i] for i in cluster]
    pad, eos = int(trainer.tokenizer.pad_token_id), int(trainer.tokenizer.eos_token_id)  # type: ignore[arg-type]
    found = sample(
        trainer.raw,
        tokens,
        np.arange(len(tokens)),
        seed=config.seed,
        rollout=config.rollouts,
        config=config.sampling,
        eos_token_id=eos,
        pad_token_id=pad,
    )
    out: dict[str, list[Any]] = {"prompt": cluster.tolist(), "length": found.lengths.tolist(), "sum": [], "squares": []}
    bins = Bins(EDGES)
    for prompt, response, logprobs in zip(tokens, found.tokens, found.logprobs, strict=True):
        with torch.no_grad():
            values, _ = token_log_probs(trainer.raw, make_batch([prompt], [response.tolist()], pad))
        difference = values[0, len(prompt) :].double().numpy() - logprobs
        position = bins.index(1 + np.arange(len(difference)))
        out["sum"].append(float(difference.sum()))
        out["squares"].append(np.bincount(position, difference**2, len(bins)).tolist())
    return out


def measured_tokens(found: dict[str, list[Any]]) -> dict[str, Any]:
    """Return the root mean square of a token's log-ratio by response length and by position.
    Also whether the errors of a response's tokens are correlated."""
    cluster, length, total = (np.array(found[name]) for name in ("prompt", "length", "sum"))
    squares = np.array(found["squares"])
    bins = Bins(EDGES)
    lowest = np.maximum(np.array(EDGES[:-1]), 1)
    # Number of tokens that each response has in each range of positions.
    counts = np.clip(length[:, None] + 1, lowest, EDGES[1:]) - lowest
    everywhere = ratios(squares.sum(1), cluster, bins.index(length), len(bins), length)
    rows, places = counts.shape
    at = ratios(squares.ravel(), np.repeat(cluster, places), np.tile(np.arange(places), rows), places, counts.ravel())
    alike = ratios((total - total.mean()) ** 2, cluster, np.zeros(rows, np.int64), 1, squares.sum(1))
    return {
        "responses": rows,
        "tokens": int(length.sum()),
        "rms_by_length": [root(interval(everywhere, k)) for k in range(len(bins) + 1)],
        "rms_by_position": [root(interval(at, k)) for k in range(len(bins))],
        "variance_over_squares": interval(alike, 0),
    }


def root(values: Interval) -> Interval:
    """Return the square roots of a value and its interval's ends; an end below 0 becomes 0."""
    value, low, high = (math.sqrt(max(x, 0.0)) for x in values)
    return Interval(value, low, high)


def mismatch_of(run: Path) -> Mismatch:
    """Return E of each response of a run, each counted once."""
    names = ["rollout", "prompt_id", "times_used", "length", "engine_log_ratio"]
    rows = read_log(run, columns=names).table.to_pandas()
    rows = rows[rows.times_used == 0].dropna()
    cluster = dense((rows["rollout"] * 10_000_000 + rows.prompt_id).to_numpy(np.int64))
    E, length = (rows[name].to_numpy(np.float64) for name in ("engine_log_ratio", "length"))
    return Mismatch(E, length, rows["rollout"].to_numpy(np.int64), cluster)


def measured(found: Mismatch) -> dict[str, Any]:
    """Return mean, sd and mean weight of E by length, and the exponent H of its sd, with intervals clustered by
    prompt."""
    bins = Bins(EDGES)
    where = bins.index(found.length)
    mean = ratios(found.E, found.cluster, where, len(bins))
    length = ratios(found.length, found.cluster, where, len(bins))
    weight = ratios(np.exp(found.E), found.cluster, where, len(bins))
    rows = []
    for k in range(len(bins) + 1):
        at = where == k if k < len(bins) else np.ones(len(where), bool)
        variance = variance_interval(found.E[at], found.cluster[at])
        rows.append(
            {
                "bin_lo": int(EDGES[k]) if k < len(bins) else EDGES[0],
                "bin_hi": int(EDGES[k + 1]) if k < len(bins) else EDGES[-1],
                "responses": int(mean.count[k]),
                "prompts": int(mean.clusters[k]),
                "length": float(length.value[k]),
                "mean": interval(mean, k),
                "sd": [math.sqrt(v) for v in variance],
                "weight": interval(weight, k),
            }
        )
    scale = update_scale(found.E, found.length, found.rollout)
    fit = exponent(standardized(found.E, found.length, scale, where) ** 2 * found.length, found.length, found.cluster)
    return {
        "rows": rows,
        "exponent": [end / 2 for end in fit.slope],
        "root_scale": math.sqrt(float(np.sum(found.E**2) / np.sum(found.length))),
        "rollouts": int(found.rollout.max()) + 1,
        "scale_by_rollout": [float(s) for s in (scale[found.rollout == r][0] for r in np.unique(found.rollout))],
    }


def interval(found: Any, k: int) -> Interval:
    """Return the value of bin ``k`` with its interval."""
    low, high = mean_interval(found.value[k], found.variance[k], found.clusters[k])
    return Interval(float(found.value[k]), float(low), float(high))


def say(values: Any, digits: int) -> str:
    """Return a value with its interval as text."""
    value, low, high = (f"{x:.{digits}f}" for x in values)
    return f"{value} [{low}, {high}]"


def section(results: dict[str, Any]) -> str:
    """Return the section of docs/mismatch.md about the engine mismatch of a vLLM server."""
    half, full = results["bfloat16"], results["float32"]
    whole, control = half["rows"][-1], full["rows"][-1]
    lines = [
        TITLE,
        "",
        "`make test-vllm` makes the server's environment, `python -m studies.vllm_mismatch` writes this section",
        "(`studies/results/vllm_mismatch.json`). E is the trainer's log-prob of a response minus the server's at",
        "the same weights. The server is vLLM 0.32.0 for CPUs in bfloat16, one process, at temperature 1; the",
        f"trainer computes in float32 with torch {results['torch']}. The embedded model (0.4M parameters) trains for",
        f"{half['rollouts']} rollouts of 64 prompts with 8 responses; its weights are sent before each rollout.",
        f"Brackets are {PERCENT} intervals, clustered by prompt.",
        "",
        "![Standard deviation and mean of E by length](images/vllm_mismatch.png)",
        "",
        "*Left: sd(E | L), with the fitted power of L and, for comparison, the square root. Right: mean of E, and",
        "-Var(E | L) / 2, where the mean lies if E is Gaussian and the mean weight is 1.*",
        "",
        "| length | responses | prompts | mean of E | sd of E | sd / sqrt(L) | mean weight e^E | token rms |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    tokens = half["tokens"]
    for row, rms in zip(half["rows"], tokens["rms_by_length"], strict=True):
        name = "all" if row is whole else f"{row['bin_lo']}-{row['bin_hi'] - 1}"
        over_root = row["sd"][0] / math.sqrt(row["length"])
        cells = [name, str(row["responses"]), str(row["prompts"]), say(row["mean"], 4), say(row["sd"], 4)]
        cells += [f"{over_root:.4f}", say(row["weight"], 4), say(rms, 4)]
        lines.append("| " + " | ".join(cells) + " |")
    lines += [
        "",
        f"- sd(E | L) grows as L^H with H = {say(half['exponent'], 2)}; 1/2 is the square root.",
        f"- Token rms is the root mean square of a token's log-ratio, on {tokens['tokens']} tokens of",
        f"  {tokens['responses']} fresh responses after the last rollout. By the token's position in the response:",
        *(
            f"  {low}-{high - 1} {say(rms, 4)}{'.' if high == EDGES[-1] else ','}"
            for low, high, rms in zip(EDGES[:-1], EDGES[1:], tokens["rms_by_position"], strict=True)
        ),
        f"- Var(E) is {say(tokens['variance_over_squares'], 2)} times the sum of the tokens' squares: 1 where tokens",
        "  err independently, more where they err alike.",
    ]
    times = float(f"{whole['sd'][0] / control['sd'][0]:.1e}")  # rounded to two digits
    lines += [
        "- That ratio is of all lengths together and is carried by the longest bin. Tokens late in a response err",
        "  more, which alone raises H above 1/2; whether tokens of one response also err alike, these numbers do not",
        "  decide.",
        "- The mean weight over all responses must be 1. In a bin it is the share of responses that the trainer's",
        "  policy would have there over the server's share.",
        f"- The control, the same run with vLLM in float32: sd of E {control['sd'][0]:.1e} nats (largest bin "
        f"{max(r['sd'][0] for r in full['rows']):.1e}),",
        f"  token rms {full['tokens']['rms_by_length'][-1][0]:.1e}: bfloat16 leaves "
        f"{times:,.0f} times what another program leaves.",
        "",
    ]
    return "\n".join(lines)


def figure(half: dict[str, Any]) -> None:
    """Draw sd and mean of E by length, with the fitted power law and -Var(E)/2 beside them."""
    style = Style("neurips")
    rows = half["rows"][:-1]
    L = np.array([r["length"] for r in rows])
    sd, mean = (np.array([r[name] for r in rows]) for name in ("sd", "mean"))
    with style.context():
        drawn = style.new_figure(2.2)
        left, right = drawn.subplots(1, 2)
        look = LOOKS["fspo"]
        for axes, values in ((left, sd), (right, mean)):
            errors = np.abs(values[:, 1:].T - values[:, 0])
            axes.errorbar(L, values[:, 0], errors, fmt=look.marker, color=look.color, capsize=2, label="measured")
            axes.set_xlabel("response length L (tokens)")
            axes.set_xscale("log", base=2)
            axes.set_xticks([8, 16, 32, 64, 128, 256], ["8", "16", "32", "64", "128", "256"])
        grid = np.geomspace(L[0] / 1.2, L[-1] * 1.2, 50)
        middle = np.exp(np.mean(np.log(L)))
        level = np.exp(np.mean(np.log(sd[:, 0])))
        H = half["exponent"][0]
        left.plot(grid, level * (grid / middle) ** H, color=look.color, label=f"L^H, H = {H:.2f}")
        left.plot(grid, level * (grid / middle) ** 0.5, color="#7F7F7F", linestyle="--", label="sqrt(L)")
        left.set_yscale("log")
        left.set_ylabel("sd(E | L), nats")
        left.legend()
        right.plot(L, -(sd[:, 0] ** 2) / 2, color="#D55E00", marker="s", linestyle="--", label="-Var(E | L) / 2")
        right.axhline(0, color="black", linewidth=0.6)
        right.set_ylabel("mean of E, nats")
        right.legend()
        with whole_file(IMAGE) as part:
            drawn.savefig(part, format="png", dpi=DPI, metadata={"Software": None})


def write_section(text: str) -> None:
    """Write the section into docs/mismatch.md, in place of its earlier version."""
    page = PAGE.read_text(encoding="utf-8") if PAGE.exists() else "# Engine mismatch\n\n" + TITLE + "\n"
    pattern = re.escape(TITLE) + r"\n.*?(?=^## |\Z)"
    write_text(PAGE, re.sub(pattern, lambda _: text + "\n", page, flags=re.M | re.S).rstrip() + "\n")


def main() -> int:
    """Train where runs are missing, measure, and write page, figure and numbers."""
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--output", type=Path, default=Path("out/vllm_mismatch"), help="folder of the runs")
    p.add_argument("--rollouts", type=int, default=10)
    p.add_argument("--threads", type=int, default=1, help="torch threads of the trainer")
    args = p.parse_args()
    results: dict[str, Any] = {"torch": torch.__version__}
    for dtype in DTYPES:
        run = trained(dtype, args.rollouts, args.output.resolve(), args.threads)
        results[dtype] = measured(mismatch_of(run)) | {
            "tokens": measured_tokens(json.loads((run / "tokens.json").read_text()))
        }
    write_text(RESULTS, json.dumps(results, indent=1) + "\n")
    figure(results["bfloat16"])
    write_section(section(results))
    return 0


if __name__ == "__main__":
    run_cli(main)
