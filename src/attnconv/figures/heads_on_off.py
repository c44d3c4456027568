"""Chapter 5: heads that look at one pixel each, switched on and off."""

import numpy as np
from jaxtyping import Float

from attnconv import checks, plot
from attnconv.figures.core import Figure, encode_pixels, named_kernels
from attnconv.reference import convolution
from attnconv.shifts import kernel_shifts


def heads_on_off(
    image: Float[np.ndarray, "height width 1"],
    kernels: dict[str, Float[np.ndarray, "3 3"]],
    *,
    query: tuple[int, int] | None = None,
) -> Figure:
    """Switch nine heads on and off, and compare their sum with a convolution.

    Head h has the weight of the kernel's tap f(h) and looks at q + f(h), or at q − f(h) when the reader asks for
    it. A head that would look outside the image looks at the nearest pixel.

    Args:
        image: one channel, values between 0 and 1.
        kernels: kernels to choose from, by name; the first is shown at the start.
        query: the pixel that asks at the start, (row, column); None takes the middle.

    Raises:
        ValueError: an image of more than one channel; a kernel that is not 3 × 3; no kernel; a query outside
            the image.
    """
    image = checks.array("image", image, "height width channels", channels=1)
    height, width, _ = image.shape
    kernels = named_kernels(kernels)
    row, column = (height // 2, width // 2) if query is None else checks.pair("query", query, least=0)
    if row >= height or column >= width:
        raise ValueError(f"query: expected a pixel of {height} × {width}, got {tuple(query)}")
    start, first = next(iter(kernels.items()))
    shifts = kernel_shifts(3)
    on = (shifts[:, 0] == 0) | (shifts[:, 1] == 0)  # a plus sign
    partial = np.where(on.reshape(3, 3), first, 0)
    shown = [convolution(image, k[:, :, None, None], padding="replicate") for k in (partial, first)]
    return Figure(
        "heads_on_off",
        {
            "image": encode_pixels(image),
            "shifts": shifts.tolist(),
            "kernels": {name: kernel.ravel().tolist() for name, kernel in kernels.items()},
            "start": start,
            "query": [row, column],
            "on": on.tolist(),
        },
        alt=(
            "Nine switches, one a head, arranged like the taps of a kernel; a photograph with a query pixel; the "
            "pixels at which the heads look from there; the sum of the heads that are on, the convolution, and "
            "what is missing between them. With all nine heads on nothing is missing. A check box makes every "
            "head look the opposite way; the sum then is the convolution of the kernel turned over."
        ),
        caption=(
            "Press a head to switch it on or off; its number is its weight. Point at the photograph, or use the "
            "arrow keys, to move the query q: the close-up shows it framed in white, and the one pixel each head "
            "looks at framed in the head's colour. Where a kernel has negative weights, mid-gray is zero. A head "
            "that would look outside takes the nearest pixel. With all nine on, nothing is missing. Then *read the "
            "lemma literally*, and try the kernels: for which is something missing again?"
        ),
        picture=plot.panels(
            [image, *shown],
            ["X, the photograph", "Five of the nine heads", "All nine: the convolution"],
            alt="A photograph, the sum of five heads, and the sum of nine heads, which is the convolution.",
        ),
    )
