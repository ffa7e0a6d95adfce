"""The pages of the rules: what the code declares, and each way to switch a rule on is taken by the real trainer."""

from __future__ import annotations

import re
import shlex
import tomllib
from types import SimpleNamespace
from typing import get_args

import pytest
import torch

from fspo.base.errors import UserError
from fspo.integrations.custom_loss import prime_rl_loss
from fspo.integrations.trl import FSPOConfig
from fspo.objective import objective
from fspo.rules import CORRECTIONS, PRESETS, Drift, Outside, correction, preset
from fspo.train.__main__ import build_parser
from studies.reference_pages import DOCS
from studies.rule_pages import CENTRE_WORDS, CENTRES, FAIR, LEFT, PAGES, PURPOSE, RULES


def blocks(name: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", (DOCS / "rules" / f"{name}.md").read_text("utf-8"), re.M | re.S)


def test_the_pages_are_what_the_code_declares():
    written = {f"rules/{path.name}" for path in (DOCS / "rules").iterdir()} | {"rules.md"}
    assert written == set(PAGES)
    assert set(PURPOSE) == set(FAIR) == set(RULES)
    assert set(LEFT) == set(get_args(Outside))
    assert set(CENTRES) == set(CENTRE_WORDS) == set(get_args(Drift)) - {"none"}
    for name, text in PAGES.items():
        assert (DOCS / name).read_text(encoding="utf-8") == text(), "run make pages"


@pytest.mark.parametrize("name", RULES)
def test_the_definition_has_the_edges_that_the_code_computes(name):
    """The numbers in the formula of the band are the rule's ranges."""
    formula = re.search(r"```math\n(.*?)\n```", PAGES[f"rules/{name}.md"]())
    assert formula
    lo, hi = (part.split("=", 1)[1] for part in formula[1].split("\\qquad")[:2])
    rule = RULES[name]
    for edge, value in ((lo, rule.range_lo), (hi, rule.range_hi)):
        if "infty" in edge:
            assert rule.shape == "none" or rule.outside == "cap"
            continue
        (found,) = re.findall(r"(?<![\^{\d.])\d+\.?\d*(?![\d.]*})", edge.replace("(1", "("))
        assert float(found) == pytest.approx(value, rel=1e-3)


@pytest.mark.parametrize("name", RULES)
def test_our_trainer_takes_the_line(name):
    command = shlex.split(blocks(name, "bash")[0])
    config = build_parser().parse_args(command[2:])
    made = (config.rule, config.correction)
    assert name in [part.preset for part in made]


@pytest.mark.parametrize("name", RULES)
def test_trl_takes_the_lines(name, tmp_path):
    found: dict = {}
    text = blocks(name, "python")[0].replace('"out/', f'"{tmp_path}/')
    exec(text.replace("steps_per_generation=4", "steps_per_generation=4, use_cpu=True, bf16=False"), found)
    args = found["args"]
    assert isinstance(args, FSPOConfig)
    if name in CORRECTIONS:
        assert args.correction_rule() == correction(name)
    else:
        assert args.clip_rule().label == name


@pytest.mark.parametrize("name", PRESETS)
def test_prime_rl_takes_the_lines_or_the_page_says_that_it_refuses(name):
    """The loss of one response of three tokens is minus the objective's."""
    new, old = torch.tensor([-1.0, -2.0, -0.5]), torch.tensor([-1.1, -1.9, -0.7])
    mask, A = torch.tensor([True, True, True]), torch.full((3,), 2.0)
    given = SimpleNamespace(
        trainer_logprobs=new, inference_logprobs=old, advantages=A, loss_mask=mask, loss_weights=None
    )
    lines = blocks(name, "toml")
    if not lines:
        assert "Refused: " in PAGES[f"rules/{name}.md"]()
        with pytest.raises(UserError):
            prime_rl_loss(given, rule=name)
        return
    loss = tomllib.loads(lines[0])["trainer"]["loss"]
    assert loss["import_path"] == f"{prime_rl_loss.__module__}.{prime_rl_loss.__name__}"
    want = objective(new[None], old[None], mask[None], A[:1], preset(name).rule, denominator=1.0).loss
    assert prime_rl_loss(given, **loss["kwargs"]).loss.item() == pytest.approx(want.item())


@pytest.mark.parametrize("name", CORRECTIONS)
def test_a_loop_of_ones_own_runs_the_lines(name):
    """With the factor of each response or token known from the rule itself, where it has no centre."""
    g = torch.Generator().manual_seed(0)
    old = -torch.rand(6, 5, generator=g)
    given = {
        "old": old,
        "new": old + 0.01 * torch.randn(6, 5, generator=g),
        "sampler": old + torch.tensor([1e-5, 0.1, 0.4])[torch.arange(6) % 3, None] * torch.randn(6, 5, generator=g),
        "mask": torch.ones(6, 5, dtype=torch.bool),
        "advantages": torch.tensor([1.0, -1.0, 2.0, -2.0, 0.5, -0.5]),
    }
    exec(blocks(name, "python")[1], given)
    weight = given["records"].correction_weight
    assert len(set(weight.tolist())) > 1
    rule = given["rule"]
    if rule.level == "sequence" and not rule.needs_stats:
        E = (old - given["sampler"]).double().sum(1).numpy()
        want = rule.apply(E, 5 + 0 * E, given["advantages"].double().numpy()).clipped_weight
        assert weight.tolist() == pytest.approx(want.tolist())
