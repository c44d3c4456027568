"""Pixel grids, the shifts of a kernel, and relative shifts.

One sign holds everywhere: a shift is *key minus query*, δ = k − q. Rows come before columns.
"""

import numpy as np
from jaxtyping import Float, Int

from attnconv import checks


def kernel_shifts(
    kernel_size: int | tuple[int, int], dilation: int | tuple[int, int] = 1
) -> Int[np.ndarray, "shifts 2"]:
    """Shifts of a kernel's taps, in the order in which the kernel is stored.

    Tap j of an axis with K taps and dilation d sits at `d·j − ⌊d(K−1)/2⌋`. For odd K this is the centred
    grid Δ_K; an even K takes its extra tap right or below, as `padding='same'` does in PyTorch.

    Args:
        kernel_size: K, or (rows, columns).
        dilation: distance between neighbouring taps in pixels, one number or (rows, columns).

    Returns:
        The K_rows · K_columns shifts, in pixels.

    Raises:
        ValueError: a size or dilation is not a positive integer.
    """
    sizes = checks.pair("kernel_size", kernel_size, least=1)
    steps = checks.pair("dilation", dilation, least=1)
    rows, columns = (d * np.arange(K) - d * (K - 1) // 2 for K, d in zip(sizes, steps, strict=True))
    return np.stack(np.meshgrid(rows, columns, indexing="ij"), axis=-1).reshape(-1, 2)


def pixel_grid(height: int, width: int) -> Int[np.ndarray, "pixels 2"]:
    """Positions (row, column) of the pixels of an image, in reading order.

    Args:
        height: rows of the image.
        width: columns of the image.

    Raises:
        ValueError: a size is not a positive integer.
    """
    height = checks.integer("height", height, least=1)
    width = checks.integer("width", width, least=1)
    return np.stack(np.indices((height, width)), axis=-1).reshape(-1, 2)


def relative_shifts(height: int, width: int, *, circular: bool = False) -> Int[np.ndarray, "query key 2"]:
    """Shift δ = k − q between every query pixel and every key pixel, in reading order.

    Args:
        height: rows of the image.
        width: columns of the image.
        circular: close the image to a torus. Each δ is then the representative with
            −⌊H/2⌋ ≤ δ₁ < ⌈H/2⌉, and the same for the columns.

    Raises:
        ValueError: a size is not a positive integer.
    """
    positions = pixel_grid(height, width)
    shifts = positions[None, :, :] - positions[:, None, :]
    if circular:
        half = np.array([height // 2, width // 2])
        shifts = (shifts + half) % [height, width] - half
    return shifts


def margins(shifts: Int[np.ndarray, "shifts 2"]) -> tuple[int, int, int, int]:
    """Width of the ring around an image in which every shift finds a key from every pixel.

    Args:
        shifts: δ, one (row, column) a line, in pixels.

    Returns:
        Rows above and below, columns to the left and to the right.

    Raises:
        ValueError: no integers, or the last axis does not hold two of them.
    """
    shifts = checks.coordinates("shifts", shifts).reshape(-1, 2)
    top, left = np.maximum(-shifts.min(axis=0), 0)
    bottom, right = np.maximum(shifts.max(axis=0), 0)
    return int(top), int(bottom), int(left), int(right)


def shift_image(
    image: Float[np.ndarray, "height width channels"],
    shift: tuple[int, int] | Int[np.ndarray, " 2"],
    padding: str = "zeros",
) -> Float[np.ndarray, "height width channels"]:
    """Look at every pixel's neighbour at distance δ: `shift_δ(X)_q = X_{q+δ}`.

    The picture's content moves by −δ: with δ = (0, 1) every pixel takes the value to its right, so that the
    picture moves one pixel to the left.

    Args:
        image: X, of shape (height, width, channels).
        shift: δ = (rows, columns), in pixels.
        padding: what stands outside the image: `zeros`, `replicate` (the nearest pixel), `reflect`
            (mirrored, without repeating the border) or `circular`.

    Raises:
        ValueError: wrong shape, NaN or infinite entries, a shift that is no pair of integers, an unknown
            padding.
    """
    image = checks.array("image", image, "height width channels")
    padding = checks.choice("padding", padding, checks.PADDINGS[:-1])
    rows, columns = checks.pair("shift", shift, least=-(2**31))
    height, width, _ = image.shape
    i, i_inside = _source(np.arange(height) + rows, height, padding)
    j, j_inside = _source(np.arange(width) + columns, width, padding)
    return image[np.ix_(i, j)] * (i_inside[:, None] & j_inside)[:, :, None]


def _source(index: np.ndarray, size: int, padding: str) -> tuple[np.ndarray, np.ndarray]:
    """Pixels of an axis of length `size` that stand for `index`, and which of them count."""
    counts = np.ones(index.shape, dtype=bool)
    if padding == "circular":
        return index % size, counts
    if padding == "reflect":
        period = max(2 * (size - 1), 1)
        index = index % period
        return np.minimum(index, period - index) if size > 1 else np.zeros_like(index), counts
    if padding == "zeros":
        counts = (index >= 0) & (index < size)
    return np.clip(index, 0, size - 1), counts
