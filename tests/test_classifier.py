"""Classifiers of attention, and what they cost."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from attnconv.nn import AttentionClassifier, ContentAttention2d, ResNet18, ViT, attention, cost
from attnconv.nn.classifier import ATTENTIONS

PAPER = {"quadratic": 12_086_844, "learned": 12_278_682, "content": 29_484_282}
SMALL = {"image_size": 8, "layers": 2, "heads": 9, "width": 12, "intermediate": 20, "dropout": 0.0}


@pytest.mark.parametrize(("kind", "parameters"), PAPER.items())
def test_the_papers_configuration_has_the_papers_counts(kind, parameters):
    model = AttentionClassifier(kind)
    counted = cost(model, torch.zeros(1, 3, 32, 32), method="dense")
    assert counted.parameters == parameters
    published = {"quadratic": 6.18e9, "learned": 6.18e9, "content": 15.02e9}[kind]
    assert 2 * counted.linear == pytest.approx(published, rel=1e-3)


def test_resnet18_costs_what_is_published():
    counted = cost(ResNet18(), torch.zeros(1, 3, 32, 32))
    assert counted.parameters == 11_173_962
    assert 2 * counted.total == pytest.approx(1.11e9, rel=1e-2)


@pytest.mark.parametrize("kind", ATTENTIONS)
def test_cost_agrees_with_pytorchs_counter(kind):
    """PyTorch counts the products that the plain formula runs."""
    model = AttentionClassifier(kind, key_dim=6, **SMALL).eval()
    for layer in model.modules():
        if hasattr(layer, "method"):
            layer.method = "dense"
    x = torch.randn(2, 3, 8, 8)
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(x)
    counted = cost(model, x, method="dense")
    flops = counter.get_total_flops()
    if kind == "learned":  # scores from two small tables, once for all images
        flops -= 2 * 2 * 2 * (2 * 4 - 1) * 12 * 9
    assert 2 * counted.total == flops


def test_separable_cost_is_what_it_says():
    model = AttentionClassifier("quadratic", **SMALL)
    x = torch.randn(1, 3, 8, 8)
    dense, separable = (cost(model, x, method=method) for method in ("dense", "separable"))
    assert dense.linear == separable.linear
    assert dense.attention == 2 * separable.attention  # 16 keys against 4 + 4
    with pytest.raises(ValueError, match="method: expected one of dense, separable"):
        cost(model, x, method="fast")


@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("kind", ATTENTIONS)
def test_fast_paths_give_the_logits_of_the_plain_formula(kind, norm_first):
    torch.manual_seed(0)
    model = AttentionClassifier(kind, key_dim=6, norm_first=norm_first, **SMALL).double()
    x = torch.randn(3, 3, 8, 8).double()
    fast = model(x)
    for layer in model.modules():
        if hasattr(layer, "method"):
            layer.method = "dense"
    torch.testing.assert_close(model(x), fast, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("options", [{}, {"key_dim": 4}, {"head_dim": 3}], ids=str)
@pytest.mark.parametrize("size", [(1, 1), (1, 5), (4, 6)])
def test_fused_content_attention_equals_the_plain_formula(size, options, monkeypatch):
    monkeypatch.setattr(attention, "FUSED", 0)
    torch.manual_seed(0)
    layer = ContentAttention2d(8, 5, size=6, heads=3, **options).double()
    x = torch.randn(2, 8, *size).double().requires_grad_()
    results = []
    for method in ("dense", "auto"):
        layer.method = method
        y = layer(x)
        grads = torch.autograd.grad(y.square().sum(), [x, *layer.parameters()])
        results.append([y, *grads])
    for plain, fused in zip(*results, strict=True):
        torch.testing.assert_close(fused, plain, rtol=1e-9, atol=1e-9)


def test_a_picture_of_another_size_is_refused():
    model = AttentionClassifier("quadratic", **SMALL)
    with pytest.raises(ValueError, match=r"x: expected shape \(batch, channels, 8, 8\), got \(1, 3, 9, 8\)"):
        model(torch.zeros(1, 3, 9, 8))


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (
            {"attention": "cubic"},
            "attention: expected one of quadratic, generalized, learned, content, convolution",
        ),
        ({"image_size": 9}, "downsample: expected a divisor of image_size=9, got 2"),
        ({"dropout": 1.0}, "dropout: expected a probability below 1, got 1.0"),
        ({"layers": 0}, "layers: expected an integer of at least 1, got 0"),
        ({"attention": "convolution", "heads": 8}, "heads: expected a square number"),
    ],
)
def test_wrong_options_are_named(options, says):
    with pytest.raises(ValueError, match=says):
        AttentionClassifier(**(SMALL | options))


@pytest.mark.parametrize("kind", ATTENTIONS)
def test_bfloat16_stays_near_float32(kind):
    torch.manual_seed(0)
    model = AttentionClassifier(kind, norm_first=True, key_dim=6, **SMALL)
    x = torch.randn(8, 3, 8, 8)
    wanted = torch.autograd.grad(model(x).square().sum(), list(model.parameters()))
    with torch.autocast("cpu", torch.bfloat16):
        logits = model(x)
    got = torch.autograd.grad(logits.float().square().sum(), list(model.parameters()))
    for (name, parameter), g, w in zip(model.named_parameters(), got, wanted, strict=True):
        scale = w.norm() + 1e-3 * sum(one.norm() for one in wanted) / len(wanted)
        assert g.dtype == parameter.dtype
        assert (g - w).norm() <= 0.3 * scale, name


@pytest.mark.parametrize(
    "model",
    [
        *(AttentionClassifier(kind, image_size=8, layers=3, width=12, intermediate=16) for kind in ATTENTIONS),
        AttentionClassifier(image_size=8, layers=2, width=12, intermediate=16, norm_first=True),
        *(ViT(mixer, image_size=8, layers=2, channels=3) for mixer in ("attention", "convolution")),
    ],
    ids=lambda model: f"{type(model).__name__}-{type(model.blocks[0].attention).__name__}",
)
@torch.no_grad()
def test_attention_inputs_are_what_blocks_pass_on(model):
    images = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    model = model.eval()
    logits, given = model(images), model.attention_inputs(images)
    x = model.embed(images)
    for block, seen in zip(model.blocks, given, strict=True):
        expected = block.norm1(x) if block.norm_first else x
        assert torch.equal(seen.permute(2, 3, 0, 1), expected)
        x = block(x)
    assert torch.equal(model(images), logits)
    assert not any(block.attention._forward_pre_hooks for block in model.blocks)
