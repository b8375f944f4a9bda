"""A page open in headless Chromium, driven by Playwright: opened, clicked, typed into, read.

The browser is the system's own (nothing is downloaded). Playwright's loop would stand in the way of later
tests that want an event loop, so each module of tests starts the browser and stops it again: half a second.
"""

import contextlib
import shutil
import time

import pytest

SIZE = {"width": 1366, "height": 768}  # a common projector, and the smallest screen that everything must fit
LOCAL = ("file:", "about:", "data:")


def chromium():
    """The path of a Chromium on this machine, or None."""
    names = ("chromium", "chromium-browser", "google-chrome")
    return next(filter(None, map(shutil.which, names)), None)


class Browser:
    """One tab. `errors` collects what the console and the network say; a good page says nothing."""

    def __init__(self, playwright, program):
        self.chromium = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        self.tab = self.chromium.new_page(viewport=SIZE)
        self.place, self.errors = self.tab, []
        self.tab.on("console", lambda message: self.errors.append(message.text))
        self.tab.on("pageerror", lambda error: self.errors.append(str(error)))
        self.tab.on("dialog", self.dialog)
        self.tab.on("request", self.request)

    def dialog(self, dialog):
        self.errors.append(f"dialog: {dialog.message}")
        dialog.dismiss()

    def request(self, request):
        if not request.url.startswith(LOCAL):
            self.errors.append(request.url)

    def open(self, path, address=""):
        """Open a file, and wait until its script has put up the panes."""
        self.tab.goto("about:blank")
        self.tab.goto(path.as_uri() + address)
        self.until("document.querySelectorAll('#view-hlo .line, iframe').length")

    @contextlib.contextmanager
    def frame(self):
        """Inside, everything is done in the sandboxed frame of the page, which is a process of its own."""
        self.place = self.tab.query_selector("iframe").content_frame()
        yield
        self.place = self.tab

    def run(self, script):
        """The value of an expression."""
        return self.place.evaluate(script)

    def until(self, script):
        """Wait until an expression is true, and return its value."""
        deadline = time.monotonic() + 20
        while not (value := self.run(script)):  # Playwright's own waiting is what the page's policy forbids
            assert time.monotonic() < deadline, f"never true: {script}; {self.errors}"
            self.tab.wait_for_timeout(20)
        return value

    def mouse(self, element):
        """Point at a line, some letters after its beginning."""
        x, y = self.run(f"(() => {{ const box = {element}.getBoundingClientRect();"
                        " return [box.left + 60, box.top + box.height / 2]; })()")
        self.tab.mouse.move(x, y)

    def click(self, element):
        self.mouse(element)
        self.tab.mouse.down()
        self.tab.mouse.up()

    def click_in_frame(self, selector):
        self.place.locator(selector).click(position={"x": 60, "y": 8})

    def press(self, key):
        self.tab.keyboard.press(key)

    def type(self, text):
        self.tab.keyboard.type(text)


@pytest.fixture(scope="module")
def browser():
    """A browser with one tab; the test is skipped where there is none."""
    sync = pytest.importorskip("playwright.sync_api", reason="the page's clicks are tried through playwright")
    if chromium() is None:
        pytest.skip("no Chromium on this machine")
    with sync.sync_playwright() as playwright:
        opened = Browser(playwright, chromium())
        yield opened
        opened.chromium.close()


@pytest.fixture
def page(browser, tmp_path):
    """Open a document's page. At the end nobody has complained, and nothing was asked of the network."""
    from oplab.views.page import render

    def show(document, address=""):
        file = tmp_path / "walk.html"
        file.write_text(render(document), encoding="utf-8")
        browser.errors.clear()
        browser.open(file, address)
        return browser

    yield show
    assert browser.errors == []


# ---- what a person sees ----------------------------------------------------------------------------------


def line(pane, text):
    """The first drawn line of a pane that holds the text, for `click` and `mouse`."""
    return f"[...document.querySelectorAll('#view-{pane} .line')].find(l => l.textContent.includes({text!r}))"


def lit(shown, pane, how=""):
    """The numbers of the lit lines of a pane, counted from 1."""
    lines = f"[...document.querySelectorAll('#view-{pane} .line.lit{how}')]"
    return shown.run(f"{lines}.map(l => Number(l.dataset.i) + 1)")


def text(shown, selector):
    return shown.run(f"document.querySelector({selector!r}).textContent")
