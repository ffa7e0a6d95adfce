"""How large the error of a cosine is if scores are sketched, by the sketch's width, on the embedded model.

    python studies/sketch_width.py [--model FOLDER] [--rows 48] [--redraws 12] [--figure FOLDER]

For each width and number of projection columns k, scores are sketched under `redraws` independent draws and compared
with the exact gradients: cosines of all pairs of responses, and cosines of an update with the same update after 15 %
of its responses were dropped. Hashing alone (no projection) errs by about (1 - rho^2) / sqrt(width) in a cosine rho,
to first order in 1 / width; projections add an error of their own, which does not fall with the width.
"""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import cast

import numpy as np
import pandas as pd
import torch
from tqdm import tqdm

from figures import draw_all, of_runs
from figures.tables import Tables
from fspo.base.command_line import CommandParser
from fspo.base.errors import UserError, run_cli
from fspo.base.files import write_text
from fspo.config import ScoreConfig
from fspo.models.load import build_embedded_model, load_model
from fspo.policy.logprobs import make_batch
from fspo.policy.score_check import drop_cosines, pair_cosines
from fspo.policy.scores import exact_scores, score
from fspo.stats.intervals import sample_interval
from fspo.tasks.chain_add import build_tokenizer, warmup_stream

WIDTHS = (64, 128, 256, 512, 1024, 2048, 4096, 8192)
PROJECTIONS = (None, 32, 16, 8)
SEED = 0
RESULTS = Path(__file__).parent / "results" / "sketch_error.csv"


def cosines(gram: np.ndarray) -> dict[str, np.ndarray]:
    """Return the two kinds of cosines whose sketch error is measured: "pair", of every two responses' scores, and
    "drop", of an update with the same update after some of its responses were dropped. ``gram`` (n, n) holds the inner
    products of the n responses' scores.
    """
    return {"pair": pair_cosines(gram), "drop": drop_cosines(gram, SEED)}


def root_with_interval(squares: np.ndarray) -> tuple[float, float, float]:
    """Return the root mean squared error of cosines that are computed from sketches, with its interval. ``squares``
    holds the mean squared error of each of several independent draws of the sketch.
    """
    mean, low, high = sample_interval(squares)
    return float(np.sqrt(mean)), float(np.sqrt(max(low, 0.0))), float(np.sqrt(high))


def study(model: torch.nn.Module, batch: dict[str, torch.Tensor], redraws: int) -> pd.DataFrame:
    """Return a table of the errors that sketching adds to cosines: a row for each number of projection columns, sketch
    width and kind of cosine."""
    exact, _ = exact_scores(model, batch)
    gram = exact.double()
    truth = cosines((gram @ gram.T).cpu().numpy())
    rows = []
    cases = [(k, width) for k in PROJECTIONS for width in WIDTHS]
    for k, width in tqdm(cases, desc="widths", leave=False):
        config = ScoreConfig(width=width, projection=k)
        squares: dict[str, list[float]] = {name: [] for name in truth}
        for rollout in range(redraws):
            taken = score(model, batch, config=config, seed=SEED, rollout=rollout)
            sketch = taken.norm[:, None].astype(float) * taken.unit.astype(float)
            for name, found in cosines(sketch @ sketch.T).items():
                squares[name].append(float(np.mean((found - truth[name]) ** 2)))
        for name, values in squares.items():
            rmse, low, high = root_with_interval(np.array(values))
            hashing = float(np.sqrt(np.mean((1 - truth[name] ** 2) ** 2) / width))
            rows.append(
                {
                    "projection": k or 0,  # 0: no projection, only hashing
                    "width": width,
                    "cosine": name,
                    "rmse": rmse,
                    "ci_low": low,
                    "ci_high": high,
                    "hashing": hashing,
                    "redraws": redraws,
                    "responses": len(exact),
                    "cosines": len(truth[name]),
                    "parameters": exact.shape[1],
                }
            )
    return pd.DataFrame(rows)


def main() -> None:
    """Measure the errors of sketched cosines, write and print the table, and draw the figure if asked for."""
    parser = CommandParser(prog="python studies/sketch_width.py", description=__doc__ or "")
    parser.add_argument("--model", help="a saved model with chain-add's tokenizer; random weights if left out")
    parser.add_argument("--rows", type=int, default=48, help="responses in the batch")
    parser.add_argument("--redraws", type=int, default=12, help="independent draws of the sketch")
    parser.add_argument("--figure", type=Path | None, help="folder to draw the figure into")
    options = parser.parse_args()
    if options.redraws < 2 or options.rows < 2:
        raise UserError("--redraws and --rows must be at least 2: errors are averaged over draws and pairs")
    torch.set_num_threads(1)
    prompts, answers = zip(*itertools.islice(warmup_stream(seed=1), options.rows), strict=True)
    tokenizer = build_tokenizer()
    tokens = [tokenizer(list(texts), add_special_tokens=False)["input_ids"] for texts in (prompts, answers)]
    batch = make_batch(*tokens, pad_token_id=cast(int, tokenizer.pad_token_id))
    model = load_model(options.model, "float32") if options.model else build_embedded_model(0)
    table = study(model, batch, options.redraws)
    write_text(RESULTS, table.to_csv(index=False, float_format="%.6g"))
    print(table.pivot_table(index="width", columns=["cosine", "projection"], values="rmse").round(4).to_string())
    print(f"results: {RESULTS}")
    if options.figure:
        (drawn,) = draw_all(Tables({"sketch_error": table}), options.figure, modules=of_runs.STUDIES)
        print(f"figure: {drawn.pdf} and .png")


if __name__ == "__main__":
    run_cli(main)
