"""Chapter 10: the map of a query, its row sums and its column sums."""

import numpy as np
from jaxtyping import Float

from attnconv import checks, plot
from attnconv.figures.core import Figure
from attnconv.reference import softmax
from attnconv.shifts import pixel_grid

_RANGES = {"alpha": (2**-7, 8.0), "elongation": (1.0, 4.0), "angle": (0.0, 180.0)}  # ends of the sliders
_FARTHEST = 6.0  # end of the sliders for Δ


def rows_times_columns(
    row_scores: Float[np.ndarray, " row_shifts"],
    column_scores: Float[np.ndarray, " column_shifts"],
    shift_scores: Float[np.ndarray, "row_shifts column_shifts"],
    *,
    center: tuple[float, float] = (-2.0, 3.0),
    alpha: float = 0.06,
    elongation: float = 2.0,
    angle: float = 0.0,
) -> Figure:
    """Compare the map of a query with the product of its row sums and its column sums.

    Args:
        row_scores: learned scores of the row shifts 1 − n … n − 1, for an image of n × n pixels.
        column_scores: the same for the column shifts.
        shift_scores: learned scores with an entry of its own for each shift.
        center: Δ of the Gaussian at the start, in pixels, between −6 and 6 on each axis.
        alpha: its sharpness at the start, in 1/pixels², from 1/128 to 8.
        elongation: how many times it is longer than wide, from 1 to 4.
        angle: by how much it is turned from lying along a row, in degrees, from 0 to 180.

    Raises:
        ValueError: tables of different or even lengths; a number outside its range; NaN or infinite entries.
    """
    row_scores = checks.array("row_scores", row_scores, "row_shifts")
    shifts = len(row_scores)
    if shifts % 2 == 0:
        raise ValueError(f"row_scores: expected an odd number of entries, 2n − 1, got {shifts}")
    column_scores = checks.array("column_scores", column_scores, "column_shifts", column_shifts=shifts)
    shift_scores = checks.array(
        "shift_scores", shift_scores, "row_shifts column_shifts", row_shifts=shifts, column_shifts=shifts
    )
    center = checks.array("center", center, "coordinate", coordinate=2)
    if np.abs(center).max() > _FARTHEST:
        raise ValueError(f"center: expected a shift within {_FARTHEST:g} pixels, got {tuple(center.tolist())}")
    numbers = {}
    for name, value in (("alpha", alpha), ("elongation", elongation), ("angle", angle)):
        low, high = _RANGES[name]
        numbers[name] = float(checks.array(name, value, ""))
        if not low <= numbers[name] <= high:
            raise ValueError(f"{name}: expected a number from {low:g} to {high:g}, got {numbers[name]}")
    size = shifts // 2 + 1
    return Figure(
        "rows_times_columns",
        {
            "size": size,
            "rows": row_scores.round(3).tolist(),
            "columns": column_scores.round(3).tolist(),
            "table": shift_scores.round(2).ravel().tolist(),
            "center": center.tolist(),
            **numbers,
        },
        alt=(
            f"The attention of one query over {size} × {size} pixels, with the sums of its rows as bars to the "
            "right and the sums of its columns as bars below; beside it the product of the bars, and the "
            "difference of the two maps. Controls choose the score, its centre, sharpness, length and angle. A "
            "table counts what one map costs, and what rows and columns cost, for an image side set by a slider."
        ),
        caption=(
            "Left, the attention of the query in the white frame, the sums of its rows in blue and of its columns "
            "in orange. Middle, every blue bar times every orange bar. Right, what is missing (orange) or too much "
            "(purple). Turn the Gaussian by *Angle*, then choose one of the two learned scores; move the query "
            "with a finger or the arrow keys. The table counts one head and one channel. All of it is computed in "
            "this page."
        ),
        picture=_still(size, center, **numbers),
    )


def _still(size: int, center: np.ndarray, alpha: float, elongation: float, angle: float) -> plot.Picture:
    """What stands in where scripts do not run."""
    turn = np.deg2rad(angle)
    y, x = (pixel_grid(size, size) - size // 2 - center).T
    across, along = np.cos(turn) * y + np.sin(turn) * x, np.cos(turn) * x - np.sin(turn) * y
    attention = softmax(-alpha * (elongation * across**2 + along**2 / elongation)).reshape(size, size)
    rows, columns = attention.sum(axis=1), attention.sum(axis=0)
    figure, axes = plot.drawing(7, 2.4, columns=3)
    plot.show_attention(axes[0], attention, "Attention of one query", query=(size // 2, size // 2))
    axes[1].plot(rows, color=plot.HEAD_COLORS[0], label="sums of the rows")
    axes[1].plot(columns, color=plot.HEAD_COLORS[1], label="sums of the columns")
    axes[1].legend(loc="upper right")
    axes[1].set(xlabel="row, column", ylim=(0, 1.6 * max(rows.max(), columns.max())))
    plot.show_attention(axes[2], np.outer(rows, columns), "Their product")
    return plot.picture(
        figure,
        alt="The attention of one query, the sums of its rows and of its columns as two curves, and the product of "
        "the two sums.",
    )
