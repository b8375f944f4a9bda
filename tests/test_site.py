"""`make site`: links lead somewhere, no page asks for the network, and a walk's page works in its frame."""

import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from browser import line

from oplab.tools.site import ROOT, build

FETCHES = {"img": "src", "script": "src", "iframe": "src", "link": "href", "source": "src", "object": "data"}


class Page(HTMLParser):
    """What a page fetches by itself, where its links lead, and which places in it have a name."""

    def __init__(self, text):
        super().__init__()
        self.fetched, self.links, self.names, self.pictures = [], [], set(), []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        self.fetched += filter(None, [attributes.get(FETCHES.get(tag))])
        self.links += filter(None, [attributes.get("href") if tag == "a" else None])
        self.names.add(attributes.get("id"))
        self.pictures += [attributes.get("alt") or ""] if tag == "img" else []


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    return build(ROOT, tmp_path_factory.mktemp("site")).parent


@pytest.fixture(scope="module")
def pages(site):
    return {file.name: Page(file.read_text("utf-8")) for file in site.glob("*.html")}


def test_every_notebook_is_a_page_and_stands_in_the_index(pages):
    notebooks = {file.with_suffix(".html").name for file in (ROOT / "notebooks").glob("*.ipynb")}
    assert notebooks and notebooks <= set(pages) and notebooks <= set(pages["index.html"].links)
    assert {"teaching.html", "glossary.html"} <= set(pages["index.html"].links)


def test_links_between_the_pages_resolve(site, pages):
    for name, page in pages.items():
        for link in page.links:
            file, _, anchor = link.partition("#")
            if re.match(r"https?:|mailto:", link):
                continue
            assert not file or (site / file).exists(), f"{name} links to {link}"
            if anchor and file in pages:
                assert anchor in pages[file].names, f"{name} links to {link}"


def test_every_picture_says_what_it_shows(pages):
    said = [(name, text) for name, page in pages.items() for text in page.pictures]
    assert len(said) > 10
    assert not [(name, text) for name, text in said if len(text) < 20 or text.startswith("No description")]


def test_no_page_asks_for_the_network(site, pages):
    for name, page in pages.items():
        outside = [place for place in page.fetched if not place.startswith(("data:", "#"))]
        assert all((site / Path(place)).exists() for place in outside), f"{name} fetches {outside}"
        text = (site / name).read_text("utf-8")
        assert not re.search(r"@import|url\(\s*['\"]?(https?:)?//", text), f"a style in {name} asks for more"


def test_the_linked_page_works_in_its_notebook(browser, site):
    browser.errors.clear()
    browser.tab.goto((site / "00_what_is_an_operator.html").as_uri())
    browser.until("document.querySelector('iframe')")
    with browser.frame():
        browser.until("document.querySelectorAll('#view-hlo .line').length")
        browser.run(f"{line('jaxpr', ' add ')}.click()")
        browser.until("document.querySelectorAll('#view-hlo .line.lit').length")
    assert browser.errors == []
