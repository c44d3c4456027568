"""The front page: nine quadratic heads become a convolution."""

import numpy as np
from jaxtyping import Float

from attnconv import checks, plot
from attnconv.figures.core import Figure, encode_pixels, named_kernels
from attnconv.reference import convolution


def nine_heads(
    image: Float[np.ndarray, "height width channels"], kernels: dict[str, Float[np.ndarray, "3 3"]]
) -> Figure:
    """Sharpen nine attention heads centred on the 3 × 3 shifts and compare their sum with a convolution.

    Args:
        image: three channels, values between 0 and 1; every channel is treated alike.
        kernels: kernels to choose from, by name; the first is shown at the start.

    Raises:
        ValueError: an image without three channels; a kernel that is not 3 × 3; no kernel.
    """
    image = checks.array("image", image, "height width channels", channels=3)
    kernels = named_kernels(kernels)
    start, first = next(iter(kernels.items()))
    result = convolution(image, first[:, :, None, None] * np.eye(3), padding="replicate")
    return Figure(
        "nine_heads",
        {
            "image": encode_pixels(image),
            "kernels": {name: kernel.ravel().tolist() for name, kernel in kernels.items()},
            "start": start,
        },
        alt=(
            "Nine attention heads around a pixel, the output of the self-attention layer they form, and the "
            "output of a convolution. As the heads sharpen, the two outputs become the same picture."
        ),
        caption=(
            "Nine heads of one self-attention layer, each a colour. Soft heads see a blur; sharp heads see one "
            "pixel each, and the layer *is* the convolution."
        ),
        picture=plot.panels(
            [image, result],
            ["A photograph", "Convolution, or nine sharp heads"],
            alt="A photograph, and the photograph after a convolution.",
        ),
    )
