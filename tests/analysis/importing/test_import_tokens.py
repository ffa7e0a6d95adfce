"""What an import notices about tokens: placeholders, masks, shifts, temperatures, a nucleus, other weights."""

import numpy as np
import pytest

from analysis.doctor.examine import examine
from analysis.importing.watch import Noticed, digest_of, placeholders
from analysis.log.loading import load_run
from fspo.base.errors import UserError
from tests.analysis.importing.made import imported, taken


def pairs(noise=0.01, responses=40, length=30, seed=0):
    """Old and sampler's log-probs of tokens (responses, length), which differ by noise alone; a third are uncertain."""
    rng = np.random.default_rng(seed)
    sampler = -np.where(rng.random((responses, length)) < 0.35, rng.exponential(1.0, (responses, length)) + 0.3, 0.0)
    sampler -= rng.exponential(0.02, sampler.shape) + 1e-4
    return np.minimum(sampler + noise * rng.standard_normal(sampler.shape), -1e-6), sampler


def noticed(tmp_path, old, sampler):
    rows = [
        {"step": 2, "uid": f"u{i}", "old_log_probs": list(o), "rollout_log_probs": list(s)}
        for i, (o, s) in enumerate(zip(old, sampler, strict=True))
    ]
    report, log = taken(tmp_path, rows)
    found = digest_of(tmp_path / "run")
    assert found == report.digest
    return found, " ".join(report.notes), log


def test_a_placeholder_in_the_old_log_probabilities_reaches_the_doctor(tmp_path):
    old, new = pairs(responses=64)
    old[5, 3] = -9999.0
    table = {"step": np.arange(64) // 16, "prompt": np.arange(64) // 4, "reward": np.arange(64) % 2}
    imported(tmp_path, table | {"old_logprobs": old.tolist(), "new_logprobs": new.tolist()})
    answer = next(a for a in examine(tmp_path / "run").issues if a.id == "not_finite")
    assert "for them (placeholders: 1 tokens of 1 responses, largest -1e+04 at row 6" in answer.summary


def test_noise_alone_has_no_cause(tmp_path):
    found, notes, _ = noticed(tmp_path, *pairs())
    assert (found.tokens, found.responses, found.cause) == (1200, 40, "")
    assert not any(one.count for one in vars(found).values() if isinstance(one, Noticed))
    assert "mask them" not in notes


@pytest.mark.parametrize(("value", "count"), [(-9999.0, 2), (-23.5, 6)])
def test_placeholders_are_left_out(tmp_path, value, count):
    old, sampler = pairs()
    for i in range(count):
        sampler[2 * i + 3, i] = value
    found, notes, log = noticed(tmp_path, old, sampler)
    assert (found.placeholder.count, found.placeholder.largest, found.cause) == (count, value, "placeholder")
    assert found.placeholder.first == {"row": 4, "step": 2, "uid": "u3"}
    assert "log-probabilities are missing" in notes
    assert log.column("length").sum() == 1200 - count
    assert np.abs(log.column("behaviour_log_ratio")).max() < 1


@pytest.mark.parametrize(
    ("grid", "at", "told"),
    [
        (0, np.arange(6) * 7, True),
        (0, np.arange(6) * 30, False),  # at one place of six responses, as where they begin alike
        (1 / 32, np.arange(6) * 7, False),  # each of 64 values is there about 47 times
        (1 / 32, np.arange(400) * 7, True),
    ],
)
def test_a_repeated_value_among_like_ones_is_a_placeholder(grid, at, told):
    """-5 stands in six or 400 tokens among 3,000 from -4 to -6, exact or rounded to a grid."""
    values, row = np.random.default_rng(3).uniform(-6, -4, 3000), np.repeat(np.arange(100), 30)
    values = np.round(values / grid) * grid if grid else values
    values[at] = -5.0
    assert np.array_equal(placeholders(values, row), (values == -5.0) & told)


def test_zeros_in_runs_ask_for_a_mask_and_those_of_a_nucleus_do_not(tmp_path):
    old, sampler = pairs()
    sampler[5, 10:22] = 0.0
    old[5, 10:22] = 3 * [-2.0, -1e-5, -3.0, -0.5]  # of one in four of which the trainer is sure too
    old[7, 3] = -9999.0  # one placeholder is few beside twelve zeros
    found, notes, _ = noticed(tmp_path, old, sampler)
    assert (found.zeros.count, found.zeros.responses, found.cause) == (12, 1, "mask")
    assert (found.zeros.first["uid"], found.since) == ("u5", 2)
    assert "--columns mask=COLUMN" in notes
    old, sampler = pairs()
    noise = 0.06 * np.random.default_rng(5).standard_normal(old.shape)  # puts 1 token in 20 on the other side
    nucleus = np.where(old > np.log(0.9), 0.0, np.minimum(old + 0.1 + noise, 0.0))
    found, notes, _ = noticed(tmp_path / "two", old, nucleus)
    assert (found.zeros.count, found.cause) == (0, "nucleus")
    assert "top_p 1" in notes
    old, sampler = pairs()
    old[sampler > -0.02], sampler[sampler > -0.02] = -1e-5, 0.0  # rounding, beside which the trainer is once less sure
    old[tuple(np.argwhere(sampler == 0)[::40].T)] = -0.002
    assert noticed(tmp_path / "three", old, sampler)[0].zeros.count == 0


@pytest.mark.parametrize("shift", [-1, 1])
def test_a_shift_of_one_token(tmp_path, shift):
    old, sampler = pairs(length=60)
    some = np.where(np.arange(40)[:, None] % 4 == 1, np.roll(old, shift, axis=1), old)
    found, notes, _ = noticed(tmp_path, some, sampler)
    assert (found.cause, found.shifted.responses, found.shifted.first["uid"]) == ("shift", 10, "u1")
    assert min(found.shifts, key=lambda name: found.shifts[name]) == str(shift)
    assert f"old_log_probs stands one place {'before' if shift < 0 else 'after'} rollout_log_probs" in notes
    both = zip(np.roll(old, shift, axis=1).tolist(), sampler.tolist(), strict=True)
    areal = [{"step": 0, "prox_logp": o, "logprobs": s, "loss_mask": [0] + [1] * 58 + [0]} for o, s in both]
    sums = taken(tmp_path / "areal", areal)[1].column("behaviour_log_ratio")
    assert (sums == pytest.approx((old - sampler)[:, 1:-1].sum(1))) == (shift < 0)  # so AReaL aligns them, and only so


def test_a_shift_from_some_token_on_is_one(tmp_path):
    old, sampler = pairs(length=120)
    old[::5, 60:] = np.roll(old[::5, 60:], 1, axis=1)  # of every fifth response the second half
    found, notes, _ = noticed(tmp_path, old, sampler)
    assert (found.cause, found.shifted.responses) == ("shift", 8)
    assert "old_log_probs stands one place after rollout_log_probs" in notes


def test_a_few_tokens_far_off_are_no_shift(tmp_path):
    old, sampler = pairs(noise=0.02, responses=60, length=400)
    for one, other in zip(old, sampler, strict=True):
        one[np.flatnonzero(other < -0.3)[:14]] -= 3.0
    assert noticed(tmp_path, old, sampler)[0].shifted.responses == 0


def test_a_last_token_that_carries_the_mismatch_is_named_and_the_analysis_says_so(tmp_path):
    old, sampler = pairs(responses=160)
    old[::8, -1], sampler[::8, -1] = -12.1, -0.1
    found, _, _ = noticed(tmp_path, old, sampler)
    assert (found.cause, found.ends.responses) == ("end", 20)
    answer = next(a for a in examine(tmp_path / "run").issues if a.id == "mismatch")
    assert answer.since is None  # there is one rollout
    assert "The last token of responses carries it" in answer.summary
    assert "20 tokens of 20 responses" in answer.summary
    warnings = load_run(tmp_path / "run", on="behaviour").notes.warnings
    assert any("the import noticed: the last token of responses carries it" in line for line in warnings)


def laws(differ, number=6000, uneven=0.0):
    """Log-probs of tokens that the second of two laws over 50 symbols drew, by each; ``differ`` makes the second. The
    logits spread 2.5 times exp of a normal number of standard deviation ``uneven`` for each token."""
    rng = np.random.default_rng(3)
    logits = 2.5 * np.exp(uneven * rng.standard_normal((number, 1))) * rng.standard_normal((number, 50))
    first, second = (x - np.log(np.exp(x).sum(1, keepdims=True)) for x in (logits, differ(logits, rng)))
    drawn = (second + rng.gumbel(size=second.shape)).argmax(1)[:, None]
    return [np.take_along_axis(x, drawn, 1).reshape(-1, 30) for x in (first, second)]


@pytest.mark.parametrize("uneven", [0.0, 0.6])
@pytest.mark.parametrize("temperature", [0.6, 0.7, 0.9, 1.2])
def test_another_temperature_also_among_tokens_of_uneven_entropy(tmp_path, temperature, uneven):
    by_each = laws(lambda x, rng: x / temperature, uneven=uneven)
    found, notes, _ = noticed(tmp_path / "a", *by_each)
    assert (found.cause, noticed(tmp_path / "b", *by_each[::-1])[0].cause) == ("temperature", "temperature")
    assert uneven or found.temperature == pytest.approx(temperature, abs=0.05)
    assert "at the temperature of sampling" in notes


@pytest.mark.parametrize("spread", [0.0, 0.03, 0.3, 1.0])
def test_a_constant_and_other_logits_are_no_temperature(tmp_path, spread):
    old, sampler = laws(lambda x, rng: x + spread * rng.standard_normal(x.shape)) if spread else pairs()
    found, _, _ = noticed(tmp_path, old, sampler if spread else np.full_like(sampler, -0.5))
    assert found.cause in ("", "weights")


def test_confident_disagreement_means_other_weights_and_one_row_does_not(tmp_path):
    old, sampler = pairs()
    sure = np.argwhere((sampler > -0.1) & (old < -1e-5))[::15]
    old[tuple(sure.T)] -= 3.0
    found, notes, _ = noticed(tmp_path, old, sampler)
    assert (found.confident.count, found.cause) == (len(sure), "weights")
    assert "other weights" in notes
    old, sampler = pairs()
    old[[19, 30], :3] -= 6.5
    found, notes, _ = noticed(tmp_path / "two", old, sampler)
    assert found.cause == ""
    assert "2 of 40 responses" in notes
    assert all(f"row {i + 1}, step 2, uid u{i}" in notes for i in (19, 30))
    assert found.largest[0]["d"] == pytest.approx(-6.5, abs=0.1)


def test_an_overflow_is_named_by_its_row_and_what_the_mask_drops_is_not(tmp_path):
    old, sampler = pairs(responses=3)
    sampler[1, 4], sampler[2, 7] = -90.0, -95.0
    mask = np.where(sampler == -95, 0, 1)
    table = {"step": [0] * 3, "export_sequence_idx": [16, 17, 18], "old_log_probs": list(old.tolist())}
    table |= {"rollout_log_probs": sampler.tolist(), "response_mask": mask.tolist()}
    report, _ = imported(tmp_path, table)
    found, row = report.digest.overflow, {"row": 2, "step": 0, "export_sequence_idx": 17}
    assert (found.count, found.row, int(found.largest)) == (1, row, 89)


def test_weights_of_tokens_that_have_no_number_or_lie_above_the_cap(tmp_path):
    row = {"step": 0, "group": 1, "action_log_probs": [-1.0, -2.0], "rollout_log_probs": [-1.0, -2.0]}
    report, _ = taken(tmp_path, [row | {"vllm_is": [1.0, 9.5]}, row | {"group": 2, "vllm_is": [None, 1.0]}])
    assert any("1 tokens have a weight above 2" in note and "row 1, step 0, group 1" in note for note in report.notes)
    assert any("1 tokens have no number" in note and "row 2, step 0, group 2" in note for note in report.notes)


def test_log_probs_slightly_above_0_are_held_and_others_refused(tmp_path):
    old, sampler = pairs()
    old[:, :3], sampler[3, 2] = 0.004, 0.001  # a tenth of the tokens; of one both are above 0
    found, notes, log = noticed(tmp_path, old, sampler)
    assert (found.above_zero.count, found.above_zero.largest) == (120, 0.004)
    assert log.column("behaviour_log_ratio") == pytest.approx((np.minimum(old, 0) - np.minimum(sampler, 0)).sum(1))
    assert "held at 0" in notes
    for many, value in ((1, 0.3), (20, 0.004)):
        old[:, :many] = value if many > 1 else old[:, :1]
        old[3, 2] = value
        with pytest.raises(UserError, match=rf"values above 0 .* the largest {value} in row \d+, step 2, uid u\d+"):
            noticed(tmp_path / str(many), old, sampler)
