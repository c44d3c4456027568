import numpy as np
import pytest
from sklearn.datasets import load_sample_image

from attnconv import images


@pytest.mark.parametrize("name", images.NAMES)
def test_photographs_are_those_of_scikit_learn(name):
    assert np.array_equal(images.photograph(name) * 255, load_sample_image(f"{name}.jpg"))


def test_scaling_averages_blocks():
    part = images.photograph("china", box=(20, 40, 60, 80))
    small = images.photograph("china", (6, 8), box=(20, 40, 60, 80))
    assert np.abs(small - part.reshape(6, 10, 8, 10, 3).mean(axis=(1, 3))).max() <= 1 / 255


def test_gray_is_luminance():
    colors = images.photograph("flower", box=(100, 200, 50, 50))
    gray = images.photograph("flower", box=(100, 200, 50, 50), gray=True)
    assert gray.shape == (50, 50, 1)
    assert np.abs(gray[..., 0] - colors @ [0.299, 0.587, 0.114]).max() <= 1 / 255


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"name": "cat"}, "name: expected one of china, flower, got 'cat'"),
        ({"box": (0, 0, 500, 10)}, r"box: expected a part of 427 × 640 pixels, got \(0, 0, 500, 10\)"),
        ({"box": (0, 0, 0, 10)}, "box: expected a part of 427 × 640 pixels"),
        ({"box": (-1, 0, 5, 10)}, "box: expected an integer of at least 0, got -1"),
        ({"box": (1, 2, 3)}, r"box: expected \(top, left, height, width\), got \(1, 2, 3\)"),
        ({"size": (0, 4)}, "size: expected an integer of at least 1, got 0"),
    ],
)
def test_errors_name_argument_expectation_and_value(options, message, no_signature_checks):
    with pytest.raises(ValueError, match=f"^{message}"):
        images.photograph(**options)
