"""Networks written by others, converted whole: the same logits."""

import pytest
import torch
import transformers
from torch import nn

from attnconv.nn import ConvolutionalAttention2d, convert_convs

SMALL = {"image_size": 64}
NETWORKS = {
    "resnet": (
        transformers.ResNetForImageClassification,
        transformers.ResNetConfig(embedding_size=16, hidden_sizes=[16, 32, 48, 64], depths=[1, 2, 1, 1]),
    ),
    "mobilenet_v1": (
        transformers.MobileNetV1ForImageClassification,
        transformers.MobileNetV1Config(depth_multiplier=0.25, **SMALL),
    ),
    "mobilenet_v2": (
        transformers.MobileNetV2ForImageClassification,
        transformers.MobileNetV2Config(depth_multiplier=0.35, **SMALL),
    ),
    "convnext": (
        transformers.ConvNextForImageClassification,
        transformers.ConvNextConfig(hidden_sizes=[16, 32, 48, 64], depths=[1, 1, 2, 1], **SMALL),
    ),
    "regnet": (
        transformers.RegNetForImageClassification,
        transformers.RegNetConfig(
            embedding_size=16, hidden_sizes=[16, 32, 48, 64], depths=[1, 1, 2, 1], groups_width=8
        ),
    ),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", NETWORKS)
def test_converted_networks_have_the_same_logits(name, dtype):
    kind, config = NETWORKS[name]
    torch.manual_seed(0)
    model = kind(config).eval().to(dtype)
    for module in model.modules():  # statistics and scales as after training, not the neutral ones of the start
        if isinstance(module, nn.BatchNorm2d):
            nn.init.normal_(module.running_mean, std=0.1)
            nn.init.uniform_(module.running_var, 0.5, 1.5)
    x = torch.randn(2, 3, 64, 64, dtype=dtype)
    converted, replaced, refused = convert_convs(model)
    convolutions = [n for n, module in model.named_modules() if isinstance(module, nn.Conv2d)]
    assert replaced == convolutions
    assert refused == {}
    assert sum(isinstance(m, ConvolutionalAttention2d) for m in converted.modules()) == len(convolutions)
    with torch.no_grad():
        expected, ours = model(pixel_values=x).logits, converted(pixel_values=x).logits
    assert expected.std() > 1e-3
    tolerance = 1e-4 if dtype == torch.float32 else 1e-9
    torch.testing.assert_close(ours, expected, rtol=tolerance, atol=tolerance)
