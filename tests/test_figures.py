"""Figures as HTML and as widgets; what they compute is tested in the browser, in test_site.py."""

import base64
import json
import re
from pathlib import Path

import numpy as np
import pytest

from attnconv import figures, images
from attnconv.figures.core import encode_pixels

FOLDER = Path(figures.__file__).parent
MODULES = sorted(path.stem for path in FOLDER.glob("*.mjs") if path.stem not in ("common", "host"))
KERNELS = {"blur": np.full((3, 3), 1 / 9), "</script>": np.eye(3)}
PAPER = {"side": 32, "downsample": 2, "layers": 6, "heads": 9, "width": 400, "intermediate": 512, "key_dim": 400}


@pytest.fixture
def figure():
    return figures.sum_of_shifts(images.photograph("china", (8, 8), gray=True), KERNELS)


def test_every_module_has_a_function_of_its_name():
    assert sorted(name for name in figures.__all__ if name not in ("Figure", "module_source")) == MODULES


@pytest.mark.parametrize("module", MODULES)
def test_bundled_source_is_one_module_that_imports_nothing(module):
    source = figures.module_source(module)
    assert not re.search(r"^\s*import\b", source, flags=re.M)
    assert len(re.findall(r"^export default", source, flags=re.M)) == 1
    declared = re.findall(r"^(?:export )?(?:const|function) (\w+)", source, flags=re.M)
    assert len(declared) == len(set(declared)), "common.mjs and the figure declare the same name"


@pytest.mark.parametrize("module", MODULES)
def test_modules_import_what_they_use_and_use_what_they_import(module):
    text = (FOLDER / f"{module}.mjs").read_text(encoding="utf-8")
    names = re.search(r'^import \{([^}]*)\} from "\./common\.mjs";\n', text, flags=re.M)
    imported = {name.strip() for name in names[1].split(",") if name.strip()} if names else set()
    body = text[names.end() :] if names else text
    offered = set(re.findall(r"^export (?:const|function) (\w+)", (FOLDER / "common.mjs").read_text("utf-8"), re.M))
    assert imported <= offered
    assert {name for name in imported if not re.search(rf"\b{name}\b", body)} == set()


def test_html_runs_by_itself(figure):
    html = figure.html()
    state = json.loads(re.search(r'<script type="application/json">(.*?)</script>', html, flags=re.S)[1])
    assert state["start"] == "blur"
    assert state["kernels"]["</script>"] == np.eye(3).ravel().tolist(), "a script tag inside the state stays inside"
    assert f'aria-label="{figure.alt}"' in html
    assert 'role="img"' in html, "a static picture stands in where scripts do not run"
    assert not re.search(r"https?://(?!www\.w3\.org/)", html), "no other host"


def test_pixels_survive_the_journey():
    image = np.random.default_rng(0).integers(0, 256, size=(3, 4, 2)) / 255
    sent = encode_pixels(image)
    received = np.frombuffer(base64.b64decode(sent["bytes"]), np.uint8).reshape(sent["shape"]) / 255
    assert np.array_equal(received, image)


def test_live_notebooks_get_a_widget_and_pages_do_not(figure, monkeypatch):
    monkeypatch.delenv("ATTNCONV_STATIC", raising=False)
    live = figure._repr_mimebundle_()
    assert "application/vnd.jupyter.widget-view+json" in live
    widget = figure.widget()
    assert widget._esm == figures.module_source("sum_of_shifts")
    assert widget.state == figure.state
    assert {"attnconv-figure", "attnconv-stage"} <= set(widget._dom_classes), "the style sheet finds it"
    widget.value = {"count": 3}
    assert figure.value == {"count": 3}
    monkeypatch.setenv("ATTNCONV_STATIC", "1")
    assert set(figure._repr_mimebundle_()) == {"text/plain", "text/html"}


def explorer(network):
    """An explorer of one network on one picture of 4 × 4 pixels."""
    return figures.head_explorer({"a": network | {"pictures": "p"}}, {"p": {"gray": np.full((4, 4, 1), 0.5)}})


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: figures.sum_of_shifts(np.zeros((4, 4, 3)), KERNELS), r"image: .*channels=1.*got \(4, 4, 3\)"),
        (lambda: figures.sum_of_shifts(np.zeros((4, 4, 1)), {}), r"kernels: expected at least one, got none"),
        (
            lambda: figures.nine_heads(np.zeros((4, 4, 3)), {"a": np.zeros((2, 3))}),
            r"kernels\['a'\]: expected shape \(rows=3, columns=3\), got \(2, 3\)",
        ),
        (
            lambda: figures.nine_heads(np.zeros((4, 4, 3)) + 2, KERNELS),
            r"image: expected values from 0 to 1, got 2.0",
        ),
        (
            lambda: figures.training_heads(np.zeros((3, 3, 2, 4)), np.eye(40)[:, :, None]),
            r"kernel: expected shape \(rows=3, columns=3, in_channels=1, out_channels\), got \(3, 3, 2, 4\)",
        ),
        (
            lambda: figures.training_heads(np.zeros((3, 3, 1, 4)), np.zeros((40, 40, 1))),
            r"image: expected a picture, got the constant 0.0",
        ),
        (
            lambda: figures.training_heads(np.zeros((3, 3, 1, 4)), np.eye(40)[:, :, None], alpha=9),
            r"alpha: expected a sharpness from 0.03125 to 8.0, got 9.0",
        ),
        (lambda: figures.down_sampling(np.zeros((8, 6, 3))), r"image: .*divisible by 4, got 8 × 6"),
        (
            lambda: figures.down_sampling(np.zeros((8, 4, 3)), pixel=(3, 4)),
            r"pixel: expected one of 8 × 4, got \(3, 4\)",
        ),
        (
            lambda: figures.cost_explorer({"a": PAPER | {"width": 401}}, {}),
            r"presets\['a'\]\['width'\]: expected 16 to 800 in steps of 16, got 401",
        ),
        (
            lambda: figures.cost_explorer({"a": PAPER}, {"learned": ("c", 0.9, 1e9)}),
            r"published\['learned'\]: expected one of a, got 'c'",
        ),
        (
            lambda: explorer({"tokens": 3, "tables": np.zeros((1, 1, 2, 5))}),
            r"tokens: expected a divisor of the 4 pixels of a side, got 3",
        ),
        (
            lambda: explorer({"tokens": 2, "tables": np.zeros((1, 1, 2, 5))}),
            r"tables: expected shape \(layer, head, axis=2, shift=3\), got \(1, 1, 2, 5\)",
        ),
        (
            lambda: explorer({"tokens": 2, "maps": np.ones((2, 1, 1, 4, 4))}),
            r"maps: expected shape \(picture=1, layer, head, query=4, key=4\)",
        ),
        (
            lambda: explorer(
                {
                    "tokens": 2,
                    "centers": np.zeros((2, 1, 1, 2)),
                    "alpha": np.ones((2, 1, 1)),
                    "epochs": [0],
                }
            ),
            r"epochs: expected 2 names, got 1",
        ),
        (
            lambda: figures.head_explorer({"a": {}}, {"p": {}}),
            r"networks, pictures: expected at least one, and no empty group",
        ),
        (lambda: figures.Figure("sum_of_shifts", {}, alt="", caption="c", picture=None), r"alt: expected words"),
        (
            lambda: figures.Figure("sum_of_shifts", {}, alt="a", caption=" ", picture=None),
            r"caption: expected words",
        ),
    ],
)
def test_errors_name_argument_expectation_and_value(call, message, no_signature_checks):
    with pytest.raises(ValueError, match=f"^{message}"):
        call()
