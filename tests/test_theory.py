"""The constructions against PyTorch, SciPy and fifty digits of mpmath; never against the code under test."""

import mpmath
import numpy as np
import pytest
import scipy.ndimage
import torch
from hypothesis import given
from hypothesis import strategies as st

from attnconv import checks, theory
from attnconv.shifts import relative_shifts
from oracles import by_pytorch

SEEDS = st.integers(0, 2**32 - 1)
TOLERANCE = {"rtol": 0, "atol": 1e-10}


# ---- encodings ----------------------------------------------------------------------------------------------


@given(st.integers(1, 5), st.integers(1, 5))
def test_circle_encoding_selects_every_shift(height, width):
    shifts = relative_shifts(height, width)
    encodings, gap = theory.circle_encoding(shifts)
    np.testing.assert_allclose(np.linalg.norm(encodings, axis=-1), 1, rtol=1e-12)
    different, first = np.unique(shifts.reshape(-1, 2), axis=0, return_index=True)
    points = encodings.reshape(-1, 2)[first]
    scores = points @ points.T
    assert scores.argmax(axis=1).tolist() == list(range(len(different)))
    if len(different) > 1:
        others = scores - 9 * np.eye(len(different))
        np.testing.assert_allclose(1 - others.max(), gap, rtol=1e-6)
    else:
        assert gap == np.inf


# ---- sharpness ----------------------------------------------------------------------------------------------


def leakage_by_summation(alpha):
    """Weights of all pixels but one over weights of all, summed along the two axes in 150 digits."""
    with mpmath.workdps(150):
        alpha = mpmath.mpf(alpha)
        farthest = int(mpmath.sqrt(350 / alpha)) + 2
        axis = mpmath.fsum(mpmath.exp(-alpha * n * n) for n in range(-farthest, farthest + 1))
        return 1 - 1 / axis**2


ALPHAS = [1e-2, 0.05, 0.3, 0.5, 0.999, 1.0, 1.001, 2.0, 5.0, 10.0, 17.0, 46.0, 104.0, 150.0, 200.0]


@pytest.mark.parametrize("alpha", ALPHAS)
def test_leakage_equals_direct_summation(alpha):
    expected = leakage_by_summation(alpha)
    assert abs(theory.leakage(alpha) / expected - 1) < 1e-12


@given(st.floats(1e-2, 200))
def test_leakage_equals_the_theta_function_of_mpmath(alpha):
    with mpmath.workdps(150):
        expected = 1 - 1 / mpmath.jtheta(3, 0, mpmath.exp(-mpmath.mpf(alpha))) ** 2
    assert abs(theory.leakage(alpha) / expected - 1) < 1e-12


@given(st.floats(1e-2, 200))
def test_sharpness_inverts_leakage(alpha):
    assert abs(theory.sharpness(theory.leakage(alpha)) / alpha - 1) < 1e-9


@given(st.floats(1e-300, 1 - 1e-12, exclude_min=True))
def test_leakage_inverts_sharpness(eps):
    assert abs(theory.leakage(theory.sharpness(eps)) / eps - 1) < 1e-9


def test_leakage_and_sharpness_take_arrays():
    alphas = np.array([[0.1, 1.0, 10.0], [0.2, 2.0, 20.0]])
    leaks = theory.leakage(alphas)
    assert leaks.shape == (2, 3)
    assert leaks[1, 2] == theory.leakage(20.0)
    np.testing.assert_allclose(theory.sharpness(leaks), alphas, rtol=1e-9)
    assert theory.leakage(0.0) == 1.0


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_hard_alpha_is_where_pytorch_rows_become_one_hot(dtype):
    """Just above, a row of scores between neighbours is one-hot; half a percent below, it is not."""
    alpha = theory.hard_alpha(dtype)
    distances = torch.tensor([0.0, 1.0, 1.0, 1.0, 1.0, 2.0, 2.0, 2.0, 2.0])

    def row(a):
        return torch.exp((-a * distances.double()).to(dtype))

    assert row(1.005 * alpha)[1:].eq(0).all()
    assert row(0.995 * alpha)[1:5].gt(0).all()
    softmax = torch.softmax((-1.005 * alpha * distances.double()).to(dtype), dim=0)
    assert softmax.tolist() == [1.0] + [0.0] * 8


def test_hard_alpha_knows_a_type_by_all_its_names():
    for same in (np.float32, np.dtype("float32"), "float32", torch.float32):
        assert theory.hard_alpha(same) == theory.hard_alpha("float32")


# ---- a convolution as attention -----------------------------------------------------------------------------


@st.composite
def layers(draw):
    size = draw(st.tuples(st.integers(1, 4), st.integers(1, 4)))
    dilation = draw(st.tuples(st.integers(1, 2), st.integers(1, 2)))
    window = [d * (k - 1) + 1 for k, d in zip(size, dilation, strict=True)]
    image = [draw(st.integers(w, w + 4)) for w in window]
    channels = draw(st.tuples(st.integers(1, 3), st.integers(1, 3)))
    return size, dilation, image, channels, draw(st.sampled_from(checks.PADDINGS)), draw(SEEDS)


@given(layers(), st.sampled_from([None, 1, 2, 5]))
def test_theorem_1_in_the_hard_limit(layer, head_dim):
    size, dilation, (height, width), (in_channels, out_channels), padding, seed = layer
    rng = np.random.default_rng(seed)
    image, bias = rng.normal(size=(height, width, in_channels)), rng.normal(size=out_channels)
    kernel = rng.normal(size=(*size, in_channels, out_channels))
    mhsa = theory.conv_to_mhsa(kernel, bias, padding=padding, dilation=dilation, head_dim=head_dim)
    np.testing.assert_allclose(
        mhsa(image), by_pytorch(image, kernel, bias, padding=padding, dilation=dilation), **TOLERANCE
    )
    width_of_heads = out_channels if head_dim is None else head_dim
    assert mhsa.w_val.shape[1:] == (in_channels, width_of_heads)
    if head_dim is not None:
        ranks = [np.linalg.matrix_rank(kernel[i, j]) for i, j in np.ndindex(size)]
        assert len(mhsa.centers) == sum(-(-int(rank) // head_dim) for rank in ranks)


@given(layers(), st.floats(1, 30))
def test_a_finite_alpha_misses_by_no_more_than_it_leaks(layer, alpha):
    """Each head's weight off its target is at most the leakage in the plane plus what the border gives back."""
    size, dilation, (height, width), (in_channels, out_channels), padding, seed = layer
    if padding == "circular":
        padding = "replicate"  # on a small torus the two ways round may tie
    rng = np.random.default_rng(seed)
    image, bias = rng.normal(size=(height, width, in_channels)), rng.normal(size=out_channels)
    kernel = rng.normal(size=(*size, in_channels, out_channels))
    mhsa = theory.conv_to_mhsa(kernel, bias, padding=padding, dilation=dilation, alpha=alpha)
    error = np.abs(mhsa(image) - by_pytorch(image, kernel, bias, padding=padding, dilation=dilation)).max()
    # A head whose target lies in the ring or the image leaks at most as much as on the unbounded grid.
    swing = np.abs(mhsa.keys(image)).max() * 2
    bound = theory.leakage(alpha) * swing * np.abs(kernel).sum(axis=2).max(axis=-1).sum()
    assert error <= bound + 1e-10


@given(st.integers(1, 3), st.sampled_from([1, 3, 5]), st.integers(1, 9), st.integers(1, 9), SEEDS)
def test_bare_attention_is_replicate_padding_to_scipy(channels, size, height, width, seed):
    rng = np.random.default_rng(seed)
    image, kernel = rng.normal(size=(height, width, channels)), rng.normal(size=(size, size))
    mhsa = theory.conv_to_mhsa(kernel[:, :, None, None] * np.eye(channels), padding="replicate")
    assert mhsa.keys(image).shape == (height * width, channels), "the keys are the pixels, nothing else"
    expected = [scipy.ndimage.correlate(image[..., c], kernel, mode="nearest") for c in range(channels)]
    np.testing.assert_allclose(mhsa(image), np.stack(expected, axis=-1), **TOLERANCE)


# ---- matrices of heads --------------------------------------------------------------------------------------


@given(st.integers(1, 5), st.integers(1, 5), st.integers(0, 5), st.integers(1, 6), SEEDS)
def test_split_head_matrix(in_channels, out_channels, rank, head_dim, seed):
    rng = np.random.default_rng(seed)
    matrix = rng.normal(size=(in_channels, rank)) @ rng.normal(size=(rank, out_channels))
    true_rank = min(rank, in_channels, out_channels)
    w_val, w_out, error = theory.split_head_matrix(matrix, head_dim, best=True)
    assert w_val.shape == (in_channels, head_dim)
    assert w_out.shape == (head_dim, out_channels)
    missing = np.linalg.svd(matrix, compute_uv=False)[head_dim:]
    np.testing.assert_allclose(error, np.sqrt((missing**2).sum()), rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(np.linalg.norm(matrix - w_val @ w_out), error, rtol=1e-9, atol=1e-12)
    if true_rank <= head_dim:
        np.testing.assert_allclose(np.matmul(*theory.split_head_matrix(matrix, head_dim)), matrix, **TOLERANCE)
    else:
        with pytest.raises(
            ValueError, match=f"^head_dim: expected at least {true_rank}, the rank .* got {head_dim}"
        ):
            theory.split_head_matrix(matrix, head_dim)


def test_head_matrices_follow_the_shifts():
    kernel = np.random.default_rng(0).normal(size=(2, 3, 4, 5))
    matrices = theory.head_matrices(kernel)
    assert matrices.shape == (6, 4, 5)
    for n, (i, j) in enumerate(np.ndindex(2, 3)):
        assert np.array_equal(matrices[n], kernel[i, j])


# ---- how many heads -----------------------------------------------------------------------------------------


@st.composite
def kernels(draw):
    """Kernels of every rank, with and without sign changes and zero taps."""
    size = draw(st.tuples(st.integers(1, 4), st.integers(1, 4)))
    channels = draw(st.tuples(st.integers(1, 3), st.integers(1, 3)))
    taps = size[0] * size[1]
    rank = draw(st.integers(0, min(taps, channels[0] * channels[1])))
    rng = np.random.default_rng(draw(SEEDS))
    patterns = rng.normal(size=(taps, rank))
    if draw(st.booleans()):
        patterns = np.abs(patterns) + 0.1
    if draw(st.booleans()):
        patterns[rng.random(taps) < 0.3] = 0
    return (patterns @ rng.normal(size=(rank, channels[0] * channels[1]))).reshape(*size, *channels)


@given(kernels(), st.booleans())
def test_decomposition_reproduces_the_kernel_with_rho_or_one_more(kernel, finite):
    taps = kernel.shape[0] * kernel.shape[1]
    rank = int(np.linalg.matrix_rank(kernel.reshape(taps, -1))) if kernel.any() else 0
    assert theory.kernel_rank(kernel) == rank
    patterns, matrices = theory.decompose_heads(kernel, finite)
    assert len(patterns) == len(matrices) == theory.heads_needed(kernel, finite)
    assert rank <= len(patterns) <= min(rank + 1, taps)
    if len(patterns):
        np.testing.assert_allclose(patterns.sum(axis=(1, 2)), 1, rtol=1e-12)
        assert (patterns > 0).all() if finite else (patterns >= 0).all()
    rebuilt = np.einsum("hab,hio->abio", patterns, matrices)
    np.testing.assert_allclose(rebuilt, kernel, rtol=0, atol=1e-10 * max(1, np.abs(kernel).max()))


@given(st.integers(1, 4), st.integers(1, 4), SEEDS)
def test_one_channel_takes_one_head_without_sign_change_and_two_with(rows, columns, seed):
    """For one channel in and out the theory is a single look at the signs."""
    rng = np.random.default_rng(seed)
    kernel = rng.normal(size=(rows, columns)) * (rng.random((rows, columns)) < 0.7)
    signs = {int(s) for s in np.sign(kernel).ravel() if s}
    assert theory.heads_needed(kernel[:, :, None, None]) == len(signs)
    covers = kernel.all()
    expected = 0 if not signs else 1 if len(signs) == 1 and covers else 2
    assert theory.heads_needed(kernel[:, :, None, None], finite=True) == expected


@given(st.integers(1, 6), st.integers(1, 6), SEEDS)
def test_two_patterns_by_the_angles_they_leave(rows, columns, seed):
    """For rank 2 a positive combination exists if and only if the taps, as points in the plane, fit in an open
    half-plane: decided here by the largest gap between their angles, not by a linear programme."""
    rng = np.random.default_rng(seed)
    taps = rows * columns
    if taps < 2:
        return
    points = rng.normal(size=(taps, 2)) + rng.choice([0, 1.5]) * np.array([1, 0])
    angles = np.sort(np.arctan2(points[:, 1], points[:, 0]))
    gaps = np.diff(np.r_[angles, angles[0] + 2 * np.pi])
    if abs(gaps.max() - np.pi) < 1e-3:
        return
    kernel = points.reshape(rows, columns, 1, 2)
    assert theory.heads_needed(kernel) == (2 if gaps.max() > np.pi else 3)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: theory.circle_encoding(np.zeros((3, 2))), "shifts: expected integers"),
        (lambda: theory.leakage(-1.0), "alpha: expected no negative sharpness, got -1.0"),
        (lambda: theory.leakage(np.nan), "alpha: expected finite numbers, got nan"),
        (lambda: theory.sharpness(0.0), "eps: expected numbers strictly between 0 and 1, got 0.0"),
        (lambda: theory.sharpness(1.0), "eps: expected numbers strictly between 0 and 1, got 1.0"),
        (lambda: theory.hard_alpha("int32"), "dtype: expected a floating-point type, got 'int32'"),
        (lambda: theory.hard_alpha("half-float"), "dtype: expected a floating-point type, got 'half-float'"),
        (lambda: theory.head_matrices(np.zeros((3, 3))), r"kernel: expected shape \(kernel_height, .*got \(3, 3\)"),
        (lambda: theory.split_head_matrix(np.eye(3), 2), "head_dim: expected at least 3, the rank .* got 2"),
        (lambda: theory.split_head_matrix(np.eye(3), 0), "head_dim: expected an integer of at least 1, got 0"),
        (lambda: theory.conv_to_mhsa(np.ones((3, 3, 1, 1)), alpha=0), "alpha: expected a positive sharpness"),
        (lambda: theory.conv_to_mhsa(np.ones((3, 3, 1, 1)), np.ones(2)), r"bias: .*out_channels=1.*got \(2,\)"),
        (lambda: theory.conv_to_mhsa(np.ones((3, 3, 1, 1)), padding="same"), "padding: expected one of zeros"),
        (lambda: theory.conv_to_mhsa(np.ones((3, 3, 1, 1)), head_dim=-1), "head_dim: expected an integer"),
        (
            lambda: theory.conv_to_mhsa(np.ones((3, 3, 1, 1)), padding="none")(np.ones((2, 5, 1))),
            "image: expected one larger than the kernel's window, got 2 × 5",
        ),
        (lambda: theory.conv_to_mhsa(np.ones((3, 3, 2, 1)))(np.ones((4, 4, 1))), r"image: .*in_channels=2"),
        (lambda: theory.kernel_rank(np.full((1, 1, 1, 1), np.inf)), "kernel: expected finite numbers, got inf"),
    ],
)  # fmt: skip
def test_errors_name_argument_expectation_and_value(call, message, no_signature_checks):
    with pytest.raises(ValueError, match=f"^{message}"):
        call()
