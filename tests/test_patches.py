"""Patches as tokens: the theorem against PyTorch, counts against closed formulas, leakage against mpmath."""

from itertools import product
from math import ceil

import mpmath
import numpy as np
import pytest
import scipy.linalg
import sympy
import torch
from hypothesis import given
from hypothesis import strategies as st

from attnconv import checks, reference, theory
from attnconv.shifts import margins, pixel_grid
from oracles import by_pytorch

SEEDS = st.integers(0, 2**32 - 1)
TOLERANCE = {"rtol": 0, "atol": 1e-10}


def window(size):
    """Taps before and after the middle one: K = a + 1 + b."""
    return (size - 1) // 2, size // 2


def divisors(number):
    return [d for d in range(1, number + 1) if number % d == 0]


@st.composite
def layers(draw, largest_patch=4):
    patch = draw(st.tuples(st.integers(1, largest_patch), st.integers(1, largest_patch)))
    size = tuple(draw(st.integers(1, 2 * P + 3)) for P in patch)
    groups = draw(st.sampled_from([1, 1, 2]))
    return {
        "patch": patch,
        "size": size,
        "stride": tuple(draw(st.sampled_from(divisors(P))) for P in patch),
        "dilation": draw(st.tuples(st.sampled_from([1, 1, 2, 3]), st.sampled_from([1, 1, 2, 3]))),
        "groups": groups,
        "channels": tuple(groups * draw(st.integers(1, 2)) for _ in range(2)),
        "grid": draw(st.tuples(st.integers(1, 4), st.integers(1, 4))),
        "seed": draw(SEEDS),
    }


def options(layer):
    return {name: layer[name] for name in ("stride", "dilation", "groups")}


def arrays(layer):
    """Image, kernel and bias. The image is large enough for PyTorch, which wraps around once only."""
    rng = np.random.default_rng(layer["seed"])
    reach = [-(-d * K // (2 * P)) for d, K, P in zip(layer["dilation"], layer["size"], layer["patch"], strict=True)]
    grid = [max(wanted, least, 1) for wanted, least in zip(layer["grid"], reach, strict=True)]
    shape = [n * P for n, P in zip(grid, layer["patch"], strict=True)]
    in_channels, out_channels = layer["channels"]
    image = rng.normal(size=(*shape, in_channels))
    kernel = rng.normal(size=(*layer["size"], in_channels // layer["groups"], out_channels))
    return image, kernel, rng.normal(size=out_channels)


# ---- tokens -------------------------------------------------------------------------------------------------


@given(st.integers(1, 3), st.integers(1, 3), st.integers(1, 4), st.integers(1, 4), st.integers(1, 3))
def test_patches_are_read_row_by_row_and_come_back(rows, columns, height, width, channels):
    image = np.arange(rows * height * columns * width * channels, dtype=float)
    image = image.reshape(rows * height, columns * width, channels)
    tokens = reference.image_to_patches(image, (height, width))
    for i, j in np.ndindex(rows, columns):
        cut = image[i * height : (i + 1) * height, j * width : (j + 1) * width]
        assert np.array_equal(tokens[i, j], cut.ravel())
    assert np.array_equal(reference.patches_to_image(tokens, (height, width)), image)


def test_the_order_within_a_token_is_that_of_unfold_with_the_channels_last():
    image = np.random.default_rng(0).normal(size=(6, 8, 3))
    batch = torch.from_numpy(image.transpose(2, 0, 1)[None].copy())
    columns = torch.nn.functional.unfold(batch, 2, stride=2)[0].numpy()  # (channel, row, column) × patches
    expected = columns.reshape(3, 2, 2, 12).transpose(3, 1, 2, 0).reshape(3, 4, 12)
    assert np.array_equal(reference.image_to_patches(image, 2), expected)


# ---- which patches ------------------------------------------------------------------------------------------

COUNTS = {  # heads per axis for K = 1 … 11
    1: [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11],
    2: [1, 2, 3, 3, 3, 4, 5, 5, 5, 6, 7],
    3: [1, 2, 3, 3, 3, 3, 3, 4, 5, 5, 5],
    4: [1, 2, 3, 3, 3, 3, 3, 3, 3, 4, 5],
    8: [1, 2] + [3] * 9,
    16: [1, 2] + [3] * 9,
}


@pytest.mark.parametrize("P", COUNTS)
def test_heads_per_axis(P):
    assert [len(theory.patch_shifts((K, 1), (P, 1))) for K in range(1, 12)] == COUNTS[P]
    assert [len(theory.patch_shifts((1, K), (1, P))) for K in range(1, 12)] == COUNTS[P]


@given(st.integers(1, 30), st.integers(1, 30), st.integers(1, 9), st.integers(1, 9))
def test_shifts_at_stride_one_are_the_closed_formula(rows, columns, height, width):
    ranges = []
    for size, pixels in ((rows, height), (columns, width)):
        a, b = window(size)
        ranges.append(range(-ceil(a / pixels), ceil(b / pixels) + 1))
    shifts = theory.patch_shifts((rows, columns), (height, width))
    assert shifts.tolist() == [list(shift) for shift in product(*ranges)]


@given(st.integers(1, 30), st.integers(1, 9))
def test_nine_heads_and_no_more(K, P):
    heads = len(theory.patch_shifts(K, P))
    nine = 3 <= K <= 2 * P + 1 if K % 2 else 4 <= K <= 2 * P
    assert (heads == 9) == nine
    if K % 2:
        assert heads == (2 * ceil((K - 1) / (2 * P)) + 1) ** 2, "the count of Li et al."
    if P == 1:
        assert heads == K**2, "pixels: the count of Cordonnier et al."


@given(
    st.integers(1, 12).flatmap(lambda P: st.tuples(st.just(P), st.sampled_from(divisors(P)))), st.integers(1, 30)
)
def test_shifts_with_a_stride_are_the_closed_formula(sizes, K):
    P, S = sizes
    a, b = window(K)
    expected = range(-ceil(a / P), (b + P - S) // P + 1)
    shifts = theory.patch_shifts((K, 1), (P, 1), stride=(S, 1))
    assert shifts.tolist() == [[delta, 0] for delta in expected]


@given(layers())
def test_shifts_by_enumeration(layer):
    ranges = []
    for K, P, S, d in zip(layer["size"], layer["patch"], layer["stride"], layer["dilation"], strict=True):
        taps = [d * j - d * (K - 1) // 2 for j in range(K)]
        ranges.append(sorted({(s + u) // P for s in range(0, P, S) for u in taps}))
    shifts = theory.patch_shifts(layer["size"], layer["patch"], layer["stride"], layer["dilation"])
    assert shifts.tolist() == [list(shift) for shift in product(*ranges)]


def test_counts_that_the_chapter_quotes():
    assert len(theory.patch_shifts(3, 4)) == 9
    assert len(theory.patch_shifts(3, 4, stride=2)) == 4
    assert len(theory.patch_shifts(2, 4)) == 4
    assert len(theory.patch_shifts(10, 4)) == 16
    assert len(theory.patch_shifts(11, 4)) == 25
    axis = theory.patch_shifts((3, 1), (2, 1), dilation=8)[:, 0]
    assert axis.tolist() == [-4, 0, 4], "a wide dilation skips patches"


# ---- the blocks ---------------------------------------------------------------------------------------------


@given(layers(largest_patch=3))
def test_blocks_are_the_definition(layer):
    """Entry by entry: u = P δ + t − s S on both axes, or zero; with all entries of the kernel told apart."""
    size, patch, stride, dilation = (layer[name] for name in ("size", "patch", "stride", "dilation"))
    inputs, outputs = layer["channels"]
    kernel = 1.0 + np.arange(np.prod(size) * inputs * outputs).reshape(*size, inputs, outputs)
    blocks = theory.patch_matrices(kernel, patch, stride=stride, dilation=dilation)
    shifts = theory.patch_shifts(size, patch, stride, dilation)
    written = [P // S for P, S in zip(patch, stride, strict=True)]
    blocks = blocks.reshape(len(shifts), *patch, inputs, *written, outputs)
    starts = [-(d * (K - 1) // 2) for d, K in zip(dilation, size, strict=True)]
    for n, *place in np.ndindex(len(shifts), *patch, *written):
        t, s = place[:2], place[2:]
        u = [patch[i] * int(shifts[n, i]) + t[i] - s[i] * stride[i] - starts[i] for i in (0, 1)]
        is_tap = all(u[i] % dilation[i] == 0 and 0 <= u[i] // dilation[i] < size[i] for i in (0, 1))
        expected = kernel[u[0] // dilation[0], u[1] // dilation[1]] if is_tap else np.zeros((inputs, outputs))
        assert np.array_equal(blocks[n, t[0], t[1], :, s[0], s[1]], expected)
    assert blocks.reshape(len(shifts), -1).any(axis=1).all(), "no head for a block of zeros"
    assert np.count_nonzero(blocks) == np.prod(written) * kernel.size, "each output pixel, each tap, once"


def test_blocks_of_a_symbolic_row():
    """P = 3, K = 3 on one axis, by SymPy: a convolution of letters, read off patch by patch."""
    taps, pixels = sympy.symbols("k_-1 k_0 k_1"), sympy.symbols("x_:9")
    row = [sum(taps[u + 1] * pixels[r + u] for u in (-1, 0, 1)) for r in range(3, 6)]
    codes = np.arange(1.0, 4.0).reshape(1, 3, 1, 1)
    blocks = theory.patch_matrices(codes, (1, 3))
    for delta, block in zip((-1, 0, 1), blocks, strict=True):
        inputs = pixels[3 + 3 * delta : 6 + 3 * delta]
        for t, s in np.ndindex(3, 3):
            letter = ((0, *taps))[int(block[t, s])]
            assert sympy.expand(row[s]).coeff(inputs[t]) == letter


@given(layers(largest_patch=3))
def test_groups_are_a_kernel_with_zeros(layer):
    groups, (inputs, outputs) = layer["groups"], layer["channels"]
    _, kernel, _ = arrays(layer)
    dense = np.zeros((*layer["size"], inputs, outputs))
    for i, j in np.ndindex(layer["size"]):
        split = np.split(kernel[i, j], groups, axis=1)
        dense[i, j] = scipy.linalg.block_diag(*split)
    ours = theory.patch_matrices(kernel, layer["patch"], groups=groups)
    assert np.array_equal(ours, theory.patch_matrices(dense, layer["patch"]))


# ---- the theorem --------------------------------------------------------------------------------------------


@given(layers(), st.sampled_from(checks.BORDERS), st.floats(-3, 3), st.sampled_from([None, None, 1, 3]))
def test_attention_over_patches_is_the_convolution_of_pytorch(layer, border, gamma, head_dim):
    image, kernel, bias = arrays(layer)
    how = {"border": border, "gamma": gamma, "head_dim": head_dim}
    mhsa = theory.conv_to_patch_mhsa(kernel, layer["patch"], bias, **how, **options(layer))
    padding = "circular" if border == "circular" else "zeros"
    np.testing.assert_allclose(
        mhsa(image), by_pytorch(image, kernel, bias, padding=padding, **options(layer)), **TOLERANCE
    )
    if head_dim is None:
        assert len(mhsa.shifts) == len(
            theory.patch_shifts(layer["size"], layer["patch"], layer["stride"], layer["dilation"])
        )
    else:
        assert mhsa.w_val.shape[2] == head_dim
        assert len(mhsa.shifts) == theory.patch_heads(kernel, layer["patch"], head_dim, **options(layer))


@pytest.mark.parametrize(("K", "P"), [(K, P) for P in range(1, 5) for K in range(1, 2 * P + 4)])
def test_every_square_kernel_up_to_two_patches_and_three(K, P):
    rng = np.random.default_rng(K + 100 * P)
    image, kernel = rng.normal(size=(3 * P, 4 * P, 2)), rng.normal(size=(K, K, 2, 3))
    for border in checks.BORDERS:
        mhsa = theory.conv_to_patch_mhsa(kernel, P, border=border, gamma=0.7)
        padding = "circular" if border == "circular" else "zeros"
        np.testing.assert_allclose(mhsa(image), by_pytorch(image, kernel, padding=padding), **TOLERANCE)
        assert len(mhsa.shifts) == COUNTS[P][K - 1] ** 2


@given(layers(largest_patch=3))
def test_the_blocks_are_a_convolution_over_patches(layer):
    """At stride and dilation one, patches are convolved by a kernel of n × n blocks, with PyTorch's own `same`."""
    layer |= {"stride": (1, 1), "dilation": (1, 1)}
    image, kernel, _ = arrays(layer)
    blocks = theory.patch_matrices(kernel, layer["patch"], groups=layer["groups"])
    lowest, highest = theory.patch_shifts(layer["size"], layer["patch"])[[0, -1]]
    over_patches = blocks.reshape(*(highest - lowest + 1), *blocks.shape[1:])
    tokens = by_pytorch(reference.image_to_patches(image, layer["patch"]), over_patches)
    expected = by_pytorch(image, kernel, groups=layer["groups"])
    np.testing.assert_allclose(reference.patches_to_image(tokens, layer["patch"]), expected, **TOLERANCE)


# ---- borders ------------------------------------------------------------------------------------------------


@st.composite
def grids(draw):
    shift = st.tuples(st.integers(-3, 3), st.integers(-3, 3))
    return draw(st.integers(1, 4)), draw(st.integers(1, 4)), np.array(draw(st.lists(shift, min_size=1, max_size=3)))


@given(grids(), st.sampled_from(checks.BORDERS), st.none() | st.floats(0, 20), st.floats(-3, 3))
def test_attention_row_by_row(grid, border, alpha, gamma):
    height, width, shifts = grid
    attention = reference.patch_attention(height, width, shifts, border, alpha=alpha, gamma=gamma)
    patches = pixel_grid(height, width).tolist()
    top, bottom, left, right = margins(shifts) if border == "ring" else (0, 0, 0, 0)
    keys = [[i - top, j - left] for i in range(height + top + bottom) for j in range(width + left + right)]
    sharp = np.inf if alpha is None else np.exp(alpha)
    for h, q in np.ndindex(len(shifts), height * width):
        target = [patches[q][0] + int(shifts[h, 0]), patches[q][1] + int(shifts[h, 1])]
        if border == "circular":
            target = [target[0] % height, target[1] % width]
        weights = np.array([1.0 if key == target else 1 / sharp for key in keys])
        if border == "mask" and target not in keys:
            weights *= 0
        if border == "sink":
            weights = np.append(weights, np.exp(gamma))
        row = attention[h, q]
        np.testing.assert_allclose(row, weights / max(weights.sum(), 1e-300), rtol=1e-12, atol=1e-15)
        if alpha is not None and border != "sink" and target in keys:
            leak = theory.patch_leakage(alpha, len(keys))
            np.testing.assert_allclose(1 - row[keys.index(target)], leak, rtol=1e-9, atol=1e-14)
        if alpha is not None and border == "sink" and target in keys:
            leak = theory.patch_leakage(alpha + np.log1p(np.exp(gamma)), len(keys))
            others = np.delete(row[:-1], keys.index(target)).sum()
            np.testing.assert_allclose(others, leak, rtol=1e-9, atol=1e-14)


@given(grids(), st.sampled_from(checks.BORDERS))
def test_keys_fit_the_attention(grid, border):
    height, width, shifts = grid
    tokens = 1.0 + np.arange(height * width * 2).reshape(height, width, 2)
    keys = reference.patch_keys(tokens, shifts, border)
    attention = reference.patch_attention(height, width, shifts, border)
    assert attention.shape == (len(shifts), height * width, len(keys))
    full = keys.any(axis=1)
    assert np.array_equal(keys[full], tokens.reshape(-1, 2))
    extra = {"ring": (height + np.ptp(np.r_[shifts[:, 0], 0])) * (width + np.ptp(np.r_[shifts[:, 1], 0]))}
    assert len(keys) == extra.get(border, height * width + (border == "sink"))


def test_a_masked_row_is_zero_in_pytorch_as_well():
    scores = reference.patch_scores(3, 2, np.array([[-1, 0], [0, 1]]), "mask")
    values = torch.randn(2, 6, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    nothing = torch.zeros(2, 6, 4, dtype=torch.float64)
    theirs = torch.nn.functional.scaled_dot_product_attention(
        nothing, nothing, values, attn_mask=torch.from_numpy(scores)
    )
    ours = reference.patch_attention(3, 2, np.array([[-1, 0], [0, 1]]), "mask") @ values.numpy()
    np.testing.assert_allclose(theirs.numpy(), ours, **TOLERANCE)
    assert not ours[0, :2].any()


def test_the_sink_is_exact_for_every_gamma():
    """By SymPy inside and outside the grid, and on an image with a sink from faint to nearly all there is."""
    gamma, x = sympy.symbols("gamma x", real=True)
    share = sympy.exp(0) / (sympy.exp(0) + sympy.exp(gamma))
    assert sympy.simplify((1 + sympy.exp(gamma)) * (share * x + (1 - share) * 0) - x) == 0
    rng = np.random.default_rng(0)
    image, kernel = rng.normal(size=(8, 12, 2)), rng.normal(size=(5, 5, 2, 2))
    for value in (-10.0, -1.0, 0.0, 1.0, 10.0):
        mhsa = theory.conv_to_patch_mhsa(kernel, 4, border="sink", gamma=value)
        np.testing.assert_allclose(mhsa(image), by_pytorch(image, kernel), **TOLERANCE)


@given(st.integers(1, 3), st.integers(1, 5), st.integers(0, 3), SEEDS)
def test_bare_softmax_cannot_pad_with_zeros(P, heads, content, seed):
    """Any scores, any matrices: a constant image stays constant over patches, and zero padding does not."""
    rng = np.random.default_rng(seed)
    tokens = np.tile(rng.normal(size=P * P), (12, 1))
    w_val, w_out = rng.normal(size=(heads, P * P, 3)), rng.normal(size=(heads * 3, P * P))
    scores = rng.normal(scale=5, size=(heads, 12, 12))
    scores += content * reference.content_scores(tokens, *rng.normal(size=(2, P * P, 2)))
    attended = reference.mhsa(scores, tokens, w_val, w_out)
    np.testing.assert_allclose(attended, attended[:1].repeat(12, axis=0), rtol=0, atol=1e-9)

    image = np.ones((3 * P, 4 * P, 1))
    convolved = by_pytorch(image, rng.normal(size=(3, 3, 1, 1)))
    assert np.ptp(reference.image_to_patches(convolved, P), axis=(0, 1)).max() > 1e-3


@given(st.integers(1, 3), SEEDS)
def test_a_quadratic_head_repeats_the_nearest_patch(P, seed):
    """With real patches alone, a head finds the nearest one outside: a copy of the nearest pixel only at P = 1."""
    rng = np.random.default_rng(seed)
    image, kernel = rng.normal(size=(3 * P, 4 * P, 1)), rng.normal(size=(3, 3, 1, 1))
    blocks = theory.patch_matrices(kernel, P).reshape(3, 3, P * P, P * P)
    mhsa = theory.conv_to_mhsa(blocks, padding="replicate")
    found = reference.patches_to_image(mhsa(reference.image_to_patches(image, P)), P)
    edge = by_pytorch(image, kernel, padding="replicate")
    assert np.allclose(found, edge, **TOLERANCE) == (P == 1)
    np.testing.assert_allclose(found[P:-P, P:-P], edge[P:-P, P:-P], **TOLERANCE)


# ---- how many heads, and how wide ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("P", "K", "inputs", "outputs", "rho", "heads"),
    [
        (4, 3, 1, 1, 9, 9),
        (4, 9, 1, 1, 9, 9),
        (2, 3, 1, 1, 9, 9),
        (2, 5, 1, 1, 9, 9),
        (1, 3, 3, 3, 9, 9),
        (1, 3, 2, 2, 4, None),
        (1, 3, 1, 1, 1, 2),
        (1, 5, 3, 3, 9, None),
        (2, 7, 1, 1, 9, None),
        (2, 11, 1, 1, 9, None),
        (2, 11, 2, 2, 36, None),
        (4, 11, 1, 1, 25, 25),
    ],
)
def test_heads_of_generic_kernels(P, K, inputs, outputs, rho, heads):
    kernel = np.random.default_rng(5).normal(size=(K, K, inputs, outputs))
    blocks = theory.patch_matrices(kernel, P)
    assert rho == min(len(blocks), (2 * P - 1) ** 2 * inputs * outputs)
    assert np.linalg.matrix_rank(blocks.reshape(len(blocks), -1)) == rho
    found = theory.patch_heads(kernel, P)
    assert found == heads if heads else found in (rho, rho + 1)


@given(layers(largest_patch=2))
def test_no_fewer_heads_than_the_rank_and_a_layer_with_that_many(layer):
    """ρ ≤ heads ≤ ρ + 1, and patterns and matrices of so many heads give the blocks back."""
    _, kernel, _ = arrays(layer)
    blocks = theory.patch_matrices(kernel, layer["patch"], **options(layer))
    rank = np.linalg.matrix_rank(blocks.reshape(len(blocks), -1))
    heads = theory.patch_heads(kernel, layer["patch"], **options(layer))
    assert rank <= heads <= min(rank + 1, len(blocks))
    patterns, matrices = theory.decompose_heads(blocks[:, None])
    assert len(patterns) == heads
    rebuilt = np.einsum("hd,hio->dio", patterns[..., 0], matrices)
    np.testing.assert_allclose(rebuilt, blocks, rtol=0, atol=1e-10 * np.abs(blocks).max())


@pytest.mark.parametrize(("P", "K", "heads"), [(4, 3, 10), (2, 11, 10)])
def test_one_more_head_does_with_finite_scores_everywhere(P, K, heads):
    """ρ + 1 heads, no mask, every key of the ring seen: the last head is uniform and takes the background away."""
    rng = np.random.default_rng(3)
    image, kernel = rng.normal(size=(6 * P, 5 * P, 1)), rng.normal(size=(K, K, 1, 1))
    shifts, blocks = theory.patch_shifts(K, P), theory.patch_matrices(kernel, P)
    sizes = 6, 5
    rank = np.linalg.matrix_rank(blocks.reshape(len(blocks), -1))
    left, values, right = np.linalg.svd(blocks.reshape(len(blocks), -1), full_matrices=False)
    patterns, matrices = left[:, :rank], (values[:rank, None] * right[:rank]).reshape(rank, P * P, P * P)
    background = 1.1 * np.abs(patterns).max()
    look = reference.patch_attention(*sizes, shifts)  # one-hot, a shift each
    keys = reference.patch_keys(reference.image_to_patches(image, P), shifts)
    weights = background + np.einsum("dh,dqk->hqk", patterns, look)
    assert (weights > 0).all()
    totals = weights.sum(axis=2)
    np.testing.assert_allclose(totals, totals[:, :1].repeat(totals.shape[1], axis=1), rtol=1e-12)
    weights = np.concatenate([weights, np.ones_like(weights[:1])])
    matrices = np.concatenate([matrices * totals[:, :1, None], [-background * len(keys) * matrices.sum(axis=0)]])
    tokens = np.einsum("hqk,kd,hde->qe", reference.softmax(np.log(weights)), keys, matrices, optimize=True)
    result = reference.patches_to_image(tokens.reshape(*sizes, -1), P)
    np.testing.assert_allclose(result, by_pytorch(image, kernel), rtol=0, atol=1e-9)
    assert len(weights) == heads


@given(st.tuples(st.integers(1, 4), st.integers(1, 4)), st.data(), SEEDS)
def test_ranks_of_blocks_and_their_sum(patch, data, seed):
    size = tuple(data.draw(st.integers(1, 2 * P + 3)) for P in patch)
    inputs, outputs = data.draw(st.tuples(st.integers(1, 2), st.integers(1, 2)))
    kernel = np.random.default_rng(seed).normal(size=(*size, inputs, outputs))
    ranks = theory.patch_ranks(size, patch)
    assert ranks.sum() == (patch[0] + size[0] - 1) * (patch[1] + size[1] - 1)
    found = [np.linalg.matrix_rank(block) for block in theory.patch_matrices(kernel, patch)]
    assert found == (min(inputs, outputs) * ranks).tolist()
    width = data.draw(st.integers(1, 9))
    assert theory.patch_heads(kernel, patch, width) == sum(-(-rank // width) for rank in found)


def test_twenty_heads_of_width_64():
    """A 3 × 3 kernel from three channels to three, P = 16: twelve heads in the middle, four edges, four corners."""
    kernel = np.random.default_rng(0).normal(size=(3, 3, 3, 3))
    assert [-(-3 * int(rank) // 64) for rank in theory.patch_ranks(3, 16)] == [1, 1, 1, 1, 12, 1, 1, 1, 1]
    assert theory.patch_heads(kernel, 16, 64) == 20


def test_a_kernel_of_zeros_needs_no_head():
    zeros = np.zeros((3, 3, 2, 2))
    assert theory.patch_heads(zeros, 2) == theory.patch_heads(zeros, 2, 8) == 0
    assert not theory.conv_to_patch_mhsa(zeros, 2, head_dim=3)(np.ones((4, 4, 2))).any()


# ---- leakage ------------------------------------------------------------------------------------------------


def leakage_by_mpmath(alpha, keys):
    with mpmath.workdps(400):
        return mpmath.mpf(keys - 1) / (keys - 1 + mpmath.exp(mpmath.mpf(alpha)))


@given(st.floats(-700, 700), st.integers(2, 10_000))
def test_leakage_equals_mpmath(alpha, keys):
    assert abs(theory.patch_leakage(alpha, keys) / leakage_by_mpmath(alpha, keys) - 1) < 1e-12


@given(st.floats(1e-300, 1 - 1e-12, exclude_min=True), st.integers(2, 10_000))
def test_sharpness_equals_mpmath_and_inverts_leakage(eps, keys):
    alpha = theory.patch_sharpness(eps, keys)
    with mpmath.workdps(50):
        exact = mpmath.log((keys - 1) * (1 - mpmath.mpf(eps)) / mpmath.mpf(eps))
        assert abs(alpha - exact) < 1e-12 * max(1, abs(exact))
    assert abs(theory.patch_leakage(alpha, keys) / eps - 1) < 1e-9


def test_leakage_is_the_softmax_and_solves_for_sharpness():
    """Both formulas by SymPy, from the softmax of one score α and N − 1 scores 0."""
    alpha, keys, eps = sympy.symbols("alpha N epsilon", positive=True)
    leak = 1 - sympy.exp(alpha) / (sympy.exp(alpha) + (keys - 1) * sympy.exp(0))
    assert sympy.simplify(leak - (keys - 1) / (keys - 1 + sympy.exp(alpha))) == 0
    sharp = sympy.log((keys - 1) * (1 - eps) / eps)
    assert sympy.simplify(leak.subs(alpha, sharp) - eps) == 0


def test_leakage_and_sharpness_take_arrays_and_extremes():
    alphas = np.array([[0.0, 1.0, 10.0], [-2.0, 2.0, 20.0]])
    leaks = theory.patch_leakage(alphas, 64)
    assert leaks.shape == (2, 3)
    assert leaks[0, 0] == 63 / 64, "uniform attention"
    np.testing.assert_allclose(theory.patch_sharpness(leaks, 64), alphas, rtol=0, atol=1e-12)
    assert theory.patch_leakage(5.0, 1) == 0.0, "a single key gets everything"
    assert theory.patch_leakage(1e6, 9) == 0.0
    assert theory.patch_leakage(-1e6, 9) == 1.0
    assert round(theory.patch_sharpness(0.01, 196), 1) == 9.9
    assert round(theory.patch_sharpness(0.01, 64), 1) == 8.7


@given(layers(largest_patch=2), st.floats(1, 30))
def test_a_finite_alpha_misses_by_no_more_than_it_leaks(layer, alpha):
    image, kernel, bias = arrays(layer)
    mhsa = theory.conv_to_patch_mhsa(kernel, layer["patch"], bias, alpha=alpha, **options(layer))
    error = np.abs(mhsa(image) - by_pytorch(image, kernel, bias, **options(layer))).max()
    keys = mhsa.keys(reference.image_to_patches(image, layer["patch"]))
    blocks = theory.patch_matrices(kernel, layer["patch"], **options(layer))
    leak = theory.patch_leakage(alpha, len(keys))
    assert error <= leak * 2 * np.abs(keys).max() * np.abs(blocks).sum(axis=(0, 1)).max() + 1e-10


# ---- bad arguments ------------------------------------------------------------------------------------------

IMAGE, KERNEL, SHIFTS = np.zeros((4, 6, 2)), np.zeros((3, 3, 2, 3)), np.zeros((1, 2), dtype=int)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: reference.image_to_patches(IMAGE, 4), "image: expected whole patches of 4 × 4 pixels, got 4 × 6"),
        (lambda: reference.image_to_patches(IMAGE, 0), "patch: expected an integer of at least 1, got 0"),
        (lambda: reference.image_to_patches(IMAGE[0], 2), r"image: expected shape \(height, width, channels\)"),
        (lambda: reference.patches_to_image(IMAGE, 2), "tokens: expected a multiple of 4 on the last axis, got 2"),
        (lambda: reference.patch_scores(2, 2, SHIFTS[0]), r"shifts: expected shape \(head, 2\) .*, got \(2,\)"),
        (lambda: reference.patch_scores(2, 2, SHIFTS[:0]), r"shifts: expected shape \(head, 2\) .*, got \(0, 2\)"),
        (lambda: reference.patch_scores(2, 2, SHIFTS + 0.5), "shifts: expected integers"),
        (lambda: reference.patch_scores(0, 2, SHIFTS), "height: expected an integer of at least 1, got 0"),
        (lambda: reference.patch_scores(2, 2, SHIFTS, "zeros"), "border: expected one of ring, .* got 'zeros'"),
        (lambda: reference.patch_attention(2, 2, SHIFTS, alpha=np.inf), "alpha: expected finite numbers, got inf"),
        (lambda: reference.patch_attention(2, 2, SHIFTS, gamma=np.nan), "gamma: expected finite numbers, got nan"),
        (lambda: reference.patch_keys(IMAGE, SHIFTS, "none"), "border: expected one of ring, .* got 'none'"),
        (lambda: margins(np.zeros((1, 3), dtype=int)), "shifts: expected integers with"),
        (lambda: theory.patch_shifts(0, 2), "K: expected an integer of at least 1, got 0"),
        (lambda: theory.patch_shifts(3, (2, 2, 2)), r"P: expected one integer or two, got \(2, 2, 2\)"),
        (lambda: theory.patch_shifts(3, 4, 3), r"stride: expected a divisor of the patch \(4, 4\), got \(3, 3\)"),
        (lambda: theory.patch_shifts(3, 4, (2, 8)), r"stride: expected a divisor of .*\(4, 4\), got \(2, 8\)"),
        (lambda: theory.patch_shifts(3, 4, 1, 0), "dilation: expected an integer of at least 1, got 0"),
        (lambda: theory.patch_matrices(KERNEL[0], 2), r"kernel: expected shape .*, got \(3, 2, 3\)"),
        (lambda: theory.patch_matrices(KERNEL, 2, stride=3), r"stride: .*\(2, 2\), got \(3, 3\)"),
        (lambda: theory.patch_matrices(KERNEL, 2, groups=2), "groups: expected a divisor of out_channels=3, got 2"),
        (lambda: theory.patch_matrices(KERNEL * np.nan, 2), "kernel: expected finite numbers, got nan"),
        (lambda: theory.patch_ranks(3, -1), "P: expected an integer of at least 1, got -1"),
        (lambda: theory.patch_heads(KERNEL, 2, 0), "head_dim: expected an integer of at least 1, got 0"),
        (lambda: theory.conv_to_patch_mhsa(KERNEL, 2, np.zeros(2)), r"bias: .*out_channels=3.*got \(2,\)"),
        (lambda: theory.conv_to_patch_mhsa(KERNEL, 2, border="zeros"), "border: expected one of ring, sink"),
        (lambda: theory.conv_to_patch_mhsa(KERNEL, 2, alpha=np.inf), "alpha: expected finite numbers, got inf"),
        (lambda: theory.conv_to_patch_mhsa(KERNEL, 2, head_dim=0), "head_dim: expected an integer of at least 1"),
        (lambda: theory.conv_to_patch_mhsa(KERNEL, 2)(IMAGE[..., :1]), r"image: .*in_channels=2.*got \(4, 6, 1\)"),
        (lambda: theory.conv_to_patch_mhsa(KERNEL, 2)(IMAGE[:3]), "image: expected whole patches of 2 × 2"),
        (lambda: theory.patch_leakage(np.nan, 9), "alpha: expected finite numbers, got nan"),
        (lambda: theory.patch_leakage(1.0, 0), "keys: expected an integer of at least 1, got 0"),
        (lambda: theory.patch_sharpness(0.0, 9), "eps: expected numbers strictly between 0 and 1, got 0.0"),
        (lambda: theory.patch_sharpness(0.5, 1), "keys: expected an integer of at least 2, got 1"),
    ],
)  # fmt: skip
def test_errors_name_argument_expectation_and_value(call, message, no_signature_checks):
    with pytest.raises(ValueError, match=f"^{message}"):
        call()
