"""Chapter 6: one quadratic head, and the layer that nine of them make."""

import numpy as np
from jaxtyping import Float
from matplotlib.patches import Circle

from attnconv import checks, plot, theory
from attnconv.figures.core import Figure, encode_pixels, named_kernels
from attnconv.reference import convolution, quadratic_scores, softmax
from attnconv.shifts import pixel_grid

_SIZE = 9  # of the neighbourhood
_LOWEST, _HIGHEST = 0.125, 32.0  # ends of the slider for α


def sharp_head(
    image: Float[np.ndarray, "height width channels"],
    kernels: dict[str, Float[np.ndarray, "3 3"]],
    *,
    center: tuple[float, float] = (-1.0, 2.0),
    alpha: float = 1.0,
) -> Figure:
    """Aim a quadratic head, sharpen it, and compare nine such heads with a convolution.

    Args:
        image: one channel, values between 0 and 1.
        kernels: kernels to choose from, by name; the first is shown at the start.
        center: Δ of the head at the start, in pixels, between −4 and 4 on each axis.
        alpha: sharpness at the start, in 1/pixels², from 0.125 to 32.

    Raises:
        ValueError: an image of more than one channel; a kernel that is not 3 × 3; no kernel; a centre outside
            the neighbourhood; a sharpness outside its range.
    """
    image = checks.array("image", image, "height width channels", channels=1)
    kernels = named_kernels(kernels)
    center = checks.array("center", center, "coordinate", coordinate=2)
    if np.abs(center).max() > _SIZE // 2:
        raise ValueError(f"center: expected a shift within {_SIZE // 2} pixels, got {tuple(center.tolist())}")
    alpha = float(checks.array("alpha", alpha, ""))
    if not _LOWEST <= alpha <= _HIGHEST:
        raise ValueError(f"alpha: expected a sharpness from {_LOWEST} to {_HIGHEST}, got {alpha}")
    start, first = next(iter(kernels.items()))
    return Figure(
        "sharp_head",
        {
            "image": encode_pixels(image),
            "kernels": {name: kernel.ravel().tolist() for name, kernel in kernels.items()},
            "start": start,
            "center": center.tolist(),
            "alpha": alpha,
            "size": _SIZE,
        },
        alt=(
            "The attention of one head over the 9 × 9 pixels around its query, with circles that hold 50 % and "
            "90 % of a Gaussian. Below, a photograph, the output of nine such heads, the convolution, and their "
            "difference. Sliders set the sharpness and the centre of the head."
        ),
        caption=(
            "The white frame is the query, the cross is the centre Δ. Drag it, or use the arrow keys or the "
            "sliders; it may stand between pixels. The orange frame is the pixel nearest to it. The circles "
            "hold 50 % (solid) and 90 % (dashed) of a Gaussian. Sharpen the head, and the orange frame takes "
            "everything. Below, nine heads of the same sharpness, centred on the shifts of a 3 × 3 kernel, come "
            "as close to the convolution as the bound promises. Every number is computed in this page."
        ),
        picture=_still(image, first, center, alpha),
    )


def _still(image: np.ndarray, kernel: np.ndarray, center: np.ndarray, alpha: float) -> plot.Picture:
    """What stands in where scripts do not run."""
    middle = _SIZE // 2
    attention = softmax(quadratic_scores(pixel_grid(_SIZE, _SIZE) - middle, center, alpha))
    exact = convolution(image, kernel[:, :, None, None], padding="replicate")
    layer = theory.conv_to_mhsa(kernel[:, :, None, None], padding="replicate", alpha=alpha)(image)
    figure, axes = plot.drawing(7, 2.1, columns=4)
    plot.show_attention(
        axes[0], attention.reshape(_SIZE, _SIZE), f"One head, α = {alpha:g}", query=(middle, middle)
    )
    for share, style in ((0.5, "-"), (0.9, "--")):
        radius = np.sqrt(-np.log(1 - share) / alpha)
        axes[0].add_patch(Circle(center[::-1] + middle, radius, fill=False, edgecolor="white", linestyle=style))
    plot.show_image(axes[1], image, "X")
    plot.show_image(axes[2], layer, "Nine heads", signed=bool((kernel < 0).any()))
    plot.show_image(axes[3], exact, "Convolution", signed=bool((kernel < 0).any()))
    return plot.picture(
        figure,
        alt="The attention of one head with two circles around its centre, a photograph, the output of nine heads, "
        "and the convolution, which is sharper.",
    )
