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
CHUNK = 2**21  # numbers of the images that are taken together for a tile


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
    into the window in which its attention is not zero, so that the cost grows with the number of pixels. Memory
    is laid out as (row, column, batch, channel), in which both mixings are products of large matrices; an image
    that lies so already, or a single one in `channels_last`, is not copied.
    """
    result = _Separable.apply(x.permute(2, 3, 0, 1), rows, columns, weight)
    return result.permute(2, 3, 0, 1)


# ---- shifts with scores of their own, and patches ------------------------------------------------------------


def relative_scores(
    table: Float[Tensor, "head row_shifts column_shifts"], height: int, width: int
) -> Float[Tensor, "head query key"]:
    """Scores `A_{q,k} = table[k − q]` of the queries of a height × width image.

    The table holds the shifts from the last query to the first key, to those from the first query to the last key;
    its size says how many keys there are. Queries and keys are in reading order.
    """
    keys = table.shape[1] - height + 1, table.shape[2] - width + 1
    windows = table.unfold(1, keys[0], 1).unfold(2, keys[1], 1)  # the first window belongs to the last query
    return windows.flip(1, 2).flatten(3).flatten(1, 2)


def softmax_or_zero(scores: Float[Tensor, "*batch query key"]) -> Float[Tensor, "*batch query key"]:
    """Softmax over the keys; a row of −∞ alone becomes 0, and so do its gradients."""
    nothing = scores.isneginf().all(dim=-1, keepdim=True)
    return torch.softmax(scores.masked_fill(nothing, 0), dim=-1).masked_fill(nothing, 0)


def logsumexp_or_nothing(scores: Float[Tensor, "*batch query key"]) -> Float[Tensor, "*batch query 1"]:
    """Log of the summed exponentials over the keys; a row of −∞ alone stays −∞, and its gradients are 0."""
    nothing = scores.isneginf().all(dim=-1, keepdim=True)
    total = torch.logsumexp(scores.masked_fill(nothing, 0), dim=-1, keepdim=True)
    return total.masked_fill(nothing, -math.inf)


def image_to_patches(
    x: Float[Tensor, "batch channels height width"], patch: tuple[int, int]
) -> Float[Tensor, "batch patch_channels rows columns"]:
    """Turn every patch into one pixel: an image of tokens, as `reference.image_to_patches`.

    The channels of a token are the entries of its patch in the order row, column, channel.

    Raises:
        ValueError: an image that is no whole number of patches.
    """
    (height, width), (rows, columns) = x.shape[2:], patch
    if height % rows or width % columns:
        raise ValueError(f"x: expected whole patches of {rows} × {columns} pixels, got {height} × {width}")
    tiles = x.unflatten(3, (width // columns, columns)).unflatten(
        2, (height // rows, rows)
    )  # batch, channel, row, i, column, j
    # Memory is laid out as (row, column, batch, channel), as the attention layers and blocks want it.
    return tiles.permute(2, 4, 0, 3, 5, 1).flatten(3).permute(2, 3, 0, 1)


def patches_to_image(
    tokens: Float[Tensor, "batch patch_channels rows columns"], patch: tuple[int, int]
) -> Float[Tensor, "batch channels height width"]:
    """Put patches together to an image: the inverse of `image_to_patches`."""
    tiles = tokens.unflatten(
        1, (*patch, tokens.shape[1] // (patch[0] * patch[1]))
    )  # batch, i, j, channel, row, column
    return tiles.permute(0, 3, 4, 1, 5, 2).flatten(4).flatten(2, 3)


# ---- one-hot attention --------------------------------------------------------------------------------------


class Taps(NamedTuple):
    """One-hot attention along one axis: head h reads pixel `first + step · taps[h] + stride · query`."""

    first: int
    step: int
    taps: list[int]
    stride: int
    queries: int

    @property
    def size(self) -> int:
        """Pixels of the smallest kernel that holds all taps."""
        return max(self.taps) + 1

    @property
    def end(self) -> int:
        """One more than the last pixel that is read."""
        return self.first + self.step * (self.size - 1) + self.stride * (self.queries - 1) + 1


class Shifts(NamedTuple):
    """One-hot attention over an image, prepared once: the pixels that are read, as taps where they can be."""

    rows: Float[Tensor, "head query_rows"]
    columns: Float[Tensor, "head query_columns"]
    taps: tuple[Taps, Taps] | None


def shifts_of(rows: Float[Tensor, "head query_rows height"], columns: Float[Tensor, "head query_columns width"]):
    """Return the `Shifts` of one-hot attention along rows and columns."""
    rows, columns = rows.argmax(dim=-1), columns.argmax(dim=-1)
    taps = (_taps(rows), _taps(columns))
    sparse = None in taps or taps[0].size * taps[1].size > 4 * len(rows)
    return Shifts(rows, columns, None if sparse else taps)


def _taps(index: Tensor) -> Taps | None:
    """Write the pixels that the heads read along one axis as taps, if each head steps by the same stride."""
    queries, stride = index.shape[1], 1
    if queries > 1:
        strides = index.diff(dim=1)
        stride = int(strides[0, 0])
        if stride < 1 or bool((strides != stride).any()):
            return None
    starts = index[:, 0].tolist()
    first = min(starts)
    step = math.gcd(*(start - first for start in starts)) or 1
    return Taps(first, step, [(start - first) // step for start in starts], stride, queries)


def attention_shifts(
    x: Float[Tensor, "batch in_channels height width"],
    shifts: Shifts,
    weight: Float[Tensor, "head group in_channels_per_group out_channels_per_group"],
    *,
    zeros: tuple[int, int] = (0, 0),
) -> Float[Tensor, "batch out_channels query_rows query_columns"]:
    """Fast path for one-hot attention: every head reads one pixel a query.

    Heads that all step by the same stride, each from a start of its own on a common grid, are the taps of one
    kernel, and PyTorch's convolution adds them up. Other heads gather their pixels one after the other. The
    shifts count from the corner of the image with so many rows and columns of zeros on every side.
    """
    heads, groups, in_channels, out_channels = weight.shape
    if shifts.taps is None:
        bottom, right = zeros
        pixels = torch.nn.functional.pad(x, (right, right, bottom, bottom)).permute(0, 2, 3, 1)
        heads = zip(shifts.rows, shifts.columns, weight, strict=True)
        result = sum(_project(pixels[:, row][:, :, column], matrix) for row, column, matrix in heads)
        return result.permute(0, 3, 1, 2)
    rows, columns = shifts.taps
    places = [i * columns.size + j for i, j in zip(rows.taps, columns.taps, strict=True)]
    kernel = weight
    if places != list(range(rows.size * columns.size)):
        kernel = weight.new_zeros(rows.size * columns.size, *weight.shape[1:])
        kernel = kernel.index_add(0, torch.tensor(places, device=x.device), weight)
    kernel = kernel.permute(1, 3, 2, 0).reshape(groups * out_channels, in_channels, rows.size, columns.size)
    if any(zeros) and (rows.first or columns.first):
        x, zeros = torch.nn.functional.pad(x, (zeros[1], zeros[1], zeros[0], zeros[0])), (0, 0)
    if not any(zeros):
        x = x[:, :, rows.first : rows.end, columns.first : columns.end]
    return torch.nn.functional.conv2d(
        x,
        kernel,
        stride=(rows.stride, columns.stride),
        padding=zeros,
        dilation=(rows.step, columns.step),
        groups=groups,
    )


# ---- rows times columns -------------------------------------------------------------------------------------


def _project(pixels: Tensor, matrix: Float[Tensor, "group in_channels out_channels"]) -> Tensor:
    """Multiply the channels of every pixel with the matrix of their group."""
    if len(matrix) == 1:
        return pixels @ matrix[0]
    if matrix.shape[1:] == (1, 1):
        return pixels * matrix[:, 0, 0]
    grouped = torch.einsum("...gi,gio->...go", pixels.unflatten(-1, matrix.shape[:2]), matrix)
    return grouped.flatten(-2)


class _Separable(torch.autograd.Function):
    """Tiles of the output, one head after the other; the backward pass recomputes what it needs.

    Images and gradients are (row, column, batch, channel).
    """

    @staticmethod
    def forward(ctx, x, rows, columns, weight):
        x = x.contiguous()
        ctx.save_for_backward(x, rows, columns, weight)
        groups, out_channels = weight.shape[1], weight.shape[3]
        result = x.new_empty(rows.shape[1], columns.shape[1], x.shape[2], groups * out_channels)
        for images, out in zip(*(_chunks(one, x) for one in (x, result)), strict=True):
            for tile in _tiles(rows, columns):
                total = None
                for head, matrix in enumerate(weight):
                    row, column, part = tile.of(head, rows, columns, images)
                    mixed = (row @ _mix(column, part.flatten(2)).flatten(1)).view(-1, x.shape[-1])
                    if total is None:
                        total = _project(mixed, matrix)
                    elif groups == 1:
                        total.addmm_(mixed, matrix[0])
                    else:
                        total += _project(mixed, matrix)
                block = out[tile.rows, tile.columns]
                block.copy_(total.view(block.shape))
        return result

    @staticmethod
    def backward(ctx, grad):
        x, rows, columns, weight = ctx.saved_tensors
        wants_x, wants_rows, wants_columns, wants_weight = ctx.needs_input_grad
        grad = grad.contiguous()
        channels = x.shape[-1]
        d_x = torch.zeros_like(x)
        # Sums over tiles and images are kept in at least single precision.
        sums = torch.promote_types(x.dtype, torch.float32)
        d_rows, d_columns, d_weight = (torch.zeros_like(one, dtype=sums) for one in (rows, columns, weight))
        for images, d_images, out_grad in zip(*(_chunks(one, x) for one in (x, d_x, grad)), strict=True):
            for tile in _tiles(rows, columns):
                out = out_grad[tile.rows, tile.columns].flatten(0, 2)
                for head, matrix in enumerate(weight):
                    row, column, part = tile.of(head, rows, columns, images)
                    part = part.flatten(2)
                    if wants_weight or wants_rows:
                        by_columns = _mix(column, part).flatten(1)
                    if wants_weight:
                        d_weight[head] += _project_gradient((row @ by_columns).view(-1, channels), out, matrix)
                    if not (wants_x or wants_rows or wants_columns):
                        continue
                    back = _project(out, matrix.transpose(1, 2)).view(len(row), -1)
                    d_row, d_column, d_part = tile.of(head, d_rows, d_columns, d_images)
                    if wants_rows:
                        d_row += back @ by_columns.T
                    if wants_x or wants_columns:
                        by_rows = (row.T @ back).view(row.shape[1], len(column), -1)
                    if wants_columns:
                        d_column += (by_rows @ part.mT).sum(dim=0)
                    if wants_x:
                        d_part += _mix(column.T, by_rows).view(d_part.shape)
        return d_x, d_rows.to(rows.dtype), d_columns.to(columns.dtype), d_weight.to(weight.dtype)


def _mix(column: Tensor, rows: Tensor) -> Tensor:
    """Multiply every row of pixels with the attention along the columns; `@` would copy the pixels first."""
    return torch.bmm(column.expand(len(rows), -1, -1), rows)


def _project_gradient(pixels: Tensor, grad: Tensor, matrix: Tensor) -> Tensor:
    """Gradient of `_project` with respect to the matrix."""
    groups, in_channels, out_channels = matrix.shape
    if groups == 1:
        return (pixels.T @ grad)[None]
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
            images[key_rows, key_columns],
        )


def _chunks(images: Tensor, like: Tensor) -> tuple[Tensor, ...]:
    """Split a batch so that the temporaries of a tile stay in cache; small images go through together."""
    pixels = min(like.shape[0], TILE) * min(like.shape[1], TILE)
    return images.split(max(1, CHUNK // (pixels * like.shape[3])), dim=2)


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
