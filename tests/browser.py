"""A headless Chromium for tests: the fixture ``page``, and what is wrong with a page that it shows."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")

LOOK = """
() => {
  const problems = [], width = document.documentElement.clientWidth;
  for (const d of document.querySelectorAll('details')) d.open = true;
  if (document.documentElement.scrollWidth > width)
    problems.push(`the page is ${document.documentElement.scrollWidth} px wide`);
  for (const image of document.images)
    if (!image.complete || image.naturalWidth === 0) problems.push(`image not shown: ${image.alt}`);
  const boxes = [];
  const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let node = walk.nextNode(); node; node = walk.nextNode()) {
    if (!node.data.trim() || getComputedStyle(node.parentElement).opacity === '0') continue;
    const range = document.createRange();
    range.selectNodeContents(node);
    const scrolled = node.parentElement.closest('.scroll') !== null;
    for (const r of range.getClientRects()) {
      if (r.width < 1 || r.height < 1) continue;
      if (!scrolled && (r.left < -0.5 || r.right > width + 0.5))
        problems.push(`cut off at ${Math.round(r.left)}..${Math.round(r.right)} px: ${node.data.slice(0, 40)}`);
      boxes.push({ l: r.left, r: r.right, t: r.top, b: r.bottom, node });
    }
  }
  for (const image of document.images) {
    const r = image.getBoundingClientRect();
    boxes.push({ l: r.left, r: r.right, t: r.top, b: r.bottom, node: image });
    const box = (image.closest('.scroll') || image).getBoundingClientRect();
    if (box.right > width + 0.5) problems.push(`image box cut off: ${image.alt}`);
  }
  boxes.sort((a, b) => a.t - b.t);
  const words = (node) => (node.data || node.alt).trim().slice(0, 40);
  for (let i = 0; i < boxes.length; i++)
    for (let j = i + 1; j < boxes.length && boxes[j].t < boxes[i].b - 2; j++) {
      const a = boxes[i], b = boxes[j];
      // lines of one paragraph may touch by their descenders
      const wide = Math.min(a.r, b.r) - Math.max(a.l, b.l), high = Math.min(a.b, b.b) - Math.max(a.t, b.t);
      if (a.node !== b.node && wide > 1 && high > 4) problems.push(`overlap: ${words(a.node)} | ${words(b.node)}`);
    }
  return { problems, texts: boxes.length };
}
"""


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    """A running Chromium; the test is skipped where the machine has none."""
    playwright = pytest.importorskip("playwright.sync_api", reason="no playwright: pip install -e '.[browser]'")
    found = next((path for name in NAMES if (path := shutil.which(name))), None)
    if found is None:
        pytest.skip(f"no program of {', '.join(NAMES)} on PATH: apt-get install chromium, or run make test-browser")
    with playwright.sync_playwright() as running:
        browser = running.chromium.launch(executable_path=found, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def page(chromium: Browser) -> Iterator[Any]:
    """An empty tab of 1280 x 900 px. ``page.said`` lists what its console and its errors said, ``page.asked`` the
    addresses that it asked for, without data in the address itself.
    """
    tab = chromium.new_page(viewport={"width": 1280, "height": 900})
    tab.said, tab.asked = [], []
    tab.on("console", lambda message: tab.said.append(f"console {message.type}: {message.text}"))
    tab.on("pageerror", lambda error: tab.said.append(f"page error: {error}"))
    tab.on("request", lambda request: tab.asked.extend([request.url][request.url.startswith("data:") :]))
    yield tab
    tab.close()


def look(page: Page) -> dict[str, Any]:
    """Unfold all details, and return under ``problems`` what is cut off, wider than the page or on top of something
    else, and under ``texts`` the number of pieces of text that were looked at.
    """
    return page.evaluate(LOOK)


def accessibility(page: Page) -> list[str]:
    """Return what axe finds against WCAG 2.2 AA and its own best practice: rule, what it asks for, and the elements."""
    from axe_playwright_python.sync_playwright import Axe

    found = Axe().run(page).response["violations"]
    return [f"{v['id']}: {v['help']}: {', '.join(str(node['target']) for node in v['nodes'])}" for v in found]
