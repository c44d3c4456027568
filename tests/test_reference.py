"""The reference against SciPy and PyTorch: random shapes and options, float64, to 1e-12."""

import numpy as np
import pytest
import scipy.ndimage
import scipy.signal
import scipy.special
import torch
from hypothesis import given
from hypothesis import strategies as st

from attnconv import checks, reference
from attnconv.shifts import pixel_grid, relative_shifts
from attnconv.theory import quadratic_encoding, quadratic_vector
from oracles import by_pytorch

TOLERANCE = {"rtol": 1e-12, "atol": 1e-12}
SEEDS = st.integers(0, 2**32 - 1)


@st.composite
def convolutions(draw):
    kernel = draw(st.tuples(st.integers(1, 5), st.integers(1, 5)))
    dilation = draw(st.tuples(st.integers(1, 3), st.integers(1, 3)))
    padding = draw(st.sampled_from(checks.PADDINGS))
    window = [d * (k - 1) + 1 for k, d in zip(kernel, dilation, strict=True)]
    # PyTorch reflects only inside the image, and without padding a window must fit.
    image = [draw(st.integers(w, w + 5)) for w in window]
    groups = draw(st.integers(1, 3))
    return {
        "image": image,
        "kernel": kernel,
        "in_channels": groups * draw(st.integers(1, 2)),
        "out_channels": groups * draw(st.integers(1, 2)),
        "options": {
            "padding": padding,
            "stride": draw(st.tuples(st.integers(1, 3), st.integers(1, 3))),
            "dilation": dilation,
            "groups": groups,
        },
        "bias": draw(st.booleans()),
        "seed": draw(SEEDS),
    }


@given(convolutions())
def test_convolution_equals_pytorch(case):
    rng = np.random.default_rng(case["seed"])
    options = case["options"]
    image = rng.normal(size=(*case["image"], case["in_channels"]))
    kernel = rng.normal(size=(*case["kernel"], case["in_channels"] // options["groups"], case["out_channels"]))
    bias = rng.normal(size=case["out_channels"]) if case["bias"] else None
    ours = reference.convolution(image, kernel, bias, **options)
    np.testing.assert_allclose(ours, by_pytorch(image, kernel, bias, **options), **TOLERANCE)


@given(st.integers(1, 9), st.integers(1, 9), st.sampled_from([1, 3, 5]), st.sampled_from([1, 3, 5]), SEEDS)
def test_convolution_equals_scipy(height, width, rows, columns, seed):
    rng = np.random.default_rng(seed)
    image, kernel = rng.normal(size=(height, width)), rng.normal(size=(rows, columns))

    def ours(padding):
        return reference.convolution(image[..., None], kernel[..., None, None], padding=padding)[..., 0]

    modes = {"zeros": "constant", "replicate": "nearest", "reflect": "mirror", "circular": "wrap"}
    for padding, mode in modes.items():
        np.testing.assert_allclose(ours(padding), scipy.ndimage.correlate(image, kernel, mode=mode), **TOLERANCE)
    if height >= rows and width >= columns:
        np.testing.assert_allclose(ours("none"), scipy.signal.correlate2d(image, kernel, "valid"), **TOLERANCE)


@given(st.integers(1, 4), st.integers(1, 5), SEEDS)
def test_softmax_equals_scipy(rows, columns, seed):
    rng = np.random.default_rng(seed)
    scores = rng.normal(scale=rng.choice([1, 30, 1000]), size=(rows, columns))
    scores[rng.random(scores.shape) < 0.3] = -np.inf
    scores[:, 0] = rng.normal(size=rows)
    np.testing.assert_allclose(reference.softmax(scores), scipy.special.softmax(scores, axis=-1), **TOLERANCE)


@given(st.integers(1, 8), st.integers(1, 8), st.integers(1, 4), st.integers(1, 4), st.booleans(), SEEDS)
def test_self_attention_equals_pytorch(queries, keys, in_channels, head_dim, masked, seed):
    """A mask is an additive score, so PyTorch's attention with zero queries sees our scores alone."""
    rng = np.random.default_rng(seed)
    scores, x = rng.normal(size=(queries, keys)), rng.normal(size=(keys, in_channels))
    if masked:
        scores[:, 1:][rng.random((queries, keys - 1)) < 0.4] = -np.inf
    w_val = rng.normal(size=(in_channels, head_dim))
    expected = torch.nn.functional.scaled_dot_product_attention(
        torch.zeros(1, queries, 2, dtype=torch.float64),
        torch.zeros(1, keys, 2, dtype=torch.float64),
        torch.from_numpy(x @ w_val)[None],
        attn_mask=torch.from_numpy(scores)[None],
    )
    np.testing.assert_allclose(reference.self_attention(scores, x, w_val), expected[0].numpy(), **TOLERANCE)


@given(st.integers(1, 9), st.integers(1, 4), st.integers(1, 4), st.booleans(), SEEDS)
def test_mhsa_equals_pytorch_with_its_weights(pixels, heads, head_dim, bias, seed):
    width = heads * head_dim
    torch.manual_seed(seed % 2**31)
    layer = torch.nn.MultiheadAttention(width, heads, bias=bias, batch_first=True, dtype=torch.float64)
    if bias:
        torch.nn.init.normal_(layer.out_proj.bias)  # the biases of queries, keys and values start at zero
    x = torch.randn(1, pixels, width, dtype=torch.float64)
    with torch.no_grad():
        expected = layer(x, x, x, need_weights=False)[0][0].numpy()

    w_qry, w_key, w_val = (
        w.reshape(heads, head_dim, width).transpose(0, 2, 1)
        for w in layer.in_proj_weight.detach().numpy().reshape(3, width, width)
    )
    scores = np.stack(
        [reference.content_scores(x[0].numpy(), w_qry[h], w_key[h], scale=head_dim**-0.5) for h in range(heads)]
    )
    b_out = layer.out_proj.bias.detach().numpy() if bias else None
    ours = reference.mhsa(scores, x[0].numpy(), w_val, layer.out_proj.weight.detach().numpy().T, b_out)
    np.testing.assert_allclose(ours, expected, **TOLERANCE)


@given(st.integers(1, 3), st.integers(1, 4), st.integers(1, 3), st.integers(1, 3), SEEDS)
def test_absolute_scores_are_four_terms(height, width, in_channels, key_dim, seed):
    rng = np.random.default_rng(seed)
    x, positions = rng.normal(size=(2, height * width, in_channels))
    w_qry, w_key = rng.normal(size=(2, in_channels, key_dim))
    ours = reference.absolute_scores(x, positions, w_qry, w_key)
    for q, k in np.ndindex(ours.shape):
        terms = [a[q] @ w_qry @ w_key.T @ b[k] for a in (x, positions) for b in (x, positions)]
        np.testing.assert_allclose(ours[q, k], sum(terms), **TOLERANCE)


@given(st.integers(1, 3), st.integers(1, 4), st.integers(1, 3), st.integers(1, 3), st.integers(1, 4), SEEDS)
def test_relative_scores_are_four_terms(height, width, in_channels, key_dim, position_dim, seed):
    rng = np.random.default_rng(seed)
    pixels = height * width
    x = rng.normal(size=(pixels, in_channels))
    encodings = rng.normal(size=(pixels, pixels, position_dim))
    w_qry, w_key = rng.normal(size=(2, in_channels, key_dim))
    w_key_position = rng.normal(size=(position_dim, key_dim))
    u, v = rng.normal(size=(2, key_dim))
    ours = reference.relative_scores(x, encodings, w_qry, w_key, w_key_position, u, v)
    for q, k in np.ndindex(ours.shape):
        content, position = w_key.T @ x[k], w_key_position.T @ encodings[q, k]
        query = w_qry.T @ x[q]
        expected = query @ content + query @ position + u @ content + v @ position
        np.testing.assert_allclose(ours[q, k], expected, **TOLERANCE)


@given(st.integers(1, 5), st.integers(1, 5), st.floats(-3, 3), st.floats(-3, 3), st.floats(-5, 5))
def test_quadratic_scores_come_from_the_quadratic_encoding(height, width, row, column, alpha):
    """v·r_δ and −α‖δ − Δ‖² give the same attention: they differ by a constant in the key."""
    shifts = relative_shifts(height, width)
    scores = reference.quadratic_scores(shifts, np.array([row, column]), alpha)
    products = quadratic_encoding(shifts) @ quadratic_vector(np.array([row, column]), alpha)
    np.testing.assert_allclose(products - scores, alpha * (row**2 + column**2), rtol=1e-12, atol=1e-9)
    np.testing.assert_allclose(
        reference.softmax(scores), scipy.special.softmax(products, axis=-1), rtol=1e-9, atol=1e-12
    )


@given(st.integers(1, 5), st.integers(1, 5), st.integers(1, 3), SEEDS)
def test_row_column_encoding_reads_the_middle_of_its_tables_at_zero(height, width, half, seed):
    rng = np.random.default_rng(seed)
    rows, columns = rng.normal(size=(2 * height - 1, half)), rng.normal(size=(2 * width - 1, half))
    encodings = reference.row_column_encoding(relative_shifts(height, width), rows, columns)
    positions = pixel_grid(height, width)
    for q, k in np.ndindex(height * width, height * width):
        row, column = positions[k] - positions[q]
        expected = np.concatenate([rows[height - 1 + row], columns[width - 1 + column]])
        assert np.array_equal(encodings[q, k], expected)


@given(st.integers(1, 6), st.integers(1, 6), st.integers(1, 3))
def test_sinusoidal_products_depend_on_the_shift_alone(height, width, quarter):
    positions = pixel_grid(height, width)
    encoding = reference.sinusoidal_encoding(positions, 4 * quarter)
    frequencies = 10_000.0 ** (-np.arange(quarter) / quarter)
    expected = np.cos(relative_shifts(height, width)[..., None] * frequencies).sum(axis=(-1, -2))
    np.testing.assert_allclose(encoding @ encoding.T, expected, **TOLERANCE)


IMAGE, KERNEL = np.zeros((4, 5, 2)), np.zeros((3, 3, 2, 4))
X, W = np.zeros((6, 2)), np.zeros((2, 3))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: reference.convolution(IMAGE[0], KERNEL), r"image: expected shape \(height, width, in_channels\)"),
        (
            lambda: reference.convolution(IMAGE, KERNEL[0]),
            r"kernel: expected shape \(kernel_height, .*, got \(3, 2, 4\)",
        ),
        (lambda: reference.convolution(IMAGE, KERNEL[:0]), "kernel: expected at least one entry on every axis"),
        (
            lambda: reference.convolution(IMAGE, KERNEL[:, :, :1]),
            r"kernel: .*in_channels_per_group=2.*got \(3, 3, 1, 4\)",
        ),
        (lambda: reference.convolution(IMAGE * np.nan, KERNEL), "image: expected finite numbers, got nan"),
        (lambda: reference.convolution(IMAGE, KERNEL + np.inf), "kernel: expected finite numbers, got inf"),
        (lambda: reference.convolution(IMAGE, KERNEL, np.zeros(3)), r"bias: .*out_channels=4.*got \(3,\)"),
        (
            lambda: reference.convolution(IMAGE, KERNEL, stride=-1),
            "stride: expected an integer of at least 1, got -1",
        ),
        (
            lambda: reference.convolution(IMAGE, KERNEL, stride=(1, 0)),
            "stride: expected an integer of at least 1, got 0",
        ),
        (
            lambda: reference.convolution(IMAGE, KERNEL, dilation=0),
            "dilation: expected an integer of at least 1, got 0",
        ),
        (
            lambda: reference.convolution(IMAGE, KERNEL, groups=3),
            "groups: expected a divisor of in_channels=2, got 3",
        ),
        (lambda: reference.convolution(IMAGE, KERNEL[:, :, :1, :3], groups=2), "groups: .*out_channels=3, got 2"),
        (
            lambda: reference.convolution(IMAGE, KERNEL, padding="full"),
            "padding: expected one of zeros, .* got 'full'",
        ),
        (
            lambda: reference.convolution(IMAGE, np.zeros((7, 3, 2, 4)), padding="none"),
            "kernel: expected a window of at most 4 × 5 pixels with padding 'none', got 7 × 3",
        ),
        (lambda: reference.softmax(np.array([[0.0, np.nan]])), "scores: expected finite numbers or -inf, got nan"),
        (lambda: reference.softmax(np.array([[0.0, np.inf]])), "scores: expected finite numbers or -inf, got inf"),
        (lambda: reference.softmax(np.array([[-np.inf]])), "scores: expected a finite score in every row"),
        (lambda: reference.softmax(np.array(1.0)), r"scores: expected shape \(axis0\), got \(\)"),
        (lambda: reference.self_attention(np.zeros((6, 5)), X, W), r"scores: .*key=6.*got \(6, 5\)"),
        (lambda: reference.self_attention(np.zeros((6, 6)), X, W.T), r"w_val: .*in_channels=2.*got \(3, 2\)"),
        (lambda: reference.mhsa(np.zeros((6, 6)), X, W[None], W), r"scores: expected shape \(head, query, key\)"),
        (lambda: reference.mhsa(np.zeros((2, 6, 6)), X, W[None], W), r"w_val: .*head=2.*got \(1, 2, 3\)"),
        (
            lambda: reference.mhsa(np.zeros((1, 6, 6)), X, W[None], W),
            r"w_out: .*head_times_head_dim=3.*got \(2, 3\)",
        ),
        (lambda: reference.mhsa(np.zeros((1, 6, 6)), X, W[None], W.T, np.zeros(9)), r"b_out: .*out_channels=2"),
        (lambda: reference.content_scores(X, W, np.zeros((2, 4))), r"w_key: .*key_dim=3.*got \(2, 4\)"),
        (lambda: reference.content_scores(X, W, W, scale=np.nan), "scale: expected finite numbers, got nan"),
        (lambda: reference.absolute_scores(X, X[:4], W, W), r"positions: .*pixels=6.*got \(4, 2\)"),
        (
            lambda: reference.relative_scores(X, np.zeros((5, 6, 3)), W, W, np.eye(3), np.zeros(3), np.zeros(3)),
            r"encodings: .*query=6.*got \(5, 6, 3\)",
        ),
        (
            lambda: reference.relative_scores(X, np.zeros((6, 6, 3)), W, W, np.eye(2), np.zeros(3), np.zeros(3)),
            r"w_key_position: .*position_dim=3, key_dim=3.*got \(2, 2\)",
        ),
        (
            lambda: reference.relative_scores(X, np.zeros((6, 6, 3)), W, W, np.eye(3), np.zeros(2), np.zeros(3)),
            r"u: .*key_dim=3.*got \(2,\)",
        ),
        (lambda: reference.quadratic_scores(np.zeros((3, 2)), np.zeros(2), 1.0), "shifts: expected integers"),
        (
            lambda: reference.quadratic_scores(np.zeros((3, 2), int), np.zeros(3), 1.0),
            r"center: .*coordinate=2.*got \(3,\)",
        ),
        (
            lambda: reference.quadratic_scores(np.zeros((3, 2), int), np.zeros(2), np.inf),
            "alpha: expected finite numbers",
        ),
        (
            lambda: reference.row_column_encoding(relative_shifts(2, 2), np.zeros((4, 1)), np.zeros((3, 1))),
            "rows: expected an odd number of entries, at least 3 for shifts up to 1, got 4",
        ),
        (
            lambda: reference.row_column_encoding(relative_shifts(2, 3), np.zeros((3, 1)), np.zeros((3, 1))),
            "columns: expected an odd number of entries, at least 5 for shifts up to 2, got 3",
        ),
        (lambda: reference.sinusoidal_encoding(pixel_grid(2, 2), 6), "dim: expected a multiple of 4, got 6"),
        (
            lambda: reference.sinusoidal_encoding(pixel_grid(2, 2), 4, longest=0.0),
            "longest: expected a positive number, got 0.0",
        ),
        (lambda: quadratic_encoding(np.zeros((3, 3), int)), "shifts: expected integers with"),
        (lambda: quadratic_vector(np.zeros(2), np.nan), "alpha: expected finite numbers, got nan"),
    ],
)
def test_errors_name_argument_expectation_and_value(call, message, no_signature_checks):
    with pytest.raises(ValueError, match=f"^{message}"):
        call()
