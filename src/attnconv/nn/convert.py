"""Any `nn.Conv2d` as an equal self-attention layer, and back.

A convolution with K × K taps becomes a layer with K² heads: head h has quadratic scores around the place of its
tap, its matrix is the kernel's matrix there, and every query of the output attends to all pixels of the padded
image (Theorem 1 of Cordonnier, Loukas and Jaggi 2020; the padding, stride, dilation and groups are ours).
"""

import copy
import math
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from attnconv.nn import functional
from attnconv.nn.attention import QuadraticAttention2d
from attnconv.theory import leakage


class ConvolutionalAttention2d(nn.Module):
    """Self-attention with the parameters of a convolution; see `conv_to_attention`.

        Y_q = Σ_h Σ_k softmax_k(−α^(h) ‖k − (s q + Δ^(h))‖²) X̃_k W^(h) + b

    X̃ is the padded image, s the stride, Δ^(h) the place of tap h in its window and W^(h) the kernel's matrix
    there. `weight` and `bias` have the names and shapes of the convolution's, so that its state dict fits.
    """

    def __init__(self, conv: nn.Conv2d, *, alpha: float | None = None, trainable: bool = False):
        super().__init__()
        self.in_channels, self.out_channels, self.groups = conv.in_channels, conv.out_channels, conv.groups
        self.kernel_size, self.stride, self.dilation = conv.kernel_size, conv.stride, conv.dilation
        self.padding, self.padding_mode = conv.padding, conv.padding_mode
        self.weight = nn.Parameter(conv.weight.detach().clone(), requires_grad=conv.weight.requires_grad)
        self.bias = None
        if conv.bias is not None:
            self.bias = nn.Parameter(conv.bias.detach().clone(), requires_grad=conv.bias.requires_grad)
        rows, columns = (d * torch.arange(k) for k, d in zip(self.kernel_size, self.dilation, strict=True))
        centers = torch.cartesian_prod(rows, columns).view(-1, 2).to(conv.weight)
        alphas = centers.new_full((len(centers),), math.inf if alpha is None else float(alpha))
        if trainable:
            self.centers, self.alpha = nn.Parameter(centers), nn.Parameter(alphas)
        else:
            self.register_buffer("centers", centers, persistent=False)
            self.register_buffer("alpha", alphas, persistent=False)
        self._kept = None

    @property
    def heads(self) -> int:
        """Number of heads, one for each tap."""
        return self.kernel_size[0] * self.kernel_size[1]

    @property
    def margins(self) -> tuple[int, int, int, int]:
        """Pixels added around the image: left, right, top, bottom."""
        if self.padding == "valid":
            return (0, 0, 0, 0)
        if self.padding == "same":
            totals = [d * (k - 1) for k, d in zip(self.kernel_size, self.dilation, strict=True)]
            (top, bottom), (left, right) = ((t // 2, t - t // 2) for t in totals)
            return (left, right, top, bottom)
        return (self.padding[1], self.padding[1], self.padding[0], self.padding[0])

    def axis_probs(self, height: int, width: int) -> tuple[Tensor, Tensor]:
        """Attention along the rows and along the columns of a padded image of this size: (head, query, key)."""
        result = []
        for axis, size in enumerate((height, width)):
            window = self.dilation[axis] * (self.kernel_size[axis] - 1) + 1
            queries = (size - window) // self.stride[axis] + 1
            if queries < 1:
                raise ValueError(
                    f"x: expected at least {window} pixels along axis {axis} after padding, got {size}"
                )
            scores = functional.quadratic_axis_scores(
                functional.axis_shifts(
                    size, "replicate", queries=queries, stride=self.stride[axis], like=self.centers
                ),
                self.centers[:, axis],
                self.alpha,
            )
            result.append(functional.axis_attention(scores, self.weight.dtype))
        return tuple(result)

    def _hard_shifts(self, height: int, width: int) -> functional.Shifts:
        """Pixels that hard heads read in a padded image of this size; kept until size or heads change."""
        kept = self._kept
        heads = torch.cat([self.centers, self.alpha[:, None]], dim=1)
        same = kept is not None and kept[0] == (height, width, heads.device) and torch.equal(kept[1], heads)
        if not same:
            shifts = functional.shifts_of(*self.axis_probs(height, width))
            self._kept = kept = ((height, width, heads.device), heads, shifts)
        return kept[2]

    def attention_probs(self, height: int, width: int) -> Float[Tensor, "head query key"]:
        """Return the full map for an image of this size: a row a query, a column a pixel of the padded image."""
        left, right, top, bottom = self.margins
        rows, columns = self.axis_probs(height + top + bottom, width + left + right)
        return torch.einsum("hik,hjl->hijkl", rows, columns).flatten(3).flatten(1, 2)

    def forward(self, x: Float[Tensor, "*batch in_channels height width"]) -> Tensor:
        """Attend, as the convolution would convolve; an image without a batch axis is taken too."""
        if not isinstance(x, Tensor) or x.dim() not in (3, 4) or x.shape[-3] != self.in_channels:
            came = tuple(x.shape) if isinstance(x, Tensor) else type(x).__name__
            raise ValueError(
                f"x: expected shape (batch, in_channels={self.in_channels}, height, width), got {came}"
            )
        batch = x if x.dim() == 4 else x[None]
        left, right, top, bottom = self.margins
        height, width = batch.shape[2] + top + bottom, batch.shape[3] + left + right
        # (out, in / groups, rows, columns) → head, group, in / groups, out / groups
        matrices = self.weight.flatten(2).unflatten(0, (self.groups, -1)).permute(3, 0, 2, 1)
        hard = self._hard_shifts(height, width) if self.alpha.isinf().all() else None
        zeros = (0, 0)
        if hard and self.padding_mode == "zeros" and (left, top) == (right, bottom):
            zeros = (top, left)
        elif any(self.margins):
            mode = "constant" if self.padding_mode == "zeros" else self.padding_mode
            batch = nn.functional.pad(batch, self.margins, mode=mode)
        if hard:
            result = functional.attention_shifts(batch, hard, matrices, zeros=zeros)
        else:
            result = functional.attention_separable(batch, *self.axis_probs(height, width), matrices)
        if self.bias is not None:
            result = result + self.bias[:, None, None]
        return result if x.dim() == 4 else result[0]

    def extra_repr(self) -> str:
        """Sizes and options, as PyTorch prints its layers."""
        sharpness = "hard" if self.alpha.isinf().all() else f"{self.alpha.mean().item():.4g}"
        names = ("stride", "padding", "dilation", "groups", "padding_mode")
        options = ", ".join(f"{name}={getattr(self, name)!r}" for name in names)
        return f"{self.in_channels}, {self.out_channels}, heads={self.heads}, alpha={sharpness}, {options}"


def conv_to_attention(
    conv: nn.Conv2d, *, alpha: float | None = None, trainable: bool = False
) -> ConvolutionalAttention2d:
    """Turn a convolution into a self-attention layer that computes the same.

    Every size, stride, dilation, group, padding and padding mode of `nn.Conv2d` is taken. The layer has a head for
    each tap, with quadratic scores and a softmax over all pixels of the padded image.

    Args:
        conv: the convolution; it stays as it is.
        alpha: sharpness of the heads, in 1/pixels². None takes the hard limit, in which the layer is equal to
            the convolution to rounding; at a finite α a head leaks what `theory.leakage(alpha)` says.
        trainable: make centres and sharpness parameters, so that heads can move.

    Raises:
        ValueError: no `nn.Conv2d`; a sharpness that is not positive.
    """
    if not isinstance(conv, nn.Conv2d) or isinstance(conv, nn.modules.lazy.LazyModuleMixin):
        raise ValueError(f"conv: expected a torch.nn.Conv2d with its sizes known, got {type(conv).__name__}")
    if alpha is not None and not (isinstance(alpha, int | float) and alpha > 0):
        raise ValueError(f"alpha: expected a positive sharpness, or None for the hard limit, got {alpha!r}")
    if trainable and alpha is None:
        raise ValueError(
            "alpha: expected a finite sharpness for trainable heads, since hard ones do not move, got None"
        )
    layer = ConvolutionalAttention2d(conv, alpha=alpha, trainable=trainable)
    return layer.train(conv.training)


def attention_to_conv(
    layer: ConvolutionalAttention2d | QuadraticAttention2d, *, tolerance: float = 1e-3
) -> nn.Conv2d:
    """Turn self-attention whose heads look at one pixel each back into a convolution.

    Args:
        layer: what `conv_to_attention` gives, or a `QuadraticAttention2d`.
        tolerance: how far a centre may be from a pixel, in pixels, and how much a head may leak.

    Raises:
        ValueError: a head that is no tap: too soft, between pixels, or with a matrix instead of a sharpness.
    """
    if not isinstance(layer, ConvolutionalAttention2d | QuadraticAttention2d):
        kinds = "a ConvolutionalAttention2d or a QuadraticAttention2d"
        raise ValueError(f"layer: expected {kinds}, got {type(layer).__name__}")
    if not getattr(layer, "isotropic", True):
        raise ValueError("layer: expected isotropic heads, got heads with a matrix")
    alphas, centers = layer.alpha.detach().double().cpu(), layer.centers.detach().double().cpu()
    for head, (alpha, center) in enumerate(zip(alphas.tolist(), centers, strict=True)):
        away = (center - center.round()).abs().max().item()
        if away > tolerance:
            raise ValueError(
                f"layer: expected centres within {tolerance} of a pixel, got {center.tolist()} at head {head}"
            )
        leak = 0.0 if alpha == math.inf else 1.0 if alpha <= 0 else leakage(alpha)
        if leak > tolerance:
            raise ValueError(f"layer: expected heads that leak at most {tolerance}, got {leak:.2g} at head {head}")
    if isinstance(layer, ConvolutionalAttention2d):
        places = torch.cartesian_prod(
            *(
                d * torch.arange(k, dtype=torch.float64)
                for k, d in zip(layer.kernel_size, layer.dilation, strict=True)
            )
        ).view(-1, 2)
        if not torch.equal(centers.round(), places):
            raise ValueError(
                "layer: expected every head at the place of its tap, got heads that have moved to others"
            )
        names = ("stride", "padding", "dilation", "groups", "padding_mode")
        sizes = (layer.in_channels, layer.out_channels, layer.kernel_size)
        options = {name: getattr(layer, name) for name in names}
        weight = layer.weight
    else:
        shifts = centers.round().long()
        reach = int(shifts.abs().max())
        sizes = (layer.in_channels, layer.out_channels, 2 * reach + 1)
        options = {"padding": reach, "padding_mode": layer.padding_mode}
        matrices = layer.head_matrices.detach()
        weight = matrices.new_zeros(2 * reach + 1, 2 * reach + 1, layer.in_channels, layer.out_channels)
        weight.index_put_(tuple((shifts + reach).to(weight.device).T), matrices, accumulate=True)
        weight = weight.permute(3, 2, 0, 1)
    conv = nn.Conv2d(*sizes, bias=layer.bias is not None, device=weight.device, dtype=weight.dtype, **options)
    with torch.no_grad():
        conv.weight.copy_(weight)
        if layer.bias is not None:
            conv.bias.copy_(layer.bias)
    return conv.train(layer.training)


class Conversion(NamedTuple):
    """A converted model, and what became of each convolution; see `convert_convs`."""

    model: nn.Module
    replaced: list[str]
    refused: dict[str, str]


_REASONS = {
    nn.ConvTranspose2d: "a transposed convolution has queries of several kinds, each with taps of its own",
    nn.ConvTranspose1d: "a transposed convolution has queries of several kinds, each with taps of its own",
    nn.ConvTranspose3d: "a transposed convolution has queries of several kinds, each with taps of its own",
    nn.Conv1d: "only two dimensions are converted",
    nn.Conv3d: "only two dimensions are converted",
    nn.LazyConv2d: "its sizes are not known before the first image",
}


def convert_convs(
    model: nn.Module, *, alpha: float | None = None, trainable: bool = False, strict: bool = False
) -> Conversion:
    """Copy a model with every `nn.Conv2d` replaced by the self-attention layer that computes the same.

    Names, other modules, hooks of other modules and the training mode stay; the state dict of the model fits the
    copy, and with heads that are not trainable the other way round too.

    Args:
        model: the model; it stays as it is.
        alpha: sharpness of the heads, as in `conv_to_attention`.
        trainable: make centres and sharpness parameters.
        strict: raise an error instead of leaving a convolution that cannot be converted.

    Returns:
        The copy, the names of what was replaced, and for each convolution that was not, the reason.

    Raises:
        ValueError: with `strict`, a convolution that cannot be converted, by name and reason.
    """
    if not isinstance(model, nn.Module):
        raise ValueError(f"model: expected a torch.nn.Module, got {type(model).__name__}")
    result = copy.deepcopy(model)
    replaced, refused, made = [], {}, {}
    for name, module in list(result.named_modules(remove_duplicate=False)):
        reason = next((why for kind, why in _REASONS.items() if isinstance(module, kind)), None)
        if reason is None and isinstance(module, nn.Conv2d) and len(module._parameters) > 2:
            reason = "it has parameters of its own besides weight and bias"
        if reason is not None:
            refused[name] = reason
        elif isinstance(module, nn.Conv2d):
            if module not in made:  # a module that is used twice is converted once
                made[module] = conv_to_attention(module, alpha=alpha, trainable=trainable)
            replaced.append(name)
            if not name:
                result = made[module]
            else:
                parent, _, child = name.rpartition(".")
                setattr(result.get_submodule(parent), child, made[module])
    if strict and refused:
        name, reason = next(iter(refused.items()))
        raise ValueError(f"model: expected convolutions that can be converted, got {name!r}: {reason}")
    return Conversion(result, replaced, refused)
