"""Sizes of a reproduction, and the settings that its trained sweep changes, one at a time.

``paper_repro.py`` uses them. The sweep over an existing log is ``fspo sweep``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from fspo.base.errors import UserError
from fspo.base.options import parse
from fspo.config import TrainConfig
from fspo.rules import COMPARED, RIVALS, preset, scaled
from fspo.tasks.chain_add import ChainAddConfig, max_response_tokens
from fspo.tasks.products import MAX_RESPONSE_TOKENS

SWEPT = ("fspo", *RIVALS)
"""Rules that the sweep trains with one setting changed at a time: fspo and the rules that it is compared with."""
SIX_RULES = (*COMPARED, "fspo-kl", "fspo-adaptive", "fspo-conformal")
JUDGING_SEEDS = (11, 12, 13, 14, 15)
"""Seeds that no run had while the claims were made, so verdicts on them are confirmatory (analysis/claims)."""
TASKS: dict[str, dict[str, Any]] = {
    "chain-add": {},
    "chain-add-64": {
        "task.options.max_steps": 64,
        "sampling.max_new_tokens": max_response_tokens(ChainAddConfig(max_steps=64)),
    },
    "products": {
        "task.name": "gym:products",
        "task.options.max_digits": 2,
        "sampling.max_new_tokens": MAX_RESPONSE_TOKENS,
    },
}
"""Tasks of a reproduction: options of ``fspo train``. Correct responses to chain-add have 8 to 256 tokens, those to
chain-add-64 have 8 to 512, six doublings. Products are reasoning-gym's, of two numbers of at most two digits; correct
responses have 4 to 187 tokens."""


@dataclass(frozen=True)
class ReproductionSizes:
    """How large a reproduction is: what is trained, how long, with how many seeds.

    Attributes
    ----------
    rules, seeds : tuples
        Every rule is trained once with every seed.
    rollouts, calibration_rollouts : int
        Length of each run, and of the shared unclipped run.
    tasks : tuple of str
        Names in `TASKS`; everything is trained and judged on each task.
    jobs, threads : int
        Training processes beside each other and threads of each.
    options : dict
        Further options of ``fspo train``.
    checks : str
        Statements whose checks run, separated by commas; empty for all.
    draws : int
        Responses drawn for each simulated point of the maps of the theory (``fspo maps``).
    maps : str
        Parts of these maps to compute, separated by commas; empty for all.
    sweep : bool
        Whether the sweep of settings is trained too.
    swept : tuple of str
        Rules of which the sweep changes one setting at a time; those that are not among ``rules`` are left out.
    sweep_seeds : int
        Number of seeds of each variant, the first ones.
    every_value : bool
        Whether the sweep trains every value of a setting, or only the last one.
    """

    rules: tuple[str, ...]
    seeds: tuple[int, ...]
    rollouts: int
    calibration_rollouts: int
    tasks: tuple[str, ...] = ("chain-add",)
    jobs: int = 2
    threads: int = 1
    options: dict[str, Any] = field(default_factory=dict)
    checks: str = ""
    draws: int = 20_000
    maps: str = ""
    sweep: bool = False
    swept: tuple[str, ...] = SWEPT
    sweep_seeds: int = 2
    every_value: bool = True


_AUDITED = {"log.audit_every": 5, "log.coverage_every": 10}
PRESETS = {
    "quick": ReproductionSizes(COMPARED, JUDGING_SEEDS[:3], 14, 10, options=_AUDITED),
    "paper": ReproductionSizes(SIX_RULES, JUDGING_SEEDS, 24, 30, tuple(TASKS), options=_AUDITED),
    "smoke": ReproductionSizes(
        ("rloo", "fspo"),
        (0,),
        2,
        2,
        options={"batch.prompts": 16, "batch.minibatches": 2, "eval.prompts": 32, "optim.warmup_updates": 1},
        checks="T12",
        draws=200,
        maps="curves",
        sweep=True,
        swept=("fspo",),
        every_value=False,
    ),
}


@dataclass(frozen=True)
class Variant:
    """A rule with one setting changed, as the sweep of a reproduction trains it.

    Attributes
    ----------
    rule : str
        The preset of which one setting is changed.
    setting, value : str
        What is changed, and to what; ``("base", "as calibrated")`` for the rule's own runs.
    options : dict
        The options of ``fspo train`` that differ from the rule's own run.
    reason : str
        Why it cannot be trained; empty if it can.
    """

    rule: str
    setting: str
    value: str
    options: dict[str, Any] = field(default_factory=dict)
    reason: str = ""

    @property
    def changed(self) -> str:
        """Return as text the options of ``fspo train`` in which this run differs from the run of the unchanged rule,
        such as ``rule.dual=2.0``.
        """
        return " ".join(f"{name}={value}" for name, value in self.options.items())

    @property
    def trained_as(self) -> str:
        """Return the name under which the variant is trained.
        It is a preset's name where the variant is that preset (``fspo-truncate``, ``fspo-cap``), else rule, setting
        and value."""
        if self.setting == "base":
            return self.rule
        if self.rule == "fspo" and self.setting == "outside":
            return f"fspo-{self.value}"
        return f"{self.rule}-{self.setting}-{self.value}"


def variants(sizes: ReproductionSizes, ranges: Mapping[str, Mapping[str, Any]]) -> list[Variant]:
    """Return, for each swept rule that is trained, the rule as it is and with one setting changed at a time.

    Aggregation ``sequence`` is left out: for sequence rules it equals ``response``, which they use
    (fspo.objective.aggregate).

    Parameters
    ----------
    sizes : ReproductionSizes
    ranges : mapping
        Calibrated ``range_lo`` and ``range_hi`` by rule; the preset's own where a rule has none.

    Returns
    -------
    list of Variant
        Rule by rule, the base first.
    """
    default, found = TrainConfig(), {}
    batch = {name: getattr(default.batch, name) for name in ("prompts", "responses", "minibatches")}
    numbers = {name: sizes.options.get(f"batch.{name}", value) for name, value in batch.items()}
    numbers["tokens"] = sizes.options.get("sampling.max_new_tokens", default.sampling.max_new_tokens)
    for rule in (rule for rule in sizes.swept if rule in sizes.rules):
        for variant in _around(rule, ranges.get(rule, {}), numbers):
            place = (rule, variant.setting, *([variant.value] if sizes.every_value else []))
            reason = variant.reason or _refused(rule, sizes.options | variant.options)
            # Unless the sweep trains every value of a setting, a later value replaces the one before it here.
            found[place] = replace(variant, reason=reason)
    return list(found.values())


def _refused(rule: str, options: Mapping[str, Any]) -> str:
    """Return why ``fspo train`` refuses a preset with these options, or "" if it accepts them."""
    words = [word for name, value in options.items() for word in (f"--{name}", str(value))]
    try:
        parse(TrainConfig, ["--rule.preset", rule, *words])
    except UserError as error:
        return f"not trained: {error}"
    return ""


def _around(rule: str, fit: Mapping[str, Any], sizes: Mapping[str, int]) -> Iterator[Variant]:
    yield Variant(rule, "base", "as calibrated")
    own = preset(rule, **{name: fit[name] for name in ("range_lo", "range_hi") if name in fit}).rule
    for word, factor in (("half", 0.5), ("double", 2.0)):
        try:
            wide = scaled(own, factor)
        except UserError as error:  # the doubled range is impossible, for example eps >= 1
            yield Variant(rule, "range", word, reason=f"not trained: {error}")
            continue
        yield Variant(rule, "range", word, {"rule.range_lo": wide.range_lo, "rule.range_hi": wide.range_hi})
    yield Variant(rule, "dual", "2", {"rule.dual": 2.0})
    for outside in ("truncate", "cap"):
        yield Variant(rule, "outside", outside, {"rule.outside": outside})
    yield Variant(rule, "aggregation", "token", {"rule.aggregation": "token"})
    constant = {"rule.aggregation": "constant", "rule.constant_length": sizes["tokens"]}
    yield Variant(rule, "aggregation", "constant", constant)
    prompts, responses, minibatches = (sizes[name] for name in ("prompts", "responses", "minibatches"))
    # Half as many responses to twice as many prompts, or the reverse: only the group size changes, not the rollout's.
    half = {"batch.responses": responses // 2, "batch.prompts": 2 * prompts}
    double = {"batch.responses": 2 * responses, "batch.prompts": prompts // 2}
    yield Variant(rule, "group", "half", half, _odd(responses, "responses a prompt"))
    yield Variant(rule, "group", "double", double, _odd(prompts, "prompts"))
    fewer, more = {"batch.minibatches": minibatches // 2}, {"batch.minibatches": 2 * minibatches}
    yield Variant(rule, "minibatches", "half", fewer, _odd(minibatches, "minibatches"))
    yield Variant(rule, "minibatches", "double", more)


def _odd(number: int, what: str) -> str:
    return f"not trained: {number} {what} cannot be halved" if number % 2 else ""


def on_task(base: ReproductionSizes, task: str) -> ReproductionSizes:
    """Return the sizes of the part of a reproduction that one task is."""
    return replace(base, tasks=(task,), options=base.options | TASKS[task])


def with_changes(base: ReproductionSizes, **changes: Any) -> ReproductionSizes:
    """Return a copy of a reproduction's sizes with the given changes; a change that is None is left out."""
    return replace(base, **{name: value for name, value in changes.items() if value is not None})
