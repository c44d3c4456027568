import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from attnconv.shifts import kernel_shifts, pixel_grid, relative_shifts, shift_image

SIZES = st.integers(1, 6)


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel")
@given(SIZES, SIZES, st.integers(1, 4), st.integers(1, 4))
def test_kernel_shifts_are_where_pytorch_puts_its_taps(rows, columns, row_dilation, column_dilation):
    """A kernel with one tap is a shift; PyTorch's padding='same' must move an image by that shift."""
    height, width = 2 * rows * row_dilation + 1, 2 * columns * column_dilation + 1
    image = np.arange(1.0, height * width + 1).reshape(height, width, 1)
    for tap, shift in enumerate(kernel_shifts((rows, columns), (row_dilation, column_dilation))):
        kernel = torch.zeros(1, 1, rows * columns, dtype=torch.float64)
        kernel[..., tap] = 1
        expected = torch.nn.functional.conv2d(
            torch.from_numpy(image[None, None, :, :, 0]),
            kernel.reshape(1, 1, rows, columns),
            padding="same",
            dilation=(row_dilation, column_dilation),
        )
        assert np.array_equal(shift_image(image, shift)[..., 0], expected[0, 0].numpy())


@given(SIZES, SIZES)
def test_relative_shifts_are_key_minus_query(height, width):
    positions = pixel_grid(height, width)
    shifts = relative_shifts(height, width)
    for q, k in np.ndindex(height * width, height * width):
        assert shifts[q, k].tolist() == [positions[k][0] - positions[q][0], positions[k][1] - positions[q][1]]


@given(SIZES, SIZES)
def test_circular_shifts_lead_to_the_same_key_by_the_short_way(height, width):
    size = np.array([height, width])
    plain, circular = relative_shifts(height, width), relative_shifts(height, width, circular=True)
    assert not ((plain - circular) % size).any()
    assert (circular >= -(size // 2)).all()
    assert (circular < -(-size // 2)).all()


@given(
    SIZES,
    SIZES,
    st.integers(-9, 9),
    st.integers(-9, 9),
    st.sampled_from(["replicate", "reflect", "circular", "zeros"]),
)
def test_shift_image_reads_the_padded_image(height, width, rows, columns, padding):
    image = np.random.default_rng(0).normal(size=(height, width, 2))
    mode = {"zeros": "constant", "replicate": "edge", "reflect": "reflect", "circular": "wrap"}[padding]
    padded = np.pad(image, ((9, 9), (9, 9), (0, 0)), mode=mode)
    expected = padded[9 + rows : 9 + rows + height, 9 + columns : 9 + columns + width]
    assert np.array_equal(shift_image(image, (rows, columns), padding), expected)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: kernel_shifts(0), "kernel_size: expected an integer of at least 1, got 0"),
        (lambda: kernel_shifts(-3), "kernel_size: expected an integer of at least 1, got -3"),
        (lambda: kernel_shifts((3, 3, 3)), r"kernel_size: expected one integer or two, got \(3, 3, 3\)"),
        (lambda: kernel_shifts("33"), "kernel_size: expected an integer of at least 1, got '33'"),
        (lambda: kernel_shifts(3, dilation=0), "dilation: expected an integer of at least 1, got 0"),
        (lambda: kernel_shifts(3, dilation=1.5), "dilation: expected an integer of at least 1, got 1.5"),
        (lambda: pixel_grid(0, 4), "height: expected an integer of at least 1, got 0"),
        (lambda: relative_shifts(4, True), "width: expected an integer of at least 1, got True"),
        (lambda: shift_image(np.zeros((2, 2)), (0, 0)), r"image: expected shape \(height, width, channels\), got"),
        (lambda: shift_image(np.zeros((2, 0, 1)), (0, 0)), "image: expected at least one entry on every axis"),
        (
            lambda: shift_image(np.full((2, 2, 1), np.nan), (0, 0)),
            r"image: expected finite .* nan at index \(0, 0, 0\)",
        ),
        (lambda: shift_image(np.zeros((2, 2, 1)), (0.5, 0)), "shift: expected an integer .* got 0.5"),
        (lambda: shift_image(np.zeros((2, 2, 1)), (0, 0), "same"), "padding: expected one of zeros, .* got 'same'"),
        (lambda: shift_image("photo", (0, 0)), "image: expected an array of real numbers, got 'photo'"),
    ],
)
def test_errors_name_argument_expectation_and_value(call, message, no_signature_checks):
    with pytest.raises(ValueError, match=f"^{message}"):
        call()
