"""A written report in a real browser, and how tests look at it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

READY = ".drawing svg, .drawing canvas"
STILL = """() => new Promise(done => {
  const seen = () => [scrollX, scrollY, document.documentElement.scrollHeight].join();
  let before = seen(), frames = 0;
  requestAnimationFrame(function look() {
    frames = seen() === before ? frames + 1 : 0;
    before = seen();
    frames < 3 ? requestAnimationFrame(look) : done();
  });
})"""


@contextmanager
def opened_page(browser: Any, written: Path, width: int = 1280, scheme: str = "light") -> Iterator[Any]:
    """The page in a window of some width and colour scheme; it may do nothing that a page from disk must not do."""
    context = browser.new_context(
        viewport={"width": width, "height": 900}, color_scheme=scheme, reduced_motion="reduce"
    )
    context.set_default_timeout(10_000)
    page, problems, requests, address = context.new_page(), list[str](), list[str](), written.as_uri()
    page.on("console", lambda message: problems.append(f"{message.type}: {message.text}"))
    page.on("pageerror", lambda error: problems.append(f"error: {error}"))
    page.on("request", lambda request: requests.append(request.url))
    page.goto(address)
    page.wait_for_selector(READY)
    yield page
    context.close()
    assert problems == []
    assert [url for url in requests if url.split("#")[0] != address and url[:5] not in ("blob:", "about")] == []


def near(page: Any, section: str) -> Any:
    """A section, once its charts are drawn."""
    node = page.locator(f"#{section}")
    node.scroll_into_view_if_needed()
    for drawing in node.locator(".drawing").all():
        drawing.scroll_into_view_if_needed()
        drawing.locator("svg, canvas").first.wait_for()
    return node


def in_sight(node: Any) -> Any:
    """The same node, scrolled to, once the page has come to rest: a page that still scrolls hides its tooltips."""
    node.scroll_into_view_if_needed()
    node.page.evaluate(STILL)
    return node


def cells(node: Any) -> int:
    """Coloured cells of the first chart."""
    return int(node.locator(".drawing").first.locator(".mark-rect path").count())


def rows(node: Any) -> int:
    return int(node.locator(".sheet").first.locator("tbody tr:not(.below)").count())
