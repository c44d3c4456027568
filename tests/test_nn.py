"""The PyTorch layers against the plain formula, the NumPy reference and PyTorch's own convolution."""

import math

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from torch import nn

from attnconv import reference, theory
from attnconv.nn import (
    ContentAttention2d,
    ConvolutionalAttention2d,
    LearnedAttention2d,
    QuadraticAttention2d,
    ResNet18,
    attention_to_conv,
    conv_to_attention,
    convert_convs,
    functional,
)
from attnconv.shifts import relative_shifts

SEEDS = st.integers(0, 2**31 - 1)
SAME_EVEN = pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel")


def gradients(layer, x, out):
    """Output, and its gradients with respect to the image and all parameters, by name."""
    x = x.clone().requires_grad_()
    result = layer(x)
    names, parameters = zip(*layer.named_parameters(), strict=True)
    grads = torch.autograd.grad(result, [x, *parameters], out, allow_unused=True)
    return {"output": result.detach()} | dict(zip(("x", *names), grads, strict=True))


# ---- trainable attention ------------------------------------------------------------------------------------

OPTIONS = [
    {},
    {"head_dim": 2},
    {"alpha": [1e6, 30.0, 0.5, -0.3]},
    {"alpha": math.inf},
    {"centers": [[60.0, -3.5], [-44.4, 0.0], [0.25, 70.0], [-9.0, -9.0]]},
]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("size", [(1, 1), (1, 9), (7, 1), (5, 8), (37, 40)])
@pytest.mark.parametrize("padding_mode", ["replicate", "zeros", "circular"])
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_separable_equals_dense(dtype, size, padding_mode, options):
    if padding_mode == "zeros" and size == (37, 40):
        size = (12, 35)  # the plain formula has nine times the keys
    torch.manual_seed(0)
    layer = QuadraticAttention2d(3, 5, heads=4, padding_mode=padding_mode, **options).to(dtype)
    x, out = torch.randn(2, 3, *size, dtype=dtype), torch.randn(2, 5, *size, dtype=dtype)
    layer.method = "dense"
    dense = gradients(layer, x, out)
    layer.method = "separable"
    tolerance = 1e-12 if dtype == torch.float64 else 1e-5
    for name, fast in gradients(layer, x, out).items():
        scale = max(1.0, dense[name].abs().max().item())
        assert (fast - dense[name]).abs().max().item() <= 20 * tolerance * scale, name


@pytest.mark.parametrize("size", [(1, 1), (1, 6), (5, 8), (40, 37)])
def test_learned_separable_equals_dense(size):
    torch.manual_seed(0)
    layer = LearnedAttention2d(3, 5, size=40, heads=4, position_dim=6).double()
    x, out = torch.randn(2, 3, *size).double(), torch.randn(2, 5, *size).double()
    layer.method = "dense"
    dense = gradients(layer, x, out)
    layer.method = "separable"
    for name, fast in gradients(layer, x, out).items():
        torch.testing.assert_close(fast, dense[name], rtol=1e-10, atol=1e-10, msg=name)


@given(st.integers(1, 5), st.integers(1, 5), SEEDS, st.sampled_from([0.1, 0.5, 3.0]))
def test_quadratic_layer_equals_the_reference(height, width, seed, alpha):
    torch.manual_seed(seed)
    layer = QuadraticAttention2d(3, 4, heads=5, head_dim=2, alpha=alpha).double()
    x = torch.randn(1, 3, height, width).double()
    shifts = relative_shifts(height, width)
    heads = zip(layer.centers.detach().numpy(), layer.alpha.tolist(), strict=True)
    scores = [reference.quadratic_scores(shifts, center, alpha) for center, alpha in heads]
    expected = reference.mhsa(
        np.stack(scores),
        x[0].flatten(1).T.numpy(),
        layer.w_val.detach().numpy(),
        layer.w_out.detach().flatten(0, 1).numpy(),
        layer.bias.detach().numpy(),
    )
    ours = layer(x)[0].flatten(1).T.detach().numpy()
    np.testing.assert_allclose(ours, expected, rtol=0, atol=1e-10)


@given(st.integers(1, 4), st.integers(1, 4), SEEDS)
def test_content_layer_equals_the_reference(height, width, seed):
    torch.manual_seed(seed)
    layer = ContentAttention2d(3, 4, size=5, heads=2, key_dim=6).double()
    x = torch.randn(1, 3, height, width).double()
    pixels = x[0].flatten(1).T.numpy()
    encodings = reference.row_column_encoding(
        relative_shifts(height, width), layer.row_table.detach().numpy(), layer.column_table.detach().numpy()
    )
    # A bias is a matrix that meets a channel of ones.
    ones = np.concatenate([pixels, np.ones((len(pixels), 1))], axis=1)
    qry, key = (
        np.concatenate([linear.weight.detach().numpy(), linear.bias.detach().numpy()[:, None]], axis=1)
        .reshape(2, 6, 4)
        .transpose(0, 2, 1)
        / 6**0.25
        for linear in (layer.query, layer.key)
    )
    zero = np.zeros(6)
    scores = [
        reference.relative_scores(ones, encodings, q, k, np.eye(6) / 6**0.25, zero, zero)
        for q, k in zip(qry, key, strict=True)
    ]
    expected = reference.mhsa(
        np.stack(scores),
        pixels,
        layer.weight.detach().numpy(),
        np.concatenate([np.eye(4)] * 2),
        layer.bias.detach().numpy(),
    )
    ours = layer(x)[0].flatten(1).T.detach().numpy()
    np.testing.assert_allclose(ours, expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize("padding_mode", ["replicate", "zeros", "circular"])
def test_a_head_with_a_round_matrix_is_an_isotropic_head(padding_mode):
    torch.manual_seed(0)
    round_head = QuadraticAttention2d(2, 2, heads=3, isotropic=False, alpha=0.7, padding_mode=padding_mode)
    isotropic = QuadraticAttention2d(
        2, 2, heads=3, alpha=0.7, centers=round_head.centers.detach(), padding_mode=padding_mode
    )
    torch.testing.assert_close(round_head.attention_probs(6, 7), isotropic.attention_probs(6, 7))
    round_head.method = "separable"
    with pytest.raises(ValueError, match=r"^method: expected 'dense' or 'auto'"):
        round_head(torch.randn(1, 2, 4, 4))


@pytest.mark.parametrize("layer", ["quadratic", "learned", "content"])
def test_an_empty_batch_and_bfloat16_pass(layer):
    torch.manual_seed(0)
    make = {
        "quadratic": lambda: QuadraticAttention2d(4, 6),
        "learned": lambda: LearnedAttention2d(4, 6, size=9),
        "content": lambda: ContentAttention2d(4, 6, size=9),
    }[layer]
    attention = make()
    assert attention(torch.randn(0, 4, 5, 9)).shape == (0, 6, 5, 9)
    x = torch.randn(2, 4, 5, 9)
    half = make().bfloat16()
    half.load_state_dict(attention.state_dict())
    result = half(x.bfloat16())
    assert result.dtype == torch.bfloat16
    torch.testing.assert_close(result.float(), attention(x), rtol=0.1, atol=0.1)


@pytest.mark.parametrize("wrong", [math.nan, math.inf])
def test_what_is_not_finite_stays_within_reach_of_the_heads(wrong):
    """A sharp head hands on what it looks at; the fast path does not spread it over the image."""
    layer = QuadraticAttention2d(1, 1, heads=1, alpha=20.0, centers=[[0.0, 1.0]])
    x = torch.zeros(1, 1, 80, 80)
    x[0, 0, 40, 40] = wrong
    result = layer(x)[0, 0]
    assert not result[40, 39].isfinite()
    assert result[:30].isfinite().all()


# ---- conversion ---------------------------------------------------------------------------------------------


@st.composite
def convolutions(draw):
    groups = draw(st.integers(1, 3))
    channels = [groups * draw(st.integers(1, 2)) for _ in range(2)]
    padding = draw(st.sampled_from([0, 1, (1, 2), (0, 3), "same", "valid"]))
    return nn.Conv2d(
        *channels,
        draw(st.tuples(st.integers(1, 4), st.integers(1, 4))),
        stride=1 if padding == "same" else draw(st.tuples(st.integers(1, 3), st.integers(1, 3))),
        padding=padding,
        dilation=draw(st.tuples(st.integers(1, 3), st.integers(1, 3))),
        groups=groups,
        bias=draw(st.booleans()),
        padding_mode=draw(st.sampled_from(["zeros", "reflect", "replicate", "circular"])),
    )


@SAME_EVEN
@given(convolutions(), st.integers(10, 14), st.integers(10, 40), st.integers(0, 2), st.booleans(), SEEDS)
def test_conversion_equals_the_convolution(conv, height, width, batch, hard, seed):
    torch.manual_seed(seed)
    nn.init.normal_(conv.weight)
    conv = conv.double()
    attention = conv_to_attention(conv, alpha=None if hard else 750.0)
    x = torch.randn(batch, conv.in_channels, height, width).double()
    out = torch.randn_like(conv(x))
    expected, ours = gradients(conv, x, out), gradients(attention, x, out)
    assert expected.keys() == ours.keys()
    for name, value in expected.items():
        torch.testing.assert_close(ours[name], value, rtol=0, atol=1e-10, msg=name)
    back = attention_to_conv(attention)
    assert repr(back) == repr(conv)
    assert torch.equal(back(x), conv(x))


@SAME_EVEN
@given(convolutions(), SEEDS)
def test_conversion_equals_the_convolution_in_float32(conv, seed):
    torch.manual_seed(seed)
    x = torch.randn(1, conv.in_channels, 12, 14)
    torch.testing.assert_close(conv_to_attention(conv)(x), conv(x), rtol=1e-4, atol=1e-4)


@SAME_EVEN
@given(convolutions(), SEEDS)
def test_the_map_of_a_converted_layer_is_attention(conv, seed):
    """Its rows sum to one, and the plain formula with it is the layer."""
    assume(conv.groups == 1)
    torch.manual_seed(seed)
    attention = conv_to_attention(conv.double())
    x = torch.randn(1, conv.in_channels, 10, 11).double()
    probabilities = attention.attention_probs(10, 11)
    torch.testing.assert_close(probabilities.sum(dim=-1), torch.ones_like(probabilities[..., 0]))
    left, right, top, bottom = attention.margins
    mode = {"zeros": "constant"}.get(conv.padding_mode, conv.padding_mode)
    keys = nn.functional.pad(x, (left, right, top, bottom), mode=mode).flatten(2).transpose(1, 2)
    matrices = conv.weight.flatten(2).permute(2, 1, 0)
    result = torch.einsum("hqk,bkc,hco->boq", probabilities, keys, matrices)
    if conv.bias is not None:
        result = result + conv.bias[:, None]
    torch.testing.assert_close(result.view(conv(x).shape), conv(x), rtol=0, atol=1e-10)


@given(st.floats(0.5, 12), SEEDS)
def test_a_finite_alpha_leaks_what_theory_says(alpha, seed):
    """Far from the border, an impulse keeps 1 − leakage at its tap's place."""
    torch.manual_seed(seed)
    conv = nn.Conv2d(1, 1, 1, bias=False).double()
    nn.init.ones_(conv.weight)
    x = torch.zeros(1, 1, 61, 61).double()
    x[..., 30, 30] = 1
    peak = conv_to_attention(conv, alpha=alpha)(x)[0, 0, 30, 30].item()
    assert abs(1 - peak - theory.leakage(alpha)) < 1e-10


def test_trainable_heads_move_and_frozen_ones_do_not():
    conv = nn.Conv2d(2, 2, 3, padding=1)
    assert {name for name, _ in conv_to_attention(conv).named_parameters()} == {"weight", "bias"}
    layer = conv_to_attention(conv, alpha=1.0, trainable=True)
    layer(torch.randn(1, 2, 8, 8)).square().sum().backward()
    assert layer.centers.grad.abs().max() > 0
    assert layer.alpha.grad.abs().max() > 0


@pytest.mark.parametrize("padding_mode", ["replicate", "zeros", "circular"])
def test_a_quadratic_layer_becomes_a_convolution(padding_mode):
    torch.manual_seed(0)
    centers = [[0, 0], [1, -1], [0, 2], [1, -1], [-2, 0]]
    layer = QuadraticAttention2d(3, 4, heads=5, alpha=200.0, centers=centers, padding_mode=padding_mode)
    x = torch.randn(2, 3, 9, 10)
    torch.testing.assert_close(attention_to_conv(layer)(x), layer(x), rtol=1e-4, atol=1e-5)


class Odd(nn.Module):
    """A module in two places, one inside a list, and convolutions that cannot be converted."""

    def __init__(self):
        super().__init__()
        shared = nn.Conv2d(2, 2, 3, padding=1)
        self.first, self.blocks = shared, nn.ModuleList([nn.Sequential(shared, nn.ReLU()), nn.Conv2d(2, 2, 1)])
        self.up = nn.ConvTranspose2d(2, 2, 2)
        self.line = nn.Conv1d(2, 2, 3)

    def forward(self, x):
        return self.up(self.blocks[1](self.blocks[0](self.first(x))))


def test_convert_convs_keeps_names_and_says_what_it_did():
    torch.manual_seed(0)
    model = Odd().eval()
    x = torch.randn(1, 2, 6, 6)
    expected = model(x)
    converted, replaced, refused = convert_convs(model)
    torch.testing.assert_close(converted(x), expected)
    assert replaced == ["first", "blocks.0.0", "blocks.1"]
    assert set(refused) == {"up", "line"}
    assert converted.first is converted.blocks[0][0]
    assert not converted.training
    assert isinstance(model.first, nn.Conv2d), "the original stays"
    assert converted.state_dict().keys() == model.state_dict().keys()
    model.load_state_dict(converted.state_dict())
    with pytest.raises(
        ValueError, match=r"^model: expected convolutions that can be converted, got 'up': a transposed"
    ):
        convert_convs(model, strict=True)
    assert isinstance(convert_convs(nn.Conv2d(1, 1, 1)).model, ConvolutionalAttention2d)


def test_resnet18_has_its_size_and_converts():
    torch.manual_seed(0)
    model = ResNet18().eval()
    assert sum(p.numel() for p in model.parameters()) == 11_173_962
    converted, replaced, refused = convert_convs(model)
    assert (len(replaced), refused) == (20, {})
    x = torch.randn(2, 3, 32, 32)
    torch.testing.assert_close(converted(x), model(x), rtol=1e-4, atol=1e-5)


def test_nothing_of_the_size_of_the_map_is_formed():
    """512 × 512 pixels: the map would have 69 billion entries a head."""
    layer = QuadraticAttention2d(1, 1, heads=2, alpha=2.0)
    x = torch.randn(1, 1, 512, 512, requires_grad=True)
    layer(x).sum().backward()
    assert x.grad.shape == x.shape


def test_hard_heads_off_the_grid_gather():
    """Replicated borders are one-hot but no progression; both ways must agree."""
    torch.manual_seed(0)
    x = torch.randn(2, 3, 7, 8).double()
    weight = torch.randn(2, 1, 3, 4).double()
    rows, columns = (torch.eye(n).double()[torch.randint(n, (2, n))] for n in (7, 8))
    ours = functional.attention_shifts(x, functional.shifts_of(rows, columns), weight)
    torch.testing.assert_close(ours, functional.attention_separable(x, rows, columns, weight))


X = torch.zeros(1, 3, 4, 4)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: QuadraticAttention2d(0, 3), r"in_channels: expected an integer of at least 1, got 0"),
        (lambda: QuadraticAttention2d(3, 3, heads=2, centers=[[0, 0]]), r"centers: .*\(heads=2, 2\), got \(1, 2\)"),
        (lambda: QuadraticAttention2d(3, 3, alpha=math.nan), r"alpha: expected one number, .* got nan"),
        (lambda: QuadraticAttention2d(3, 3, alpha=-1.0, isotropic=False), r"alpha: expected finite numbers from 0"),
        (lambda: QuadraticAttention2d(3, 3, padding_mode="reflect"), r"padding_mode: expected one of"),
        (lambda: QuadraticAttention2d(3, 3, method="fast"), r"method: expected one of auto"),
        (lambda: QuadraticAttention2d(2, 3)(X), r"x: expected shape \(batch, in_channels=2, .*got \(1, 3, 4, 4\)"),
        (lambda: QuadraticAttention2d(3, 3)(X.long()), r"x: expected a floating-point image, got torch.int64"),
        (lambda: LearnedAttention2d(3, 3, size=3)(X), r"x: expected an image of at most 3 × 3 pixels"),
        (lambda: ContentAttention2d(3, 3, size=4, key_dim=5), r"key_dim: expected an even number, .* got 5"),
        (lambda: conv_to_attention(nn.Linear(3, 3)), r"conv: expected .* got Linear"),
        (lambda: conv_to_attention(nn.LazyConv2d(3, 3)), r"conv: expected a torch.nn.Conv2d"),
        (lambda: conv_to_attention(nn.Conv2d(3, 3, 3), alpha=0), r"alpha: expected a positive sharpness, .* got 0"),
        (lambda: conv_to_attention(nn.Conv2d(3, 3, 3), trainable=True), r"alpha: expected a finite sharpness"),
        (lambda: conv_to_attention(nn.Conv2d(3, 3, 5))(X), r"x: expected at least 5 pixels"),
        (lambda: attention_to_conv(nn.Conv2d(3, 3, 3)), r"layer: expected .* got Conv2d"),
        (lambda: attention_to_conv(QuadraticAttention2d(3, 3, heads=1, centers=[[0.5, 0]])), r"layer: .* centres"),
        (lambda: attention_to_conv(QuadraticAttention2d(3, 3, heads=1, centers=[[0, 0]])), r"layer: .* leak"),
        (lambda: attention_to_conv(QuadraticAttention2d(3, 3, isotropic=False)), r"layer: expected isotropic"),
        (lambda: convert_convs([]), r"model: expected a torch.nn.Module, got list"),
    ],
)  # fmt: skip
def test_errors_name_argument_expectation_and_value(call, message, no_signature_checks):
    with pytest.raises(ValueError, match=f"^{message}"):
        call()
