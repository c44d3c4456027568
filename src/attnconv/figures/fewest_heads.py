"""Chapter 8: the fewest heads that compute a kernel."""

import numpy as np
from jaxtyping import Float

from attnconv import checks, plot
from attnconv.figures.core import Figure, encode_pixels
from attnconv.reference import convolution
from attnconv.shifts import kernel_shifts
from attnconv.theory import decompose_heads


def fewest_heads(
    image: Float[np.ndarray, "height width channels"],
    kernels: dict[str, Float[np.ndarray, "3 3"] | Float[np.ndarray, "3 3 2"]],
) -> Figure:
    """Edit a 3 × 3 kernel with one or two output channels and see the fewest heads that compute it.

    Args:
        image: one channel, values between 0 and 1.
        kernels: kernels to choose from, by name, 3 × 3 with one output channel or 3 × 3 × 2 with two; the first
            is shown at the start.

    Raises:
        ValueError: an image of more than one channel; no kernel, or one of another shape, or with weights beyond
            −5 to 5.
    """
    image = checks.array("image", image, "height width channels", channels=1)
    if not kernels:
        raise ValueError("kernels: expected at least one, got none")
    tables = {}
    for name, kernel in kernels.items():
        kernel = np.asarray(kernel, dtype=np.float64)
        if kernel.shape not in ((3, 3), (3, 3, 2)):
            raise ValueError(f"kernels[{name!r}]: expected shape (3, 3) or (3, 3, 2), got {kernel.shape}")
        kernel = checks.array(f"kernels[{name!r}]", kernel.reshape(3, 3, -1), "rows columns channels")
        if (largest := np.abs(kernel).max()) > 5:
            raise ValueError(f"kernels[{name!r}]: expected weights from −5 to 5, got one of magnitude {largest}")
        tables[name] = kernel
    start, first = next(iter(tables.items()))
    whole = np.abs(convolution(image, first[:, :, None, :])[:, :, :1])
    patterns, _ = decompose_heads(first[:, :, None, :])
    seen = [convolution(image, pattern[:, :, None, None]) for pattern in patterns]
    return Figure(
        "fewest_heads",
        {
            "image": encode_pixels(image),
            "shifts": kernel_shifts(3).tolist(),
            "kernels": {name: table.reshape(9, -1).T.tolist() for name, table in tables.items()},
            "start": start,
        },
        alt=(
            "A 3 × 3 kernel with one or two output channels; its nine taps as points on a line or in a plane; the "
            "attention patterns of the fewest heads that compute it, what each head sees of a photograph, and "
            "their weighted sum beside the convolution."
        ),
        caption=(
            "Choose a kernel, or change a weight: click a tap and use the slider, drag the tap up or down, or drag "
            "its point. Arrows show the directions of the heads' matrices; every point must be a sum of "
            "non-negative multiples of the arrows. With a *second output channel* the points move in a plane: two "
            "heads are enough as long as all points lie on one side of a line through zero. Points at zero do not "
            "count."
        ),
        picture=plot.panels(
            [image, *seen, whole],
            ["X, the photograph", *(f"Head {h + 1} sees" for h in range(len(seen))), "The convolution"],
            alt="A photograph, what each head sees of it, and their weighted sum, the convolution, in magnitude.",
        ),
    )
