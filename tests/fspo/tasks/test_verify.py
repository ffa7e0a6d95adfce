"""Verifiers on real text, and worker processes that really hang, die and recover."""

import multiprocessing
import os
import subprocess
import sys
import textwrap
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fspo.base.errors import UserError
from fspo.tasks.base import Example
from fspo.tasks.verifier_pool import VerifierPool
from fspo.tasks.verify import (
    Verifier,
    VerifierConfig,
    exact_match,
    last_boxed,
    last_number,
    load_function,
    make_extractor,
    normalise,
)

USER_MODULE = '''
import os, signal, time

def judge(response, answer):
    """What a response asks for happens."""
    if response == "sleep":
        time.sleep(600)
    if response == "spin":
        # Never returns and ignores every signal that can be ignored.
        for name in (signal.SIGTERM, signal.SIGINT, signal.SIGALRM):
            signal.signal(name, signal.SIG_IGN)
        while True:
            try:
                time.sleep(0.01)
            except BaseException:
                pass
    if response == "raise":
        raise KeyError("a column is missing")
    if response == "timeout-error":
        raise TimeoutError("the judge's own")
    if response == "exit":
        raise SystemExit(3)
    if response == "die":
        os._exit(9)
    if response == "nan":
        return float("nan")
    if response == "none":
        return None
    return response == answer

def everything(**call):
    return len(call)

def some(prompt, info, finished):
    return len(prompt) + 10 * info["depth"] + 100 * finished

def wants_more(response, reward_model):
    return 0

not_a_function = 3
'''


@pytest.fixture
def user_module(tmp_path, monkeypatch):
    (tmp_path / "judge_for_tests.py").write_text(textwrap.dedent(USER_MODULE))
    monkeypatch.syspath_prepend(str(tmp_path))
    yield "judge_for_tests"
    sys.modules.pop("judge_for_tests", None)


def example(answer="7", prompt="p", **info):
    return Example("x-0", prompt, answer, info)


def score(verifier, pairs):
    return verifier.score([example(a) for _, a in pairs], [r for r, _ in pairs], [True] * len(pairs))


def workers_alive():
    return [p for p in multiprocessing.active_children() if p.name == "pebble_pool_worker"]


@pytest.mark.parametrize(
    ("text", "content"),
    [
        (r"so \boxed{42}", "42"),
        (r"\boxed{1} then \boxed {\frac{1}{2}} end", r"\frac{1}{2}"),
        (r"\boxed{1} then \boxed{2", "1"),
        (r"\boxed{\{1, 2\}}", r"\{1, 2\}"),
        (r"\boxed{a \boxed{b}}", "b"),
        (r"} { \boxed{x}", "x"),
        ("42", None),
        (r"\boxed 5", None),
    ],
)
def test_last_boxed(text, content):
    assert last_boxed(text) == content


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("it is 1,234.50.", "1234.50"),
        ("5-3", "3"),
        ("x = -3", "-3"),
        ("x = \u22123", "-3"),
        ("1 and .5", ".5"),
        ("1,2345", "2345"),
        ("(2)-4", "4"),
        ("no digits", None),
    ],
)
def test_last_number(text, number):
    assert last_number(text) == number


@given(st.integers(-(10**12), 10**12), st.text(alphabet="abc =:$", max_size=8))
def test_last_number_finds_what_was_written(value, before):
    assert int(last_number(f"17 {before} {value:,}.") or "") == value


def test_extraction_is_linear_in_degenerate_responses():
    # Quadratic code would need hours here; the suite's time limit would end it.
    assert last_boxed(r"\boxed{" * 300_000) is None
    assert last_number("1," * 300_000) == "1"


@pytest.mark.parametrize(
    ("response", "answer", "options", "reward"),
    [
        ("  Paris\n", "Paris", {}, 1),
        ("paris", "Paris", {}, 0),
        ("paris", "Paris", {"case_sensitive": False}, 1),
        ("New \n York", "New York", {}, 1),
        ("\uff14\uff12", "42", {}, 1),  # full-width digits
        ("the answer is Paris", "Paris", {}, 0),
        (r"thus \boxed{ 42 }", "42", {"extract": "boxed"}, 1),
        ("42", "42", {"extract": "boxed"}, 0),
        ("about 1,234.50", "1234.5", {"extract": "last-number"}, 1),
        ("about 1,234.51", "1,234.5", {"extract": "last-number"}, 0),
        ("#### 7 #### 8", "8", {"extract": r"regex:#### (\d+)"}, 1),
    ],
)
def test_exact_match(response, answer, options, reward):
    assert exact_match(response, answer, **options) == reward


@given(st.text())
def test_normalise_is_idempotent_on_white_space_and_matches_itself(text):
    assert exact_match(f" {text}\n", text) == 1.0
    assert normalise(normalise(text)) == normalise(text)


def test_exact_verifier_uses_no_process_and_honours_finished():
    verifier = Verifier(VerifierConfig(require_finished=True))
    assert verifier.pool is None
    rewards = verifier.score([example()] * 3, ["7", "7", "8"], [True, False, True])
    assert rewards.values.tolist() == [1, 0, 0]
    assert rewards.status == ["ok"] * 3
    lenient = Verifier(VerifierConfig())
    assert lenient.score([example()], ["7"], [False]).values.tolist() == [1]


def test_math_verify_in_workers_with_a_real_hang_and_from_another_thread():
    verifier = Verifier(VerifierConfig(verifier="math", timeout_s=4.0, workers=2))
    pairs = [
        (r"so it is $0.5$", r"\frac{1}{2}"),
        (r"\boxed{x+1}", "1+x"),
        (r"first $3$, so \boxed{4}, not $5$", "4"),
        ("the answer is 5", "4"),
        ("no idea", "4"),
        ("$9^{9^{9^{9}}}$", "4"),  # sympy tries to write the number out
    ]
    outcome = []
    # In a thread, where signal.alarm would fail and make every reward 0.
    thread = threading.Thread(target=lambda: outcome.append(score(verifier, pairs)))
    thread.start()
    thread.join()
    rewards = outcome[0]
    assert rewards.values.tolist() == [1, 1, 1, 0, 0, 0]
    assert rewards.status == ["ok"] * 5 + ["timeout"]
    again = score(verifier, pairs[:5] * 2)  # the killed worker was replaced
    assert again.values.tolist() == [1, 1, 1, 0, 0] * 2
    assert again.count("ok") == 10
    verifier.close()
    assert workers_alive() == []


def test_unreadable_reference_is_an_error_not_a_wrong_answer():
    verifier = Verifier(VerifierConfig(verifier="math", workers=1))
    rewards = score(verifier, [("5", "$$"), (r"\boxed{\frac{1}{}", "2")])
    assert rewards.status == ["error", "ok"]  # broken LaTeX in a response is a wrong answer
    assert "cannot read the answer" in next(iter(rewards.messages))
    verifier.close()


def test_user_function_that_hangs_dies_or_raises_is_counted_and_later_calls_work(user_module, caplog):
    verifier = Verifier(VerifierConfig(verifier=f"{user_module}:judge", timeout_s=1.0, workers=2))
    pairs = [(word, "7") for word in ("7", "raise", "spin", "nan", "die", "8", "none", "raise", "exit", "sleep", "7")]
    pairs.append(("timeout-error", "7"))
    rewards = score(verifier, pairs)
    assert rewards.values.tolist() == [1] + [0] * 9 + [1, 0]
    e, t = "error", "timeout"
    assert rewards.status == ["ok", e, t, e, e, "ok", e, e, e, t, "ok", e]
    assert rewards.count("timeout") == 2
    assert rewards.messages["KeyError: 'a column is missing'"] == 2
    score(verifier, [("raise", "7")] * 3)
    assert sum("a column is missing" in record.getMessage() for record in caplog.records) == 1
    clean = score(verifier, [("7", "7"), ("8", "7")] * 5)
    assert clean.values.tolist() == [1, 0] * 5
    assert clean.status == ["ok"] * 10
    verifier.close()
    assert workers_alive() == []
    assert score(verifier, [("7", "7")]).values.tolist() == [1]  # a closed verifier starts anew
    verifier.close()


def test_user_function_gets_what_it_asks_for(user_module):
    some = Verifier(VerifierConfig(verifier=f"{user_module}:some", workers=1))
    rewards = some.score([example(prompt="abc", depth=2)], ["r"], [True])
    assert rewards.values.tolist() == [3 + 20 + 100]
    some.close()
    everything = Verifier(VerifierConfig(verifier=f"{user_module}:everything", workers=1))
    assert everything.score([example()], ["r"], [True]).values.tolist() == [5]
    everything.close()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("judge_for_tests:nothing", "has no 'nothing'"),
        ("no_such_module_here:judge", "cannot import"),
        ("judge_for_tests:not_a_function", "not callable"),
        ("judge_for_tests:wants_more", "wants 'reward_model'"),
    ],
)
def test_user_function_that_cannot_be_used(user_module, name, message):
    with pytest.raises(UserError, match=message):
        load_function(name)


def _die_at_once():
    os._exit(1)


def _hungry(size):
    def verify(**call):
        return float(len(bytearray(size)) > 0)

    return verify


def test_workers_that_cannot_start_are_a_clear_error():
    pool = VerifierPool(_die_at_once, workers=1)
    with pytest.raises(UserError, match="die at start"):
        pool.score([{"response": "x"}])
    pool.close()


@pytest.mark.skipif(sys.platform != "linux", reason="address-space limits are Linux's")
def test_memory_limit_ends_a_call_as_an_error():
    with VerifierPool(_hungry, (2**30,), workers=1, memory_limit_gib=0.25) as pool:
        rewards = pool.score([{"response": "x"}])
    assert rewards.status == ["error"]
    assert "MemoryError" in next(iter(rewards.messages))


def test_interpreter_ends_although_the_pool_was_never_closed(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "from fspo.tasks.verify import Verifier, VerifierConfig\n"
        "from fspo.tasks.base import Example\n"
        "if __name__ == '__main__':\n"
        "    verifier = Verifier(VerifierConfig(extract='regex:(a+)+b', timeout_s=1.0, workers=2))\n"
        "    rewards = verifier.score([Example('x-0', 'p', 'a')] * 2, ['a' * 40, 'ab'], [True] * 2)\n"
        "    print(rewards.status, rewards.values.tolist())\n"
    )
    done = subprocess.run(
        [sys.executable, str(script)],
        capture_output=True,
        text=True,
        timeout=100,
        env=os.environ | {"PYTHONPATH": os.getcwd()},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    # (a+)+b backtracks for ever on a row of a's, holding the interpreter's lock.
    assert done.stdout.strip() == "['timeout', 'ok'] [0.0, 1.0]"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"verifier": "exct"}, "did you mean 'exact'"),
        ({"extract": "boxd"}, "did you mean 'boxed'"),
        ({"extract": "regex:("}, "does not compile"),
        ({"verifier": "math", "timeout_s": 0.0}, "positive number of seconds"),
        ({"verifier": "math", "workers": 0}, "at least 1"),
        ({"verifier": "json:loads", "extract": "boxed"}, "no effect"),
    ],
)
def test_bad_configuration(options, message):
    with pytest.raises(UserError, match=message):
        Verifier(VerifierConfig(**options))


def test_lengths_must_agree():
    with pytest.raises(UserError, match="2 examples, 1 responses"):
        Verifier(VerifierConfig()).score([example()] * 2, ["7"], [True])


def test_extractor_none_is_the_text_itself():
    assert make_extractor("none")(" a ") == " a "
