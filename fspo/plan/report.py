"""The plan of a run as text: memory of each GPU by phase, token counts, and options with which the run would fit."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

from fspo.base.errors import UserError
from fspo.base.options import to_dict
from fspo.config import LoraOptions, TrainConfig
from fspo.config.machine import MachineConfig
from fspo.models.shapes import shape_of
from fspo.plan.machine import longest_microbatch
from fspo.plan.memory import RESERVE, MemoryPlan, plan
from fspo.plan.sampling import engine_of
from fspo.plan.settings import positions_warning

GIB = 2**30
MOST_GPUS = 1024


@dataclass(frozen=True)
class Change:
    """A change of one option of a planned run, or of a few options that belong together.

    Attributes
    ----------
    text : str
        The changed options as they are written on the command line.
    config, machine : TrainConfig, MachineConfig
        The configuration after the change.
    """

    text: str
    config: TrainConfig
    machine: MachineConfig


def _set(config: TrainConfig, group: str, **values: Any) -> TrainConfig:
    return replace(config, **{group: replace(getattr(config, group), **values)})


def changes(config: TrainConfig, machine: MachineConfig, phase: str) -> Iterator[Change]:
    """Yield changes of options that reduce the memory of ``phase``; those that slow training least come first."""
    if phase == "rollout":
        size = min(config.sampling.batch_size, -(-config.batch.prompts * config.batch.responses // machine.gpus))
        while size > 1:
            size = (size + 1) // 2
            yield Change(f"--sampling.batch-size {size}", _set(config, "sampling", batch_size=size), machine)
    elif phase != "optimizer step":
        _, prompt, response = longest_microbatch(config)
        tokens = config.batch.tokens
        while tokens > prompt + response:
            tokens = max(prompt + response, tokens // 2)
            yield Change(f"--batch.tokens {tokens}", _set(config, "batch", tokens=tokens), machine)
        if not config.model.gradient_checkpointing:
            changed = _set(config, "model", gradient_checkpointing=True)
            yield Change("--model.gradient-checkpointing true", changed, machine)
    if machine.sharding == "ddp" and machine.gpus > 1:
        yield Change("--machine.sharding fsdp2", config, replace(machine, sharding="fsdp2"))
    if config.model.lora is None:
        yield Change("--model.lora '{rank: 16}'", _set(config, "model", lora=LoraOptions()), machine)


def cures(config: TrainConfig, machine: MachineConfig) -> list[str] | None:
    """Find changes of options that together make the run fit the machine; None if none are found.

    Each step of the search treats the phase that needs most memory. It makes the first change after which the phase
    fits or, if no single change is enough, the change that saves most memory. The next step starts from the changed
    run.
    """
    done: list[str] = []
    now = plan(config, machine)
    while not now.fits and len(done) < 8:
        totals = now.totals
        phase = max(totals, key=totals.__getitem__)
        best: tuple[Change, MemoryPlan] | None = None
        for change in changes(config, machine, phase):
            try:
                found = plan(change.config, change.machine)
            except UserError:  # the trainer refuses the changed option, so try the next change
                continue
            if found.totals[phase] >= totals[phase]:
                continue
            if found.totals[phase] <= found.capacity:
                best = change, found
                break
            if best is None or found.totals[phase] < best[1].totals[phase]:
                best = change, found
        if best is None:
            return None
        done.append(best[0].text)
        config, machine, now = best[0].config, best[0].machine, best[1]
    # If several steps changed the same option, report only its last value.
    last = {text.split()[0]: text for text in done}
    return list(last.values()) if now.fits else None


def enough_gpus(config: TrainConfig, machine: MachineConfig) -> int | None:
    """Double the number of GPUs until the run fits, and return that number.

    The search stops at the first number that is at least `MOST_GPUS`. The result is None if the run fits on no number
    that was tried, or if the machine's ``sharding`` is "ddp", because then every GPU holds all weights.
    """
    gpus = machine.gpus
    while machine.sharding != "ddp" and gpus < MOST_GPUS:
        gpus *= 2
        try:
            if plan(config, replace(machine, gpus=gpus)).fits:
                return gpus
        except UserError:  # the trainer refuses this number of GPUs, so double it again
            continue
    return None


def table(found: MemoryPlan) -> str:
    """Write the plan as a table: GiB of weights, optimizer, activations and so on (rows) in each phase (columns)."""
    phases = {name: parts for name, parts in found.phases.items() if parts}
    rows = list(dict.fromkeys(part for parts in phases.values() for part in parts))
    width = max(len(row) for row in [*rows, "together"]) + 2

    def line(name: str, values: list[str]) -> str:
        return f"{name:<{width}}" + "".join(f"{value:>16}" for value in values)

    lines = [line("GiB", list(phases))]
    for row in rows:
        values = [f"{parts[row] / GIB:.2f}" if row in parts else "" for parts in phases.values()]
        lines.append(line(row, values))
    totals = found.totals
    lines.append(line("together", [f"{totals[name] / GIB:.2f}" for name in phases]))
    return "\n".join(lines)


def report(config: TrainConfig, machine: MachineConfig) -> tuple[str, dict[str, Any], bool]:
    """Return the plan as text, the plan as plain values for JSON, and whether the run fits."""
    found = plan(config, machine)
    model, totals = found.model, found.totals
    phase = max(totals, key=totals.__getitem__)
    gpu = machine.device == "gpu"
    where = "GPUs" if gpu else "processes on a CPU"
    others = "CUDA, communication and fragmentation" if gpu else "the system"
    parts = [
        f"{config.model.name_or_path}: {model.total / 1e9:.3f}e9 parameters, {model.trainable / 1e9:.3f}e9 of them "
        f"trained, {model.layers} layers",
        f"{machine.gpus} {where} of {machine.gib:.3g} GiB, {machine.sharding}, mixed precision "
        f"{machine.precision}, weights {config.model.dtype}, adamw, "
        f"sampling by {engine_of(config, machine, model)}",
        "",
        f"GiB {'on each GPU' if gpu else 'in each process'}, by phase of a rollout:",
        table(found),
        "",
        *(f"{name:<44}{value:>14,.6g}" for name, value in found.tokens.items()),
        "",
    ]
    verdict = (
        f"the largest phase, {phase}, takes {found.peak / GIB:.1f} of {found.capacity / GIB:.1f} GiB "
        f"({RESERVE:.0%} are left to {others})"
    )
    cure, gpus = None, None
    if found.fits:
        parts.append(f"fits: {verdict}")
    else:
        cure, gpus = cures(config, machine), enough_gpus(config, machine) if gpu else None
        parts.append(f"does not fit: {verdict}")
        parts += [f"  it fits with {' '.join(cure)}"] if cure else ["  no change of its options alone makes it fit"]
        parts += [f"  it fits as it is on {gpus} GPUs"] if gpus else []
    warnings = config.warnings() + positions_warning(config, shape_of(config.model.name_or_path))
    parts += [f"warning: {warning}" for warning in warnings]
    values = {
        "model": {k: v for k, v in asdict(model).items() if k != "shapes"},
        "machine": to_dict(machine),
        "bytes": found.phases,
        "totals": totals,
        "tokens": found.tokens,
        "capacity": found.capacity,
        "fits": found.fits,
        "cure": cure,
        "gpus_that_fit": gpus,
        "warnings": warnings,
        "config": to_dict(config),
    }
    return "\n".join(parts), values, found.fits
