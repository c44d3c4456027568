"""Chapter 7: the theorem with its conditions broken one by one."""

import numpy as np
from jaxtyping import Float

from attnconv import checks, plot
from attnconv.figures.core import Figure, encode_pixels
from attnconv.reference import convolution
from attnconv.shifts import kernel_shifts


def fine_print(
    image: Float[np.ndarray, "height width 3"], kernels: dict[str, Float[np.ndarray, "3 3 3 3"]]
) -> Figure:
    """Break the conditions of Theorem 1 and see where the layer differs from the convolution.

    Args:
        image: three channels, values between 0 and 1.
        kernels: kernels to choose from, by name, from three channels to three; the first is shown at the start.

    Raises:
        ValueError: an image without three channels; a kernel of another shape; no kernel.
    """
    image = checks.array("image", image, "height width channels", channels=3)
    if not kernels:
        raise ValueError("kernels: expected at least one, got none")
    sizes = {"rows": 3, "columns": 3, "in_channels": 3, "out_channels": 3}
    kernels = {
        name: checks.array(f"kernels[{name!r}]", kernel, "rows columns in_channels out_channels", **sizes)
        for name, kernel in kernels.items()
    }
    start, first = next(iter(kernels.items()))
    wanted = convolution(image, first)
    bare = convolution(image, first, padding="replicate")
    return Figure(
        "fine_print",
        {
            "image": encode_pixels(image),
            "shifts": kernel_shifts(3).tolist(),
            "kernels": {name: _pieces(kernel) for name, kernel in kernels.items()},
            "start": start,
        },
        alt=(
            "A photograph, the output of nine attention heads, the convolution they should compute, and a map of "
            "the error. Controls break the conditions of the theorem: which keys the heads have at the border, "
            "their width, their sharpness, and which heads are there."
        ),
        caption=(
            "*Break* chooses a condition to break; every other control can be moved alone. A bare border "
            "errs in a frame, narrow heads err in the colours, soft heads blur, and a missing head leaves its "
            "own shift behind. The error map has a logarithmic scale; it is dark where layer and "
            "convolution agree to three digits. Press a head, named by its shift, to remove it."
        ),
        picture=plot.panels(
            [image, bare, wanted, np.abs(bare - wanted).max(axis=-1)],
            ["X", "Self-attention, bare", "Convolution", "Error"],
            alt="A photograph, the output of the layer, the convolution with zero padding; the error is a frame.",
        ),
    )


def _pieces(kernel: np.ndarray) -> list:
    """Of every tap the terms of its singular value decomposition, largest first, each flat."""
    left, values, right = np.linalg.svd(kernel.reshape(9, 3, 3))
    terms = np.einsum("tin,tn,tno->tnio", left, values, right)
    return terms.reshape(9, 3, 9).tolist()
