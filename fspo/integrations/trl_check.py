"""Check, when an FSPOTrainer is made, that the loss of the installed TRL is still the one that FSPOTrainer replaces."""

from __future__ import annotations

import inspect
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.metadata import version
from typing import Any

import torch
from torch import Tensor
from trl import GRPOTrainer

from fspo.base.errors import UserError
from fspo.config import ObjectiveConfig
from fspo.integrations.memory import UpdateMemory
from fspo.integrations.trl_log import PREFIX
from fspo.rules import Aggregation, Rule

REPLACED = (
    *("_calculate_rewards", "_compute_loss", "_generate_and_score_completions"),
    *("_get_per_token_logps_and_entropies", "_load_optimizer_and_scheduler", "_save_checkpoint"),
)
"""Methods of `trl.GRPOTrainer` that `FSPOTrainer` extends or calls."""
OURS = "fspo/band_acceptance"
"""Name of a metric that FSPOTrainer's loss reports and TRL's loss does not: it shows which of the two losses ran."""
OPEN = (0.99, 99.0)
"""Lower and upper range of a band so wide that it clips nothing in the batch of `check_release`."""
CASES: dict[Aggregation, tuple[Rule, dict[str, str]]] = {
    "token": (Rule("token", *OPEN), {"loss_type": "dapo", "importance_sampling_level": "token"}),
    "sequence": (
        Rule("linear", *OPEN, weight="geometric"),
        {"loss_type": "grpo", "importance_sampling_level": "sequence"},
    ),
}
"""For each aggregation: a rule whose band clips nothing, and options under which TRL's loss must equal the rule's."""


def missing_methods() -> list[str]:
    """Return the names in `REPLACED` that the GRPOTrainer of the installed TRL does not have."""
    return [name for name in REPLACED if not hasattr(GRPOTrainer, name)]


def check_release(trainer: Any) -> None:
    """Compare the trainer's loss with that of `GRPOTrainer` on a batch of 3 responses, under a band that clips none.

    Both losses get the same made-up log-probabilities. Their values and their gradients with respect to the
    log-probabilities must be equal. The check runs no model, draws no random number, reads no data, and leaves
    gradients, metrics and attributes as they were.

    Parameters
    ----------
    trainer : FSPOTrainer

    Raises
    ------
    UserError
        One line that names the method of TRL that changed.
    """
    changed = missing_methods()
    problem = f"TRL has no GRPOTrainer.{changed[0]} any more" if changed else _difference(trainer)
    if problem is not None:
        raise UserError(
            f"FSPOTrainer does not fit TRL {version('trl')}: {problem}; install a release that was tested: "
            "pip install 'trl==1.16.*'"
        )


def _difference(trainer: Any) -> str | None:
    """Return a clause that says how TRL changed, if FSPOTrainer's loss and TRL's differ; None if they agree."""
    for aggregation, (rule, theirs) in CASES.items():
        try:
            expected, gradient, _ = _loss(trainer, GRPOTrainer._compute_loss, aggregation, rule, theirs)
        except Exception as error:
            line = " ".join(str(error).split())
            return f"GRPOTrainer._compute_loss failed on the batch of the check ({type(error).__name__}: {line})"
        loss, own_gradient, metrics = _loss(trainer, type(trainer).compute_loss, aggregation, rule, theirs)
        if OURS not in metrics:
            return "GRPOTrainer.compute_loss does not call _compute_loss any more"
        if not (torch.allclose(loss, expected, rtol=1e-5) and torch.allclose(own_gradient, gradient, rtol=1e-5)):
            return (
                f"GRPOTrainer._compute_loss changed (with an open band on each {aggregation} its loss is "
                f"{expected.item():.6g} and ours {loss.item():.6g}, its gradient {gradient.norm().item():.6g} and ours "
                f"{own_gradient.norm().item():.6g})"
            )
    return None


def _loss(
    trainer: Any, compute: Callable[..., Tensor], aggregation: Aggregation, rule: Rule, theirs: dict[str, str]
) -> tuple[Tensor, Tensor, dict[str, Any]]:
    """Return the loss that ``compute`` gives on a made-up batch, its gradient, and the metrics that it reported.

    The batch has 3 responses of up to 4 tokens; the gradient is with respect to their log-probabilities (3, 4).
    """
    device, args = trainer.accelerator.device, trainer.args
    mask = torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0], [1, 0, 0, 0]], device=device)
    old = torch.linspace(-3, -1, 12, dtype=torch.float64, device=device).reshape(3, 4)
    new = (old + torch.linspace(0.4, -0.3, 12, device=device).reshape(3, 4)).requires_grad_()
    tokens = 35  # number of tokens in the generation batch, over all processes
    responses = len(mask) * args.first_pass * trainer.accelerator.num_processes
    inputs = {
        **{f"{part}_{field}": mask for part in ("prompt", "completion") for field in ("ids", "mask")},
        "old_per_token_logps": old,
        "advantages": torch.tensor([1.0, -0.5, 2.0], device=device),
        "num_items_in_batch": torch.tensor(tokens, device=device),
        PREFIX + "denominator": torch.tensor(tokens if aggregation == "token" else responses, device=device),
    }
    signature = inspect.signature(GRPOTrainer._get_per_token_logps_and_entropies)

    def log_probs(*positional: Any, **named: Any) -> tuple[Tensor, Tensor, None]:
        signature.bind(trainer, *positional, **named)
        return new, -old, None

    metrics: dict[str, Any] = defaultdict(list)
    attributes = {
        "_get_per_token_logps_and_entropies": log_probs,
        "_metrics": {"train": metrics},
        "current_gradient_accumulation_steps": args.gradient_accumulation_steps,
        "beta": 0.0,
        "aux_loss_enabled": False,
        "epsilon_low": OPEN[0],
        "epsilon_high": OPEN[1],
        "score_every": 0,
        "rule": rule,
        "correction": None,
        "memory": UpdateMemory(rule),
        "objective_config": ObjectiveConfig(aggregation),
        **theirs,
    }
    with _attributes(trainer, **attributes), _attributes(trainer.model, training=True):
        loss = compute(trainer, trainer.model, inputs)
    return loss.detach(), torch.autograd.grad(loss, new)[0], metrics


@contextmanager
def _attributes(of: Any, **values: Any) -> Iterator[None]:
    """Set attributes of an object during a ``with`` block, and restore the object's attributes afterwards."""
    before = dict(vars(of))
    vars(of).update(values)
    try:
        yield
    finally:
        vars(of).clear()
        vars(of).update(before)
