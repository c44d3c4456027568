"""Chapter 11: heads that learn a convolution, by gradient descent in the page."""

import numpy as np
from jaxtyping import Float

from attnconv import checks, plot
from attnconv.figures.core import Figure

_REACH = 8  # shifts that count, on either side of the query
_LOWEST, _HIGHEST = 2.0**-5, 8.0  # ends of the slider for α
_SETTINGS = {"rates": {"heads": 0.05, "weights": 0.02}, "decay": 1e-3}


def training_heads(
    kernel: Float[np.ndarray, "3 3 1 out_channels"],
    image: Float[np.ndarray, "height width 1"],
    *,
    alpha: float = 0.5,
    seed: int = 1,
) -> Figure:
    """Train a quadratic layer to imitate a convolution, on white noise or on a photograph.

    The page descends on the expected loss itself: no pictures are drawn at random. For the photograph it needs the
    autocorrelation alone.

    Args:
        kernel: what is to be imitated, from one channel to several.
        image: a photograph with one channel, at least 33 × 33 pixels, not constant.
        alpha: sharpness of the heads at the start, from 1/32 to 8.
        seed: of the first start, at least 0.

    Raises:
        ValueError: a kernel or an image of another shape; an image that is constant; a sharpness outside its range.
    """
    kernel = checks.array(
        "kernel", kernel, "rows columns in_channels out_channels", rows=3, columns=3, in_channels=1
    )
    image = checks.array("image", image, "height width channels", channels=1)
    least = 4 * _REACH + 1
    if min(image.shape[:2]) < least:
        raise ValueError(f"image: expected at least {least} × {least} pixels, got {image.shape[:2]}")
    if np.ptp(image) == 0:
        raise ValueError(f"image: expected a picture, got the constant {image[0, 0, 0]}")
    alpha = float(checks.array("alpha", alpha, ""))
    if not _LOWEST <= alpha <= _HIGHEST:
        raise ValueError(f"alpha: expected a sharpness from {_LOWEST} to {_HIGHEST}, got {alpha}")
    seed = checks.integer("seed", seed, least=0)
    return Figure(
        "training_heads",
        {
            "target": np.round(kernel.reshape(9, -1), 6).tolist(),
            "autocorrelation": np.round(_autocorrelation(image[:, :, 0]), 6).ravel().tolist(),
            "reach": _REACH,
            "alpha": alpha,
            "seed": seed,
            **_SETTINGS,
        },
        alt=(
            "The pixels around a query, with the centres of nine heads and circles around them; a map of what the "
            "layer still does wrong at each shift; the loss against the steps of training. Buttons train the layer "
            "and draw a new start. Controls choose the input, the number of heads and their sharpness at the start."
        ),
        caption=(
            "Press *Train*. Each colour is a head: a dot at its centre Δ, a solid circle around half of its mass, "
            "a dashed one around 90 %. The filled square is the query, the frame holds the nine taps of the "
            "kernel. Drag heads, before the training or in the midst of it. Switch the weight decay off, start "
            "with sharp heads, or change to a photograph. The gradients are computed in this page."
        ),
        picture=_still(),
    )


def _autocorrelation(image: np.ndarray) -> np.ndarray:
    """Autocorrelation of a picture closed to a torus, for shifts of up to twice the reach; 1 at the shift 0."""
    centered = image - image.mean()
    power = np.abs(np.fft.fft2(centered)) ** 2
    whole = np.fft.ifft2(power).real / (centered**2).sum()
    shifts = np.arange(-2 * _REACH, 2 * _REACH + 1)
    return whole[np.ix_(shifts % image.shape[0], shifts % image.shape[1])]


def _still() -> plot.Picture:
    """What stands in where scripts do not run: heads at the start and at the end."""
    rng = np.random.default_rng(3)
    grid = np.stack(np.meshgrid([-1, 0, 1], [-1, 0, 1], indexing="ij"), axis=-1).reshape(9, 2)
    figure, axes = plot.drawing(7, 3.5, columns=2)
    plot.show_centers(axes[0], np.clip(1.6 * rng.normal(size=(9, 2)), -4, 4), np.full(9, 0.5), "Before training")
    plot.show_centers(axes[1], grid + 0.03 * rng.normal(size=(9, 2)), np.full(9, 6.5), "After it")
    return plot.picture(
        figure,
        alt="Left, nine wide circles scattered around a query. Right, nine small ones on a grid of 3 × 3 pixels.",
    )
