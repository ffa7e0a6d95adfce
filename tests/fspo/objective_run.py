"""One evaluation of the objective on given log-ratios, as the tests of its values and of its properties ask for it."""

import torch

from fspo.objective import ObjectiveConfig, objective
from fspo.rules import PRESETS, DriftStats, preset

STATS = DriftStats(k3_sum=0.04, sum_sq=0.16, num_tokens=4.0)  # per token: k3 = .01, sigma^2 = .04
FSPO = {
    "gaussian": preset("fspo", drift="gaussian").rule,
    "tilted": preset("fspo", drift="tilted").rule,
    "truncate": preset("fspo", outside="truncate").rule,
    "cap": preset("fspo", outside="cap").rule,
    "power": preset("fspo", gamma=0.75).rule,
}
"""Preset fspo with one part changed, by a short name."""
RULES = {name: found.rule for name, found in PRESETS.items()} | FSPO
SEQUENCE = ObjectiveConfig("sequence")


def run(rule, s, A, config=None, mask=None, stats=None, **options):
    """J = -loss and dJ/ds for log-ratios ``s`` (B, T), float64."""
    s = torch.tensor(s, dtype=torch.float64)
    new = (s - 1.3).requires_grad_()
    mask = torch.ones_like(s, dtype=torch.bool) if mask is None else torch.as_tensor(mask)
    A = torch.tensor(A, dtype=torch.float64)
    m = None if stats is None else rule.centre(stats)
    out = objective(new, torch.full_like(s, -1.3), mask, A, rule, config, m=m, **options)
    (grad,) = torch.autograd.grad(-out.loss, new)
    return -out.loss.item(), grad.numpy(), out.records
