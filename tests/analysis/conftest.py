"""Simulated gradient logs with a known truth, written with the real writer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fspo.gradlog import GradLogWriter
from fspo.rules import DriftStats, Rule, preset, token_k3
from tests.analysis.doctor.planted import update_rows


@dataclass(frozen=True)
class Plan:
    """S given L is N(mu L, sigma^2 L), one standard deviation an update; groups of 8 share length scale and reward."""

    rule: Rule = preset("fspo").rule
    rollouts: int = 6
    prompts: int = 64
    group: int = 8
    minibatches: int = 4
    epochs: int = 2
    sigma: float = 0.02
    drift: float = -0.5  # times sigma^2
    width: int = 32
    within: float = 0.3  # spread of log length inside a group
    seed: int = 0
    engine: float = 0.0  # s: the engine log-ratio of a token is N(-s^2/2, s^2), so E[e^E] = 1; 0: not logged
    staleness: float = 0.0  # the same of D; with 0 every version is that of the rollout
    correction: Rule | None = None


def write_log(run: Path, plan: Plan = Plan()) -> Path:
    """Write RUN/gradlog; 4 minibatches x 2 epochs give updates_since_rollout 0..7, scores at the fourth."""
    rng = np.random.default_rng(plan.seed)
    rule = plan.rule
    header: dict[str, object] = {"rule": rule.to_dict(), "seed": plan.seed}
    if plan.correction is not None:
        header["correction"] = plan.correction.to_dict()
    writer = GradLogWriter(run, width=plan.width, metadata=header)
    n = plan.prompts * plan.group
    step = 0
    directions = rng.standard_normal((3, plan.width))
    for rollout in range(plan.rollouts):
        prompt = np.repeat(np.arange(plan.prompts), plan.group)
        log_length = rng.uniform(np.log(8), np.log(256), plan.prompts)[prompt] + plan.within * rng.standard_normal(n)
        length = np.clip(np.round(np.exp(log_length)), 2, 300).astype(int)
        difficulty = rng.random(plan.prompts)
        reward = (rng.random(n) < difficulty[prompt]).astype(float)
        groups = reward.reshape(plan.prompts, plan.group)
        advantage = ((groups - groups.mean(1, keepdims=True)) / (groups.std(1, keepdims=True) + 1e-6)).ravel()
        advantage[np.abs(advantage) < 1e-9] = 0.0
        walk = np.zeros(n)
        mismatch = Mismatch(plan, rollout, length)
        for update in range(plan.minibatches * plan.epochs):
            size = plan.prompts // plan.minibatches * plan.group
            first = (update % plan.minibatches) * size
            at = np.arange(first, first + size)
            if update:
                spread = plan.sigma * np.sqrt(length)
                walk += plan.drift * plan.sigma**2 * length + spread * rng.standard_normal(n)
            S, L, A = walk[at], length[at].astype(float), advantage[at]
            # their expectations, moved to where sums over tokens that add up to S can lie
            square = np.maximum(plan.sigma**2 * L * update, S * S / L)
            low, high = (token_k3(sign * np.sqrt(square)) for sign in (-1.0, 1.0))
            k3 = np.clip(0.5 * plan.sigma**2 * L * update, np.maximum(L * token_k3(S / L), low), high)
            scored = update == plan.minibatches - 1 and plan.width > 0
            psi = directions[0] + 0.02 * L[:, None] * directions[1] + rng.standard_normal((size, plan.width))
            norm = np.linalg.norm(psi, axis=1)
            rows = update_rows(rule, S, L, A, square, k3, rollout, step, update, plan.minibatches)
            rows |= {"prompt_id": prompt[at], "response_id": rollout * n + at, "length": length[at]}
            rows |= {"reward": reward[at], "score_status": "ok" if scored else "not_taken"}
            rows |= {"score_norm": norm if scored else np.nan, "score_unit": psi / norm[:, None]}
            rows |= mismatch.rows(at, A, step, update)
            writer.append(rows if plan.width else {k: v for k, v in rows.items() if k != "score_unit"})
            step += 1
        writer.flush(rollout)
    return run


class Mismatch:
    """Token log-ratios of a rollout's responses between trainer and sampler, summed to columns of the log."""

    def __init__(self, plan: Plan, rollout: int, length: np.ndarray) -> None:
        self.plan, self.length = plan, length.astype(float)
        rng = np.random.default_rng([plan.seed, rollout])
        e, d = ([rng.normal(-(spread**2) / 2, spread, n) for n in length] for spread in (plan.engine, plan.staleness))
        self.versions_behind = 8 * rng.integers(0, 4, len(length)) * (plan.staleness > 0)
        both = [x + y for x, y in zip(d, e, strict=True)]
        self.sums = {name: sums_of(x) for name, x in {"engine": e, "staleness": d, "behaviour": both}.items()}

    def rows(self, at: np.ndarray, A: np.ndarray, step: int, update: int) -> dict[str, object]:
        """Columns of the responses ``at`` in one update."""
        rule = self.plan.correction
        if not self.plan.engine:
            return {}
        made: dict[str, object] = {f"{name}_log_ratio": found[0][at] for name, found in self.sums.items()}
        for name in ("engine", "behaviour"):
            made |= {f"{name}_sum_sq": self.sums[name][1][at], f"{name}_k3_sum": self.sums[name][2][at]}
        made |= {"policy_version": step, "behaviour_version": step - update - self.versions_behind[at]}
        if rule is not None:
            x, square, k3 = (values[at] for values in self.sums[rule.on])
            m = rule.centre(DriftStats.of(k3, square, self.length[at]))
            done = rule.apply(x, self.length[at], A, m)
            made |= {"correction_lo": done.lo, "correction_hi": done.hi, "correction_drift": m}
            made |= {"correction_side": done.side, "correction_weight": done.clipped_weight}
        return made


def sums_of(tokens: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The sums of x, x^2 and k3 over the tokens of each response."""
    one, two, three = (
        np.array([values(x).sum() for x in tokens])
        for values in (lambda x: x, lambda x: x * x, lambda x: np.expm1(x) - x)
    )
    return one, two, three


def rewrite(run: Path, **changes: Callable[[np.ndarray, pa.Table], np.ndarray]) -> None:
    """Rewrite columns in every file of a log, as a trainer with a bug would have written them: each change is a
    function of the column and of the file's table."""
    for file in sorted((run / "gradlog").glob("*.parquet")):
        table = pq.read_table(file)
        for name, change in changes.items():
            place = table.column_names.index(name)
            values = pa.array(change(table[name].to_numpy(), table), table.schema.field(name).type)
            table = table.set_column(place, table.schema.field(place), values)
        pq.write_table(table, file)


@pytest.fixture
def simulate(tmp_path: Path) -> Callable[..., Path]:
    """Write a log named ``name`` under the test's folder; the other arguments are the plan's."""

    def make(name: str = "run", **changes: object) -> Path:
        return write_log(tmp_path / name, Plan(**changes))  # type: ignore[arg-type]

    return make


@pytest.fixture(scope="session")
def fspo_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One log of the fspo preset that several tests only read."""
    return write_log(tmp_path_factory.mktemp("logs") / "fspo-0", Plan())
