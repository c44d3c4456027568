"""Real pictures that need no download: the two photographs that ship with scikit-learn.

Both are CC BY 2.0, from Flickr: *china*, a pavilion by a lake, by danielbuechele; *flower*, a dahlia, by vultilion.
"""

from functools import lru_cache

import numpy as np
from jaxtyping import Float
from PIL import Image

from attnconv import checks

NAMES = ("china", "flower")


def photograph(
    name: str = "china",
    size: tuple[int, int] | None = None,
    *,
    box: tuple[int, int, int, int] | None = None,
    gray: bool = False,
) -> Float[np.ndarray, "height width channels"]:
    """A photograph as numbers between 0 and 1, channels last.

    Args:
        name: `china` or `flower`; both are 427 × 640 pixels.
        size: (height, width) to scale to, by averaging; None keeps the pixels.
        box: (top, left, height, width) of the part to take before scaling; None takes all.
        gray: one channel of luminance (ITU-R 601) instead of red, green and blue.

    Raises:
        ValueError: an unknown name, or a box or size that does not fit the photograph.
    """
    name = checks.choice("name", name, NAMES)
    picture = _load(name)
    height, width = picture.height, picture.width
    if box is not None:
        if len(box) != 4:
            raise ValueError(f"box: expected (top, left, height, width), got {box!r}")
        top, left, box_height, box_width = (checks.integer("box", n, least=0) for n in box)
        if not (0 < box_height <= height - top and 0 < box_width <= width - left):
            raise ValueError(f"box: expected a part of {height} × {width} pixels, got {tuple(box)}")
        picture = picture.crop((left, top, left + box_width, top + box_height))
    if gray:
        picture = picture.convert("L")
    if size is not None:
        rows, columns = checks.pair("size", size, least=1)
        picture = picture.resize((columns, rows), Image.Resampling.BOX)
    pixels = np.asarray(picture, dtype=np.float64) / 255
    return pixels[:, :, None] if gray else pixels


@lru_cache
def _load(name: str) -> Image.Image:
    from sklearn.datasets import load_sample_image  # its import takes a second

    return Image.fromarray(load_sample_image(f"{name}.jpg"))
