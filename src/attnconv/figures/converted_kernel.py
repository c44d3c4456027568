"""Chapter 9: a kernel of the reader's own, with every option, and the attention layer it becomes."""

import numpy as np
from jaxtyping import Float

from attnconv import checks, plot
from attnconv.figures.core import Figure, encode_pixels
from attnconv.reference import convolution

LARGEST = 5  # taps a side
MOST_DILATED = 3  # as far as the slider goes


def converted_kernel(
    image: Float[np.ndarray, "height width channels"], kernels: dict[str, Float[np.ndarray, "rows columns"]]
) -> Figure:
    """Set the options of a convolution and point at a query of the layer it becomes.

    Args:
        image: one channel, values between 0 and 1; at least 7 × 7 pixels, so that every ring can be mirrored.
        kernels: square kernels of 1 to 5 taps a side to choose from, by name; the first is shown at the start.

    Raises:
        ValueError: an image of more than one channel or too small; a kernel of another shape; no kernel.
    """
    image = checks.array("image", image, "height width channels", channels=1)
    least = MOST_DILATED * (LARGEST - 1) // 2 + 1
    if min(image.shape[:2]) < least:
        height, width, _ = image.shape
        raise ValueError(f"image: expected at least {least} × {least} pixels, got {height} × {width}")
    if not kernels:
        raise ValueError("kernels: expected at least one, got none")
    kernels = {name: _square(f"kernels[{name!r}]", kernel) for name, kernel in kernels.items()}
    start, first = next(iter(kernels.items()))
    output = convolution(image, first[:, :, None, None])
    ring = (len(first) - 1) // 2, len(first) // 2
    padded = np.pad(image, (ring, ring, (0, 0)))
    span = np.abs(output).max() or 1.0
    figure, axes = plot.drawing(7, 2.6, columns=3)
    plot.show_image(axes[0], padded, "X with its ring")
    for ax, title in zip(axes[1:], ["Attention", "Convolution"], strict=True):
        plot.show_image(ax, output, title, signed=bool(first.min() < 0), largest=span)
    return Figure(
        "converted_kernel",
        {
            "image": encode_pixels(image),
            "kernels": {name: kernel.ravel().tolist() for name, kernel in kernels.items()},
            "start": start,
        },
        alt=(
            "A kernel; the padded image with a coloured square on each pixel where a head of the chosen query "
            "looks; the attention map of one head; the output of the attention layer beside that of the "
            "convolution, and their largest difference as a number."
        ),
        caption=(
            "Point at an output, or use the arrow keys, to move the query, framed in white. The squares on the "
            "keys show where its heads look, in the colour of their tap; the dashed line is the border of the "
            "image. Change the options, press a tap to choose its head and set its weight. Then soften the heads: "
            "the map of the chosen one spreads, and the difference grows."
        ),
        picture=plot.picture(
            figure,
            alt="An image with a ring around it, and twice the same output: of attention and of a convolution.",
        ),
    )


def _square(name: str, kernel: np.ndarray) -> np.ndarray:
    kernel = checks.array(name, kernel, "rows columns")
    if kernel.shape[0] != kernel.shape[1] or kernel.shape[0] > LARGEST:
        raise ValueError(f"{name}: expected a square of at most {LARGEST} × {LARGEST} taps, got {kernel.shape}")
    return kernel
