r"""Attention over images as pure functions: the plain formula, and a fast path that never forms the N × N map.

A layer of position-only attention is `Y = Σ_h P^(h) X W^(h) + b`, where P^(h) = softmax(A^(h)) does not depend on
X. If the scores add over rows and columns, A_{q,k} = a(q₁, k₁) + b(q₂, k₂), the softmax over the whole image is
the product of two softmaxes over its axes,

    exp(a + b) / Σ_{k₁,k₂} exp(a + b) = exp(a) / Σ_{k₁} exp(a) · exp(b) / Σ_{k₂} exp(b),

so that P^(h) = R^(h) ⊗ C^(h), and the layer is `Σ_h R^(h) X W^(h) C^(h)ᵀ`: two small matrices instead of one of
N² entries. `attention_dense` is the formula, `attention_separable` the fast path; tests hold them equal.
"""

import math
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

TILE = 32  # rows and columns of a tile whose temporaries stay in a processor's cache


# ---- one axis -----------------------------------------------------------------------------------------------


def axis_shifts(
    size: int, padding_mode: str = "replicate", *, like: Tensor, queries: int | None = None, stride: int = 1
) -> Float[Tensor, "query key"]:
    """Shift k − q between the queries and the keys of one axis, in pixels.

    The keys are the pixels of the axis; with `zeros` so many more on either side, which hold zeros. The queries
    are the pixels too, or the first so many multiples of a stride.
    """
    dtype = torch.promote_types(like.dtype, torch.float32)
    key = torch.arange(-size, 2 * size) if padding_mode == "zeros" else torch.arange(size)
    query = stride * torch.arange(size if queries is None else queries)
    return (key[None, :] - query[:, None]).to(like.device, dtype)


def quadratic_axis_scores(
    shifts: Float[Tensor, "query key"],
    center: Float[Tensor, " head"],
    alpha: Float[Tensor, " head"],
    *,
    period: int | None = None,
) -> Float[Tensor, "head query key"]:
    """Scores −α (δ − Δ)² along one axis, up to a constant a query. With a period, δ − Δ goes the short way round.

    An infinite α gives the hard limit: 0 for the nearest keys, −∞ for the others.
    """
    offset = shifts - center.to(shifts)[:, None, None]
    if period is not None:
        offset = offset - period * torch.round(offset / period)
    # δ − Δ may be large and its square rounded; what counts is by how much a key is farther than the nearest one.
    nearest = offset.gather(-1, offset.abs().argmin(dim=-1, keepdim=True))
    farther = (offset - nearest) * (offset + nearest)
    soft = torch.isfinite(alpha)
    scores = -torch.where(soft, alpha, 0).to(shifts)[:, None, None] * farther
    if soft.all():
        return scores
    hard = torch.where(farther <= 0, 0.0, -math.inf).to(shifts)
    return torch.where(soft[:, None, None], scores, hard)


def axis_attention(
    scores: Float[Tensor, "head query key"], dtype: torch.dtype, pixels: slice = slice(None)
) -> Float[Tensor, "head query pixel"]:
    """Softmax along one axis, for the keys that are pixels, in `dtype`.

    Probabilities below the rounding of `dtype` become exact zeros: they change no result, but subnormal numbers
    slow products down on many processors, and zeros let a narrow head be cut to its window.
    """
    probabilities = torch.softmax(scores, dim=-1)[..., pixels]  # keys beyond the image only take their share
    return torch.where(probabilities < torch.finfo(dtype).eps, 0, probabilities).to(dtype)


# ---- the layer ----------------------------------------------------------------------------------------------


def attention_dense(
    x: Float[Tensor, "batch in_channels height width"],
    probabilities: Float[Tensor, "*batch head query pixel"],
    weight: Float[Tensor, "head in_channels out_channels"],
) -> Float[Tensor, "batch out_channels height width"]:
    """Plain formula `Σ_h P^(h) X W^(h)` with the full map P; with or without a batch axis."""
    height, width = x.shape[2:]
    pixels = x.flatten(2).transpose(1, 2)
    values = torch.einsum("bkc,hco->bhko", pixels, weight)
    result = torch.einsum("...hqk,...hko->...qo", probabilities, values)
    return result.transpose(1, 2).unflatten(2, (height, width))


def attention_separable(
    x: Float[Tensor, "batch in_channels height width"],
    rows: Float[Tensor, "head query_rows height"],
    columns: Float[Tensor, "head query_columns width"],
    weight: Float[Tensor, "head group in_channels_per_group out_channels_per_group"],
) -> Float[Tensor, "batch out_channels query_rows query_columns"]:
    """Fast path `Σ_h R^(h) X W^(h) C^(h)ᵀ`, equal to `attention_dense` with P = R ⊗ C to rounding.

    No tensor with N² entries is formed, forward or backward. On a CPU the image is cut into tiles, and each head
    into the window in which its attention is not zero, so that the cost grows with the number of pixels.
    """
    result = _Separable.apply(x.permute(0, 2, 3, 1), rows, columns, weight)
    return result.permute(0, 3, 1, 2)


def attention_shifts(
    x: Float[Tensor, "batch in_channels height width"],
    rows: Float[Tensor, "head query_rows height"],
    columns: Float[Tensor, "head query_columns width"],
    weight: Float[Tensor, "head group in_channels_per_group out_channels_per_group"],
) -> Float[Tensor, "batch out_channels query_rows query_columns"]:
    """Fast path for one-hot attention: every head reads one pixel a query.

    Heads that all step by the same stride, each from a start of its own on a common grid, are the taps of one
    kernel, and PyTorch's convolution adds them up. Other heads gather their pixels one after the other.
    """
    steps = [_progression(attention.argmax(dim=-1)) for attention in (rows, columns)]
    heads, groups, in_channels, out_channels = weight.shape
    if all(step is not None for step in steps):
        (row_starts, row_stride), (column_starts, column_stride) = steps
        (top, i, row_step), (left, j, column_step) = _grid(row_starts), _grid(column_starts)
        height, width = max(i) + 1, max(j) + 1
        if height * width <= 4 * heads:
            taps = torch.tensor(i, device=x.device) * width + torch.tensor(j, device=x.device)
            kernel = weight.new_zeros(height * width, groups, in_channels, out_channels).index_add(0, taps, weight)
            kernel = kernel.permute(1, 3, 2, 0).reshape(groups * out_channels, in_channels, height, width)
            last_row = max(row_starts) + row_stride * (rows.shape[1] - 1)
            last_column = max(column_starts) + column_stride * (columns.shape[1] - 1)
            return torch.nn.functional.conv2d(
                x[:, :, top : last_row + 1, left : last_column + 1],
                kernel,
                stride=(row_stride, column_stride),
                dilation=(row_step, column_step),
                groups=groups,
            )
    pixels = x.permute(0, 2, 3, 1)
    result = 0
    for row, column, matrix in zip(rows, columns, weight, strict=True):
        result = result + _project(pixels[:, row.argmax(dim=-1)][:, :, column.argmax(dim=-1)], matrix)
    return result.permute(0, 3, 1, 2)


def _progression(index: Tensor) -> tuple[list[int], int] | None:
    """Start of every head and the common step, if each row of indices is an arithmetic progression."""
    if index.shape[1] == 1:
        return index[:, 0].tolist(), 1
    steps = index.diff(dim=1)
    step = int(steps[0, 0])
    return (index[:, 0].tolist(), step) if step > 0 and bool((steps == step).all()) else None


def _grid(starts: list[int]) -> tuple[int, list[int], int]:
    """Write numbers as first + step · i: the first, the list of i, and the largest step."""
    first = min(starts)
    step = math.gcd(*(start - first for start in starts)) or 1
    return first, [(start - first) // step for start in starts], step


def _project(pixels: Tensor, matrix: Float[Tensor, "group in_channels out_channels"]) -> Tensor:
    """Multiply the channels of every pixel with the matrix of their group."""
    if len(matrix) == 1:
        return pixels @ matrix[0]
    if matrix.shape[1:] == (1, 1):
        return pixels * matrix[:, 0, 0]
    grouped = torch.einsum("...gi,gio->...go", pixels.unflatten(-1, matrix.shape[:2]), matrix)
    return grouped.flatten(-2)


class _Separable(torch.autograd.Function):
    """Tiles of the output, one head after the other; the backward pass recomputes what it needs."""

    @staticmethod
    def forward(ctx, x, rows, columns, weight):
        x = x.contiguous()
        ctx.save_for_backward(x, rows, columns, weight)
        groups, out_channels = weight.shape[1], weight.shape[3]
        result = x.new_empty(len(x), rows.shape[1], columns.shape[1], groups * out_channels)
        for images, out in zip(*(_chunks(one, x) for one in (x, result)), strict=True):
            for tile in _tiles(rows, columns):
                total = None
                for head, matrix in enumerate(weight):
                    row, column, part = tile.of(head, rows, columns, images)
                    mixed = (row @ (column @ part).flatten(2)).view(-1, x.shape[-1])
                    if total is None:
                        total = _project(mixed, matrix)
                    elif groups == 1:
                        total.addmm_(mixed, matrix[0])
                    else:
                        total += _project(mixed, matrix)
                block = out[:, tile.rows, tile.columns]
                block.copy_(total.view(block.shape))
        return result

    @staticmethod
    def backward(ctx, grad):
        x, rows, columns, weight = ctx.saved_tensors
        wants_x, wants_rows, wants_columns, wants_weight = ctx.needs_input_grad
        grad = grad.contiguous()
        channels = x.shape[-1]
        d_x, d_rows, d_columns, d_weight = (torch.zeros_like(one) for one in (x, rows, columns, weight))
        for images, d_images, out_grad in zip(*(_chunks(one, x) for one in (x, d_x, grad)), strict=True):
            for tile in _tiles(rows, columns):
                out = out_grad[:, tile.rows, tile.columns].flatten(0, 2)
                for head, matrix in enumerate(weight):
                    row, column, part = tile.of(head, rows, columns, images)
                    if wants_weight or wants_rows:
                        by_columns = (column @ part).flatten(2)
                    if wants_weight:
                        mixed = (row @ by_columns).view(-1, channels)
                        d_weight[head] += _project_gradient(mixed, out, matrix)
                    if not (wants_x or wants_rows or wants_columns):
                        continue
                    back = _project(out, matrix.transpose(1, 2)).reshape(
                        len(images), len(row), len(column) * channels
                    )
                    d_row, d_column, d_part = tile.of(head, d_rows, d_columns, d_images)
                    if wants_rows:
                        d_row += (back @ by_columns.mT).sum(dim=0)
                    if wants_x or wants_columns:
                        by_rows = (row.T @ back).view(len(images), row.shape[1], len(column), channels)
                    if wants_columns:
                        d_column += (by_rows @ part.mT).sum(dim=(0, 1))
                    if wants_x:
                        d_part += column.T @ by_rows
        return d_x, d_rows, d_columns, d_weight


def _project_gradient(pixels: Tensor, grad: Tensor, matrix: Tensor) -> Tensor:
    """Gradient of `_project` with respect to the matrix."""
    groups, in_channels, out_channels = matrix.shape
    grouped = pixels.view(-1, groups, in_channels), grad.reshape(-1, groups, out_channels)
    return torch.einsum("pgi,pgo->gio", *grouped)


class _Tile(NamedTuple):
    """A block of queries, and for each head the block of keys outside which it does not attend."""

    rows: slice
    columns: slice
    key_rows: list[slice]
    key_columns: list[slice]

    def of(self, head: int, rows: Tensor, columns: Tensor, images: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the parts of the attention along rows and columns and of the images that a head uses, as views."""
        key_rows, key_columns = self.key_rows[head], self.key_columns[head]
        return (
            rows[head, self.rows, key_rows],
            columns[head, self.columns, key_columns],
            images[:, key_rows, key_columns],
        )


def _chunks(images: Tensor, like: Tensor) -> tuple[Tensor, ...]:
    """Split a batch so that the temporaries of a tile stay in cache; small images go through together."""
    pixels = min(like.shape[1], TILE) * min(like.shape[2], TILE)
    return images.split(max(1, TILE**2 * 128 // (pixels * like.shape[3])))


def _tiles(rows: Tensor, columns: Tensor) -> list[_Tile]:
    return [_Tile(r, c, kr, kc) for r, kr in _windows(rows) for c, kc in _windows(columns)]


def _windows(attention: Tensor) -> list[tuple[slice, list[slice]]]:
    """Cut the queries of an axis into tiles; with each goes, for every head, the range of keys it attends to."""
    heads, queries, keys = attention.shape
    if attention.is_cuda or keys <= TILE:
        return [(slice(0, queries), [slice(0, keys)] * heads)]
    result = []
    for start in range(0, queries, TILE):
        tile = slice(start, min(start + TILE, queries))
        attended = (attention[:, tile] != 0).any(dim=1).int()
        first, last = attended.argmax(dim=1).tolist(), (keys - attended.flip(1).argmax(dim=1)).tolist()
        result.append((tile, [slice(*window) for window in zip(first, last, strict=True)]))
    return result
