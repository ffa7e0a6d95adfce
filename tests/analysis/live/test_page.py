"""The page of fspo watch in a real browser: beside a log that grows, and a run that trains."""

import socket
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from analysis.live.page import COLOURS
from fspo.stats.bins import DEFAULT_BINS
from tests.analysis.live.test_follow import put
from tests.browser import look

ROOT = Path(__file__).parents[3]
LOG = ROOT / "tests" / "record" / "logs" / "fspo-kl"


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return taken.getsockname()[1]


@contextmanager
def watch(run, port):
    """``fspo watch`` as a process, ended at the end of a ``with`` block."""
    words = [sys.executable, "-m", "fspo", "watch", str(run), "--port", str(port)]
    with subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert f"http://127.0.0.1:{port}/" in process.stdout.readline()
            yield
        finally:
            process.terminate()


def says(page, text, seconds=60):
    page.wait_for_function("text => window.shown().includes(text)", arg=text, timeout=1000 * seconds)


SHOWN = """
window.shown = () => {
  const texts = [], walk = (root) => {
    for (const node of root.querySelectorAll('*')) {
      if (node.shadowRoot) walk(node.shadowRoot);
      for (const child of node.childNodes) if (child.nodeType === 3) texts.push(child.data);
    }
  };
  walk(document);
  return texts.join(' ');
};
window.lines = () => Object.fromEntries(Bokeh.documents[0].roots().filter((r) => r.renderers).map((r) =>
  [r.name, r.renderers[0].data_source.data]).map(([name, data]) => [name, Object.fromEntries(
  Object.entries(data).map(([k, v]) => [k, Array.from(v)]))]));
"""


@pytest.mark.slow
def test_the_page_follows_a_log(page, tmp_path):
    run, port = tmp_path / "run", free_port()
    page.add_init_script(SHOWN)
    with watch(run, port):
        page.goto(f"http://127.0.0.1:{port}/")
        says(page, "waits for the first rollout")
        put(LOG, run, 0)
        says(page, "1 rollouts read")
        put(LOG, run, 1)
        says(page, "2 rollouts read")
        page.wait_for_function("String(lines().clip.rollout) === '0,1'")  # text and lines come one after the other
        page.wait_for_function("lines().acceptance.x.length > 1")
        put(LOG, run, 2)
        says(page, "3 rollouts read")
        for width in (1280, 390):
            page.set_viewport_size({"width": width, "height": 900})
            page.wait_for_timeout(500)
            assert look(page)["problems"] == []
    assert [line for line in page.said if "error" in line.split(":")[0]] == []
    assert {url.split("/")[2] for url in page.asked} == {f"127.0.0.1:{port}"}


def test_the_page_holds_what_the_follower_found(tmp_path):
    """Without a browser: the data of a session on a log that grows."""
    from bokeh.document import Document

    from analysis.live.follow import Follower
    from analysis.live.page import ACCEPTANCE, Session

    follower = Follower(tmp_path / "run")
    session = Session(Document(), follower)
    assert "waits for the first rollout" in session.texts["state"].text
    for number in range(3):
        put(LOG, tmp_path / "run", number)
        assert follower.poll()
        session.update()
    clip = session.sources["clip"].data
    assert list(clip["rollout"]) == [0, 1, 2]
    np.testing.assert_array_equal(clip["all"], [view.panels["clip"][-1] for view in follower.seen])
    np.testing.assert_array_equal(clip["0"], [view.panels["clip"][0] for view in follower.seen])
    kept = session.sources[ACCEPTANCE].data
    assert np.all((kept["low"] <= kept["y"]) & (kept["y"] <= kept["high"]))
    assert np.all(np.diff(kept["x"]) > 0)
    assert "3 rollouts read" in session.texts["state"].text
    assert "The doctor of 3 rollouts" in session.texts["doctor"].text


def test_every_bin_has_a_colour_of_its_own() -> None:
    assert len(set(COLOURS)) == len(COLOURS) == DEFAULT_BINS
