"""The built site in a real browser, offline: what a reader sees and can do."""

import base64
import json

import numpy as np
import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import sync_playwright

from attnconv import figures, reference, theory
from attnconv.shifts import kernel_shifts, relative_shifts, shift_image
from browser import PAGES, SITE, Visit, executable, served

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(not PAGES, reason="the site is not built; run 'make book'"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]
FIGURES = [page for page in PAGES if 'class="attnconv-figure"' in (SITE / page).read_text(encoding="utf-8")]
DESKTOP, PHONE = 1300, 390

# What a reader sees of a figure: the pixels of its canvases, the marks above them, and its words.
SEEN = """figure => JSON.stringify([
    [...figure.querySelectorAll("canvas")].map((c) => c.toDataURL()),
    [...figure.querySelectorAll(".ac-image svg")].map((s) => s.innerHTML),
    figure.querySelector(".attnconv-stage").innerText,
])"""


@pytest.fixture(scope="session")
def browser():
    with sync_playwright() as playwright:
        options = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"]
        browser = playwright.chromium.launch(executable_path=executable(playwright), args=options)
        yield browser
        browser.close()


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
    found = Axe().run(page, options={"preload": False}).response["violations"]
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
        """() => [...document.querySelectorAll("article figure, article svg.attnconv-static, .attnconv-stage *")]
            .filter((e) => e.getBoundingClientRect().right > innerWidth + 1)
            .map((e) => e.outerHTML.slice(0, 80))"""
    )
    assert wide == []


@pytest.mark.parametrize("name", FIGURES)
def test_figures_obey_the_keyboard(visit, name):
    """Tab reaches every control of every figure, and each one changes what is seen."""
    page = visit(name).page
    for figure in page.locator(".attnconv-figure").all():
        controls = figure.locator("input, select, button, [tabindex='0']")
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
                "checkbox": ["Space"],
                "select-one": ["ArrowDown", "ArrowUp"],
                "application": ["ArrowDown", "ArrowUp"],
            }
            changed = False
            for key in keys.get(kind, ["ArrowRight", "ArrowLeft", "ArrowLeft"]):
                page.keyboard.press(key)
                changed = changed or figure.evaluate(SEEN) != before
            assert changed, page.evaluate("document.activeElement.outerHTML.slice(0, 200)")
        assert reached == controls.count()
        buttons = figure.locator("button").all()
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
        for control in figure.locator("input[type=range], [role=application]").all():
            control.scroll_into_view_if_needed()
            box = control.bounding_box()
            # Two controls of the same quantity must not be moved to the same place.
            end = 0.3 if control.get_attribute("role") else 0.1
            path = [(box["x"] + part * box["width"], box["y"] + part * box["height"]) for part in (0.8, 0.6, end)]
            before = figure.evaluate(SEEN)
            swipe(page, path)
            for _ in range(40):  # touch events arrive when the browser pleases
                if figure.evaluate(SEEN) != before:
                    break
                page.wait_for_timeout(25)
            else:
                pytest.fail(
                    "nothing changed under a finger on " + control.evaluate("c => c.outerHTML.slice(0, 200)")
                )


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
        assert page.locator(".attnconv-figure canvas").count() > 0


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


# ---- what the figures compute -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def javascript(browser):
    """Call an exported function of a figure: javascript(module, expression in `f`, arguments as `a`)."""
    page = browser.new_page()

    def call(module, expression, argument):
        source = base64.b64encode(figures.module_source(module).encode()).decode()
        return page.evaluate(
            "async ([source, a]) => { const f = await import(`data:text/javascript;base64,${source}`); "
            f"return ({expression}); }}",
            [source, argument],
        )

    yield call
    page.close()


def as_image(image):
    height, width, channels = image.shape
    return {"height": height, "width": width, "channels": channels, "data": image.ravel().tolist()}


IMAGES = [(1, 1, 1), (1, 5, 3), (4, 3, 1), (6, 7, 3)]


@pytest.mark.parametrize("shape", IMAGES)
def test_sum_of_shifts_computes_the_partial_sums(javascript, shape):
    rng = np.random.default_rng(shape)
    image, weights, shifts = rng.random(shape), rng.normal(size=9), kernel_shifts(3)
    for count in (0, 1, 5, 9):
        argument = [as_image(image), shifts.tolist(), weights.tolist(), count]
        ours = javascript("sum_of_shifts", "Array.from(f.partialSum(...a).data)", argument)
        expected = sum(
            (w * shift_image(image, d) for w, d in zip(weights[:count], shifts, strict=False)), 0 * image
        )
        np.testing.assert_allclose(ours, expected.ravel(), rtol=0, atol=1e-12)
    for shift in ((0, 0), (-1, 2), (9, 0)):
        ours = javascript("sum_of_shifts", "Array.from(f.shiftImage(...a).data)", [as_image(image), shift])
        assert np.array_equal(ours, shift_image(image, shift).ravel())


@pytest.mark.parametrize("shape", IMAGES)
@pytest.mark.parametrize("alpha", [0.05, 1.0, 40.0])
def test_nine_heads_computes_self_attention(javascript, shape, alpha):
    rng = np.random.default_rng(shape)
    image, weights = rng.random(shape), rng.normal(size=9)
    height, width, channels = shape
    scores = [reference.quadratic_scores(relative_shifts(height, width), d, alpha) for d in kernel_shifts(3)]
    values = np.broadcast_to(np.eye(channels), (9, channels, channels))
    expected = reference.mhsa(
        np.stack(scores), image.reshape(-1, channels), values, np.kron(weights, np.eye(channels)).T
    )
    ours = javascript(
        "nine_heads", "Array.from(f.nineHeads(...a).data)", [as_image(image), weights.tolist(), alpha]
    )
    np.testing.assert_allclose(ours, expected.ravel(), rtol=0, atol=1e-9)  # the page drops weights below 1e-12


@pytest.mark.parametrize("shape", IMAGES)
def test_nine_heads_computes_the_convolution(javascript, shape):
    rng = np.random.default_rng(shape)
    image, weights = rng.random(shape), rng.normal(size=9)
    kernel = weights.reshape(3, 3, 1, 1) * np.eye(shape[2])
    ours = javascript("nine_heads", "Array.from(f.convolution(...a).data)", [as_image(image), weights.tolist()])
    expected = reference.convolution(image, kernel, padding="replicate")
    np.testing.assert_allclose(ours, expected.ravel(), rtol=0, atol=1e-12)


def test_shuffled_pixels_computes_the_layer(javascript):
    rng = np.random.default_rng(2)
    tokens, out, bias = rng.normal(size=(20, 5)), rng.normal(size=(18, 3)), rng.normal(size=3)
    (qry, key), val = rng.normal(size=(2, 3, 5, 4)), rng.normal(size=(3, 5, 6))
    weights = {
        "qry": qry.tolist(),
        "key": key.tolist(),
        "val": val.tolist(),
        "out": out.tolist(),
        "bias": bias.tolist(),
    }
    for factor in (0.0, 1.0, 2.5):
        scores = [reference.content_scores(tokens, q, k, scale=factor) for q, k in zip(qry, key, strict=True)]
        expected = reference.mhsa(np.stack(scores), tokens, val, out, bias)
        ours = javascript("shuffled_pixels", "f.attentionLayer(...a)", [tokens.tolist(), weights, factor])
        np.testing.assert_allclose(ours, expected, rtol=0, atol=1e-11)
        argument = [(tokens @ qry[0])[7].tolist(), (tokens @ key[0]).tolist(), factor]
        row = javascript("shuffled_pixels", "f.scoresOf(...a)", argument)
        np.testing.assert_allclose(row, scores[0][7], rtol=0, atol=1e-11)


def test_shuffled_pixels_blurs_and_shuffles(javascript):
    image = np.random.default_rng(3).random((5, 4, 3))
    blur = np.full((3, 3, 1, 1), 1 / 9) * np.eye(3)
    ours = javascript("shuffled_pixels", "Array.from(f.blur(a).data)", as_image(image))
    np.testing.assert_allclose(
        ours, reference.convolution(image, blur, padding="replicate").ravel(), rtol=0, atol=1e-12
    )
    order = javascript("shuffled_pixels", "f.shuffledOrder(...a)", [256, 1])
    assert sorted(order) == list(range(256))
    assert order == javascript("shuffled_pixels", "f.shuffledOrder(...a)", [256, 1])
    assert order != javascript("shuffled_pixels", "f.shuffledOrder(...a)", [256, 2])
    rows = np.arange(512).reshape(256, 2)
    moved = javascript("shuffled_pixels", "f.reorder(...a)", [rows.tolist(), order])
    assert np.array_equal(moved, rows[order])
    assert np.array_equal(javascript("shuffled_pixels", "f.putBack(...a)", [moved, order]), rows)


def test_translated_picture_computes_both_layers(javascript):
    rng = np.random.default_rng(4)
    height, width, in_channels, key_dim, position_dim = 4, 5, 6, 7, 3
    image = rng.integers(0, 256, size=(height, width, 3)) / 255
    lift = rng.normal(size=(3, in_channels))
    w_qry, w_key = rng.normal(size=(2, in_channels, key_dim))
    shifts = relative_shifts(height, width, circular=True)
    relative = {
        "encodings": theory.quadratic_encoding(shifts),
        "w_key_position": rng.normal(size=(position_dim, key_dim)),
        "u": rng.normal(size=key_dim),
        "v": rng.normal(size=key_dim),
    }
    absolute = {"waves": rng.normal(size=(height * width, in_channels))}
    figure = figures.translated_picture(image, lift, w_qry, w_key, absolute=absolute, relative={"it": relative})
    state, pixels = figure.state, as_image(image)
    ours = javascript(
        "translated_picture",
        """(() => {
            const [s, image, size] = a, x = f.tokens(image, s.lift), list = (image) => Array.from(image.data);
            const A = f.absoluteScores(x, s.absolute.waves, s.w_qry, s.w_key);
            const moved = f.move(image, [2, -1]);
            return {
                x, A, R: f.relativeScores(x, s.relative.it, s.w_qry, s.w_key, size),
                moved: list(moved), attended: list(f.attend(A, image)),
                difference: list(f.differenceMap(image, moved)),
            };
        })()""",
        [state, pixels, [height, width]],
    )
    # The state is rounded for the journey; what the page computes is compared on the state's own numbers.
    lift, w_qry, w_key, waves = (
        np.array(n) for n in (state["lift"], state["w_qry"], state["w_key"], state["absolute"]["waves"])
    )
    sent = {name: np.array(value) for name, value in state["relative"]["it"].items()}
    x = (image.reshape(-1, 3) - 0.5) @ lift
    scores = reference.absolute_scores(x, waves, w_qry, w_key)
    encodings = sent["encodings"][(shifts % [height, width]) @ [width, 1]]
    expected = {
        "x": x,
        "A": scores,
        "R": reference.relative_scores(x, encodings, w_qry, w_key, sent["wKeyPosition"], sent["u"], sent["v"]),
        "moved": shift_image(image, (-2, 1), "circular").ravel(),
        "attended": (scores @ image.reshape(-1, 3)).ravel(),
        "difference": np.abs(image - shift_image(image, (-2, 1), "circular")).max(axis=-1).ravel(),
    }
    for name, value in expected.items():
        np.testing.assert_allclose(ours[name], value, rtol=0, atol=1e-11, err_msg=name)
