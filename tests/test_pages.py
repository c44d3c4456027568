"""The built pages as files: links, words for pictures, nothing from another host."""

import re
from functools import cache
from importlib.metadata import version
from urllib.parse import unquote, urldefrag

import nbformat
import pytest
from bs4 import BeautifulSoup

from browser import PAGES, ROOT, SITE

pytestmark = pytest.mark.skipif(not PAGES, reason="the site is not built; run 'make book'")


def trimmed(text):
    return "\n".join(line.rstrip() for line in text.strip("\n").splitlines())


@cache
def parsed(name):
    return BeautifulSoup((SITE / name).read_text(encoding="utf-8"), "html.parser")


def test_jupyter_book_1_built_the_site():
    assert version("jupyter-book").startswith("1.")
    assert (SITE / "index.html").is_file()
    listed = re.findall(r"(?:file|root): (\S+)", (ROOT / "_toc.yml").read_text(encoding="utf-8"))
    assert sorted(f"{page}.html" for page in listed) == PAGES


@pytest.mark.parametrize("name", PAGES)
def test_links_lead_somewhere(name):
    dead = []
    for link in parsed(name).select("a[href], link[href], script[src], img[src]"):
        target = link.get("href") or link.get("src")
        if re.match(r"[a-z]+:", target):
            continue
        path, fragment = urldefrag(target)
        file = (SITE / name).parent / unquote(path.partition("?")[0]) if path else SITE / name
        file = file.resolve()
        if not file.is_file():
            dead.append(target)
        elif fragment and file.suffix == ".html":
            page = parsed(str(file.relative_to(SITE.resolve())))
            if not page.find(id=unquote(fragment)) and not page.find(attrs={"name": unquote(fragment)}):
                dead.append(target)
    assert dead == []


@pytest.mark.parametrize("name", PAGES)
def test_nothing_comes_from_another_host(name):
    page = parsed(name)
    sources = [
        t.get("src") or t.get("href")
        for t in page.select("script[src], img[src], iframe[src], link[rel~=stylesheet]")
    ]
    assert [s for s in sources if re.match(r"(https?:)?//", s)] == []


@pytest.mark.parametrize("name", PAGES)
def test_pictures_have_words(name):
    page = parsed(name)
    assert [str(i)[:80] for i in page.select("article img") if not (i.get("alt") or "").strip()] == []
    unnamed = [s for s in page.select("article svg") if not s.get("aria-label") and s.get("aria-hidden") != "true"]
    assert [str(s)[:80] for s in unnamed] == []


@pytest.mark.parametrize("name", PAGES)
def test_names_are_unique_and_the_language_is_said(name):
    page = parsed(name)
    assert page.html["lang"] == "en"
    ids = [tag["id"] for tag in page.select("[id]")]
    assert sorted({i for i in ids if ids.count(i) > 1}) == []


@pytest.mark.parametrize("name", [page for page in PAGES if page.startswith("notebooks/")])
def test_a_chapter_shows_all_it_has(name):
    """Every figure, picture, exercise and statement of the notebook is on the page."""
    notebook = nbformat.read(ROOT / name.replace(".html", ".ipynb"), as_version=4)
    text = "\n".join(cell.source for cell in notebook.cells if cell.cell_type == "markdown")
    plain = [o.data.get("text/plain", "") for c in notebook.cells for o in c.get("outputs", []) if "data" in o]
    page = parsed(name)
    assert len(page.select("figure.attnconv-figure")) == sum(p.startswith("[figure]") for p in plain)
    assert len(page.select("figure.attnconv-picture")) == sum(p.startswith("[picture]") for p in plain)
    assert len(page.select("div.exercise")) == len(re.findall(r"\{exercise(?:-start)?\}", text))
    assert len(page.select("div.solution.dropdown")) == len(re.findall(r"\{solution-start\}", text))
    assert len(page.select("div.proof.admonition, div.proof:not(.admonition)")) == len(
        re.findall(r"\{prf:(?!ref)\w+\}", text)
    )


@pytest.mark.parametrize("name", [page for page in PAGES if page.startswith("notebooks/")])
def test_a_chapter_prints_what_its_notebook_holds(name):
    """Printed lines that the prose quotes are on the page, letter by letter, but for blanks at their ends."""
    notebook = nbformat.read(ROOT / name.replace(".html", ".ipynb"), as_version=4)
    shown = {trimmed(block.get_text()) for block in parsed(name).select("div.output.stream pre")}
    quoted = [
        trimmed(output.text)
        for cell in notebook.cells
        if "nbval-check-output" in cell.metadata.get("tags", [])
        for output in cell.outputs
        if output.output_type == "stream"
    ]
    assert quoted
    assert [text for text in quoted if text not in shown] == []
