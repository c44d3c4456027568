"""Chapter 3: a picture that moves under a layer with absolute and a layer with relative positions."""

import numpy as np
from jaxtyping import Float

from attnconv import checks, plot
from attnconv.figures.core import Figure, encode_pixels
from attnconv.reference import absolute_scores, relative_scores, softmax
from attnconv.shifts import shift_image

_SHOWN = (3, 5)  # how far the picture has moved where no script runs


def translated_picture(
    image: Float[np.ndarray, "height width channels"],
    lift: Float[np.ndarray, "channels in_channels"],
    w_qry: Float[np.ndarray, "in_channels key_dim"],
    w_key: Float[np.ndarray, "in_channels key_dim"],
    *,
    absolute: dict[str, Float[np.ndarray, "pixels in_channels"]],
    relative: dict[str, dict[str, np.ndarray]],
    query: tuple[int, int] | None = None,
) -> Figure:
    """Move a picture on a torus under two attention layers that differ in their positions alone.

    The tokens are `(image − ½) lift`; the output of a layer is the attention's average of the image's colours.

    Args:
        image: three channels, values between 0 and 1.
        lift: matrix that makes tokens of colours.
        w_qry: query matrix of both layers.
        w_key: key matrix of both layers.
        absolute: encodings P to choose from, by name.
        relative: by name, the arguments `encodings`, `w_key_position`, `u` and `v` of
            `reference.relative_scores`, with encodings that depend on the shift alone on the torus.
        query: the pixel whose attention is shown, (row, column); about the middle by default.

    Raises:
        ValueError: shapes that do not fit; no encoding of a kind; relative encodings that differ for pairs with
            the same shift; a query outside the image.
    """
    image = checks.array("image", image, "height width channels", channels=3)
    height, width, _ = image.shape
    lift = checks.array("lift", lift, "channels in_channels", channels=3)
    w_qry = checks.array("w_qry", w_qry, "in_channels key_dim", in_channels=lift.shape[1])
    w_key = checks.array("w_key", w_key, "in_channels key_dim", in_channels=lift.shape[1], key_dim=w_qry.shape[1])
    row, column = checks.pair("query", (height // 2, width // 2) if query is None else query, least=0)
    if row >= height or column >= width:
        raise ValueError(f"query: expected a pixel of {height} × {width}, got {(row, column)}")
    for kind, encodings in (("absolute", absolute), ("relative", relative)):
        if not encodings:
            raise ValueError(f"{kind}: expected at least one encoding, got none")
    sizes = {"pixels": height * width, "in_channels": lift.shape[1]}
    absolute = {
        name: checks.array(f"absolute[{name!r}]", positions, "pixels in_channels", **sizes)
        for name, positions in absolute.items()
    }
    tables = {
        name: _by_shift(f"relative[{name!r}]", parts, height, width, w_qry.shape[1])
        for name, parts in relative.items()
    }

    moved = shift_image(image, tuple(-s for s in _SHOWN), "circular")
    positions, parts = next(iter(absolute.values())), next(iter(relative.values()))
    differences = []
    for scores in (
        lambda x: absolute_scores(x, positions, w_qry, w_key),
        lambda x: relative_scores(x, w_qry=w_qry, w_key=w_key, **parts),
    ):
        outputs = [
            (softmax(scores((one.reshape(-1, 3) - 0.5) @ lift)) @ one.reshape(-1, 3)).reshape(image.shape)
            for one in (image, moved)
        ]
        outputs[0] = shift_image(outputs[0], tuple(-s for s in _SHOWN), "circular")
        differences.append(np.abs(outputs[1] - outputs[0]).max(axis=-1))
    drawing, axes = plot.drawing(7.0, 2.6, columns=3)
    plot.show_image(axes[0], moved, "The picture, moved")
    plot.show_attention(axes[1], differences[0], "Absolute: the output differs")
    plot.show_attention(axes[2], differences[1] * (differences[1] > 1e-9), "Relative: it does not")

    return Figure(
        "translated_picture",
        {
            "image": encode_pixels(image),
            "lift": _numbers(lift),
            "w_qry": _numbers(w_qry),
            "w_key": _numbers(w_key),
            "absolute": {name: _numbers(positions) for name, positions in absolute.items()},
            "relative": tables,
            "query": [row, column],
        },
        alt=(
            "A picture that can be moved, and two attention layers beside each other: where the query looks, the "
            "output of moving first, the output of attending first, and their difference. With relative "
            "positions the difference stays zero; with absolute positions it does not."
        ),
        caption=(
            "Drag the picture, move it with the arrow keys, or use the sliders; what leaves on one side comes back "
            "on the other. The white frame is the query q, which travels with the picture. In each row compare the "
            "first two pictures; the third shows where they differ, yellow from 0.4."
        ),
        picture=plot.picture(
            drawing,
            alt="A moved picture; the difference it makes to a layer with absolute positions, all over the image; "
            "and to a layer with relative positions, zero everywhere.",
        ),
    )


def _by_shift(name: str, parts: dict[str, np.ndarray], height: int, width: int, key_dim: int) -> dict[str, list]:
    """Return a relative encoding in the form the script reads: one row a shift of the torus."""
    axes = {
        "encodings": "query key position_dim",
        "w_key_position": "position_dim key_dim",
        "u": "key_dim",
        "v": "key_dim",
    }
    if set(parts) != set(axes):
        raise ValueError(f"{name}: expected {', '.join(axes)}, got {', '.join(parts)}")
    sizes = {"query": height * width, "key": height * width, "key_dim": key_dim}
    checked = {}
    for part, names in axes.items():
        fixed = {axis: sizes[axis] for axis in names.split() if axis in sizes}
        checked[part] = checks.array(f"{name}[{part!r}]", parts[part], names, **fixed)
        sizes["position_dim"] = checked["encodings"].shape[2]
    on_torus = checked["encodings"].reshape(height, width, height, width, -1)
    for i, j in np.ndindex(height, width):
        if not np.array_equal(np.roll(on_torus[i, j], (-i, -j), axis=(0, 1)), on_torus[0, 0]):
            raise ValueError(
                f"{name}['encodings']: expected the same vector for the same shift, "
                f"got others for the query {(i, j)} than for (0, 0)"
            )
    return {
        "encodings": _numbers(checked["encodings"][0]),
        "wKeyPosition": _numbers(checked["w_key_position"]),
        "u": _numbers(checked["u"]),
        "v": _numbers(checked["v"]),
    }


def _numbers(values: np.ndarray) -> list:
    """Return an array as lists, rounded to what a page needs."""
    return np.round(np.asarray(values, dtype=np.float64), 4).tolist()
