"""Chapter 15: the window of a pixel on a grid of patches, and the blocks that carry it."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float
from matplotlib.colors import to_rgb
from matplotlib.patches import Rectangle

from attnconv import checks, plot
from attnconv.figures.core import Figure, encode_pixels
from attnconv.shifts import kernel_shifts
from attnconv.theory import patch_matrices, patch_shifts


def nine_neighbours(
    image: Float[np.ndarray, "height width channels"],
    patches: Sequence[int] = (1, 2, 3, 4, 6),
    *,
    kernel: int = 3,
    patch: int = 4,
    largest: int = 13,
) -> Figure:
    """Move a pixel on a grid of patches and see which patches its window touches and which entries of W_δ work.

    Args:
        image: one or three channels, values between 0 and 1.
        patches: the sizes P to choose from, in pixels; each must divide the height and the width of the image.
        kernel: K at the start.
        patch: P at the start, one of `patches`.
        largest: the largest K to choose, at most 15.

    Raises:
        ValueError: an image that is no whole number of patches; sizes that are no positive integers or too large.
    """
    image = checks.array("image", image, "height width channels")
    height, width, _ = image.shape
    patches = [checks.integer("patches", size, least=1) for size in patches]
    for size in patches:
        if height % size or width % size:
            raise ValueError(f"patches: expected divisors of {height} and {width}, got {size}")
    kernel, largest = checks.integer("kernel", kernel, least=1), checks.integer("largest", largest, least=1)
    if not kernel <= largest <= 15:
        raise ValueError(f"largest: expected a size from kernel={kernel} to 15, got {largest}")
    if patch not in patches:
        raise ValueError(f"patch: expected one of {', '.join(map(str, patches))}, got {patch!r}")
    # At the start the pixel is the last one of its patch, so that its window crosses two borders.
    pixel = [size // 2 // patch * patch + patch - 1 for size in (height, width)]
    pixel = [min(x, size - 1) for x, size in zip(pixel, (height, width), strict=True)]
    return Figure(
        "nine_neighbours",
        {
            "image": encode_pixels(image),
            "patches": patches,
            "largest": largest,
            "start": {"kernel": kernel, "patch": patch, "pixel": pixel},
        },
        alt=(
            "An image cut into patches, with the window of one output pixel, coloured by the patch it reads; "
            "beside it the blocks W_δ, laid out like the patches, with the entries that work for this pixel lit."
        ),
        caption=(
            "Drag the output pixel, or use the arrow keys; choose K and P. Every patch that a head of this patch "
            "looks at has a frame in the colour of its head, *solid* where the window of this pixel touches it. "
            "On the right, in the same places, are the blocks: rows are pixels that are read, columns pixels that "
            "are written. The column of the output pixel is lit. One tap is framed in both pictures: as the pixel "
            "it reads, and as an entry, which you can drag as well. Outside the image lies a ring of zeros."
        ),
        picture=_picture(image, kernel, patch, pixel),
    )


def _picture(image: np.ndarray, K: int, P: int, pixel: list[int]) -> plot.Picture:
    """The start of the figure, drawn once."""
    shifts = patch_shifts(K, P)
    colors = [plot.HEAD_COLORS[3 * ((i + 1) % 3) + (j + 1) % 3] for i, j in shifts]
    drawing, (left, right) = plot.drawing(7.0, 3.6, columns=2)
    plot.show_image(left, image, "The window of one pixel")
    for shift, color in zip(shifts, colors, strict=True):
        row, column = (x // P * P + P * int(d) - 0.5 for x, d in zip(pixel, shift, strict=True))
        left.add_patch(Rectangle((column, row), P, P, fill=False, edgecolor=color, linewidth=2))
    for row, column in kernel_shifts(K) + pixel:
        left.add_patch(Rectangle((column - 0.5, row - 0.5), 1, 1, color="#ffffff", alpha=0.6, linewidth=0))
    left.set(xlim=(-0.5, image.shape[1] - 0.5), ylim=(image.shape[0] - 0.5, -0.5))

    n, side = round(len(shifts) ** 0.5), P * P
    blocks = patch_matrices(np.ones((K, K, 1, 1)), P)
    tiles = np.full((n, side, n, side, 3), 0.96)
    for h, (block, color) in enumerate(zip(blocks, colors, strict=True)):
        tiles[h // n, :, h % n][block != 0] = to_rgb(color)
    plot.show_image(right, tiles.reshape(n * side, n * side, 3), "The blocks")
    for at in np.arange(1, n) * side - 0.5:
        right.axhline(at, color="#57606a", linewidth=1)
        right.axvline(at, color="#57606a", linewidth=1)
    return plot.picture(
        drawing,
        alt="A photograph with the window of one pixel and the patches around it; the blocks that belong to them.",
    )
