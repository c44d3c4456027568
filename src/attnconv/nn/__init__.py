"""Attention layers for images, in PyTorch: trainable, exact where exactness is possible, fast where it matters."""

from attnconv.nn.attention import ContentAttention2d, LearnedAttention2d, QuadraticAttention2d
from attnconv.nn.classifier import AttentionClassifier
from attnconv.nn.convert import (
    Conversion,
    ConvolutionalAttention2d,
    attention_to_conv,
    conv_to_attention,
    convert_convs,
)
from attnconv.nn.costs import Cost, cost
from attnconv.nn.patches import PatchAttention2d, conv_to_patch_attention
from attnconv.nn.relative import RelativeAttention2d
from attnconv.nn.resnet import ResNet18
from attnconv.nn.vit import ViT

__all__ = [
    "AttentionClassifier",
    "ContentAttention2d",
    "Conversion",
    "ConvolutionalAttention2d",
    "Cost",
    "LearnedAttention2d",
    "PatchAttention2d",
    "QuadraticAttention2d",
    "RelativeAttention2d",
    "ResNet18",
    "ViT",
    "attention_to_conv",
    "conv_to_attention",
    "conv_to_patch_attention",
    "convert_convs",
    "cost",
]
