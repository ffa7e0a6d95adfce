"""The plan of a run as text: memory of each GPU by phase, whether it fits, and options that take less memory."""

from __future__ import annotations

from fspo.config import TrainConfig
from fspo.config.machine import MachineConfig
from fspo.models.shapes import shape_of
from fspo.plan.memory import RESERVE, MemoryPlan, plan

GIB = 2**30
LESS = {
    "sampling": "lower --sampling.batch-size, or set --model.lora '{rank: 16}'",
    "update": "lower --batch.tokens, or set --model.gradient-checkpointing true or --model.lora '{rank: 16}'",
}
"""What takes less memory in each phase; the options that slow training least come first."""


def table(found: MemoryPlan) -> str:
    """Return the plan as a text table: GiB of weights, optimizer, activations and so on (rows) in each phase
    (columns), with their sum in a last row."""
    rows = list(dict.fromkeys(part for parts in found.phases.values() for part in parts))
    lines = [("GiB", list(found.phases))]
    lines += [(row, [f"{p[row] / GIB:.2f}" if row in p else "" for p in found.phases.values()]) for row in rows]
    lines.append(("together", [f"{total / GIB:.2f}" for total in found.totals.values()]))
    return "\n".join(f"{name:<14}" + "".join(f"{value:>12}" for value in values) for name, values in lines)


def report(config: TrainConfig, machine: MachineConfig) -> tuple[str, bool]:
    """Return the plan of a run on ``machine`` as text (with what to change, if it does not fit), and if it fits."""
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
    parts.append(f"fits: {verdict}" if found.fits else f"does not fit: {verdict}\n  {LESS[phase]}")
    return "\n".join(parts + [f"warning: {warning}" for warning in config.warnings()]), found.fits
