"""The plan of a run as text: memory of each GPU by phase, whether it fits, and options with which it would fit."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from fspo.config import LoraOptions, TrainConfig
from fspo.config.machine import MachineConfig
from fspo.models.shapes import shape_of
from fspo.plan.memory import RESERVE, MemoryPlan, longest_microbatch, plan

GIB = 2**30
Change = tuple[str, TrainConfig, MachineConfig]
"""An option as it is written on the command line, and the run and the machine with that option."""


def _set(config: TrainConfig, group: str, **values: Any) -> TrainConfig:
    return replace(config, **{group: replace(getattr(config, group), **values)})


def changes(config: TrainConfig, machine: MachineConfig, phase: str) -> Iterator[Change]:
    """Yield changes of options that reduce the memory of ``phase``; those that slow training least come first."""
    if phase == "sampling":
        size = min(config.sampling.batch_size, -(-config.batch.prompts * config.batch.responses // machine.gpus))
        while size > 1:
            size = (size + 1) // 2
            yield f"--sampling.batch-size {size}", _set(config, "sampling", batch_size=size), machine
    else:
        _, prompt, response = longest_microbatch(config)
        tokens = config.batch.tokens
        while tokens > prompt + response:
            tokens = max(prompt + response, tokens // 2)
            yield f"--batch.tokens {tokens}", _set(config, "batch", tokens=tokens), machine
        if not config.model.gradient_checkpointing:
            less = _set(config, "model", gradient_checkpointing=True)
            yield "--model.gradient-checkpointing true", less, machine
    if config.model.lora is None:
        yield "--model.lora '{rank: 16}'", _set(config, "model", lora=LoraOptions()), machine


def fixes(config: TrainConfig, machine: MachineConfig, shape: Any) -> list[str]:
    """Return options with which the run fits the machine; an empty list if none are found.

    Each step treats the phase that needs most memory. It makes the first change after which the phase fits or, if no
    single change is enough, the change that saves most. The next step starts from the changed run.
    """
    done: dict[str, str] = {}
    now = plan(config, machine, shape)
    while not now.fits:
        phase = max(now.totals, key=now.totals.__getitem__)
        tried = [(change, plan(*change[1:], shape)) for change in changes(config, machine, phase)]
        best = min(tried, key=lambda pair: max(pair[1].totals[phase], now.capacity), default=None)
        if best is None or best[1].totals[phase] >= now.totals[phase]:
            return []
        (text, config, machine), now = best
        done[text.split()[0]] = text  # a later value of an option replaces its earlier one
    return list(done.values())


def table(found: MemoryPlan) -> str:
    """Write the plan as a table: GiB of weights, optimizer, activations and so on (rows) in each phase (columns)."""
    rows = list(dict.fromkeys(part for parts in found.phases.values() for part in parts))
    lines = [("GiB", list(found.phases))]
    lines += [(row, [f"{p[row] / GIB:.2f}" if row in p else "" for p in found.phases.values()]) for row in rows]
    lines.append(("together", [f"{total / GIB:.2f}" for total in found.totals.values()]))
    return "\n".join(f"{name:<14}" + "".join(f"{value:>12}" for value in values) for name, values in lines)


def report(config: TrainConfig, machine: MachineConfig) -> tuple[str, bool]:
    """Return the plan as text, and whether the run fits."""
    shape = shape_of(config.model.name_or_path)
    found = plan(config, machine, shape)
    phase = max(found.totals, key=found.totals.__getitem__)
    gpu = machine.device == "gpu"
    parts = [
        f"{config.model.name_or_path}: {found.parameters / 1e6:,.1f}M parameters, {found.trainable / 1e6:,.1f}M of "
        f"them trained, {shape.num_hidden_layers} layers",
        f"{machine.gpus} {'GPUs' if gpu else 'processes on a CPU'} of {machine.gib:.3g} GiB, mixed "
        f"precision {machine.precision}, weights {config.model.dtype}",
        "",
        f"GiB {'on each GPU' if gpu else 'in each process'}:",
        table(found),
        "",
    ]
    verdict = (
        f"{phase} takes {found.peak / GIB:.1f} of {found.capacity / GIB:.1f} GiB ({RESERVE:.0%} are left to "
        f"{'CUDA, communication and fragmentation' if gpu else 'the system'})"
    )
    if found.fits:
        parts.append(f"fits: {verdict}")
    else:
        fix = fixes(config, machine, shape)
        parts.append(f"does not fit: {verdict}")
        parts.append(f"  it fits with {' '.join(fix)}" if fix else "  no change of its options alone makes it fit")
    return "\n".join(parts + [f"warning: {warning}" for warning in config.warnings()]), found.fits
