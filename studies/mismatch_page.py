"""Write the text and draw the figures of docs/mismatch.md from the numbers that studies/mismatch.py measures."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import norm

from analysis.log.rows import Floats
from analysis.rules.evaluate import TARGETS
from analysis.stats.fair_exponent import WINDOW
from figures.style import DPI, LOOKS, Style
from fspo.base.files import whole_file, write_text
from fspo.stats.intervals import CONFIDENCE, PERCENT

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "mismatch.md"
IMAGES = ROOT / "docs" / "images"
RESULTS = ROOT / "studies" / "results" / "mismatch.json"
MASKS = {"product": "rloo", "geometric": "gspo", "sqrt": "fspo", "sqrt-kl": "fspo-kl"}
"""The masks that are compared, by name, each with the preset of the same shape; figures use that preset's colour."""


def say(values: Sequence[float], digits: int = 2) -> str:
    """Return a value with its interval as text, or "unknown" where there is none."""
    value, low, high = values
    if not np.isfinite(value):
        return "unknown"
    text = f"{value:.{digits}f}"
    return f"{text} [{low:.{digits}f}, {high:.{digits}f}]" if np.isfinite(low + high) else text


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the lines of a Markdown table from its head and its rows."""
    return ["| " + " | ".join(row) + " |" for row in [head, ["---"] * len(head), *rows]]


def direction(trend: Sequence[float], verdicts: int = 1) -> str:
    """Return which responses a mask (a correction) cuts more: "long", "short" or "neither".

    ``trend`` holds the trend of the mask's acceptance with the length, and the ends of the trend's interval.

    ``verdicts`` is the number of such answers on docs/mismatch.md. The interval is widened (Bonferroni), so that all of
    them are right together with the confidence that one interval has.
    """
    wider = norm.isf((1 - CONFIDENCE) / 2 / verdicts) / norm.isf((1 - CONFIDENCE) / 2)
    value, low, high = trend
    return "long" if value + wider * (high - value) < 0 else "short" if value + wider * (low - value) > 0 else "neither"


def page(results: dict[str, Any]) -> str:
    """Return the text of docs/mismatch.md."""
    sources = results["sources"]
    parts = [introduction(results), verdicts(sources), growth_section(results), tokens_section(results)]
    parts += [acceptance_section(sources), update_section(sources), ess_section(sources)]
    return "\n\n".join("\n".join(lines) for lines in parts) + "\n"


def introduction(results: dict[str, Any]) -> list[str]:
    """Return the introduction of docs/mismatch.md, which says what runs were made."""
    return [
        "# Engine mismatch and staleness",
        "",
        "Which lengths does a mask on the sampler's mismatch cut, and what does that do to the update?",
        "`python -m studies.mismatch` makes the runs, the numbers (`studies/results/mismatch.json`) and this page.",
        "",
        f"Each run trains the embedded model (0.4M parameters, rule fspo) in float32 with torch {results['torch']},",
        "with 8 responses to each of 64 prompts in a rollout, and samples from another law: with weights and",
        "activations in bfloat16, with the weights of linear layers rounded to int8, with top-p .95, with a vLLM",
        "0.32 server in bfloat16 (`make test-vllm`), or with the weights of 1 or 4 rollouts before. E is the engine",
        "ratio, D the staleness, S the ratio of the rollout's own updates ([theory.md](theory.md)). Rollouts whose",
        "staleness is not yet the one asked for are left out. Each response counts once, at first use. Brackets",
        f"are {PERCENT} intervals, clustered by prompt. One model, one task, one seed.",
    ]


def growth_section(results: dict[str, Any]) -> list[str]:
    """Return the section of docs/mismatch.md on how the standard deviation of each log-ratio grows with the length."""
    sources = results["sources"]
    rows = []
    for found in [*sources.values(), results["update"]]:
        whole, top = found["by_length"][-1], found["by_length"][-2]
        rows.append(
            [
                found["text"],
                str(found["rollouts"]),
                f"{found['rows']:,}",
                say(found["exponent"]),
                *(say(found["fair"][str(target)]) for target in TARGETS),
                say(whole["sd"], 3),
                say(top["sd"], 3),
                say(whole["weight"], 3),
                say(top["weight"], 3),
                "" if found["cross"] is None else f"{found['cross']:.2f}",
            ]
        )
    longest, bins = results["update"]["by_length"][-2]["bin"], len(results["update"]["by_length"]) - 1
    head = ["ratio", "rollouts", "responses", "H of sd", *(f"fair exponent at {share}" for share in shares())]
    head += ["sd, all", f"sd, {longest} tokens", "mean weight, all", f"mean weight, {longest} tokens"]
    control, vllm = results["control"], sources["vllm"]["by_length"][-1]["sd"][0]
    return [
        "## How the ratios grow with length",
        "",
        "![Standard deviation of each ratio by length](images/mismatch_growth.png)",
        "",
        f"*sd of each ratio in {bins} bins of length, with its interval; dotted: sqrt(L).*",
        "",
        *table([*head, "cross term with S"], rows),
        "",
        "H is the exponent of sd(ratio | L). A mask |ratio| <= f L^g whose f keeps the share given in every window of",
        f"{WINDOW} rollouts accepts without a trend over the length at the fair exponent g (T17). A product mask has",
        "exponent 0, the sqrt masks 1/2, a geometric mask 1; sqrt-kl is centred on -KL, the others on 0. The mean",
        "weight is that of e^ratio; over all responses it is below 1 where the sampler cannot draw all that the",
        "trainer's policy would (T16). The cross term is Var(S + ratio) / (Var S + Var ratio), 1 without",
        f"correlation (T18). The control, vLLM in float32 ({control['rows']:,} responses), leaves an sd of E of",
        f"{control['sd']:.1e} nats: the rest of vLLM's {vllm:.3f} is bfloat16's, not the other program's.",
    ]


def tokens_section(results: dict[str, Any]) -> list[str]:
    """Return the section of docs/mismatch.md on the spread of single tokens' log-ratios, by the token's position in its
    response."""
    every = [*results["sources"].values(), results["update"]]
    bins = [row["bin"] for row in every[0]["tokens"]]
    rows = []
    for found in every:
        sd = {row["bin"]: f"{row['sd']:.4f}" for row in found["tokens"]}
        rows.append([found["text"], *(sd.get(name, "") for name in bins), say(found["alike"])])
    return [
        "## Single tokens",
        "",
        "Standard deviation of a token's log-ratio by its position in the response, from the logged tokens",
        "(`--log.tokens true`, table `positions`). Last column: the variance of the response's ratio over the sum of",
        "its tokens' squares, 1 where tokens err independently, more where they err alike. It is of all lengths",
        "together and is carried by the longest responses.",
        "",
        *table(["ratio", *bins, "variance / squares"], rows),
    ]


def acceptance_section(sources: dict[str, Any]) -> list[str]:
    """Return the section of docs/mismatch.md on which lengths each mask cuts. A mask is a correction that leaves out
    responses whose mismatch lies outside a band.
    """
    lines = [
        "## Which lengths a mask cuts",
        "",
        "![Acceptance by length of the masks at 85 %](images/mismatch_acceptance.png)",
        "",
        f"*Band acceptance by length; each mask's range is set so that it accepts {shares()[-1]} of each window of 5",
        "rollouts (grey line).*",
    ]
    for target, name in zip(TARGETS, shares(), strict=True):
        rows = []
        for found in sources.values():
            of_masks = {m["mask"]: m for m in found["masks"] if m["target"] == target}
            rows.append([found["text"], *(say(m[q], 3) for q in ("trend", "lre") for m in of_masks.values())])
        lines += [
            "",
            f"At {name}: change of the acceptance for each doubling of the length (below 0: long responses are cut",
            "more), and LRE_2, the distance of the accepted lengths from all (0 is fair).",
            "",
            *table(["ratio", *MASKS, *(f"LRE, {m}" for m in MASKS)], rows),
        ]
    return lines


def update_section(sources: dict[str, Any]) -> list[str]:
    """Return the section of docs/mismatch.md on corrections that mask responses: the squared error of the update that
    each of them leaves, and its cosine with the true update."""
    lines = [
        "## What a mask does to the update",
        "",
        "![Squared bias and mean squared error of the masked update](images/mismatch_update.png)",
        "",
        f"*At {shares()[-1]}. Left: squared bias of the masked update (T12). Right: mean squared error. Both over the",
        "variance of the update with all responses.*",
        "",
    ]
    head = ["ratio", "mask", "squared bias", "mean squared error", "cosine, population", "cosine, same batch"]
    for target, name in zip(TARGETS, shares(), strict=True):
        rows = [
            [found["text"], m["mask"], *(say(m[q]) for q in ("bias2", "mse", "population_cosine", "cosine"))]
            for found in sources.values()
            for m in found["masks"]
            if m["target"] == target
        ]
        lines += [f"At {name}:", "", *table(head, rows), ""]
    return [
        *lines,
        "The true update is the mean of w A psi with w = e^(S + ratio), the masked one that of M w A psi. The squared",
        "bias is estimated without bias from pairs of different prompts, so it may lie below 0. The cosine with the",
        "population compares expected updates; that with the same batch compares the updates of one batch, which share",
        "their noise (theory.md section 5). An estimate of the former may exceed 1; it is unknown where noise hides",
        "its denominator.",
    ]


def ess_section(sources: dict[str, Any]) -> list[str]:
    """Return the section of docs/mismatch.md on the effective sample size, by length, of the weights exp(log-ratio).

    The weights are those of all responses with A != 0, before any mask.
    """
    bins = [row["bin"] for row in next(iter(sources.values()))["by_length"]]
    return [
        "## Effective sample size by length",
        "",
        "(sum of w)^2 / (n sum of w^2) with w = e^ratio, without a mask, of the responses whose advantage is not 0:",
        "the share of the responses that is left. A number without an interval is one that few prompts decide; it is",
        "too large rather than too small ([coverage.md](coverage.md)).",
        "",
        *table(
            ["ratio", *bins],
            [[found["text"], *(say(row["ess"], 3) for row in found["by_length"])] for found in sources.values()],
        ),
    ]


def shares() -> list[str]:
    """Return the target acceptances as percentages in text."""
    return [f"{100 * target:.0f} %" for target in TARGETS]


def verdicts(sources: dict[str, Any]) -> list[str]:
    """Return the lines of docs/mismatch.md that say for each mask (a correction that drops what lies outside its band),
    at each target acceptance, whether it cuts more of the long or of the short responses."""
    number = len(sources) * len(MASKS) * len(TARGETS)
    lines = [
        "## Verdicts",
        "",
        "The product mask is the shape of preset mis (`--correction.preset`; TRL's sequence mode), the geometric mask",
        "that of geo-mask, sqrt-kl that of engine-sqrt; sqrt is the same without its centre. Here each range is set so",
        "that the mask keeps 95 or 85 % of a run's responses; where the mismatch is small, mis at its default range",
        f"cuts nothing. The {number} verdicts are of the trend over length and hold together at {PERCENT}",
        "(Bonferroni); intervals of the tables hold one by one, and for this run alone.",
        "",
    ]
    for target in TARGETS:
        of_mask = {
            mask: {
                s: next(m for m in f["masks"] if (m["mask"], m["target"]) == (mask, target)) for s, f in sources.items()
            }
            for mask in MASKS
        }
        lines += [f"At {100 * target:.0f} % of the responses accepted:", ""]
        for mask, found in of_mask.items():
            words = {
                way: [sources[s]["text"] for s, m in found.items() if direction(m["trend"], number) == way]
                for way in WAYS
            }
            told = "; ".join(f"{WAYS[way]} on {', '.join(which)}" for way, which in words.items() if which)
            share = [abs(m["trend"][0] / of_mask["product"][s]["trend"][0]) for s, m in found.items()]
            size = f" The size of its trend is {min(share):.2f} to {max(share):.2f} times the product mask's."
            lines.append(f"- The {mask} mask {told}.{size if mask != 'product' else ''}")
        best = {s: min(MASKS, key=lambda mask: of_mask[mask][s]["lre"][0]) for s in sources}
        told = "; ".join(
            f"{mask} on {', '.join(sources[s]['text'] for s in best if best[s] == mask)}"
            for mask in MASKS
            if mask in best.values()
        )
        lines += [f"- Smallest estimate of LRE_2: {told}. Where the intervals below overlap, it decides nothing.", ""]
    spans = [[f["fair"][str(target)][0] for f in sources.values()] for target in TARGETS]
    told = " and ".join(f"{min(x):.2f} to {max(x):.2f} at {100 * t:.0f} %" for x, t in zip(spans, TARGETS, strict=True))
    every = [m["bias2"] for f in sources.values() for m in f["masks"]]
    above = sum(low > 0 for _, low, _ in every)
    return [
        *lines,
        f"The fair exponent (see below) is {told}: a mask of a smaller",
        "exponent (product 0, sqrt 1/2, geometric 1) tends to cut long responses more, one of a greater exponent short",
        "ones. A mask of that very exponent has no trend, yet may leave a bend over the bins.",
        f"{above} of {len(every)} intervals of the update's squared bias lie above 0, where chance alone puts about",
        f"{(1 - CONFIDENCE) / 2 * len(every):.0f}; the largest interval reaches {max(high for *_, high in every):.2f} "
        "of the update's variance.",
    ]


WAYS = {"long": "cuts long responses more", "short": "cuts short responses more", "neither": "shows no trend"}


def look(name: str) -> dict[str, Any]:
    """Return the colour, marker and line style in which docs/mismatch.md draws a mask, a correction that drops what
    lies outside its band.
    """
    found = LOOKS[MASKS[name]]
    return {"color": found.color, "marker": found.marker, "linestyle": found.linestyle}


def length_axis(axes: Any) -> None:
    """Make the horizontal axis a logarithmic axis of response lengths."""
    axes.set_xscale("log", base=2)
    axes.set_xticks([8, 16, 32, 64, 128, 256], ["8", "16", "32", "64", "128", "256"])
    axes.set_xlabel("response length L (tokens)")


def bars(values: Sequence[Sequence[float]]) -> tuple[Floats, Floats]:
    """Split rows (value, low end, high end) into values (n,) and error-bar lengths below and above (2, n)."""
    found = np.array(values, dtype=np.float64)
    return found[:, 0], np.abs(found[:, 1:].T - found[:, 0])


def growth(results: dict[str, Any], style: Style) -> Any:
    """Draw against response length the standard deviation of S and of each run's log-ratio (E or D) of its mismatch."""
    drawn = style.new_figure(3.0)
    axes = drawn.subplots()
    for found, drawn_as in zip([*results["sources"].values(), results["update"]], LOOKS.values(), strict=False):
        rows = found["by_length"][:-1]
        value, error = bars([row["sd"] for row in rows])
        label = f"{found['text']}: H = {found['exponent'][0]:.2f}"
        shape = {"color": drawn_as.color, "marker": drawn_as.marker, "linestyle": drawn_as.linestyle}
        axes.errorbar([row["length"] for row in rows], value, error, capsize=2, label=label, **shape)
    grid = np.array([8.0, 256.0])
    for level in (3e-3, 3e-2):
        axes.plot(grid, level * np.sqrt(grid), color="#7F7F7F", linestyle=":", linewidth=0.8, zorder=0)
    axes.set_yscale("log")
    axes.set_ylabel("standard deviation, nats")
    length_axis(axes)
    axes.legend(loc="center left", bbox_to_anchor=(1.02, 0.5))
    return drawn


def acceptance(results: dict[str, Any], style: Style) -> Any:
    """Draw the acceptance by length of each of the corrections `MASKS`, which give responses outside their band no
    gradient: at the lower target acceptance, with one panel for each source of mismatch."""
    sources = results["sources"]
    drawn = style.new_figure(3.6)
    panels = drawn.subplots(2, 3, sharex=True, sharey=True)
    for axes, found in zip(panels.flat, sources.values(), strict=True):
        axes.axhline(TARGETS[-1], color="#7F7F7F", linewidth=0.8, zorder=0)
        for m in found["masks"]:
            if m["target"] == TARGETS[-1]:
                value, error = bars(m["acceptance"][:-1])
                lengths = [row["length"] for row in found["by_length"][:-1]]
                axes.errorbar(lengths, value, error, capsize=2, label=m["mask"], **look(m["mask"]))
        axes.set_title(found["text"])
        length_axis(axes)
        axes.set_ylim(0, 1.03)
    for axes in panels[0]:
        axes.set_xlabel("")
    for axes in panels[:, 0]:
        axes.set_ylabel("share accepted")
    panels[0, 0].legend(loc="lower left")
    return drawn


def update(results: dict[str, Any], style: Style) -> Any:
    """Draw a figure of docs/mismatch.md: squared bias and mean squared error of the update after each mask on the
    engine ratio (product, geometric, sqrt, sqrt-kl). All masks keep the same share of the responses, the lower of the
    two shares that the page compares."""
    drawn = style.new_figure(2.4)
    for axes, quantity, title in zip(
        drawn.subplots(1, 2, sharey=True), ("bias2", "mse"), ("squared bias", "mean squared error"), strict=True
    ):
        for shift, mask in zip((-0.3, -0.1, 0.1, 0.3), MASKS, strict=True):
            found = [
                m[quantity]
                for f in results["sources"].values()
                for m in f["masks"]
                if (m["mask"], m["target"]) == (mask, TARGETS[-1])
            ]
            value, error = bars(found)
            place = np.arange(len(found)) + shift
            axes.errorbar(value, place, xerr=error, capsize=2, label=mask, **(look(mask) | {"linestyle": "none"}))
        axes.axvline(1.0 if quantity == "mse" else 0.0, color="#7F7F7F", linewidth=0.8, zorder=0)
        axes.set_xlabel(f"{title} / variance")
        axes.set_yticks(range(len(results["sources"])), [found["text"] for found in results["sources"].values()])
    axes.invert_yaxis()
    axes.legend(loc="center left", bbox_to_anchor=(1.02, 0.5))
    return drawn


FIGURES = {"mismatch_growth": growth, "mismatch_acceptance": acceptance, "mismatch_update": update}


def write(results: dict[str, Any]) -> None:
    """Write studies/results/mismatch.json, the page docs/mismatch.md and its figures."""
    text = json.dumps(results, indent=1)
    write_text(RESULTS, re.sub(r"[\[{][^\[\]{}]*[\]}]", lambda flat: " ".join(flat[0].split()), text) + "\n")
    style = Style("neurips")
    with style.context():
        for name, draw in FIGURES.items():
            with whole_file(IMAGES / f"{name}.png") as part:
                draw(results, style).savefig(part, format="png", dpi=DPI, metadata={"Software": None})
    write_text(PAGE, page(results))
