"""Attention over patches against PyTorch's convolution and the NumPy reference; the hand-over from twin to ViT."""

import copy
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from attnconv import checks, reference, theory
from attnconv.nn import PatchAttention2d, RelativeAttention2d, ViT, conv_to_patch_attention, functional
from attnconv.nn.costs import cost
from attnconv.shifts import margins

SEEDS = st.integers(0, 2**31 - 1)
BORDERS = st.sampled_from(checks.BORDERS)
pytestmark = pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel")


def divisors(number):
    return [d for d in range(1, number + 1) if number % d == 0]


def convolution(channels, size, *, stride=(1, 1), dilation=(1, 1), groups=1, bias=True, border="ring", seed=0):
    """A convolution in float64 that keeps the size of the image, as PyTorch has it."""
    torch.manual_seed(seed)
    padding_mode = "circular" if border == "circular" else "zeros"
    padding = "same" if stride == (1, 1) else tuple(d * (k - 1) // 2 for d, k in zip(dilation, size, strict=True))
    options = {"stride": stride, "dilation": dilation, "groups": groups, "bias": bias, "padding": padding}
    conv = nn.Conv2d(*channels, size, padding_mode=padding_mode, **options).double()
    nn.init.normal_(conv.weight)
    return conv


@st.composite
def cases(draw, largest_patch=4):
    """A convolution, a patch, a border and images of whole patches."""
    patch = draw(st.tuples(st.integers(1, largest_patch), st.integers(1, largest_patch)))
    size = tuple(draw(st.integers(1, 2 * P + 3)) for P in patch)
    stride = tuple(draw(st.sampled_from(divisors(P))) for P in patch)
    if stride != (1, 1):  # an even kernel has its extra tap inside only where the stride passes over the rest
        size = tuple(K - (K % 2 == 0 and S == 1) for K, S in zip(size, stride, strict=True))
    dilation = draw(st.tuples(st.sampled_from([1, 1, 2, 3]), st.sampled_from([1, 1, 2, 3])))
    groups = draw(st.sampled_from([1, 1, 2]))
    border, seed = draw(BORDERS), draw(SEEDS)
    channels = [groups * draw(st.integers(1, 2)) for _ in range(2)]
    conv = convolution(
        channels, size, stride=stride, dilation=dilation, groups=groups, bias=draw(st.booleans()), border=border,
        seed=seed,
    )  # fmt: skip
    reach = [-(-d * K // (2 * P)) for d, K, P in zip(dilation, size, patch, strict=True)]  # PyTorch wraps once
    grid = [max(draw(st.integers(1, 4)), least, 1) for least in reach]
    x = torch.randn(draw(st.integers(1, 2)), channels[0], *(n * P for n, P in zip(grid, patch, strict=True)))
    return conv, patch, border, x.double()


def gradients(layer, x, out, names=()):
    """Output, and its gradients with respect to the image and the parameters named."""
    x = x.clone().requires_grad_()
    result = layer(x)
    parameters = [layer.get_parameter(name) for name in names]
    grads = torch.autograd.grad(result, [x, *parameters], out, allow_unused=True)
    return {"output": result.detach()} | dict(zip(("x", *names), grads, strict=True))


def close(ours, theirs, tolerance=1e-10, what=None):
    torch.testing.assert_close(ours, theirs, rtol=0, atol=tolerance, msg=what)


# ---- parts --------------------------------------------------------------------------------------------------


@given(st.tuples(st.integers(1, 4), st.integers(1, 4)), st.tuples(st.integers(1, 3), st.integers(1, 3)), SEEDS)
def test_patches_equal_the_reference(patch, grid, seed):
    torch.manual_seed(seed)
    x = torch.randn(2, 3, patch[0] * grid[0], patch[1] * grid[1]).double()
    tokens = functional.image_to_patches(x, patch)
    expected = reference.image_to_patches(x[1].permute(1, 2, 0).numpy(), patch)
    assert np.array_equal(tokens[1].permute(1, 2, 0).numpy(), expected)
    assert torch.equal(functional.patches_to_image(tokens, patch), x)


@given(st.integers(1, 4), st.integers(1, 4), st.integers(1, 6), st.integers(1, 6))
def test_relative_scores_read_the_table_at_key_minus_query(height, width, key_rows, key_columns):
    rows, columns = height + key_rows - 1, width + key_columns - 1
    table = torch.arange(2.0 * rows * columns).view(2, rows, columns)
    scores = functional.relative_scores(table, height, width).view(2, height, width, key_rows, key_columns)
    for i, j, k, m in np.ndindex(height, width, key_rows, key_columns):
        assert torch.equal(scores[:, i, j, k, m], table[:, k - i + height - 1, m - j + width - 1])


@given(
    st.tuples(st.integers(1, 4), st.integers(1, 4)),
    st.lists(st.tuples(st.integers(-3, 3), st.integers(-3, 3)), min_size=1, max_size=3),
    BORDERS,
    st.none() | st.floats(0.1, 20),
    st.floats(-3, 3),
    st.booleans(),
)
def test_the_map_of_heads_that_look_at_one_shift_is_the_reference(grid, shifts, border, alpha, gamma, known):
    shifts = np.array(shifts)
    layer = RelativeAttention2d(
        1, 1, heads=len(shifts), border=border, margins=margins(shifts), size=grid if known else None
    ).double()
    layer.look_at(torch.from_numpy(shifts), alpha=alpha, gamma=gamma)
    expected = reference.patch_attention(*grid, shifts, border, alpha=alpha, gamma=gamma)
    keys = reference.patch_keys(np.ones((*grid, 1)), shifts, border)[:, 0]
    ours = layer.attention_probs(torch.zeros(2, 1, *grid).double())
    np.testing.assert_allclose(ours[1].detach().numpy(), expected[..., keys > 0], rtol=0, atol=1e-12)
    with torch.no_grad():
        scores = layer.position_scores(*grid).numpy()
    theirs = reference.patch_scores(*grid, shifts, border, alpha=alpha, gamma=gamma)
    np.testing.assert_allclose(scores, theirs, rtol=0, atol=1e-12)


# ---- the plain formula and the fast path ----------------------------------------------------------------------


@pytest.mark.parametrize("border", checks.BORDERS)
@pytest.mark.parametrize("head_dim", [None, 3])
@pytest.mark.parametrize("content", [False, True])
@given(
    st.tuples(st.integers(1, 4), st.integers(1, 4)),
    st.sampled_from([None, (3, 4), (1, 1)]),
    st.integers(0, 3),
    st.sampled_from([0.0, -math.inf]),
    SEEDS,
)
@settings(max_examples=8)
def test_the_fast_path_equals_the_formula(border, head_dim, content, grid, size, margin, far_score, seed):
    """Also on images of another size than the table's, and with heads that see nothing."""
    torch.manual_seed(seed)
    options = {"head_dim": head_dim, "content": content, "border": border, "size": size, "margins": margin}
    layer = RelativeAttention2d(5, 4, heads=3, key_dim=2, far_score=far_score, **options).double()
    layer.shifts.copy_(torch.randint(-2, 3, (3, 2)))
    x, out = torch.randn(2, 5, *grid).double(), torch.randn(2, 4, *grid).double()
    names = [name for name, _ in layer.named_parameters()]
    layer.method = "dense"
    dense = gradients(layer, x, out, names)
    layer.method = "auto"
    for name, fast in gradients(layer, x, out, names).items():
        assert dense[name].isfinite().all(), name
        close(fast, dense[name], what=name)


@pytest.mark.parametrize("border", checks.BORDERS)
@given(st.integers(1, 4), st.integers(1, 4), SEEDS)
@settings(max_examples=10)
def test_layers_with_content_equal_the_reference(border, height, width, seed):
    torch.manual_seed(seed)
    layer = RelativeAttention2d(3, 4, heads=2, head_dim=2, key_dim=5, content=True, border=border).double()
    x = torch.randn(1, 3, height, width).double()
    pixels = x[0].flatten(1).T.numpy()
    with torch.no_grad():
        scores, kept = layer.position_scores(height, width).numpy(), layer._pixels(height, width).numpy()
    keys = np.zeros((len(kept), 3))
    keys[kept] = pixels
    query, key = (one.weight.detach().numpy().reshape(2, 5, 3) for one in (layer.query, layer.key))
    scores = scores + (pixels @ query.swapaxes(1, 2)) @ (keys @ key.swapaxes(1, 2)).swapaxes(1, 2) / 5**0.5
    expected = reference.softmax(scores) @ keys @ layer.head_matrices.detach().numpy()
    expected = expected.sum(axis=0) + layer.bias.detach().numpy()
    np.testing.assert_allclose(layer(x)[0].flatten(1).T.detach().numpy(), expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize("content", [False, True])
@pytest.mark.parametrize("method", ["auto", "dense"])
@pytest.mark.parametrize("head_dim", [None, 4])
def test_a_query_that_sees_nothing_gets_zero_and_no_nan(content, method, head_dim):
    torch.manual_seed(0)
    layer = RelativeAttention2d(
        2, 3, heads=1, border="mask", size=(2, 3), content=content, bias=False, head_dim=head_dim, method=method
    )
    layer.look_at(torch.tensor([[-1, 0]]))
    x = torch.randn(2, 2, 2, 3, requires_grad=True)
    result = layer(x)
    assert not result[:, :, 0].any(), "the first row looks above the image"
    assert result[:, :, 1].all()
    result.square().sum().backward()
    for parameter in (x, *layer.parameters()):
        assert parameter.grad is None or parameter.grad.isfinite().all()


def test_half_precision_autocast_and_an_empty_batch():
    torch.manual_seed(0)
    x = torch.randn(2, 3, 4, 6)
    for options in ({}, {"content": True}, {"content": True, "head_dim": 3}, {"head_dim": 3, "border": "sink"}):
        layer = PatchAttention2d(3, 4, 2, **options)
        expected = layer(x)
        assert layer(x[:0]).shape == (0, 4, 4, 6)
        half = copy.deepcopy(layer).bfloat16()(x.bfloat16())
        with torch.autocast("cpu", torch.bfloat16):
            mixed = layer(x)
        for ours in (half, mixed):
            assert ours.dtype == torch.bfloat16
            torch.testing.assert_close(ours.float(), expected, rtol=0.1, atol=0.1)


# ---- convolutions -------------------------------------------------------------------------------------------


def same_function(conv, layer, x):
    """Output and gradient of the image are those of the convolution, and values have a gradient."""
    torch.manual_seed(0)
    out = torch.randn_like(conv(x))
    name = "attention.weight" if layer.attention.head_dim is None else "attention.w_val"
    expected, ours = gradients(conv, x, out), gradients(layer, x, out, [name])
    scale = max(1.0, conv.weight[0].abs().sum().item())
    close(ours["output"], expected["output"], 1e-10 * scale)
    close(ours["x"], expected["x"], 1e-10 * scale)
    assert ours[name].isfinite().all()
    assert ours[name].any()


@given(cases(), st.sampled_from([None, None, 1, 3]), st.booleans(), st.booleans(), st.floats(-3, 3))
@settings(max_examples=120)
def test_patch_attention_equals_the_convolution(case, head_dim, content, known, gamma):
    conv, patch, border, x = case
    layer = conv_to_patch_attention(
        conv, patch, head_dim=head_dim, border=border, content=content, gamma=gamma,
        image_size=tuple(x.shape[2:]) if known else None,
    )  # fmt: skip
    same_function(conv, layer, x)
    shifts = theory.patch_shifts(conv.kernel_size, patch, conv.stride, conv.dilation)
    if head_dim is None:
        assert layer.heads == len(shifts)
    else:
        kernel = conv.weight.detach().permute(2, 3, 1, 0).numpy()
        options = {"stride": conv.stride, "dilation": conv.dilation, "groups": conv.groups}
        assert layer.heads == theory.patch_heads(kernel, patch, head_dim, **options)


@pytest.mark.parametrize(("K", "P"), [(K, P) for P in range(1, 5) for K in range(1, 2 * P + 4)])
def test_every_square_kernel_up_to_two_patches_and_three(K, P):
    """Forward and backward, on every border; the number of heads by its formula."""
    n = 1 + math.ceil((K - 1) // 2 / P) + math.ceil(K // 2 / P)
    x = torch.randn(1, 2, 3 * P, 4 * P, generator=torch.Generator().manual_seed(K)).double()
    for border in checks.BORDERS:
        conv = convolution((2, 3), (K, K), border=border, seed=100 * P + K)
        layer = conv_to_patch_attention(conv, P, border=border)
        assert layer.heads == n**2
        assert (layer.heads == 9) == (3 <= K <= 2 * P + K % 2)
        same_function(conv, layer, x)


@pytest.mark.parametrize(("K", "P", "rank"), [(3, 2, 9), (5, 2, 9), (3, 4, 9), (2, 3, 4), (3, 1, 1)])
def test_no_fewer_heads_than_the_rank_of_what_the_layer_does(K, P, rank):
    """The derivatives of a patch by all others, one row a shift: so many heads there must be (chapter 15)."""
    layer = conv_to_patch_attention(convolution((1, 1), (K, K)), P)
    x = torch.zeros(1, 1, 5 * P, 5 * P).double()
    jacobian = torch.autograd.functional.jacobian(
        lambda x: functional.image_to_patches(layer(x), (P, P))[0, :, 2, 2], x
    )
    rows = functional.image_to_patches(jacobian[:, 0], (P, P)).flatten(2).permute(2, 0, 1).flatten(1)
    assert torch.linalg.matrix_rank(rows) == rank <= layer.heads
    if rank == 9:
        assert layer.heads == 9, "nine are necessary, and nine suffice"
        assert torch.linalg.svdvals(rows)[8] > 1e-3, "eight heads stay this far away"


@given(cases(largest_patch=2), st.floats(0.5, 25))
def test_a_finite_alpha_misses_by_no_more_than_it_leaks(case, alpha):
    conv, patch, border, x = case
    layer = conv_to_patch_attention(conv, patch, border=border, alpha=alpha, image_size=tuple(x.shape[2:]))
    grid = layer.tokens(x).shape[2:]
    above, below, left, right = layer.attention.margins if border == "ring" else (0, 0, 0, 0)
    keys = (above + grid[0] + below) * (left + grid[1] + right)
    # A sink's key holds zeros, so heads give each patch as much as before, and outside at most 1/e^α each to all.
    leak = theory.patch_leakage(alpha, keys + (border == "sink"))
    bound = 4 * leak * x.abs().max() * layer.attention.head_matrices.abs().sum(dim=(0, 1)).max()
    assert (layer(x) - conv(x)).abs().max() <= bound + 1e-10


@given(
    st.integers(1, 7),
    st.integers(1, 3),
    st.tuples(st.integers(2, 4), st.integers(2, 4)),
    st.sampled_from(["ring", "circular"]),
    st.floats(0.3, 30),
    st.booleans(),
)
@settings(max_examples=30)
def test_one_more_head_takes_the_leak_away(K, P, grid, border, alpha, content):
    K = min(K, 2 * P + 3)
    conv = convolution((2, 2), (K, K), border=border, seed=K)
    size = (grid[0] * P, grid[1] * P)
    options = {"border": border, "image_size": size, "content": content}
    layer = conv_to_patch_attention(conv, P, alpha=alpha, compensate=True, **options)
    assert layer.heads == conv_to_patch_attention(conv, P, border=border).heads + 1
    torch.manual_seed(0)
    x = torch.randn(2, 2, *size).double()
    same_function(conv, layer, x)
    assert layer.attention.table.requires_grad


@pytest.mark.parametrize("border", checks.BORDERS)
@pytest.mark.parametrize("alpha", [None, 3.0])
def test_content_is_silent_at_first_and_learns(border, alpha):
    conv = convolution((2, 2), (3, 3), border=border)
    options = {"border": border, "alpha": alpha, "image_size": 8}
    layer = conv_to_patch_attention(conv, 2, content=True, **options)
    x = torch.randn(2, 2, 8, 8, generator=torch.Generator().manual_seed(0)).double()
    close(layer(x), conv(x) if alpha is None else conv_to_patch_attention(conv, 2, **options)(x))
    attention = layer.attention
    assert attention.query.weight.any()
    assert not attention.key.weight.any()
    optimizer = torch.optim.Adam(layer.parameters(), lr=1e-2, eps=0)
    for step in range(2):
        optimizer.zero_grad()
        layer(x).square().sum().backward()
        assert attention.key.weight.grad.any()
        assert attention.query.weight.grad.any() == (step > 0), "of two factors, the one beside a zero waits a step"
        optimizer.step()


def test_a_hard_table_is_frozen_and_a_soft_one_learns():
    conv = nn.Conv2d(2, 2, 3, padding=1).requires_grad_(False)
    hard, soft = (conv_to_patch_attention(conv, 2, alpha=alpha, image_size=8) for alpha in (None, 4.0))
    assert {name for name, p in hard.named_parameters() if p.requires_grad} == set()
    assert {name for name, p in soft.named_parameters() if p.requires_grad} == {"attention.table"}
    soft(torch.randn(1, 2, 8, 8)).square().sum().backward()
    assert (soft.attention.table.grad != 0).flatten(1).sum(dim=1).min() > 40, "of 7 × 7 shifts and the ring's"


def test_precision_device_and_mode_are_those_of_the_convolution():
    conv = nn.Conv2d(3, 5, 3, padding=1).eval()
    layer = conv_to_patch_attention(conv, (2, 4))
    x = torch.randn(2, 3, 8, 8)
    assert not layer.training
    torch.testing.assert_close(layer(x), conv(x), rtol=1e-4, atol=1e-5)
    strided = nn.Conv2d(3, 5, 4, stride=2, padding=1).double()
    x = x.double()
    close(conv_to_patch_attention(strided, 4)(x), strided(x))
    assert conv_to_patch_attention(nn.Conv2d(1, 1, 2, stride=2), 4).heads == 1


# ---- the transformer and its twin ---------------------------------------------------------------------------

SMALL = {"image_size": 8, "in_channels": 1, "classes": 5, "channels": 3, "patch_size": 2, "downsample": 1}


def trained_looking(model):
    """Move every parameter away from its start, normalisations too."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model.eval()


def pictures(model):
    side, generator = model.image_size, torch.Generator().manual_seed(1)
    return torch.randn(3, 1, side, side, generator=generator).double()


@pytest.mark.parametrize("border", checks.BORDERS)
@pytest.mark.parametrize("layers", [1, 2, 4])
@pytest.mark.parametrize(("patch_size", "kernel_size"), [(1, 3), (2, 3), (2, 4), (2, 5), (4, 3)])
def test_the_hand_over_is_exact(border, layers, patch_size, kernel_size):
    torch.manual_seed(0)
    sizes = SMALL | {"patch_size": patch_size}
    twin = ViT("convolution", layers=layers, kernel_size=kernel_size, border=border, **sizes).double()
    x = pictures(trained_looking(twin))
    expected = twin(x)
    assert expected.std() > 1e-2
    starts = [{"content": False}, {"content": True}, {"content": False, "head_dim": 4}]
    if border in ("ring", "circular"):
        starts.append({"alpha": 2.0, "compensate": True})
    for start in starts:
        vit = ViT.from_convolutional(twin, **start)
        assert not any(isinstance(module, nn.Conv2d) for module in vit.modules())
        assert not vit.training
        close(vit(x), expected, 1e-9, str(start))
    if layers == 1:
        fresh = ViT(layers=layers, kernel_size=kernel_size, border=border, content=False, **sizes).double()
        fresh.load_state_dict(ViT.from_convolutional(twin, content=False).state_dict())
        assert len(fresh.blocks[0].attention.table) == len(theory.patch_shifts(kernel_size, patch_size))


@pytest.mark.parametrize("border", checks.BORDERS)
def test_a_hand_over_at_a_finite_sharpness_is_off_by_the_leak(border):
    """The logits differ in proportion to what theory says that a head leaks, at each sharpness."""
    torch.manual_seed(0)
    twin = trained_looking(ViT("convolution", layers=2, border=border, **SMALL).double())
    x = pictures(twin)
    keys = {"ring": 36}.get(border, 16)
    errors, leaks = [], []
    for alpha in (10.0, 12.0, 14.0):
        errors.append((ViT.from_convolutional(twin, alpha=alpha)(x) - twin(x)).abs().max().item())
        leaks.append(theory.patch_leakage(alpha, keys))
    per_leak = [error / leak for error, leak in zip(errors, leaks, strict=True)]
    assert max(per_leak) < 1.02 * min(per_leak), "first order in the leak"
    assert errors[0] < 100 * leaks[0]


def test_both_kinds_learn_and_every_parameter_has_a_gradient():
    from attnconv import data

    digits = data.digits()
    x = data.normalize(digits.train.images[:128], digits.mean, digits.std)
    y = digits.train.labels[:128]
    torch.manual_seed(0)
    sizes = SMALL | {"classes": 10, "layers": 2, "channels": 8}
    twin = ViT("convolution", **sizes)

    def step(model, count):
        optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
        for _ in range(count):
            loss = nn.functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        return loss.item()

    before = step(twin, 20)
    vit = ViT.from_convolutional(twin, alpha=5.0, compensate=True)
    torch.testing.assert_close(vit(x), twin(x), rtol=1e-3, atol=1e-4)
    assert step(vit, 15) < before
    fresh = ViT(**sizes)
    assert step(fresh, 15) < 2
    for model in (vit, fresh, twin):
        assert all(p.grad is not None and p.grad.isfinite().all() and p.grad.any() for p in model.parameters())


def test_costs_of_the_new_layers():
    x = torch.randn(1, 3, 8, 12)
    inner = PatchAttention2d(3, 5, 2, heads=4)
    tokens, width, out = 24, 12, 20
    assert cost(inner, x)[1:] == (4 * tokens * width * out, 4 * tokens * tokens * width)
    narrow = PatchAttention2d(3, 5, 2, heads=4, head_dim=7, content=True, key_dim=6)
    products = 4 * tokens * 7 * (width + out) + 2 * tokens * width * 4 * 6
    assert cost(narrow, x)[1:] == (products, 4 * tokens * tokens * (7 + 6))
    twin = ViT("convolution", layers=1, **SMALL)
    conv = 64 * 9 * 3 * 3
    rest = 64 * 1 * 3 + 16 * 2 * 12 * 24 + 12 * 5
    assert cost(twin, torch.zeros(1, 1, 8, 8))[1:] == (conv + rest, 0)


# ---- bad arguments ------------------------------------------------------------------------------------------

X = torch.zeros(1, 2, 4, 4)
convert = conv_to_patch_attention
CONV, ONE_HEAD = nn.Conv2d(2, 2, 3, padding=1), RelativeAttention2d(2, 2, heads=1)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: RelativeAttention2d(2, 2, border="zeros"), r"border: expected one of ring, .* got 'zeros'"),
        (lambda: RelativeAttention2d(2, 2, margins=(1, 1)), r"margins: expected one integer or four"),
        (lambda: RelativeAttention2d(2, 2, margins=-1), r"margins: expected an integer of at least 0, got -1"),
        (lambda: RelativeAttention2d(2, 2, size=0), r"size: expected an integer of at least 1, got 0"),
        (lambda: RelativeAttention2d(2, 2, method="separable"), r"method: expected one of auto, dense"),
        (lambda: RelativeAttention2d(2, 2, far_score=math.nan), r"far_score: expected .* got nan"),
        (lambda: RelativeAttention2d(2, 2, content=True, key_dim=0), r"key_dim: expected an integer of at least 1"),
        (lambda: RelativeAttention2d(3, 2)(X), r"x: expected shape \(batch, in_channels=3, .*got \(1, 2, 4, 4\)"),
        (lambda: ONE_HEAD.look_at(torch.tensor([[2, 0]])), r"shifts: .*margins"),
        (lambda: ONE_HEAD.look_at(torch.zeros(2, 2).long()), r"shifts: expected one"),
        (lambda: PatchAttention2d(2, 2, 3)(X), r"x: expected whole patches of 3 × 3 pixels, got 4 × 4"),
        (lambda: PatchAttention2d(3, 2, 2)(X), r"x: expected shape \(batch, in_channels=3, .*got \(1, 2, 4, 4\)"),
        (lambda: PatchAttention2d(2, 2, 2)(X.long()), r"x: expected a floating-point image, got torch.int64"),
        (lambda: PatchAttention2d(2, 2, 0), r"patch_size: expected an integer of at least 1, got 0"),
        (lambda: PatchAttention2d(2, 2, 2, image_size=5), r"image_size: expected whole patches .* got 5"),
        (lambda: convert(nn.Linear(2, 2), 2), r"conv: expected a torch.nn.Conv2d .* got Linear"),
        (lambda: convert(nn.LazyConv2d(2, 3), 2), r"conv: expected a torch.nn.Conv2d"),
        (lambda: convert(nn.Conv2d(2, 2, 3), 2), r"conv: expected padding .*\(1, 1\), got \(0, 0\)"),
        (lambda: convert(nn.Conv2d(2, 2, 2), 2), r"conv: expected padding .* got \(0, 0\)"),
        (lambda: convert(nn.Conv2d(2, 2, 3, padding=1, padding_mode="reflect"), 2), "conv: .*reflect"),
        (lambda: convert(nn.Conv2d(2, 2, 3, padding=1, stride=3), 2), r"stride: expected a divisor"),
        (lambda: convert(CONV, 2, border="circular"), r"border: expected 'ring', 'sink' or 'mask'"),
        (lambda: convert(CONV, 2, border="bare"), r"border: expected one of ring"),
        (lambda: convert(CONV, 2, alpha=-1.0), r"alpha: expected a positive sharpness, .* got -1.0"),
        (lambda: convert(CONV, 2, alpha=3.0, compensate=True), r"compensate: .*image_size=None"),
        (lambda: convert(CONV, 2, head_dim=0), r"head_dim: expected an integer of at least 1, got 0"),
        (lambda: ViT("mlp"), r"mixer: expected one of attention, convolution, got 'mlp'"),
        (lambda: ViT(image_size=10, downsample=2, patch_size=2), r"patch_size: expected a divisor of .*=5, got 2"),
        (lambda: ViT(image_size=9, downsample=2), r"downsample: expected a divisor of image_size=9, got 2"),
        (lambda: ViT(intermediate=0), r"intermediate: expected an integer of at least 1, got 0"),
        (lambda: ViT(layers=1)(X), r"x: expected shape \(batch, channels, 32, 32\), got \(1, 2, 4, 4\)"),
        (lambda: ViT.from_convolutional(ViT(layers=1)), r"twin: expected .* got ViT\('attention'"),
        (lambda: ViT.from_convolutional(CONV), r"twin: .* got Conv2d"),
        (lambda: ViT.from_convolutional(ViT("convolution", layers=1), border="circular"), "border: expected"),
    ],
)  # fmt: skip
def test_errors_name_argument_expectation_and_value(call, message, no_signature_checks):
    with pytest.raises(ValueError, match=f"^{message}"):
        call()
