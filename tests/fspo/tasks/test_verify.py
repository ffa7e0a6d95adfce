"""Verifiers on real text, and worker processes that really hang, die and recover."""

import multiprocessing
import os
import subprocess
import sys
import threading

import pytest

from fspo.base.errors import UserError
from fspo.tasks.base import Example
from fspo.tasks.verifier_pool import VerifierPool
from fspo.tasks.verify import Verifier, VerifierConfig, load_function

USER_MODULE = '''
import os, signal, time

def judge(response, answer):
    """What a response asks for happens."""
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

def wants_more(response, reward_model):
    return 0

not_a_function = 3
'''


@pytest.fixture
def user_module(tmp_path, monkeypatch):
    (tmp_path / "judge_for_tests.py").write_text(USER_MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield "judge_for_tests"
    sys.modules.pop("judge_for_tests", None)


def score(verifier, pairs):
    return verifier.score([Example("x-0", "p", a) for _, a in pairs], [r for r, _ in pairs], [False] * len(pairs))


def workers_alive():
    return [p for p in multiprocessing.active_children() if p.name == "pebble_pool_worker"]


@pytest.mark.parametrize(
    ("response", "answer", "reward"),
    [
        (" New \n York\n", "New York", 1),
        ("paris", "Paris", 0),
        ("\uff14\uff12", "42", 1),  # full-width digits
        ("the answer is Paris", "Paris", 0),
    ],
)
def test_exact_match(response, answer, reward):
    verifier = Verifier(VerifierConfig())
    assert verifier.pool is None
    rewards = score(verifier, [(response, answer)])
    assert (rewards.values.tolist(), rewards.status) == ([reward], ["ok"])


def test_math_verify_in_workers_with_a_real_hang_and_from_another_thread():
    verifier = Verifier(VerifierConfig(verifier="math", timeout_s=3.0, workers=2))
    pairs = [
        (r"so it is $0.5$", r"\frac{1}{2}"),
        (r"first $3$, so \boxed{4}, not $5$", "4"),
        ("the answer is 5", "4"),
        ("no idea", "4"),
        ("5", "$$"),  # a reference that cannot be read is an error
        (r"\boxed{\frac{1}{}", "2"),  # broken LaTeX in a response is a wrong answer
        ("$9^{9^{9^{9}}}$", "4"),  # sympy tries to write the number out
    ]
    outcome = []
    # In a thread, where signal.alarm would fail and make every reward 0.
    thread = threading.Thread(target=lambda: outcome.append(score(verifier, pairs)))
    thread.start()
    thread.join()
    rewards = outcome[0]
    assert rewards.values.tolist() == [1, 1, 0, 0, 0, 0, 0]
    assert rewards.status == ["ok"] * 4 + ["error", "ok", "timeout"]
    assert "cannot read the answer" in next(iter(rewards.messages))
    again = score(verifier, pairs[:4] * 2)  # the killed worker was replaced
    assert (again.values.tolist(), again.status) == ([1, 1, 0, 0] * 2, ["ok"] * 8)
    verifier.close()
    assert workers_alive() == []


def test_user_function_that_hangs_dies_or_raises_is_counted_and_later_calls_work(user_module, caplog):
    verifier = Verifier(VerifierConfig(verifier=f"{user_module}:judge", timeout_s=1.0, workers=2))
    words = ("7", "raise", "spin", "nan", "die", "8", "none", "raise", "exit", "7", "timeout-error")
    rewards = score(verifier, [(word, "7") for word in words])
    assert rewards.values.tolist() == [1] + [0] * 8 + [1, 0]
    e = "error"
    assert rewards.status == ["ok", e, "timeout", e, e, "ok", e, e, e, "ok", e]
    assert rewards.messages["KeyError: 'a column is missing'"] == 2
    score(verifier, [("raise", "7")] * 3)
    assert sum("a column is missing" in record.getMessage() for record in caplog.records) == 1
    clean = score(verifier, [("7", "7"), ("8", "7")] * 5)
    assert (clean.values.tolist(), clean.status) == ([1, 0] * 5, ["ok"] * 10)
    verifier.close()
    assert workers_alive() == []
    assert score(verifier, [("7", "7")]).values.tolist() == [1]  # a closed verifier starts anew
    verifier.close()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("judge_for_tests:nothing", "has no 'nothing'"),
        ("no_such_module_here:judge", "cannot import"),
        ("judge_for_tests:not_a_function", "not a callable|not callable"),
        ("judge_for_tests:wants_more", "take the keywords response and answer"),
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


def test_memory_limit_ends_a_call_as_an_error():
    pool = VerifierPool(_hungry, (2**30,), workers=1, memory_limit_gib=0.25)
    rewards = pool.score([{"response": "x"}])
    pool.close()
    assert rewards.status == ["error"]
    assert "MemoryError" in next(iter(rewards.messages))


SCRIPT = """
from fspo.tasks.verify import Verifier, VerifierConfig
from fspo.tasks.base import Example
if __name__ == "__main__":
    verifier = Verifier(VerifierConfig(verifier="judge_ab:judge", timeout_s=1.0, workers=2))
    rewards = verifier.score([Example("x-0", "p", "a")] * 2, ["a" * 40, "ab"], [True] * 2)
    print(rewards.status, rewards.values.tolist())
"""


def test_interpreter_ends_although_the_pool_was_never_closed(tmp_path):
    # (a+)+b backtracks for ever on a row of a's, holding the interpreter's lock.
    judge = "import re\ndef judge(response, answer):\n    return bool(re.match('(a+)+b', response))\n"
    (tmp_path / "judge_ab.py").write_text(judge)
    (tmp_path / "script.py").write_text(SCRIPT)
    env = os.environ | {"PYTHONPATH": f"{os.getcwd()}{os.pathsep}{tmp_path}"}
    command = [sys.executable, str(tmp_path / "script.py")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, env=env, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "['timeout', 'ok'] [0.0, 1.0]"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"verifier": "exct"}, "did you mean 'exact'"),
        ({"verifier": "math", "timeout_s": 0.0}, "positive number of seconds"),
        ({"verifier": "math", "workers": 0}, "at least 1"),
    ],
)
def test_bad_configuration(options, message):
    with pytest.raises(UserError, match=message):
        Verifier(VerifierConfig(**options))
