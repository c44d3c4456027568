"""Chapter 16: where heads look that were handed over from a convolution, before and after they trained on."""

import numpy as np
from jaxtyping import Float, Int

from attnconv import checks, plot
from attnconv.figures.core import Figure, encode_pixels
from attnconv.reference import softmax
from attnconv.shifts import pixel_grid


def handed_over(
    pictures: Float[np.ndarray, "picture height width 1"],
    shifts: Int[np.ndarray, "shift 2"],
    tables: Float[np.ndarray, "layer head row_shifts column_shifts"],
    content: Float[np.ndarray, "picture layer head query key"],
    *,
    alpha: float = 5.0,
    names: list[str] | None = None,
    start: tuple[int, int] = (0, 0),
) -> Figure:
    """Compare the map of a head at the hand-over with its map after fine-tuning.

    Tokens are the patches of a square image, with a ring of empty ones around it. The page computes all maps from
    scores.

    Args:
        pictures: values between 0 and 1.
        shifts: which patch each of the first heads looked at, key minus query, within the ring; a square number.
        tables: scores of shifts after fine-tuning, from −side to side on each axis.
        content: products of queries and keys after fine-tuning, divided by √D_k.
        alpha: score of the patch wanted at the hand-over, where all others have 0; from 0 to 12.
        names: of the pictures.
        start: layer and head that are shown first, from 0.

    Raises:
        ValueError: arrays that do not fit each other; a head that is not there.
    """
    pictures = checks.array("pictures", pictures, "picture height width channels", channels=1)
    tables = checks.array("tables", tables, "layer head row_shifts column_shifts")
    side = tables.shape[2] // 2
    layers, heads = tables.shape[:2]
    content = checks.array(
        "content", content, "picture layer head query key",
        picture=len(pictures), layer=layers, head=heads, query=side**2, key=side**2,
    )  # fmt: skip
    shifts = checks.coordinates("shifts", shifts)
    if round(len(shifts) ** 0.5) ** 2 != len(shifts) or len(shifts) > heads or np.abs(shifts).max() > 1:
        raise ValueError(
            f"shifts: expected a square number within the ring, at most {heads}, got {shifts.tolist()}"
        )
    if tables.shape[2:] != (2 * side + 1,) * 2 or any(n % side for n in pictures.shape[1:3]):
        raise ValueError(f"tables: expected shifts of a grid of patches, got {tables.shape[2:]}")
    alpha = float(checks.array("alpha", alpha, ""))
    if not 0 <= alpha <= 12:
        raise ValueError(f"alpha: expected a score from 0 to 12, got {alpha}")
    layer, head = start
    if not (0 <= layer < layers and 0 <= head < heads):
        raise ValueError(f"start: expected a layer and a head of {layers} × {heads}, got {start}")
    names = [f"Picture {n + 1}" for n in range(len(pictures))] if names is None else list(names)
    if len(set(names)) != len(pictures):
        raise ValueError(f"names: expected {len(pictures)} different ones, got {names}")
    query = [side // 2, side // 2]
    return Figure(
        "handed_over",
        {
            "pictures": [encode_pixels(picture) for picture in pictures],
            "names": names,
            "shifts": shifts.tolist(),
            "tables": np.round(tables, 3).reshape(layers, heads, -1).tolist(),
            "content": np.round(content, 2).tolist(),
            "side": side,
            "start": {"alpha": alpha, "layer": layer, "head": head, "query": query},
        },
        alt=(
            "A picture cut into patches with a query patch; where one head looks from there at the hand-over, and "
            "where after fine-tuning; a button for each head with the attention that it still gives to the patch "
            "at its shift. Controls choose picture, layer, head and sharpness, and switch content on and off."
        ),
        caption=(
            "Each number is a head, at the place of its shift: how much of its attention is there after "
            "fine-tuning, over all queries that have such a patch. Press one. Point at the picture or a map, or "
            "use the arrow keys, to move the query, framed in white; the frame in the head's colour is the patch "
            "it looked at. The ring outside the gray frame is empty patches. Move *α*: the sharper the start, the "
            "less it leaks. *Content* off leaves the scores of shifts alone. Each map has its own scale, from blue "
            "to yellow."
        ),
        picture=_still(shifts, tables[layer, head], content[0, layer, head], min(head, len(shifts) - 1), alpha),
    )


def _still(shifts: np.ndarray, table: np.ndarray, content: np.ndarray, head: int, alpha: float) -> plot.Picture:
    """What stands in where scripts do not run: the maps of the first head shown."""
    side = table.shape[0] // 2
    query = np.array([side // 2, side // 2])
    between = pixel_grid(side + 2, side + 2) - 1 - query
    first = np.where((between == shifts[head]).all(axis=1), alpha, 0.0)
    last = table[tuple((between + side).T)].reshape(side + 2, side + 2).copy()
    last[1:-1, 1:-1] += content[query[0] * side + query[1]].reshape(side, side)
    figure, axes = plot.drawing(6, 3, columns=2)
    titles = (f"Handed over, α = {alpha:g}", "After fine-tuning")
    for ax, scores, title in zip(axes, (first, last), titles, strict=True):
        probabilities = softmax(scores.reshape(1, -1)).reshape(side + 2, side + 2)
        plot.show_attention(ax, probabilities, title, query=tuple(query + 1))
    return plot.picture(figure, alt="Two maps of attention of one head: at the hand-over and after fine-tuning.")
