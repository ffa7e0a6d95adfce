"""Look at a page in a headless Chromium: errors, requests, what is cut off, what overlaps."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

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
    if (!node.data.trim()) continue;
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
    const box = image.closest('.scroll').getBoundingClientRect();
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


def find_browser() -> str | None:
    """A Chromium on this machine."""
    return next((found for name in NAMES if (found := shutil.which(name))), None)


def look_at(page: Path, width: int, browser: str) -> dict[str, Any]:
    """Open ``page`` from disk: its problems, its number of pieces of text, and what it asked the network for."""
    from playwright.sync_api import sync_playwright

    said: list[str] = []
    asked: list[str] = []
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=browser, args=["--no-sandbox"])
        tab = chromium.new_page(viewport={"width": width, "height": 900})
        tab.on("console", lambda message: said.append(f"console {message.type}: {message.text}"))
        tab.on("pageerror", lambda error: said.append(f"page error: {error}"))
        tab.on("request", lambda request: asked.append(request.url[:60]))
        tab.goto(page.resolve().as_uri(), wait_until="load")
        seen = tab.evaluate(LOOK)
        chromium.close()
    return {**seen, "problems": [*said, *seen["problems"]], "asked": [u for u in asked if not u.startswith("data:")]}
