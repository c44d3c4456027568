"""Chapter 2: attention that sees contents alone, before and after a shuffle of the pixels."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float

from attnconv import checks, plot
from attnconv.figures.core import Figure, encode_pixels
from attnconv.reference import content_scores, mhsa


def shuffled_pixels(
    image: Float[np.ndarray, "height width 3"],
    x: Float[np.ndarray, "pixels in_channels"],
    w_qry: Float[np.ndarray, "head in_channels key_dim"],
    w_key: Float[np.ndarray, "head in_channels key_dim"],
    w_val: Float[np.ndarray, "head in_channels head_dim"],
    w_out: Float[np.ndarray, "head_times_head_dim 3"],
    b_out: Float[np.ndarray, " 3"] | None = None,
    *,
    names: Sequence[str],
    query: tuple[int, int] = (0, 0),
) -> Figure:
    """Pick a query, see where each head looks, and shuffle the pixels.

    Args:
        image: the pixels as colours, values between 0 and 1.
        x: the tokens X, one for each pixel in reading order.
        w_qry: query matrices, one a head.
        w_key: key matrices.
        w_val: value matrices.
        w_out: output matrix; the layer's output has three channels, shown as colours.
        b_out: output bias, or None for zero.
        names: what each head is called, at most nine.
        query: the pixel that asks at the start, (row, column).

    Raises:
        ValueError: shapes that do not fit, more than nine heads, a query outside the image.
    """
    image = checks.array("image", image, "height width channels", channels=3)
    height, width, _ = image.shape
    x = checks.array("x", x, "pixels in_channels", pixels=height * width)
    if not 1 <= len(names) <= len(plot.HEAD_COLORS):
        raise ValueError(f"names: expected one to {len(plot.HEAD_COLORS)} heads, got {len(names)}")
    sizes = {"head": len(names), "in_channels": x.shape[1]}
    w_qry = checks.array("w_qry", w_qry, "head in_channels key_dim", **sizes)
    w_key = checks.array("w_key", w_key, "head in_channels key_dim", key_dim=w_qry.shape[2], **sizes)
    w_val = checks.array("w_val", w_val, "head in_channels head_dim", **sizes)
    rows = len(names) * w_val.shape[2]
    w_out = checks.array(
        "w_out", w_out, "head_times_head_dim out_channels", head_times_head_dim=rows, out_channels=3
    )
    b_out = np.zeros(3) if b_out is None else checks.array("b_out", b_out, "out_channels", out_channels=3)
    row, column = checks.pair("query", query, least=0)
    if row >= height or column >= width:
        raise ValueError(f"query: expected a pixel of {height} × {width}, got {tuple(query)}")

    def layer(tokens: np.ndarray) -> np.ndarray:
        scores = np.stack([content_scores(tokens, q, k) for q, k in zip(w_qry, w_key, strict=True)])
        return mhsa(scores, tokens, w_val, w_out, b_out).reshape(height, width, 3)

    order = np.random.default_rng(seed=0).permutation(height * width)
    weights = {"qry": w_qry, "key": w_key, "val": w_val, "out": w_out, "bias": b_out}
    return Figure(
        "shuffled_pixels",
        {
            "image": encode_pixels(image),
            "tokens": x.tolist(),
            "weights": {name: value.tolist() for name, value in weights.items()},
            "names": list(names),
            "query": [row, column],
        },
        alt=(
            f"A picture of {height} × {width} pixels, the maps of {len(names)} attention heads for one query "
            "pixel, the layer's output and a blur. A button shuffles the pixels: maps and output are shuffled "
            "with them, and the output put back is the old one; the blur put back is not."
        ),
        caption=(
            "Point at the pixels, or use the arrow keys or the sliders, to choose the query, framed in white. "
            "Each head shows in its own colour how much every pixel counts for this query, dark for the most; "
            "in X, a frame of that colour marks the head's favourite (*similar* may prefer the query itself, *all* "
            "has none). *Scores times* multiplies the scores: "
            "at 0 every head averages, at the right end most look at one pixel. Then shuffle. The query stays "
            "the same pixel, and the maps are shuffled along. The attention put back is the picture you know; "
            "the blur put back is not."
        ),
        picture=plot.panels(
            [image, image.reshape(-1, 3)[order].reshape(image.shape), layer(x), layer(x[order])],
            ["X, the pixels", "The pixels shuffled", "Attention to X", "Attention to ΠX"],
            alt="A picture, its pixels in random order, and the output of attention for both.",
        ),
    )
