"""DeepSpeed ZeRO-3: its engine's backward passes and steps, and whole tensors out of its parts and back.

Each process holds a flat part of every parameter, of its float32 copy and of its two moments. DeepSpeed 0.19 is the
first that skips a step by itself when the gradient's norm is not finite; this module leans on that.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from accelerate import Accelerator

from fspo.base.errors import UserError

if TYPE_CHECKING:
    from fspo.config import OptimConfig


def configure(accelerator: Accelerator, optim: OptimConfig) -> None:
    """Refuse what this repository does not do under DeepSpeed, and give its engine the run's settings.

    Raises
    ------
    UserError
        For another ZeRO stage, offloading, float16 or the 8-bit optimizer.
    """
    from transformers.integrations.deepspeed import unset_hf_deepspeed_config

    plugin: Any = accelerator.state.deepspeed_plugin
    settings = plugin.deepspeed_config
    zero = settings["zero_optimization"]
    preset = "as fspo/presets/accelerate/zero3.yaml does"
    if zero.get("stage") != 3:
        raise UserError(f"of DeepSpeed's stages ZeRO-3 alone is supported: set zero_stage to 3, {preset}")
    if any((zero.get(f"offload_{what}") or {}).get("device", "none") != "none" for what in ("optimizer", "param")):
        raise UserError(f"DeepSpeed's offloading is not supported: set both offload devices to none, {preset}")
    if accelerator.mixed_precision not in ("no", "bf16"):
        raise UserError("DeepSpeed's loss scaling is not supported: set mixed_precision to bf16 or no")
    check_optimizer(optim)
    settings["train_micro_batch_size_per_gpu"] = settings["gradient_accumulation_steps"] = 1  # losses are whole sums
    settings["train_batch_size"] = accelerator.num_processes
    settings["gradient_clipping"] = optim.max_grad_norm
    # Weights are read whole and spread by the engine: inside transformers' own loading they would be empty by now.
    unset_hf_deepspeed_config()


def check_optimizer(optim: OptimConfig) -> None:
    """Raise UserError for an optimizer that cannot work on flat parts."""
    if optim.name != "adamw":
        raise UserError(f"optim.name {optim.name} does not know DeepSpeed's flat parts: set it to adamw, or use FSDP2")


def adopt(accelerator: Accelerator, model: torch.nn.Module) -> None:
    """Let `gathered` find the engine of a model that accelerate has just prepared."""
    model._zero3_engine = weakref.ref(accelerator.deepspeed_engine_wrapped.engine)  # type: ignore[union-attr]


def holds(tensor: object) -> bool:
    """Whether ZeRO-3 has spread this parameter."""
    return hasattr(tensor, "ds_id")


def shape(parameter: torch.Tensor) -> torch.Size:
    """The shape of the whole parameter."""
    return getattr(parameter, "ds_shape", parameter.shape)


def backward(accelerator: Accelerator, loss: torch.Tensor, last: bool) -> None:
    """Add a microbatch's gradient. The step is left to `step`: accelerate's own backward would make it at once."""
    engine: Any = accelerator.deepspeed_engine_wrapped.engine  # type: ignore[union-attr]
    engine.set_gradient_accumulation_boundary(is_boundary=last)
    engine.backward(loss)


def step(accelerator: Accelerator, *, skip: bool) -> float:
    """Clip and update unless the gradient is not finite, or drop the gradient; its norm before clipping.

    Returns
    -------
    norm : float
        Infinite where DeepSpeed made no step; 0 without any gradient.
    """
    engine: Any = accelerator.deepspeed_engine_wrapped.engine  # type: ignore[union-attr]
    optimizer = engine.optimizer
    if not any(part is not None for part in optimizer.averaged_gradients.values()):  # no microbatch had a gradient
        return 0.0
    if skip:  # what DeepSpeed does with a gradient that overflows
        optimizer._overflow_clean_up(optimizer.loss_scale)
        return 0.0
    engine.step()
    return float("inf") if optimizer.overflow else float(engine.get_global_grad_norm())


def finish(accelerator: Accelerator) -> None:
    """Take the engine down while its process group stands: left to the interpreter's end, it hangs there."""
    accelerator.deepspeed_engine_wrapped.engine.destroy()  # type: ignore[union-attr]


@contextmanager
def gathered(model: torch.nn.Module) -> Iterator[None]:
    """Whole weights on every process without DeepSpeed's hooks: passes in the block need no other process."""
    import deepspeed  # type: ignore[import-not-found]
    from deepspeed.runtime.zero.parameter_offload import FWD_MODULE_STACK  # type: ignore[import-not-found]

    engine: Any = model._zero3_engine()  # type: ignore[operator]
    offload = engine.optimizer.parameter_offload
    offload._remove_module_hooks()
    offload.forward_hooks, offload.backward_hooks = [], []
    parameters: list[Any] = list(model.parameters())
    for p in parameters:
        p.ds_active_sub_modules.clear()
    try:
        with deepspeed.zero.GatheredParameters(parameters):
            yield
    finally:
        offload.setup_zero_stage3_hooks()
        FWD_MODULE_STACK.pop()  # where it puts the model once more


def whole(parameter: Any) -> torch.Tensor:
    """A parameter's values, those that train in float32; every process must ask."""
    import deepspeed  # type: ignore[import-not-found]

    if parameter.requires_grad:
        return deepspeed.utils.safe_get_full_fp32_param(parameter).detach()
    with deepspeed.zero.GatheredParameters([parameter]):
        return parameter.detach().clone()


def put(parameter: Any, value: torch.Tensor) -> None:
    """Write a whole tensor into a parameter that trains; every process must call it, with the same tensor."""
    from deepspeed.utils import safe_set_local_fp32_param  # type: ignore[import-not-found]

    part = _own(parameter, value)
    safe_set_local_fp32_param(parameter, part)
    with torch.no_grad():
        parameter.ds_tensor.copy_(part)
    if parameter.shape == parameter.ds_shape:  # DeepSpeed keeps small ones whole, beside their parts
        parameter.data.copy_(value)


def _own(parameter: Any, value: torch.Tensor) -> torch.Tensor:
    """This process's flat part of a whole tensor; DeepSpeed fills the last one up."""
    numbers, rank = parameter.ds_tensor.numel(), torch.distributed.get_rank(parameter.ds_process_group)
    flat = value.flatten()[numbers * rank : numbers * (rank + 1)].to(parameter.ds_tensor.device)
    return torch.nn.functional.pad(flat, (0, numbers - len(flat)))


def moments(optimizer: Any, parameters: Mapping[str, torch.Tensor], keep: bool) -> dict[str, torch.Tensor]:
    """The optimizer's whole state on the CPU by ``KIND.NAME``, one tensor after another, where it is to be kept."""
    from deepspeed.utils import safe_get_full_optimizer_state  # type: ignore[import-not-found]

    found = {}
    for group in optimizer.optimizer.optimizer.state.values():  # accelerate's wrapper, ZeRO's, torch's
        for kind, part in group.items():
            for name, p in parameters.items():
                value = part if part.ndim == 0 else safe_get_full_optimizer_state(p, kind)
                if keep:
                    found[f"{kind}.{name}"] = value.detach().cpu().clone()
        break  # all of its flat parts have the same kinds
    return found


def put_moments(optimizer: Any, parameters: Mapping[str, torch.Tensor], values: Mapping[str, torch.Tensor]) -> None:
    """Put back what `moments` found, or what any other run's checkpoint holds."""
    from deepspeed.utils import safe_set_local_optimizer_state  # type: ignore[import-not-found]

    zero = optimizer.optimizer
    for key, value in values.items():
        kind, _, name = key.partition(".")
        for flat in zero.fp32_partitioned_groups_flat:
            state = zero.optimizer.state[flat]
            if kind not in state:  # torch makes it in the first step
                state[kind] = value.clone() if value.ndim == 0 else torch.zeros_like(flat)
        if value.ndim:
            safe_set_local_optimizer_state(parameters[name], _own(parameters[name], value), kind)
