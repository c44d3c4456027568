"""Trainable attention over the pixels of an image: three kinds of scores, one skeleton."""

import math
from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn

from attnconv import checks
from attnconv.nn import functional

PADDING_MODES = ("replicate", "zeros", "circular")
METHODS = ("auto", "dense", "separable")
FUSED = 256  # pixels from which fused attention is faster than the plain formula


def check_image(x: Tensor, in_channels: int) -> None:
    """Raise ValueError if `x` is no batch of images with so many channels and at least one pixel."""
    if not isinstance(x, Tensor) or x.dim() != 4 or x.shape[1] != in_channels or 0 in x.shape[1:]:
        came = tuple(x.shape) if isinstance(x, Tensor) else type(x).__name__
        raise ValueError(f"x: expected shape (batch, in_channels={in_channels}, height, width), got {came}")


class _Attention2d(nn.Module):
    """What all three share: one matrix a head, a bias, and the choice between the formula and the fast path.

        Y = Σ_h softmax(A^(h)) X W^(h) + b

    `head_dim=None` keeps each W^(h) as one matrix, as the authors' code does; a number factors it into
    W_val^(h) W_out^(h) of that width.
    """

    def __init__(self, in_channels, out_channels, *, heads, head_dim, bias, method):
        super().__init__()
        self.in_channels = checks.integer("in_channels", in_channels, least=1)
        self.out_channels = checks.integer("out_channels", out_channels, least=1)
        self.heads = checks.integer("heads", heads, least=1)
        self.head_dim = None if head_dim is None else checks.integer("head_dim", head_dim, least=1)
        self.method = checks.choice("method", method, METHODS)
        if head_dim is None:
            self.weight = nn.Parameter(torch.empty(heads, in_channels, out_channels))
        else:
            self.w_val = nn.Parameter(torch.empty(heads, in_channels, head_dim))
            self.w_out = nn.Parameter(torch.empty(heads, head_dim, out_channels))
        self.bias = nn.Parameter(torch.empty(out_channels)) if bias else None
        self.reset_weights()

    def reset_weights(self) -> None:
        """Draw the head matrices and the bias as `nn.Linear(heads · in_channels, out_channels)` does."""
        bound = 1 / math.sqrt(self.heads * self.in_channels)
        if self.head_dim is None:
            nn.init.uniform_(self.weight, -bound, bound)
        else:
            nn.init.uniform_(self.w_val, -1 / math.sqrt(self.in_channels), 1 / math.sqrt(self.in_channels))
            width = 1 / math.sqrt(self.heads * self.head_dim)
            nn.init.uniform_(self.w_out, -width, width)
        if self.bias is not None:
            nn.init.uniform_(self.bias, -bound, bound)

    @property
    def head_matrices(self) -> Float[Tensor, "head in_channels out_channels"]:
        """The matrices W^(h)."""
        return self.weight if self.head_dim is None else self.w_val @ self.w_out

    def axis_scores(self, height: int, width: int) -> tuple[Tensor, Tensor] | None:
        """Scores along the rows and along the columns, or None where the scores do not add up from them."""
        return None

    def _checked(self, x: Tensor) -> Tensor:
        check_image(x, self.in_channels)
        if not x.is_floating_point():
            raise ValueError(f"x: expected a floating-point image, got {x.dtype}")
        device = x.device.type
        return x.to(torch.get_autocast_dtype(device)) if torch.is_autocast_enabled(device) else x

    def extra_repr(self) -> str:
        """Sizes and options, as PyTorch prints its layers."""
        sizes = f"{self.in_channels}, {self.out_channels}, heads={self.heads}, head_dim={self.head_dim}"
        return f"{sizes}, method={self.method!r}"


class _PositionAttention2d(_Attention2d):
    """Attention that looks at positions alone, so that the map is the same for every image."""

    padding_mode = "replicate"

    def _pixels(self, size: int) -> slice:
        """Which keys of an axis are pixels of the image."""
        return slice(size, 2 * size) if self.padding_mode == "zeros" else slice(None)

    def key_scores(
        self, height: int, width: int
    ) -> Float[Tensor, "head query_row query_column key_row key_column"]:
        """Return the scores of every query and key, for scores that add the sum of those along the axes."""
        rows, columns = self.axis_scores(height, width)
        return rows[:, :, None, :, None] + columns[:, None, :, None, :]

    def attention_probs(self, height: int, width: int) -> Float[Tensor, "head query pixel"]:
        """Return the full map P^(h) of an image of this size, by the plain formula: one softmax over all keys.

        With padding `zeros` its rows may sum to less than 1: what is missing went to keys that hold zeros.
        """
        height = checks.integer("height", height, least=1)
        width = checks.integer("width", width, least=1)
        scores = self.key_scores(height, width)
        probabilities = torch.softmax(scores.flatten(3), dim=-1).view(scores.shape)
        probabilities = probabilities[..., self._pixels(height), self._pixels(width)]
        return probabilities.reshape(self.heads, height * width, height * width)

    def forward(
        self, x: Float[Tensor, "batch in_channels height width"]
    ) -> Float[Tensor, "batch out_channels height width"]:
        """Attend; height and width stay."""
        x = self._checked(x)
        height, width = x.shape[2:]
        weight = self.head_matrices.to(x.dtype)
        scores = None if self.method == "dense" else self.axis_scores(height, width)
        if scores is not None:
            rows, columns = (
                functional.axis_attention(one, x.dtype, self._pixels(size))
                for one, size in zip(scores, (height, width), strict=True)
            )
            result = functional.attention_separable(x, rows, columns, weight[:, None])
        elif self.method == "separable":
            raise ValueError(
                "method: expected 'dense' or 'auto', since these scores do not add up, got 'separable'"
            )
        else:
            result = functional.attention_dense(x, self.attention_probs(height, width).to(x.dtype), weight)
        return result if self.bias is None else result + self.bias.to(x.dtype)[:, None, None]


class QuadraticAttention2d(_PositionAttention2d):
    """Self-attention whose heads are Gaussians around a learned shift: the quadratic encoding.

        A^(h)_{q,k} = −α^(h) ‖(k − q) − Δ^(h)‖²

    Args:
        in_channels: channels of the image.
        out_channels: channels of the result.
        heads: number of heads.
        head_dim: width D_h of a head; None keeps one matrix W^(h) a head.
        isotropic: one sharpness a head. Otherwise the score is −½ ‖Sᵀ(δ − Δ)‖² with a learned 2 × 2 matrix S a
            head (the inverse root of a covariance, in 1/pixels), which does not split into rows and columns.
        alpha: sharpness at the start, in 1/pixels²; one number or one a head. `math.inf` is the hard limit; a
            negative one looks at the farthest pixels.
        centers: shifts Δ at the start, in pixels, (heads, 2); None draws them from a normal distribution with
            standard deviation 2, as the authors' code does.
        padding_mode: what a head sees outside the image. `replicate` is bare attention: it never looks outside,
            and sharp heads read the nearest pixel. `zeros` adds keys that hold zeros, as many rows and columns as
            the image has on each side. `circular` closes the image to a torus.
        bias: add a learned bias.
        method: `dense` is the plain formula, `separable` the fast path, `auto` the fast path where it exists.

    Raises:
        ValueError: a wrong size, shape or option.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        *,
        heads: int = 9,
        head_dim: int | None = None,
        isotropic: bool = True,
        alpha: float | Sequence[float] | Tensor = 0.5,
        centers: Sequence[Sequence[float]] | Tensor | None = None,
        padding_mode: str = "replicate",
        bias: bool = True,
        method: str = "auto",
    ):
        super().__init__(in_channels, out_channels, heads=heads, head_dim=head_dim, bias=bias, method=method)
        self.padding_mode = checks.choice("padding_mode", padding_mode, PADDING_MODES)
        self.isotropic = bool(isotropic)
        centers = (
            2 * torch.randn(heads, 2)
            if centers is None
            else torch.as_tensor(centers, dtype=torch.get_default_dtype())
        )
        if centers.shape != (heads, 2) or not centers.isfinite().all():
            raise ValueError(
                f"centers: expected finite numbers of shape (heads={heads}, 2), got {tuple(centers.shape)}"
            )
        alpha = torch.as_tensor(alpha, dtype=centers.dtype)
        if alpha.shape not in ((), (heads,)) or alpha.isnan().any() or (alpha == -math.inf).any():
            raise ValueError(f"alpha: expected one number, or one for each of {heads} heads, got {alpha.tolist()}")
        self.centers = nn.Parameter(centers.clone())
        if self.isotropic:
            self.alpha = nn.Parameter(alpha.expand(heads).clone())
        else:
            if not ((alpha >= 0) & alpha.isfinite()).all():
                raise ValueError(
                    f"alpha: expected finite numbers from 0 where heads have a matrix, got {alpha.tolist()}"
                )
            root = (2 * alpha).sqrt().expand(heads)
            self.inverse_root = nn.Parameter(root[:, None, None] * torch.eye(2).to(root))

    def axis_scores(self, height: int, width: int) -> tuple[Tensor, Tensor] | None:
        """Return the scores along the rows and along the columns; none for heads with a matrix."""
        if not self.isotropic:
            return None
        circular = self.padding_mode == "circular"
        return tuple(
            functional.quadratic_axis_scores(
                functional.axis_shifts(size, self.padding_mode, like=center),
                center,
                self.alpha,
                period=size if circular else None,
            )
            for size, center in ((height, self.centers[:, 0]), (width, self.centers[:, 1]))
        )

    def key_scores(
        self, height: int, width: int
    ) -> Float[Tensor, "head query_row query_column key_row key_column"]:
        """Return the scores of every query and key."""
        if self.isotropic:
            return super().key_scores(height, width)
        offsets = []
        for axis, size in enumerate((height, width)):
            center = self.centers[:, axis, None, None]
            offset = functional.axis_shifts(size, self.padding_mode, like=center) - center
            if self.padding_mode == "circular":
                offset = offset - size * torch.round(offset / size)
            offsets.append(offset)
        rows, columns = offsets[0][:, :, None, :, None], offsets[1][:, None, :, None, :]
        s = self.inverse_root[..., None, None, None, None]
        return -0.5 * (
            (s[:, 0, 0] * rows + s[:, 1, 0] * columns) ** 2 + (s[:, 0, 1] * rows + s[:, 1, 1] * columns) ** 2
        )

    def extra_repr(self) -> str:
        """Sizes and options, as PyTorch prints its layers."""
        return f"{super().extra_repr()}, isotropic={self.isotropic}, padding_mode={self.padding_mode!r}"


class LearnedAttention2d(_PositionAttention2d):
    """Self-attention with learned encodings of the row shift and of the column shift, positions only.

        A^(h)_{q,k} = u^(h) · row[k₁ − q₁] + v^(h) · column[k₂ − q₂]

    The two tables are shared by the heads, each of which reads them with two vectors of its own.

    Args:
        in_channels: channels of the image.
        out_channels: channels of the result.
        size: largest height and width of an image; the tables have 2·size − 1 entries.
        heads: number of heads.
        head_dim: width D_h of a head; None keeps one matrix W^(h) a head.
        position_dim: width of the encodings; in_channels by default.
        bias: add a learned bias.
        method: `dense` is the plain formula, `separable` the fast path, `auto` the fast path.

    Raises:
        ValueError: a wrong size or option; an image larger than `size`.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        *,
        size: int,
        heads: int = 9,
        head_dim: int | None = None,
        position_dim: int | None = None,
        bias: bool = True,
        method: str = "auto",
    ):
        super().__init__(in_channels, out_channels, heads=heads, head_dim=head_dim, bias=bias, method=method)
        self.size = checks.integer("size", size, least=1)
        dim = in_channels if position_dim is None else checks.integer("position_dim", position_dim, least=1)
        self.row_table = nn.Parameter(torch.randn(2 * size - 1, dim))
        self.column_table = nn.Parameter(torch.randn(2 * size - 1, dim))
        bound = 1 / math.sqrt(dim)
        self.row_vectors = nn.Parameter(torch.empty(heads, dim).uniform_(-bound, bound))
        self.column_vectors = nn.Parameter(torch.empty(heads, dim).uniform_(-bound, bound))

    def axis_scores(self, height: int, width: int) -> tuple[Tensor, Tensor]:
        """Return the scores along the rows and along the columns."""
        tables = (self.row_table @ self.row_vectors.T, self.column_table @ self.column_vectors.T)
        sides = (height, width)
        return tuple(
            table.T[:, _table_index(side, self.size, table.device)]
            for side, table in zip(sides, tables, strict=True)
        )

    def extra_repr(self) -> str:
        """Sizes and options, as PyTorch prints its layers."""
        return f"{super().extra_repr()}, size={self.size}, position_dim={self.row_table.shape[1]}"


class ContentAttention2d(_Attention2d):
    """Self-attention with content: queries meet keys and learned encodings of the shift.

        A^(h)_{q,k} = (q^(h)_q · k^(h)_k + q^(h)_q · r_{k−q}) / √D_k,   r_δ = (row[δ₁], column[δ₂])

    with q^(h) = X W_qry^(h) + b_qry^(h) and k^(h) = X W_key^(h) + b_key^(h). The tables are shared by the heads.

    Args:
        in_channels: channels of the image.
        out_channels: channels of the result.
        size: largest height and width of an image; the tables have 2·size − 1 entries.
        heads: number of heads.
        head_dim: width D_h of a head; None keeps one matrix W^(h) a head.
        key_dim: width D_k of queries and keys, an even number; in_channels by default.
        bias: add a learned bias.
        method: `dense` is the plain formula; `auto` takes PyTorch's fused attention, which keeps no N × N map,
            where an image has enough pixels for it to pay.

    Raises:
        ValueError: a wrong size or option; an image larger than `size`.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        *,
        size: int,
        heads: int = 9,
        head_dim: int | None = None,
        key_dim: int | None = None,
        bias: bool = True,
        method: str = "auto",
    ):
        checks.choice("method", method, ("auto", "dense"))
        super().__init__(in_channels, out_channels, heads=heads, head_dim=head_dim, bias=bias, method=method)
        self.size = checks.integer("size", size, least=1)
        self.key_dim = in_channels if key_dim is None else checks.integer("key_dim", key_dim, least=2)
        if self.key_dim % 2:
            raise ValueError(
                f"key_dim: expected an even number, half for rows and half for columns, got {self.key_dim}"
            )
        self.query = nn.Linear(in_channels, heads * self.key_dim)
        self.key = nn.Linear(in_channels, heads * self.key_dim)
        self.row_table = nn.Parameter(torch.randn(2 * size - 1, self.key_dim // 2))
        self.column_table = nn.Parameter(torch.randn(2 * size - 1, self.key_dim // 2))

    def _parts(self, pixels: Tensor, height: int, width: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return queries, keys, and the position scores along rows and along columns: (batch, head, pixel, …)."""
        query, key = (
            linear(pixels).unflatten(-1, (self.heads, self.key_dim)).transpose(1, 2)
            for linear in (self.query, self.key)
        )
        half = self.key_dim // 2
        grid = query.unflatten(2, (height, width))
        rows = self.row_table[_table_index(height, self.size, pixels.device)]  # query row, key row, half
        columns = self.column_table[_table_index(width, self.size, pixels.device)]
        by_rows = torch.einsum("bhijd,ikd->bhijk", grid[..., :half], rows)
        by_columns = torch.einsum("bhijd,jld->bhijl", grid[..., half:], columns)
        return query, key, by_rows.flatten(2, 3), by_columns.flatten(2, 3)

    def attention_probs(
        self, x: Float[Tensor, "batch in_channels height width"]
    ) -> Float[Tensor, "batch head query pixel"]:
        """Return the full map of every image of the batch."""
        x = self._checked(x)
        query, key, by_rows, by_columns = self._parts(x.flatten(2).transpose(1, 2), *x.shape[2:])
        position = (by_rows[..., :, None] + by_columns[..., None, :]).flatten(3)
        return torch.softmax((query @ key.transpose(-1, -2) + position) / math.sqrt(self.key_dim), dim=-1)

    def forward(
        self, x: Float[Tensor, "batch in_channels height width"]
    ) -> Float[Tensor, "batch out_channels height width"]:
        """Attend; height and width stay."""
        x = self._checked(x)
        if self.method == "dense" or x.shape[2] * x.shape[3] < FUSED:
            result = functional.attention_dense(x, self.attention_probs(x), self.head_matrices)
        else:
            result = self._fused(x)
        return result if self.bias is None else result + self.bias[:, None, None]

    def _fused(self, x: Tensor) -> Tensor:
        """Attend with PyTorch's fused kernel: position scores are products with one-hot rows and columns."""
        height, width = x.shape[2:]
        pixels = x.flatten(2).transpose(1, 2)
        query, key, by_rows, by_columns = self._parts(pixels, height, width)
        row = torch.eye(height, dtype=key.dtype, device=x.device).repeat_interleave(width, dim=0)
        column = torch.eye(width, dtype=key.dtype, device=x.device).repeat(height, 1)
        places = torch.cat([row, column], dim=1).expand(*key.shape[:2], -1, -1)
        query, key = torch.cat([query, by_rows, by_columns], dim=-1), torch.cat([key, places], dim=-1)
        value = pixels[:, None].expand(-1, self.heads, -1, -1)
        # The fused kernels of a CPU want one width for all three.
        dim = max(query.shape[-1], self.in_channels)
        query, key, value = (nn.functional.pad(one, (0, dim - one.shape[-1])) for one in (query, key, value))
        mixed = nn.functional.scaled_dot_product_attention(query, key, value, scale=1 / math.sqrt(self.key_dim))
        mixed = mixed[..., : self.in_channels].transpose(1, 2).flatten(2)
        result = mixed @ self.head_matrices.flatten(0, 1).to(mixed.dtype)
        return result.transpose(1, 2).unflatten(2, (height, width))

    def extra_repr(self) -> str:
        """Sizes and options, as PyTorch prints its layers."""
        return f"{super().extra_repr()}, size={self.size}, key_dim={self.key_dim}"


def _table_index(side: int, size: int, device: torch.device) -> Tensor:
    """Entry of a table of 2·size − 1 shifts for every query and key of one axis."""
    if side > size:
        raise ValueError(f"x: expected an image of at most {size} × {size} pixels, got a side of {side}")
    pixels = torch.arange(side, device=device)
    return pixels[None, :] - pixels[:, None] + size - 1
