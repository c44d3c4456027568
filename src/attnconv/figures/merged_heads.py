"""Chapter 4: the matrix of a head, its rank, and its gauge."""

import numpy as np
from jaxtyping import Float

from attnconv import checks, plot, theory
from attnconv.figures.core import Figure


def merged_heads(targets: dict[str, Float[np.ndarray, "in_channels out_channels"]], *, head_dim: int = 3) -> Figure:
    """Change the width of a head and the coordinates inside it, and watch its matrix W^(h) = W_val^(h) W_out^(h).

    Args:
        targets: the matrix wanted of each head, by name; all of one shape. The first head is shown at the start.
        head_dim: width D_h at the start, at most the smaller side of the matrices.

    Raises:
        ValueError: no target, or more than there are head colours; matrices of different shapes; a width that is
            too large.
    """
    if not 1 <= len(targets) <= len(plot.HEAD_COLORS):
        raise ValueError(f"targets: expected 1 to {len(plot.HEAD_COLORS)} heads, got {len(targets)}")
    name, first = next(iter(targets.items()))
    first = checks.array(f"targets[{name!r}]", first, "in_channels out_channels")
    in_channels, out_channels = first.shape
    sizes = {"in_channels": in_channels, "out_channels": out_channels}
    targets = {
        name: checks.array(f"targets[{name!r}]", matrix, "in_channels out_channels", **sizes)
        for name, matrix in targets.items()
    }
    head_dim = checks.integer("head_dim", head_dim, least=1)
    if head_dim > min(in_channels, out_channels):
        raise ValueError(f"head_dim: expected at most {min(in_channels, out_channels)}, got {head_dim}")
    w_val, w_out, error = theory.split_head_matrix(first, head_dim, best=True)
    figure, axes = plot.drawing(7, 2.1, columns=4)
    parts = {"W_val": w_val, "Its rows of W_out": w_out, "Their product": w_val @ w_out, "Wanted": first}
    for ax, (title, matrix) in zip(axes, parts.items(), strict=True):
        plot.show_matrix(ax, matrix, title, digits=None)
    return Figure(
        "merged_heads",
        {"targets": {name: matrix.tolist() for name, matrix in targets.items()}, "start": head_dim},
        alt=(
            f"Matrices of one of {len(targets)} heads as coloured squares: its value matrix, its rows of the "
            "output matrix, their product, the matrix that is wanted, and the difference; beside them bars for the "
            "singular values. Controls choose the head, its width, and the coordinates between the two factors."
        ),
        caption=(
            "Choose a head and narrow it: the product keeps as many singular values, the filled bars, as the head "
            "is wide. Then turn or stretch the gauge. The two factors change, the product and its bars do not. On "
            "the left stands the output matrix of the whole layer, with the rows of this head framed. Orange is "
            "positive, purple negative."
        ),
        picture=plot.picture(
            figure,
            alt=f"{name}: a value matrix, its rows of the output matrix, and their product beside the matrix "
            f"that is wanted, from which it differs by {error:.2f}.",
        ),
    )
