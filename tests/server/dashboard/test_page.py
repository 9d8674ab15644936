"""The page in a real browser, where one is installed: figures, chat, keyboard, phone width, accessibility."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from typing import Any

import pytest

from longspan.request import Piece
from longspan.server import ServerOptions
from tests.observe.test_timeline import record
from tests.server.conftest import running_server
from tests.server.scripted_engine import ScriptedEngine, always

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
BROWSER = next((path for name in BROWSERS if (path := shutil.which(name))), None)

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(BROWSER is None, reason=f"no browser is installed: {', '.join(BROWSERS)}"),
    # Playwright's event loop is closed by the garbage collector.
    pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::DeprecationWarning"),
]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with api.sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=BROWSER, args=["--no-sandbox"])
        yield running
        running.close()


@pytest.fixture
def page(browser: Any, request: pytest.FixtureRequest) -> Iterator[Any]:
    engine = ScriptedEngine(request.getfixturevalue("tokenizer"))
    engine.script = always(Piece("The Nile", (5, 6)), 0.2, Piece(" is long.", (7,), finish_reason="stop"))
    engine.records = [record(1, 98.0, [(98.1, 0.3), (98.5, 0.4)], 99.0, trips=[0.0, 0.1])]
    with running_server(engine, ServerOptions()) as url:
        context = browser.new_context(viewport={"width": 390, "height": 844}, color_scheme="dark")
        opened = context.new_page()
        problems: list[str] = []
        opened.on("pageerror", lambda error: problems.append(str(error)))
        opened.on("console", lambda message: problems.append(message.text) if message.type == "error" else None)
        opened.goto(url)
        opened.wait_for_selector("#state.ready")
        yield opened
        assert problems == []
        context.close()


def test_the_page_shows_ring_figures_and_requests(page: Any) -> None:
    assert page.locator("#model").inner_text() == "Tiny-Model"
    assert page.locator("#ring li").count() == 3  # the coordinator and two stages
    assert "layers 2 to 3" in page.locator("#ring").inner_text()
    assert "50.0 ms" in page.locator("#ring").inner_text()
    assert page.locator("#requests tr").count() == 2
    assert "suspended" in page.locator("#figures").inner_text()
    assert "1 iterations" in page.locator("#timeline-text").inner_text()
    # Nothing is wider than a phone.
    assert page.evaluate("document.documentElement.scrollWidth") <= 390


def test_chat_by_keyboard_alone(page: Any) -> None:
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    page.fill("#most", "8")
    page.focus("#question")
    page.keyboard.type("Which river is long?")
    page.keyboard.press("Enter")
    page.locator("#chat", has_text="The Nile is long.").wait_for()
    assert "Which river is long?" in page.locator("#chat").inner_text()
    assert page.evaluate("document.querySelector('#stop').disabled")


def test_light_and_dark(page: Any) -> None:
    def paper() -> str:
        return str(page.evaluate("getComputedStyle(document.body).backgroundColor"))

    dark = paper()
    page.click("#theme")
    assert paper() != dark
    assert page.get_attribute("#theme", "aria-pressed") == "false"


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_no_finding_of_accessibility(page: Any, theme: str) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe-playwright-python is missing")
    page.evaluate(f"document.documentElement.dataset.theme = '{theme}'")
    found = axe.Axe().run(page).response["violations"]
    assert [(finding["id"], finding["impact"]) for finding in found] == []
