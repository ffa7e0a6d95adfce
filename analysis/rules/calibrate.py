"""``fspo calibrate RUN``: calibrate the ranges of rules to one clip rate on one unclipped run."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, NamedTuple, get_args

import numpy as np

from analysis.log.loading import load_run
from analysis.log.ratio import CORRECTED, UPDATE, known_ratio
from analysis.rules.evaluate import TARGETS
from fspo.base.command_line import CommandParser, dashed, next_step
from fspo.base.errors import UserError
from fspo.base.files import refuse_foreign_file, write_text
from fspo.rules import COMPARED, CORRECTIONS, Ratio, Rule, calibrate, correction, preset
from fspo.rules.range import Rate

FLOAT32 = 1e-5
"""Root mean square of (log-ratio / sqrt(L)), nats, below which a mismatch is taken for float32 rounding. Between a vLLM
sampler and the trainer this root mean square is 1e-6 in float32 and 1e-2 in bfloat16 (studies/results/mismatch.csv)."""

OF_SEQUENCES = tuple(name for name, rule in CORRECTIONS.items() if rule.level == "sequence")

EXAMPLES = """examples:
  fspo calibrate out/quick/runs/none-seed0 --rules rloo,gspo,fspo --target 0.95
  fspo calibrate RUN --on engine --target 0.95   # ranges of corrections, from any run
"""


class CalibratedRange(NamedTuple):
    """The range at which a preset clips a wanted share of the responses, counted as ``fspo analyse`` counts it: in the
    first epoch, of those with A != 0 (a correction: of all). The JSON file holds one such entry for each preset.

    Written by ``fspo calibrate RUN --output FILE``. docs/theory.md section 2."""

    range_lo: Annotated[float, "lower range of the band", "nats; the rule's shape says times which power of L"]
    range_hi: Annotated[float, "upper range of the band", "as range_lo"]
    target: Annotated[float, "wanted acceptance, 1 - clip rate", "share"]
    realised: Annotated[float, "acceptance of the calibrated range on the run's rows", "share"]
    rows: Annotated[int, "rows of the run that were used", "rows"]


def calibrate_run(
    run: str | Path, names: Sequence[str], target: float, on: str = UPDATE.on
) -> dict[str, dict[str, Any]]:
    """Calibrate the range of each preset to the acceptance ``target`` on a run's rows (docs/theory.md section 2).

    Parameters
    ----------
    run : path
        Run folder. Its rows of the first epoch are used (all epochs, if that is empty): for S those after an update and
        with A != 0 (with any A, if every A is 0), for another ratio all.
    names : sequence of str
        Presets of clip rules, or of corrections where ``on`` is engine or behaviour. "none" and rules on tokens or
        prefixes have no range to calibrate and are left out of the result.
    target : float
        Wanted share of these rows that is not clipped: update acceptance for S, band acceptance for another ratio.
    on : str
        The log-ratio that the rules act on (``fspo.rules.Ratio``).

    Returns
    -------
    dict
        By preset name: lower and upper range, target, realised acceptance and number of rows (`CalibratedRange`).

    Raises
    ------
    UserError
        If the run has no row to calibrate on, no mismatch to bound, or clipped while it trained and ``on`` is update.
    """
    loaded = load_run(run, on=on)
    rows = loaded.rows.use("first") if (loaded.rows.used == 0).any() else loaded.rows
    # A clip keeps S small, so ranges of clip rules are calibrated on an unclipped run. It changes neither E nor D, so
    # ranges of corrections may be calibrated on any run.
    if loaded.ratio.on not in CORRECTED and loaded.clip_rule is not None and loaded.clip_rule.shape != "none":
        raise UserError(
            f"{run} was trained with rule {loaded.trained_rule!r}, which clips and so keeps S small: calibrate on an "
            "unclipped run, which fspo train --rule.preset none makes"
        )
    if loaded.streamed:
        print(f"{run}: {loaded.sampled['text']}", file=sys.stderr)
    if len(rows) == 0:
        raise UserError(f"{run} has no row with an update since its rollout: train with several updates a rollout")
    if loaded.ratio.on in CORRECTED and (size := float(np.sqrt(np.mean(rows.S**2 / rows.length)))) < FLOAT32:
        raise UserError(
            f"{run}: {loaded.ratio.words.text} is {size:.1g} nats per root token, which is rounding: sampler and "
            "trainer agree, and no correction has a mismatch to bound"
        )
    rate: Rate = "band" if loaded.ratio.on in CORRECTED or not rows.A.any() else "update"
    used = rows.subset("all" if rate == "band" else "nonzero")
    found: dict[str, dict[str, Any]] = {}
    for name in names:
        rule = preset_on(name, loaded.ratio.on)
        if rule is None or rule.level != "sequence" or rule.shape == "none":  # without a range to calibrate
            continue
        m = used.centre(rule)
        fitted = calibrate(rule, used.S, used.length, used.A, target, m, rate)
        realised = fitted.acceptance(used.S, used.length, used.A, m, rate)
        found[name] = CalibratedRange(fitted.range_lo, fitted.range_hi, target, realised, len(used))._asdict()
    return found


def preset_on(name: str, on: Ratio) -> Rule | None:
    """Return the rule that a preset names: a correction if ``on`` is engine or behaviour, else a clip rule; None for
    the correction "none"."""
    rule = correction(name) if on in CORRECTED else preset(name).rule
    return rule if rule is None or rule.on == on else replace(rule, on=on)


def build_parser() -> CommandParser:
    """Return the parser of ``fspo calibrate``."""
    parser = CommandParser(
        prog="fspo calibrate",
        description="Calibrate clip ranges on an unclipped run, so that rules are compared at an equal clip rate.",
        examples=EXAMPLES,
    )
    parser.add_argument("run", type=str, help="folder of the unclipped run")
    parser.add_argument(
        "--on", type=str, default=UPDATE.on, help=f"log-ratio that the rules act on: {', '.join(get_args(Ratio))}"
    )
    parser.add_argument(
        "--rules",
        type=list[str] | None,
        default=None,
        help=f"presets; by default {', '.join(COMPARED)}, on engine and behaviour {', '.join(OF_SEQUENCES)}",
    )
    parser.add_argument(
        "--target",
        type=float,
        default=max(TARGETS),
        help="share not clipped (0.95: 5 % clipped), as fspo analyse counts",
    )
    parser.add_argument("--output", type=str | None, default=None, help="write the ranges to this JSON file too")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Print, for each rule, the training options that set the calibrated range."""
    options = build_parser().parse_args(arguments)
    if options.output is not None:
        refuse_foreign_file(Path(options.output), '"realised"', "fspo calibrate")
    on = known_ratio(options.on)
    group = "correction" if on in CORRECTED else "rule"
    rules = options.rules if options.rules is not None else OF_SEQUENCES if on in CORRECTED else COMPARED
    if options.target < 0.5:
        raise UserError(f"--target {options.target} is the share that is not clipped: for 5 % clipped give 0.95")
    ranges = calibrate_run(options.run, rules, options.target, on)
    for name in rules:
        fit, found = ranges.get(name), [f"--{group}.preset {name}"]
        if fit is None and (rule := preset_on(name, on)) is not None and rule.level != "sequence":
            print(f"{name}: acts on {rule.level}s, so it has no range to calibrate on responses", file=sys.stderr)
        if on != UPDATE.on:
            found.append(f"--{group}.on {on}")
        if fit:
            found += [f"--{group}.{dashed(end)} {fit[end]:.9g}" for end in ("range_lo", "range_hi")]
        print(" ".join(found))
    if options.output is not None:
        write_text(Path(options.output), json.dumps(ranges, indent=2) + "\n")
        print(f"ranges: {options.output}", file=sys.stderr)
    for name, fit in ranges.items():
        done = f"{name} clips {1 - fit['realised']:.1%} of {fit['rows']} responses at these ranges"
        print(f"{done} (wanted: {1 - fit['target']:.1%})", file=sys.stderr)
    told = "; trained with it, a run clips somewhat more or less (fspo analyse): weights move otherwise" * (
        on == UPDATE.on
    )
    print(next_step("train", [], f" --output NEW_RUN and the options of one line above{told}"), file=sys.stderr)
    return 0
