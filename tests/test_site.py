"""The built site in a real browser, offline: what a reader sees and can do."""

import json

import pytest
from axe_playwright_python.sync_playwright import Axe

from browser import PAGES, SITE, Visit, served

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(not PAGES, reason="the site is not built; run 'make book'"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]
FIGURES = [page for page in PAGES if 'class="attnconv-figure"' in (SITE / page).read_text(encoding="utf-8")]
DESKTOP, PHONE = 1300, 390
CONTROLS = ":is(input, select, button):visible:enabled, [tabindex='0']:visible"
OURS = {"exclude": [["mjx-container"]]}  # formulas are MathJax's own, thousands of nodes each

# What a reader sees of a figure: the pixels of its canvases, the marks above them, and its words.
SEEN = """figure => JSON.stringify([
    [...figure.querySelectorAll("canvas")].map((c) => c.toDataURL()),
    [...figure.querySelectorAll(".ac-image svg")].map((s) => s.innerHTML),
    figure.querySelector(".attnconv-stage").innerText,
])"""


@pytest.fixture(scope="session")
def address():
    with served(SITE) as address:
        yield address


@pytest.fixture
def visit(browser, address):
    visits = []

    def start(page, **options):
        visits.append(Visit(browser, address, **options))
        visits[-1].open(page)
        return visits[-1]

    yield start
    for one in visits:
        one.close()
    assert [line for one in visits for line in one.wrong] == []


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("name", PAGES)
def test_page_is_accessible_and_typeset(visit, name, theme):
    page = visit(name, theme=theme).page
    assert page.evaluate("document.documentElement.dataset.theme") == theme
    typeset = page.locator("mjx-container").count()
    assert typeset >= page.locator(".math").count()
    assert page.locator("mjx-merror, merror").count() == 0
    # Solutions are folded; what is in them must be readable too.
    page.evaluate("document.querySelectorAll('button.toggle-button, details > summary').forEach((b) => b.click())")
    page.wait_for_timeout(700)
    found = Axe().run(page, context=OURS, options={"preload": False}).response["violations"]
    serious = [
        f"{v['id']}: {node['html'][:160]} {node.get('failureSummary', '')[:300]}"
        for v in found
        if v["impact"] in ("serious", "critical")
        for node in v["nodes"]
    ]
    assert serious == []


@pytest.mark.parametrize("name", PAGES)
def test_page_fits_a_phone(visit, name):
    page = visit(name, width=PHONE, touch=True).page
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE
    wide = page.evaluate(
        """() => [...document.querySelectorAll("article figure, .attnconv-picture > div, .attnconv-stage *")]
            .filter((e) => e.getBoundingClientRect().right > innerWidth + 1)
            .map((e) => e.outerHTML.slice(0, 80))"""
    )
    assert wide == []


@pytest.mark.parametrize("name", PAGES)
def test_a_phone_can_read_everything(visit, name):
    """Letters in pictures are not too small, and no formula is cut off where it cannot be scrolled to."""
    page = visit(name, width=PHONE, touch=True).page
    page.evaluate("document.querySelectorAll('button.toggle-button, details > summary').forEach((b) => b.click())")
    page.wait_for_timeout(300)
    small = page.evaluate(
        """() => [...document.querySelectorAll("svg.attnconv-static")].filter((s) => s.clientWidth).map((svg) => {
            const scale = svg.getBoundingClientRect().width / svg.viewBox.baseVal.width;
            const sizes = [...svg.querySelectorAll("text")].map((t) => parseFloat(getComputedStyle(t).fontSize));
            return [scale * Math.min(...sizes, 100), svg.getAttribute("aria-label").slice(0, 60)];
        }).filter(([size]) => size < 6.5)"""
    )
    assert small == []
    cut = page.evaluate(
        """() => [...document.querySelectorAll("mjx-container:not([display])")]
            .filter((e) => e.getBoundingClientRect().right > innerWidth && !e.closest("table, pre"))
            .map((e) => e.closest("p, li, dd, div")?.innerText.slice(0, 80))"""
    )
    assert cut == []


@pytest.mark.parametrize("name", FIGURES)
def test_figures_obey_the_keyboard(visit, name):
    """Tab reaches every control of every figure, and each one changes what is seen."""
    page = visit(name).page
    for figure in page.locator(".attnconv-figure").all():
        controls = figure.locator(CONTROLS)
        reached = 0
        figure.evaluate("f => { f.tabIndex = -1; f.focus(); }")
        for _ in range(controls.count()):
            page.keyboard.press("Tab")
            kind = page.evaluate("document.activeElement.type || document.activeElement.getAttribute('role')")
            assert figure.evaluate("f => f.contains(document.activeElement)")
            reached += 1
            if kind in ("button", "submit"):
                continue
            before = figure.evaluate(SEEN)
            keys = {
                "checkbox": ["Space", "Space"],  # on and off again
                "select-one": ["ArrowDown", "ArrowUp"],
                "application": ["ArrowDown", "ArrowRight", "ArrowUp", "ArrowLeft"],  # it may stand at an edge
            }
            changed = False
            for key in keys.get(kind, ["ArrowRight", "ArrowLeft", "ArrowLeft"]):
                page.keyboard.press(key)
                changed = changed or figure.evaluate(SEEN) != before
            assert changed, page.evaluate("document.activeElement.outerHTML.slice(0, 200)")
        assert reached == controls.count()
        buttons = figure.locator("button:visible").all()
        seen = [figure.evaluate(SEEN)]
        for button in buttons:
            button.focus()
            page.keyboard.press("Enter")
            page.wait_for_timeout(50)
            seen.append(figure.evaluate(SEEN))
        assert not buttons or len(set(seen)) > 1


@pytest.mark.parametrize("name", FIGURES)
def test_figures_obey_a_finger(visit, name):
    page = visit(name, width=PHONE, touch=True).page
    for figure in page.locator(".attnconv-figure").all():
        for control in figure.locator("input[type=range]:visible:enabled, [role=application]:visible").all():
            control.scroll_into_view_if_needed()
            box = control.bounding_box()
            # A surface may stand where the finger ends, since another one shows the same quantity.
            ends = [0.3, 0.5]
            if not control.get_attribute("role"):
                ends = [control.evaluate("c => ((c.value - c.min) / (c.max - c.min) > 0.5 ? 0.08 : 0.92)")]
            before = figure.evaluate(SEEN)
            for end in ends:
                swipe(
                    page,
                    [(box["x"] + part * box["width"], box["y"] + part * box["height"]) for part in (0.8, 0.6, end)],
                )
                if changes(page, figure, before):
                    break
            else:
                pytest.fail(
                    "nothing changed under a finger on " + control.evaluate("c => c.outerHTML.slice(0, 200)")
                )


def changes(page, figure, before):
    """Whether a figure comes to look otherwise: touch events arrive when the browser pleases."""
    for _ in range(40):
        if figure.evaluate(SEEN) != before:
            return True
        page.wait_for_timeout(25)
    return False


def swipe(page, path):
    """Put a finger on the first point, move it along the others and lift it."""
    session = page.context.new_cdp_session(page)
    for n, (x, y) in enumerate(path):
        kind = "touchMove" if n else "touchStart"
        session.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": [{"x": x, "y": y}]})
    session.send("Input.dispatchTouchEvent", {"type": "touchEnd", "touchPoints": []})
    session.detach()


def test_search_finds_softmax(visit):
    page = visit("search.html?q=softmax").page
    page.wait_for_selector("#search-results li")
    hits = page.locator("#search-results li a").evaluate_all("links => links.map((a) => a.getAttribute('href'))")
    assert any("notebooks/02_self_attention" in hit for hit in hits)


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [DESKTOP, PHONE])
def test_menu_search_and_theme_work(visit, width, theme):
    page = visit("notebooks/01_convolution.html", width=width, theme=theme).page
    chapter = page.locator("nav.bd-links a, dialog a").get_by_text("Telling attention where things are").first
    toggle = page.locator("button.primary-toggle:visible").first
    if width == PHONE:
        assert not chapter.is_visible()
        toggle.click()
    chapter.wait_for(state="visible")
    if width == PHONE:
        page.keyboard.press("Escape")
        page.locator("button.search-button:visible").first.click()
    else:
        page.keyboard.press("Control+k")
    field = page.locator("input[type=search]:visible").first
    field.fill("equivariance")
    field.press("Enter")
    page.wait_for_selector("#search-results li")
    page.locator("button.theme-switch-button:visible").first.click()
    assert page.evaluate("document.documentElement.dataset.mode") != theme


def test_pages_open_from_a_file(visit):
    for name in FIGURES:
        page = visit((SITE / name).as_uri()).page
        assert page.locator(".attnconv-stage output").count() > 0


@pytest.mark.parametrize("name", FIGURES)
def test_without_scripts_a_picture_stands_in(browser, address, name):
    one = Visit(browser, address, scripts=False)
    one.page.goto(f"{address}/{name}")
    for figure in one.page.locator(".attnconv-figure").all():
        assert figure.locator("svg[role=img]").is_visible()
        assert figure.locator("figcaption").inner_text().strip()
    one.close()


def test_the_front_page_moves_unless_less_motion_is_asked_for(visit):
    readout = "document.querySelector('.attnconv-figure output').textContent"
    still = visit("book/index.html").page
    before = still.evaluate(readout)
    still.wait_for_timeout(600)
    assert still.evaluate(readout) == before
    moving = visit("book/index.html", motion=True).page
    moving.wait_for_function(f"() => {readout} !== {json.dumps(before)}")
