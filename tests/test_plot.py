import re
from xml.etree import ElementTree

import numpy as np
import pytest

from attnconv import plot

LIGHT, DARK = "#ffffff", "#121212"  # the two pages of the theme


def luminance(color):
    channels = np.array([int(color[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    linear = np.where(channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4)
    return linear @ [0.2126, 0.7152, 0.0722]


def contrast(a, b):
    low, high = sorted((luminance(a), luminance(b)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("color", [*plot.HEAD_COLORS, plot.ACCENT])
@pytest.mark.parametrize("page", [LIGHT, DARK])
def test_colors_stand_out_on_both_pages(color, page):
    """WCAG 2.2, 1.4.11: graphics need a contrast of 3 to 1."""
    assert contrast(color, page) >= 3


def test_head_colors_are_nine_different_ones():
    assert len(set(plot.HEAD_COLORS)) == 9


def make(alt="A line.", caption="Look at *this*."):
    figure, axes = plot.drawing(4, 2)
    axes.plot([0, 1], [0, 1], label="identity")
    axes.set(xlabel="x", title="A title")
    axes.legend()
    axes.text(0.5, 0.5, "a note")
    axes.axhline(0.5, color="black")
    return plot.picture(figure, alt=alt, caption=caption)


def test_picture_takes_the_colors_and_type_of_the_page():
    svg = make().svg
    ElementTree.fromstring(svg)
    assert "currentColor" in svg
    assert not re.search(r"font-family|font: ", svg)
    assert re.search(r"<text[^>]*>A title</text>", svg), "text must stay text"
    assert '<svg class="attnconv-static" role="img" aria-label="A line."' in svg
    # What is not ink is a colour of ours.
    assert set(re.findall(r"#[0-9a-f]{6}", svg)) <= set(plot.HEAD_COLORS)


def test_pictures_do_not_share_names():
    figure, axes = plot.drawing()
    axes.plot([0, 2], [1, 0])
    axes.imshow(np.eye(2), extent=(0, 1, 0, 1))
    axes.imshow(np.eye(2), extent=(1, 2, 0, 1))  # the same image twice
    first, second = make().svg, plot.picture(figure, alt="Another line.").svg

    def ids(svg):
        return re.findall(r'\bid="([^"]+)"', svg)

    names = ids(first) + ids(second)
    assert len(names) == len(set(names))
    for svg in (first, second):
        used = set(re.findall(r"url\(#([^)]+)\)", svg)) | set(re.findall(r'href="#([^"]+)"', svg))
        assert used
        assert used == set(ids(svg))


def test_pictures_are_reproducible():
    assert make().svg == make().svg


def test_bundle_holds_words_and_picture():
    bundle = make()._repr_mimebundle_()
    assert bundle["text/plain"] == "[picture] A line."
    assert "<figcaption>Look at <em>this</em>.</figcaption>" in bundle["text/html"]


def test_centers_stand_where_they_are_with_circles_of_their_mass():
    _, axes = plot.drawing()
    plot.show_centers(axes, np.array([[1.0, -2.0], [0.0, 9.0]]), np.array([0.5, 0.0]), reach=3)
    circles = [patch for patch in axes.patches if hasattr(patch, "radius")]
    assert [circle.center for circle in circles] == [(-2.0, 1.0)] * 2, "no circle where there is no sharpness"
    np.testing.assert_allclose([circle.radius for circle in circles], [1.177, 2.146], atol=1e-3)  # σ = 1
    dots = [line.get_xydata()[0].tolist() for line in axes.lines if line.get_marker() == "o"]
    assert dots == [[-2.0, 1.0], [3.5, 0.0]], "rows run down, and a dot beyond the edge stays on it"
    assert axes.get_ylim() == (3.5, -3.5)


@pytest.mark.parametrize("alt", ["", "  ", None])
def test_a_picture_needs_words(alt, no_signature_checks):
    with pytest.raises(ValueError, match=r"^alt: expected words"):
        make(alt=alt)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda ax: plot.show_image(ax, np.zeros((2, 2, 4))), r"image: expected \(height, width\)"),
        (lambda ax: plot.show_matrix(ax, np.zeros(3)), r"matrix: expected shape \(rows, columns\), got \(3,\)"),
        (
            lambda ax: plot.show_centers(ax, np.zeros((3, 2)), np.ones(2)),
            r"alphas: expected shape \(head=3\), got \(2,\)",
        ),
        (lambda ax: plot.panels([np.zeros((2, 2))], ["a", "b"], alt="x"), r"titles: expected 1, one for each"),
        (lambda ax: plot.panels([], [], alt="x"), "images: expected at least one, got none"),
    ],
)
def test_errors_name_argument_expectation_and_value(call, message, no_signature_checks):
    _, axes = plot.drawing()
    with pytest.raises(ValueError, match=f"^{message}"):
        call(axes)
