"""What the doctor says of the engine ratio E: its cause, its severity, truncated sampling."""

from dataclasses import replace

import numpy as np
import pytest

from analysis.doctor.issues import Severity
from analysis.doctor.mismatch import Mismatch, staleness
from analysis.importing.watch import Noticed, TokenDigest
from fspo.rules import CORRECTIONS
from tests.analysis.doctor.made import rows_of


def told(rows, **options):
    return Mismatch.of(rows, np.ones(len(rows), bool)).answer(**options)


def engine(E, L, k3, **options):
    """Return the answer about the engine ratio E."""
    return told(rows_of(len(E), length=L, engine_log_ratio=E, engine_k3_sum=k3, behaviour_log_ratio=E), **options)


def noise(rng, L, size):
    """Return log-ratios of responses whose tokens have independent normal noise of ``size`` nats, and their k3."""
    return size * np.sqrt(L) * rng.standard_normal(len(L)) - size**2 / 2 * L, size**2 / 2 * L


@pytest.mark.parametrize(("spread", "wanted"), [(0.0, True), (0.2, False)])
def test_truncated_sampling_is_called_so_at_a_level(spread, wanted):
    """E is -.002 for each token; or it has noise beside, so that E + k3 is above 0 in more than a response of twenty.
    A response tells 1.05 at most, so 60 of them do not reach odds of 1000 and 600 do."""
    rng = np.random.default_rng(1)
    for n in (60, 600):
        L = rng.integers(16, 64, n) * 1.0
        E = -0.002 * L * (1 + 10 * spread * rng.standard_normal(n))
        assert ("top-p" in engine(E, L, 2e-6 * L).summary) == (wanted and n == 600)


def test_a_cause_of_the_mismatch_is_named_only_where_its_test_says_so():
    rng, n = np.random.default_rng(9), 8000
    L = rng.integers(16, 64, n) * 1.0
    E, k3 = noise(rng, L, 0.15)
    found = engine(E, L, k3)
    assert "Its mean is -E[k3]" in found.summary
    assert "larger than bfloat16 makes it" in found.summary
    assert "compare temperature, precision and weights' versions" in found.fix
    assert found.severity == Severity.INFO  # noise alone is never a warning
    assert "take a sqrt mask of range 0.3" in found.fix
    assert found.since is None
    growth = next(e for e in found.evidence if e.name.startswith("exponent"))
    assert growth.low < 0.5 < growth.high
    assert growth.value == pytest.approx((growth.low + growth.high) / 2)
    hot, less = engine(E + 0.02 * L, L, k3), engine(E / 5 - 0.4, L, k3 / 25, same=True)
    assert "another temperature" in hot.summary
    assert "a token less" in less.summary
    for answer, a, b in ((hot, 0.0, 0.02), (less, -0.4, -k3[0] / L[0] * 4 / 25)):  # of E + k3
        constant, each = (e for e in answer.evidence if "part" in e.name)
        assert constant.value == pytest.approx(a, abs=(constant.high - constant.low))
        assert each.value == pytest.approx(b, abs=(each.high - each.low))
    assert "top-p" in engine(-0.02 * L * rng.uniform(0.5, 1.5, n), L, 0 * L).summary
    little = (E + k3) / 5 - k3 / 25  # its mean is -E[k3], as that of the larger noise
    assert "one program" in engine(little, L, k3 / 25, same=True).summary
    assert not engine(little, L, k3 / 25).found
    assert "not noise alone: its mean grows with the length" in engine(little - 0.003 * L, L, k3 / 25).summary
    near = np.repeat([60.0, 80.0], 30)  # 60 rows at two near lengths do not tell an exponent
    E, k3 = noise(rng, near, 0.15)
    assert "grows as L^" not in engine(E, near, k3).summary


def test_what_rivals_cut_is_told_for_the_shortest_and_the_longest_responses():
    """A D + E without noise of .3 nats at 16 tokens and 1.5 at 1024: exp(.3), exp(1.5) > 3, .3/16 and 1.5/1024 > .001;
    the sqrt mask keeps .3 < .1 sqrt(16) and 1.5 < .1 sqrt(1024). The weights capped at 2 are e^.3, e^-.3, 2, e^-1.5."""
    L = np.repeat([16.0, 1024.0], 100)
    rows = rows_of(200, length=L, behaviour_log_ratio=np.where(L < 20, 0.3, 1.5) * np.tile([1, -1], 100))
    mismatch = Mismatch.of(rows, np.ones(200, bool))
    groups, done = mismatch.rivals()
    assert groups == ["16 to 31 tokens", "1024 to 2047 tokens", "all"]
    assert done["the product mask (mis) masks"] == [0, 1, 0.5]
    assert done["the geometric mask (geo-mask) masks"][0] == 1
    assert done["the sqrt mask (engine-sqrt) masks"][1] == 0
    assert done["the mean of a product weight capped at 2 is"][1] == pytest.approx((2 + np.exp(-1.5)) / 2)
    assert "mis" not in mismatch.answer().summary  # its mean is no noise's, so no correction is the cure
    small = (np.tile([1, -1], 100) - 0.045) * 0.02 * np.sqrt(L)  # as small as its mean is large: E[x + k3] is about 0
    summary = told(rows_of(200, length=L, behaviour_log_ratio=small)).summary
    assert "By length (16 to 31 tokens; 1024 to 2047 tokens; all):" in summary
    assert "; the product mask (mis) masks 0.0%, 0.0%, 0.0%;" in summary


def test_a_temperature_is_no_token_more_where_only_sums_are_known():
    """log p - log q has the mean .05 L, or 2 whatever the length; of 16 to 600 tokens e^x is beyond e^3 in most."""
    rng, n = np.random.default_rng(4), 4000
    L = np.exp(rng.uniform(np.log(16), np.log(600), n)).round()
    E = 0.1 * np.sqrt(L) * rng.standard_normal(n)
    warm = engine(0.05 * L + E, L, np.nan * L).summary
    assert "lies above 0, where no distribution that drew puts it" in warm
    assert "its mean grows with the length" in warm
    assert "another temperature" in warm
    more = engine(2 + E / 5, L, np.nan * L).summary
    assert "lies above 0" in more
    assert "does not grow with the length: the sum of the sampler's log-probs has a token more" in more
    nucleus = engine(np.minimum(-0.02 * L, -1.1) * rng.uniform(0.5, 1.5, n) - 1, L, np.nan * L).summary
    assert "hardly ever above 0 and grows with the length: tokens were drawn by top-p" in nucleus  # e^x - 1 is all -1
    L = 10 * L + 6000
    sound = engine(noise(rng, L, 0.1)[0], L, np.nan * L).summary
    assert "Its mean is -E[k3]" in sound  # and e^x - 1 is about -1 here too, in all but a few


def test_statements_about_E_do_not_mix_in_the_policy_lag():
    """E is noise of .05 a root token. D + E is .3 nats a token off, by older weights."""
    rng, n = np.random.default_rng(8), 4000
    L = rng.integers(16, 256, n) * 1.0
    E, k3 = noise(rng, L, 0.05)
    E[::2] = np.nan
    both = np.nan_to_num(E) - 0.3 * L
    answer = told(rows_of(n, length=L, engine_log_ratio=E, engine_k3_sum=E * 0 + k3, behaviour_log_ratio=both))
    assert answer.evidence[0].value == pytest.approx(1, abs=0.05)  # with D + E it is about .5
    assert answer.status == "clear" or answer.severity == Severity.INFO


def test_few_responses_that_carry_the_mismatch_are_named():
    rng, n = np.random.default_rng(2), 1000
    L = rng.integers(50, 400, n) * 1.0
    E = 0.002 * np.sqrt(L) * rng.standard_normal(n)
    E[[300, 700, 801]] = -1.5, -30, -20  # two have 99.8 % of the squares, and the third is 40 times the noise
    found = engine(E, L, E**2 / 2)
    assert "3 of 1000 responses carry 1" in found.summary  # 100 %
    assert "rollout 7 response 700 (-30 nats)" in found.summary
    assert found.since == 3
    assert "spread of 0.002 nats a root token" in found.summary  # that of the others
    assert abs(found.evidence[-1].value) < 1e-5  # and so is what each token adds to E + k3
    assert "(engine-sqrt) masks 0.0%, 0.0%, 0.0%" in found.summary.partition("Of the others, by length (")[2]
    assert "the others are sound; where a correction is wanted, take a sqrt mask of range 0.004" in found.fix
    assert not engine(E / 100, L, E**2 / 2e4).found  # the same three, of .3 nats at most
    found = engine(E - 0.001 * L, L, E**2 / 2)
    assert ("without them: it is hardly ever above 0" in found.summary, "sound" in found.fix) == (True, False)


@pytest.mark.parametrize(("rises", "from_on"), [(0.0, None), (1.0, 0), (2.0, 5), (3.0, 6)])
def test_a_mismatch_that_rises_over_the_run_is_a_warning(rises, from_on):
    """Noise of .03 a root token; one that rises to .09 over ten rollouts, or jumps at the fifth, or rises from it."""
    rng, n = np.random.default_rng(5), 8000
    L = rng.integers(16, 64, n) * 1.0
    at = np.arange(n) * 10 // n
    size = 0.03 * (1 + (rises == 1) * 2 * at / 9) + 0.06 * (
        (rises == 2) * (at >= 5) + (rises == 3) * np.maximum(at - 5, 0)
    )
    E, k3 = noise(rng, L, size)
    found = engine(E, L, k3)
    assert ("rises over the run" in found.summary) == (rises in (1.0, 3.0))
    assert ("it jumps from 0.03" in found.summary.lower()) == (rises == 2.0)
    if rises:
        assert (found.severity, abs(found.since - from_on) <= 1) == (Severity.WARNING, True)


def test_the_cause_that_the_tokens_show_is_named_before_all_others():
    L = np.full(100, 50.0)
    placed = Noticed(count=5, responses=5, largest=-9999.0, row={"row": 17})
    digest = TokenDigest(cause="placeholder", placeholder=placed)
    assert "no response has a log-ratio" in engine(np.nan * L, L, np.nan * L, tokens=digest).summary
    found = engine(-0.1 * L, L, 0 * L, tokens=digest)
    told = "a placeholder stands for them (placeholders: 5 tokens of 5 responses, largest -1e+04 at row 17)"
    assert told in found.summary
    assert "without these tokens: it is hardly ever above 0" in found.summary
    assert found.evidence
    assert not engine(-0.1 * L, L, 0 * L, tokens=TokenDigest(cause="nucleus")).evidence
    assert "nucleus" not in engine(-0.1 * L, L, 0 * L, tokens=TokenDigest(cause="nucleus", sampler=False)).summary


def test_what_is_wrong_besides_tokens_that_are_left_out_is_told():
    rng, L = np.random.default_rng(8), np.full(400, 50.0)
    E, k3 = noise(rng, L, 0.02)
    digest = TokenDigest(cause="mask", since=3, zeros=Noticed(count=5, responses=5, largest=-9.0, row={"row": 17}))
    sound, hot = (engine(x, L, k3, tokens=digest) for x in (E, E + 0.02 * L))
    assert "without these tokens: noise" in sound.summary
    assert sound.since == 3  # of the mask, and not of the noise
    assert "nothing is wrong" not in sound.fix  # noise beside a defect asks for nothing
    assert "another temperature" in hot.summary
    assert "processed log-probabilities" in hot.fix


def test_lag_that_versions_show_is_named_also_without_the_policys_version():
    """Of ten rollouts each has 30 responses of the newest version and 30 that are one version older, noise of .02 and
    .06 a root token; the versions count from 500."""
    rng, n, L = np.random.default_rng(4), 600, np.full(600, 1024.0)
    old = np.arange(n) % 2 == 1
    x, k3 = noise(rng, L, np.where(old, 0.06, 0.02))
    made = {"length": L, "behaviour_log_ratio": x, "behaviour_k3_sum": k3}
    rows = rows_of(n, **made, behaviour_version=500.0 + np.arange(n) * 10 // n - old)
    answer = told(rows)
    assert answer.severity == Severity.INFO
    assert "It is the policy lag: 0.08" in answer.summary  # its square is .06^2 + (.06^2 / 2)^2 1024
    assert "in the 300 responses that older weights sampled" in answer.summary
    stale = staleness(rows, corrected=False, imported=True)
    assert "50% or more of the responses were sampled by weights older than the newest" in stale.summary
    assert "policy_version=STEP" in stale.fix
    rows.columns["behaviour_log_ratio"] = 0 * x
    assert "old log-probs are the sampler's" in staleness(rows, corrected=False, imported=True).summary
    one = rows_of(n, **made, behaviour_version=500.0 + np.arange(n) * 10 // n)
    assert "no versions" in told(one).summary
    assert staleness(one, corrected=False).status == "not checked"  # lag to the old weights may be there, unseen


def test_the_size_of_the_lags_part_is_told_where_it_is_large_or_only_with_the_mismatch():
    """Every second response is one update old; D is .3 nats there, or .1, or unknown beside a D + E of .4 and .05."""
    old = np.arange(200) % 2 == 1
    made = {"length": np.full(200, 50.0), "log_ratio": np.full(200, 0.1)}
    made |= {"policy_version": np.full(200, 5.0), "behaviour_version": 4.0 - old}
    large, small = (rows_of(200, **made, staleness_log_ratio=size * old) for size in (0.3, 0.1))
    assert "nothing corrects their ratio (rms of D 0.3 nats)" in staleness(large, corrected=False).summary
    assert staleness(large, corrected=True).status == staleness(small, corrected=False).status == "clear"
    unknown = staleness(rows_of(200, **made, behaviour_log_ratio=np.where(old, 0.4, 0.05)), corrected=False)
    assert "the rms of their D + E is 0.4 nats, of the others 0.05" in unknown.summary


@pytest.mark.parametrize(("grows", "words"), [(0.1, "in the 20 of the least lag (1)"), (0.0, "lag may be all of it")])
def test_lag_may_explain_a_mismatch_though_few_responses_or_none_are_fresh(grows, words):
    """Of 600 responses 20 are one update old and the others 2 to 4; noise of .15 a root token, or more with the lag."""
    rng, n, L = np.random.default_rng(4), 600, np.full(600, 50.0)
    lag = np.where(np.arange(n) % 30 < 1, 1.0, 2.0 + np.arange(n) % 3)
    x, k3 = noise(rng, L, 0.15 + grows * (lag - 1))
    rows = rows_of(n, length=L, behaviour_log_ratio=x, behaviour_k3_sum=k3, policy_version=9 + 0 * L)
    rows.columns["behaviour_version"] = 9 - lag - rows["updates_since_rollout"]
    answer = told(rows)
    assert (words in answer.summary, "fp8" in answer.summary, answer.severity) == (True, False, Severity.INFO)


def test_a_correction_that_takes_most_of_some_length_is_a_warning():
    """Noise of .02 a root token: 1 to 2 nats at 4096 tokens, of which a product mask of .02 leaves next to nothing."""
    rng, L = np.random.default_rng(6), np.repeat([16.0, 4096.0], 400)
    E, k3 = noise(rng, L, 0.02)
    assert engine(E, L, k3, correction=CORRECTIONS["engine-sqrt"]).severity in (None, Severity.INFO)
    found = engine(E, L, k3, correction=replace(CORRECTIONS["mis"], range_lo=0.02, range_hi=0.02))
    assert found.severity == Severity.WARNING
    assert "the correction in use removes 9" in found.summary
    # and a mask in use that only its weights show
    weight = np.where((L > 16) & (np.arange(800) % 4 > 0), 0.0, 1.0)  # three of four long ones are masked
    made = {"length": L, "engine_log_ratio": E, "behaviour_log_ratio": E, "engine_k3_sum": k3}
    answer = told(rows_of(800, **made, correction_weight=weight))
    assert answer.severity == Severity.WARNING
    assert "the correction in use removes 0.0%, 75.0%, 37.5%" in answer.summary


def test_small_noise_is_told_where_a_product_mask_cuts_long_responses_and_a_defect_since_it_began():
    rng, n = np.random.default_rng(3), 8000
    L = rng.integers(2048, 4096, n) * 1.0
    E, k3 = noise(rng, L, 0.04)
    small = engine(E, L, k3)
    assert small.severity == Severity.INFO
    assert "spread of 0.04 nats a root token (sd 2." in small.summary
    assert "larger than bfloat16" not in small.summary
    assert "nothing is wrong with the tokens" in small.fix
    late = np.arange(n) * 10 // n >= 5
    L = L // 64
    found = engine(E / 8 + 0.05 * L * late, L, 0.04**2 / 2 * L)
    assert found.severity == Severity.WARNING
    assert found.since == 5
