"""What a network costs: parameters, and products of a forward pass, counted layer by layer."""

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from attnconv import checks
from attnconv.nn.attention import ContentAttention2d, _Attention2d
from attnconv.nn.relative import RelativeAttention2d


class Cost(NamedTuple):
    """Multiply–accumulate operations of one forward pass, and trainable parameters.

    `linear` counts matrices applied to pixels: linear layers, head matrices and convolutions. `attention` counts
    what the maps cost: scores and averages. A published count of FLOPs is often 2 · `linear` alone.
    """

    parameters: int
    linear: int
    attention: int

    @property
    def total(self) -> int:
        """All multiply–accumulate operations."""
        return self.linear + self.attention

    def __add__(self, other: "Cost") -> "Cost":
        return Cost(*(a + b for a, b in zip(self, other, strict=True)))


def cost(model: nn.Module, x: Float[Tensor, "..."], *, method: str = "separable") -> Cost:
    """Count what the forward pass of a model costs on an input, by running it once.

    Biases, normalisations, softmaxes and activations are not counted, nor are scores that depend on positions
    alone, which are computed once for all images.

    Args:
        model: linear layers, convolutions and the attention layers of this package are counted.
        x: input; a batch of one image gives the cost of an image.
        method: how maps of positions are applied, `dense` with N² or `separable` with N · (H + W) products a
            channel and head. Maps that depend on content or have a table of scores are always dense.

    Raises:
        ValueError: another method.
    """
    checks.choice("method", method, ("dense", "separable"))
    total = Cost(sum(p.numel() for p in model.parameters() if p.requires_grad), 0, 0)

    def count(module: nn.Module, inputs: tuple, output: Tensor) -> None:
        nonlocal total
        total = total + _of_layer(module, inputs[0], output, method)

    kinds = (nn.Linear, nn.Conv2d, _Attention2d)
    hooks = [m.register_forward_hook(count) for m in model.modules() if isinstance(m, kinds)]
    training = model.training
    try:
        model.eval()
        with torch.no_grad():
            model(x)
    finally:
        model.train(training)
        for hook in hooks:
            hook.remove()
    return total


def _of_layer(module: nn.Module, x: Tensor, output: Tensor, method: str) -> Cost:
    if isinstance(module, nn.Linear):
        return Cost(0, output.numel() * module.in_features, 0)
    if isinstance(module, nn.Conv2d):
        return Cost(0, output.numel() * module.weight[0].numel(), 0)
    batch, channels, height, width = x.shape
    pixels = height * width
    width_of_head = module.out_channels if module.head_dim is None else module.head_dim
    linear = channels * width_of_head + (0 if module.head_dim is None else width_of_head * module.out_channels)
    keys = height + width if method == "separable" else pixels
    mixed, scores = channels, 0
    if isinstance(module, ContentAttention2d):
        keys = pixels
        scores = pixels * module.key_dim + (height + width) * module.key_dim // 2
    elif isinstance(module, RelativeAttention2d):  # keys of zeros are skipped, or could be
        keys = pixels
        mixed = channels if module.head_dim is None else module.head_dim
        scores = pixels * module.key_dim if module.content else 0
    elif getattr(module, "isotropic", True) is False:
        keys = pixels
    rows = batch * module.heads * pixels
    return Cost(0, rows * linear, rows * (keys * mixed + scores))
