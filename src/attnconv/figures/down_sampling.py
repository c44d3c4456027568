"""Chapter 12: squares of pixels become one token each."""

import numpy as np
from jaxtyping import Float

from attnconv import checks, plot
from attnconv.figures.core import Figure, encode_pixels

_LARGEST = 4  # side of the largest squares


def down_sampling(
    image: Float[np.ndarray, "height width 3"],
    *,
    pixel: tuple[int, int] = (0, 0),
    heads: int = 9,
    channels: int = 400,
) -> Figure:
    """Turn squares of pixels into tokens, follow one pixel, put the picture back, and read what a layer costs.

    Args:
        image: three channels, values between 0 and 1; 4 divides height and width.
        pixel: the pixel that is followed at the start, (row, column).
        heads: heads of the layer whose cost is told.
        channels: channels of its input and of its output.

    Raises:
        ValueError: an image of another form; a pixel outside; a size below 1.
    """
    image = checks.array("image", image, "height width channels", channels=3)
    height, width, _ = image.shape
    if height % _LARGEST or width % _LARGEST:
        raise ValueError(f"image: expected height and width divisible by {_LARGEST}, got {height} × {width}")
    row, column = checks.pair("pixel", pixel, least=0)
    if row >= height or column >= width:
        raise ValueError(f"pixel: expected one of {height} × {width}, got {(row, column)}")
    planes = image.reshape(height // 2, 2, width // 2, 2, 3).transpose(1, 0, 3, 2, 4).reshape(image.shape)
    return Figure(
        "down_sampling",
        {
            "image": encode_pixels(image),
            "pixel": [row, column],
            "heads": checks.integer("heads", heads, least=1),
            "channels": checks.integer("channels", channels, least=1),
        },
        alt=(
            "A picture cut into squares, the planes that hold the pixels of the squares, and the picture put back "
            "together without a difference. A slider sets the size of the squares, and a table tells how many "
            "tokens, map entries and multiplications are left."
        ),
        caption=(
            "Point at the picture, or use the arrow keys, to choose a pixel, framed in yellow; its square, framed "
            "in white, is one token. *The planes* show what the tokens hold: all upper left pixels of the squares, "
            "then the next ones. The small squares are the channels of the chosen token, by number. Move the "
            "picture: by a whole square, and every plane moves; by less, and the planes change places. The table "
            f"is for one layer with {heads} heads and {channels} channels. Every number is computed in this page."
        ),
        picture=plot.panels(
            [image, planes],
            [f"{height} × {width} pixels", f"4 planes of {height // 2} × {width // 2} tokens"],
            alt="A picture, and the four smaller pictures of its squares' pixels.",
        ),
    )
