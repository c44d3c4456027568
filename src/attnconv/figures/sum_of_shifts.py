"""Chapter 1: a convolution as a sum of shifted copies."""

import numpy as np
from jaxtyping import Float

from attnconv import checks, plot
from attnconv.figures.core import Figure, encode_pixels, named_kernels
from attnconv.reference import convolution
from attnconv.shifts import kernel_shifts, shift_image


def sum_of_shifts(
    image: Float[np.ndarray, "height width channels"], kernels: dict[str, Float[np.ndarray, "3 3"]]
) -> Figure:
    """Change the taps of a 3 × 3 kernel and add its nine terms one by one.

    Args:
        image: one channel, values between 0 and 1.
        kernels: kernels to choose from, by name; the first is shown at the start.

    Raises:
        ValueError: an image of more than one channel; a kernel that is not 3 × 3; no kernel.
    """
    image = checks.array("image", image, "height width channels", channels=1)
    kernels = named_kernels(kernels)
    start, first = next(iter(kernels.items()))
    shifts = kernel_shifts(3)
    term = shift_image(image, (-1, -1)) * first[0, 0]
    whole = convolution(image, first[:, :, None, None])
    return Figure(
        "sum_of_shifts",
        {
            "image": encode_pixels(image),
            "shifts": shifts.tolist(),
            "kernels": {name: kernel.ravel().tolist() for name, kernel in kernels.items()},
            "start": start,
        },
        alt=(
            "A 3 × 3 kernel beside a photograph, its copy shifted and weighted by the last tap, the sum of the "
            "terms so far, and the whole convolution. Sliders set the number of terms and the weight of a tap."
        ),
        caption=(
            "Choose a tap with a click or the arrow keys; drag it up or down, or use the slider, to change its "
            "weight. *Terms in the sum* adds the shifted copies one after the other until the sum is the "
            "convolution. Point at the photograph to move the query q, framed in white; the coloured frame is "
            "the key q + δ that the last term reads."
        ),
        picture=plot.panels(
            [image, term, whole],
            ["X, the photograph", "One of the nine terms", "Their sum, the convolution"],
            alt="A photograph, one shifted and weighted copy of it, and the sum of nine such copies.",
        ),
    )
