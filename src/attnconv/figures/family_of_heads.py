"""Chapter 17: heads of several families aim at one shift, with or without content, in the image or a window."""

import numpy as np
from jaxtyping import Float

from attnconv import checks, plot
from attnconv.figures.core import Figure, encode_pixels
from attnconv.reference import quadratic_scores, softmax
from attnconv.shifts import pixel_grid, relative_shifts, shift_image

_REACH = 4  # of the centre, in pixels
_MAP = 8  # of the map of B
_LOWEST, _HIGHEST = 0.125, 128.0  # ends of the slider for the factor


def family_of_heads(
    image: Float[np.ndarray, "height width channels"],
    *,
    center: tuple[int, int] = (-1, 2),
    query: tuple[int, int] | None = None,
    factor: float = 2.0,
) -> Figure:
    """Aim a head at a shift with a quadratic, with cosines or with a table, and sharpen it.

    Args:
        image: one channel, square, at least 9 × 9 pixels, values between 0 and 1.
        center: Δ at the start, in whole pixels, between −4 and 4 on each axis.
        query: the query at the start, (row, column); the middle by default.
        factor: factor s of the position term at the start, from 0.125 to 128.

    Raises:
        ValueError: an image of another shape; a centre, query or factor outside its range.
    """
    image = checks.array("image", image, "height width channels", channels=1)
    size = len(image)
    if image.shape[1] != size or size < 2 * _REACH + 1:
        raise ValueError(f"image: expected a square of at least {2 * _REACH + 1} pixels, got {image.shape[:2]}")
    center = checks.pair("center", center, least=-_REACH)
    if max(center) > _REACH:
        raise ValueError(f"center: expected a shift within {_REACH} pixels, got {center}")
    query = (size // 2, size // 2) if query is None else checks.pair("query", query, least=0)
    if max(query) >= size:
        raise ValueError(f"query: expected a pixel of a {size} × {size} image, got {query}")
    factor = float(checks.array("factor", factor, ""))
    if not _LOWEST <= factor <= _HIGHEST:
        raise ValueError(f"factor: expected a number from {_LOWEST} to {_HIGHEST}, got {factor}")
    return Figure(
        "family_of_heads",
        {"image": encode_pixels(image), "center": list(center), "query": list(query), "factor": factor},
        alt=(
            "The position term of a head over the shifts, the attention of one query over a photograph, what the "
            "head passes on, and the photograph moved by the wanted shift. Lists choose the family of the head, "
            "what it does with content, and whether it sees the whole image or a window; a slider sharpens it."
        ),
        caption=(
            "*First picture*: the position term over the shifts, with the shift 0 in the white frame and the "
            "wanted shift Δ in the orange one. Drag Δ. *Second*: the attention of one query (white frame). Drag it "
            "to the border. Sharpen every family until the third picture is the fourth; then try a single wave, "
            "the border, and the two ways to let content in. Every number is computed in this page."
        ),
        picture=_still(image, center, query, factor),
    )


def _still(image: np.ndarray, center: tuple, query: tuple, factor: float) -> plot.Picture:
    """What stands in where scripts do not run: the quadratic head."""
    size, side = len(image), 2 * _MAP + 1
    weights = softmax(quadratic_scores(relative_shifts(size, size), center, factor))
    figure, axes = plot.drawing(7, 2.1, columns=4)
    term = quadratic_scores(pixel_grid(side, side) - _MAP, center, 1.0).reshape(side, side)
    plot.show_attention(axes[0], term - term.min(), "B(δ)", query=(_MAP, _MAP))
    row = weights[query[0] * size + query[1]].reshape(size, size)
    plot.show_attention(axes[1], row, "Attention", query=query)
    plot.show_image(axes[2], (weights @ image.reshape(-1, 1)).reshape(image.shape), "The head passes on", largest=1)
    plot.show_image(axes[3], shift_image(image, center, "replicate"), "X moved by Δ", largest=1)
    return plot.picture(
        figure,
        alt="The score of a quadratic head over the shifts, the attention of one query, what the head passes on, "
        "and the photograph moved by the shift that the head looks at.",
    )
