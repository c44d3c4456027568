"""Attention over patches, and any convolution of pixels as such a layer: nine heads for most kernels.

The mathematics is `theory.conv_to_patch_mhsa`: Theorem 1 of Li, Chen, He and Hsieh 2021, with this book's borders,
strides, dilations, groups and narrow heads.
"""

import math
from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from attnconv import checks, theory
from attnconv.nn import functional
from attnconv.nn.attention import check_image
from attnconv.nn.relative import RelativeAttention2d
from attnconv.shifts import margins as margins_of

MANY = 4096  # keys to reckon with where the size of the images is not known


class PatchAttention2d(nn.Module):
    """Self-attention over the patches of an image: each P × P patch is one token of P·P·C numbers.

        T_p = X[patch p],   Y[patch p] = Σ_h Σ_k softmax_k(A^(h))_{p,k} T_k W^(h) + b

    The scores A^(h) are those of `RelativeAttention2d`: a table over the shifts between patches, and content if
    asked for. It takes and gives images.

    Args:
        in_channels: channels of the image.
        out_channels: channels of the result.
        patch_size: P, in pixels; one number or (rows, columns).
        out_patch_size: size of the patches that are written, P by default. A smaller one makes a smaller image.
        image_size: height and width of the images in pixels, for a table of every shift between their patches;
            with None the table holds the shifts within the margins. Images of other sizes pass as well.
        heads: number of heads.
        head_dim: width D_h of a head; None keeps one matrix W^(h) a head.
        margins: how many patches the heads reach beyond the grid, (above, below, left, right) or one number.
        border: `ring`, `sink`, `mask` or `circular`; see `RelativeAttention2d`.
        content: add the products of queries and keys.
        key_dim: width of queries and keys.
        bias: add a learned bias, one number for each entry of a patch.
        method: `dense` is the plain formula, `auto` the fast path.

    Raises:
        ValueError: a wrong size or option; an image that is no whole number of patches.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        patch_size: int | tuple[int, int],
        *,
        out_patch_size: int | tuple[int, int] | None = None,
        image_size: int | tuple[int, int] | None = None,
        heads: int = 9,
        head_dim: int | None = None,
        margins: int | Sequence[int] = 1,
        border: str = "ring",
        content: bool = False,
        key_dim: int | None = None,
        bias: bool = True,
        method: str = "auto",
    ):
        super().__init__()
        self.in_channels = checks.integer("in_channels", in_channels, least=1)
        self.out_channels = checks.integer("out_channels", out_channels, least=1)
        self.patch_size = checks.pair("patch_size", patch_size, least=1)
        written = self.patch_size if out_patch_size is None else out_patch_size
        self.out_patch_size = checks.pair("out_patch_size", written, least=1)
        self.attention = RelativeAttention2d(
            self.in_channels * math.prod(self.patch_size),
            self.out_channels * math.prod(self.out_patch_size),
            heads=heads,
            head_dim=head_dim,
            size=_grid(image_size, self.patch_size),
            margins=margins,
            border=border,
            content=content,
            key_dim=key_dim,
            bias=bias,
            method=method,
        )

    @property
    def heads(self) -> int:
        """Number of heads."""
        return self.attention.heads

    def tokens(
        self, x: Float[Tensor, "batch in_channels height width"]
    ) -> Float[Tensor, "batch patch_channels rows columns"]:
        """Return the patches of the images, as images with a token in the place of a pixel."""
        check_image(x, self.in_channels)
        return functional.image_to_patches(x, self.patch_size)

    def attention_probs(
        self, x: Float[Tensor, "batch in_channels height width"]
    ) -> Float[Tensor, "batch head query patch"]:
        """Return the map of every image of the batch, a row and a column a patch, in reading order."""
        return self.attention.attention_probs(self.tokens(x))

    def forward(
        self, x: Float[Tensor, "batch in_channels height width"]
    ) -> Float[Tensor, "batch out_channels out_height out_width"]:
        """Attend."""
        return functional.patches_to_image(self.attention(self.tokens(x)), self.out_patch_size)

    def extra_repr(self) -> str:
        """Sizes, as PyTorch prints its layers."""
        sizes = f"{self.in_channels}, {self.out_channels}, patch_size={self.patch_size}"
        return f"{sizes}, out_patch_size={self.out_patch_size}"


def conv_to_patch_attention(
    conv: nn.Conv2d,
    patch_size: int | tuple[int, int],
    *,
    head_dim: int | None = None,
    border: str = "ring",
    content: bool = False,
    key_dim: int | None = None,
    alpha: float | None = None,
    gamma: float = 0.0,
    compensate: bool = False,
    image_size: int | tuple[int, int] | None = None,
) -> PatchAttention2d:
    """Turn a convolution into a self-attention layer over patches that computes the same.

    Every kernel size, dilation, group and every stride that divides the patch is taken, with the padding that keeps
    the size of the image: `padding="same"`, or so many pixels as are the same. The layer has a head for each shift
    of `theory.patch_shifts`, nine for most kernels.

    Args:
        conv: the convolution; it stays as it is.
        patch_size: P, in pixels; one number or (rows, columns).
        head_dim: width D_h of a head. None keeps one matrix W^(h) a head; a number takes `⌈rank W_δ / D_h⌉` heads
            a shift.
        border: `ring`, `sink` or `mask` for a convolution that pads with zeros, `circular` for one on the torus.
        content: give the heads queries and keys. The queries' weights are drawn and those of the keys are zero, so
            that the layer is the same at first and the keys' weights have a gradient; with both at zero, neither
            would.
        key_dim: width of queries and keys.
        alpha: score of the patch wanted where all others have 0; a head leaks what `theory.patch_leakage` says.
            None is the hard limit, in which the layer is equal to the convolution to rounding. A hard head does not
            see what patches hold, so with content None is the sharpness at which heads leak no more than rounding.
            Such heads hardly learn; a smaller α wakes them.
        gamma: γ, by how much a sink's score exceeds that of the patch wanted.
        compensate: with a finite α, let one more head look at all patches alike and take away what the others
            leak. The layer is then equal to the convolution on images of `image_size`, at every α > 0, with borders
            `ring` and `circular`. This is the bound ρ + 1 of chapter 15, this book's.
        image_size: height and width of the images in pixels, for a table of every shift between their patches, so
            that heads can learn to look anywhere. With None the table holds the shifts of the kernel.

    Raises:
        ValueError: no `nn.Conv2d`; a padding that changes the size of the image or does not fit the border; a
            stride that does not divide the patch; options that do not fit.
    """
    kernel = _kernel_of(conv)
    patch = checks.pair("patch_size", patch_size, least=1)
    checks.choice("border", border, checks.BORDERS)
    if (border == "circular") != (conv.padding_mode == "circular"):
        fitting = "'circular'" if conv.padding_mode == "circular" else "'ring', 'sink' or 'mask'"
        raise ValueError(f"border: expected {fitting} for padding_mode={conv.padding_mode!r}, got {border!r}")
    if alpha is not None and not (isinstance(alpha, int | float) and 0 < alpha < math.inf):
        raise ValueError(f"alpha: expected a positive sharpness, or None for the hard limit, got {alpha!r}")
    grid = _grid(image_size, patch)
    options = {"stride": conv.stride, "dilation": conv.dilation, "groups": conv.groups}
    if head_dim is None:
        shifts = theory.patch_shifts(conv.kernel_size, patch, conv.stride, conv.dilation)
        weights = {"weight": theory.patch_matrices(kernel, patch, **options)}
    else:
        mhsa = theory.conv_to_patch_mhsa(kernel, patch, head_dim=head_dim, **options)
        shifts = mhsa.shifts
        weights = {"w_val": mhsa.w_val, "w_out": mhsa.w_out.reshape(len(shifts), head_dim, -1)}
    first = next(iter(weights))
    if border == "sink":
        weights[first] = weights[first] * (1 + math.exp(gamma))
    margins = margins_of(shifts)
    keys = MANY if grid is None else _keys(grid, margins, border)
    if content and alpha is None:
        alpha = theory.patch_sharpness(4 * torch.finfo(conv.weight.dtype).eps, max(keys, 2))
    if compensate:
        if alpha is None or grid is None or head_dim is not None or border not in ("ring", "circular"):
            raise ValueError(
                "compensate: expected a finite alpha, an image_size, head_dim=None and a border 'ring' or "
                f"'circular', got alpha={alpha}, image_size={image_size}, head_dim={head_dim}, border={border!r}"
            )
        # A head's row is a · (one key) + c · (all keys); the uniform head takes the second part away.
        share = 1 / (keys - 1 + math.exp(alpha))
        blocks = weights[first] / (1 - keys * share)
        weights[first] = np.concatenate([blocks, -keys * share * blocks.sum(axis=0, keepdims=True)])
    written = tuple(p // s for p, s in zip(patch, conv.stride, strict=True))
    layer = PatchAttention2d(
        conv.in_channels,
        conv.out_channels,
        patch,
        out_patch_size=written,
        image_size=image_size,
        heads=len(weights[first]),
        head_dim=head_dim,
        margins=margins,
        border=border,
        content=content,
        key_dim=key_dim,
        bias=conv.bias is not None,
    ).to(conv.weight)
    layer.attention.look_at(torch.from_numpy(shifts), alpha=alpha, gamma=gamma)
    with torch.no_grad():
        for name, value in weights.items():
            parameter = layer.attention.get_parameter(name)
            parameter.copy_(torch.from_numpy(value)).requires_grad_(conv.weight.requires_grad)
        if conv.bias is not None:
            layer.attention.bias.copy_(conv.bias.repeat(math.prod(written)))
            layer.attention.bias.requires_grad_(conv.bias.requires_grad)
        if content:
            layer.attention.key.weight.zero_()
    return layer.train(conv.training)


def _kernel_of(conv: nn.Conv2d) -> np.ndarray:
    """Return the kernel, rows, columns, in, out, of a convolution that keeps the size of the image."""
    if not isinstance(conv, nn.Conv2d) or isinstance(conv, nn.modules.lazy.LazyModuleMixin):
        raise ValueError(f"conv: expected a torch.nn.Conv2d with its sizes known, got {type(conv).__name__}")
    if conv.padding_mode not in ("zeros", "circular"):
        raise ValueError(f"conv: expected padding with zeros or circular padding, got {conv.padding_mode!r}")
    padding = (0, 0) if conv.padding == "valid" else conv.padding
    totals = [d * (k - 1) for d, k in zip(conv.dilation, conv.kernel_size, strict=True)]
    # An odd total has one pixel more right and below, which is there for `same`, and not read with a stride.
    keeps = padding == "same" or all(
        p == total // 2 and (total % 2 == 0 or s > 1)
        for p, total, s in zip(padding, totals, conv.stride, strict=True)
    )
    if not keeps:
        raise ValueError(
            "conv: expected padding that keeps the size of the image, 'same' or "
            f"{tuple(total // 2 for total in totals)}, got {conv.padding}"
        )
    return conv.weight.detach().double().permute(2, 3, 1, 0).cpu().numpy()


def _grid(image_size: int | tuple[int, int] | None, patch: tuple[int, int]) -> tuple[int, int] | None:
    """Return how many patches an image has, in rows and columns."""
    if image_size is None:
        return None
    image = checks.pair("image_size", image_size, least=1)
    if image[0] % patch[0] or image[1] % patch[1]:
        raise ValueError(f"image_size: expected whole patches of {patch[0]} × {patch[1]} pixels, got {image_size}")
    return image[0] // patch[0], image[1] // patch[1]


def _keys(grid: tuple[int, int], margins: tuple[int, int, int, int], border: str) -> int:
    """Return the number of keys over which a head leaks."""
    above, below, left, right = margins if border == "ring" else (0, 0, 0, 0)
    return (above + grid[0] + below) * (left + grid[1] + right)
