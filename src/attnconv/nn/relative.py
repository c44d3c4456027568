"""Attention with a learned score for every shift, over the pixels of an image or over patches as tokens."""

import math
from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from attnconv import checks
from attnconv.nn import functional
from attnconv.nn.attention import _Attention2d


class RelativeAttention2d(_Attention2d):
    """Self-attention whose heads have a table of scores over shifts, and content if asked for.

        A^(h)_{q,k} = B^(h)[k − q]  [ + q^(h)_q · k^(h)_k / √D_k ],   q^(h) = X W_qry^(h),   k^(h) = X W_key^(h)

    This is the relative bias of Swin and CoAtNet, over whole images, and of Li, Chen, He and Hsieh 2021; the
    borders are this book's. Queries are the pixels. What a query finds whose pixel q + δ lies outside the image:

    - `ring`: more keys around the image. They hold zeros, and have scores like all others.
    - `sink`: one more key, which holds zeros and has a learned score a head.
    - `mask`: nothing. A head with a shift δ^(h) (`look_at`) returns zero for such a query; before one is set, the
      border is that of bare attention.
    - `circular`: the pixel on the other side; shifts are meant modulo the size of the image.

    Args:
        in_channels: channels of the image.
        out_channels: channels of the result.
        heads: number of heads.
        head_dim: width D_h of a head; None keeps one matrix W^(h) a head.
        size: height and width of the images, for a table of every shift in them: (2h − 1) × (2w − 1), h × w for
            `circular`, and more by the margins for `ring`. With None the table holds the shifts within the
            margins. Images of other sizes pass as well.
        margins: how many rows and columns the heads reach beyond the image, (above, below, left, right) or one
            number: the width of a ring.
        border: `ring`, `sink`, `mask` or `circular`.
        far_score: score of shifts that the table does not hold; −∞ hides them.
        content: add the products of queries and keys.
        key_dim: width D_k of queries and keys; in_channels, at most 16, by default.
        bias: add a learned bias.
        method: `dense` is the plain formula, `auto` the fast path.

    Raises:
        ValueError: a wrong size or option.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        *,
        heads: int = 9,
        head_dim: int | None = None,
        size: int | tuple[int, int] | None = None,
        margins: int | Sequence[int] = 1,
        border: str = "ring",
        far_score: float = 0.0,
        content: bool = False,
        key_dim: int | None = None,
        bias: bool = True,
        method: str = "auto",
    ):
        checks.choice("method", method, ("auto", "dense"))
        super().__init__(in_channels, out_channels, heads=heads, head_dim=head_dim, bias=bias, method=method)
        self.border = checks.choice("border", border, checks.BORDERS)
        self.margins = _four("margins", margins)
        self.size = None if size is None else checks.pair("size", size, least=1)
        self.far_score = float(far_score)
        if not self.far_score < math.inf:
            raise ValueError(f"far_score: expected a finite number or -inf, got {far_score}")
        self.reach = self.margins if self.size is None else self._shifts_of(*self.size)
        above, below, left, right = self.reach
        self.table = nn.Parameter(torch.empty(heads, above + 1 + below, left + 1 + right))
        nn.init.trunc_normal_(self.table)
        self.sink = nn.Parameter(torch.zeros(heads)) if border == "sink" else None
        self.register_buffer("shifts", torch.zeros(heads, 2, dtype=torch.long))
        self.content = bool(content)
        self.key_dim = None
        if self.content:
            self.key_dim = checks.integer("key_dim", min(in_channels, 16) if key_dim is None else key_dim, least=1)
            self.query = nn.Linear(in_channels, heads * self.key_dim, bias=False)
            self.key = nn.Linear(in_channels, heads * self.key_dim, bias=False)

    def _shifts_of(self, height: int, width: int) -> tuple[int, int, int, int]:
        """How far the shifts between queries and keys go in an image of this size: above, below, left, right."""
        if self.border == "circular":
            return (height // 2, (height - 1) // 2, width // 2, (width - 1) // 2)
        ring = self.margins if self.border == "ring" else (0, 0, 0, 0)
        return tuple(side - 1 + more for side, more in zip((height, height, width, width), ring, strict=True))

    # ---- scores ---------------------------------------------------------------------------------------------

    @torch.no_grad()
    def look_at(
        self, shifts: Int[Tensor, "looking_heads 2"], *, alpha: float | None = None, gamma: float = 0.0
    ) -> "RelativeAttention2d":
        """Let each head look at one shift: score α there and 0 at the others, as in `reference.patch_scores`.

        Args:
            shifts: δ^(h), key minus query. Where there are fewer of them than heads, the other heads look at all
                keys alike; those heads need a finite α.
            alpha: α, or None for its limit, 0 there and −∞ at the others. A table with −∞ has no gradient, so it is
                frozen.
            gamma: γ, by how much the score of a sink exceeds that of the shift.

        Returns:
            The layer.

        Raises:
            ValueError: wrong shapes or numbers; a shift that the table does not hold although images may have it.
        """
        shifts = torch.as_tensor(shifts, device=self.table.device)
        count, above, left = len(shifts), self.reach[0], self.reach[2]
        if count > self.heads or (count < self.heads and alpha is None):
            few = "" if alpha is None else "at most "
            raise ValueError(f"shifts: expected {few}one for each of {self.heads} heads, got {count}")
        high, low = (0.0, -math.inf) if alpha is None else (float(alpha), 0.0)
        if not math.isfinite(high + gamma):
            raise ValueError(f"alpha: expected finite numbers for alpha and gamma, got {alpha} and {gamma}")
        self.table.fill_(low)
        for table, (row, column) in zip(self.table, shifts.tolist(), strict=False):
            row, column = row + above, column + left
            if self.border == "circular" and self.size is not None:
                row, column = row % self.size[0], column % self.size[1]
            if 0 <= row < table.shape[0] and 0 <= column < table.shape[1]:
                table[row, column] = high
            elif self.size is None:
                raise ValueError(
                    f"shifts: expected shifts within the margins {self.margins}, got {shifts.tolist()}"
                )
        self.table.requires_grad_(alpha is not None)
        self.far_score = low
        self.shifts.zero_()
        self.shifts[:count] = shifts
        if self.sink is not None:
            self.sink.fill_(high + gamma)
        return self

    def _table_for(self, height: int, width: int) -> Float[Tensor, "head row_shifts column_shifts"]:
        """Return the table cut or grown to the shifts between queries and keys of an image of this size."""
        table = self.table.to(torch.promote_types(self.table.dtype, torch.float32))
        if self.border == "circular":
            for dim, (size, first) in enumerate(zip((height, width), self.reach[::2], strict=True), start=1):
                table = _modulo(table, dim, size, first, self.far_score)
                table = table.index_select(dim, torch.arange(1 - size, size, device=table.device) % size)
            return table
        wanted = self._shifts_of(height, width)
        above, below, left, right = (a - b for a, b in zip(wanted, self.reach, strict=True))
        return nn.functional.pad(table, (left, right, above, below), value=self.far_score)

    def position_scores(self, height: int, width: int) -> Float[Tensor, "head query key"]:
        """Return the scores of positions, B^(h)[k − q], for keys in reading order, a ring's too; a sink is last."""
        scores = functional.relative_scores(self._table_for(height, width), height, width)
        if self.border == "sink":
            sink = self.sink.to(scores.dtype)[:, None, None].expand(-1, scores.shape[1], 1)
            scores = torch.cat([scores, sink], dim=-1)
        if self.border == "mask":
            rows, columns = (
                torch.arange(side, device=scores.device) + shift[:, None]
                for side, shift in zip((height, width), self.shifts.T, strict=True)
            )
            outside = ((rows < 0) | (rows >= height))[:, :, None] | ((columns < 0) | (columns >= width))[:, None]
            scores = scores.masked_fill(outside.flatten(1)[..., None], -math.inf)
        return scores

    def _pixels(self, height: int, width: int) -> Bool[Tensor, " key"]:
        """Which keys are pixels; the others hold zeros."""
        pixels = torch.ones(height, width, dtype=torch.bool)
        if self.border == "ring":
            above, below, left, right = self.margins
            pixels = nn.functional.pad(pixels, (left, right, above, below))
        return nn.functional.pad(pixels.flatten(), (0, int(self.border == "sink"))).to(self.table.device)

    def _queries_and_keys(self, x: Tensor) -> list[Tensor]:
        """Return queries and keys of every head: (batch, head, pixel, key_dim)."""
        tokens = x.flatten(2).transpose(1, 2)
        return [
            linear(tokens).unflatten(-1, (self.heads, self.key_dim)).transpose(1, 2)
            for linear in (self.query, self.key)
        ]

    def _map(self, x: Tensor) -> Float[Tensor, "*batch head query pixel"]:
        """Return the map by the plain formula; without content there is one for all images, and no batch axis."""
        scores = self.position_scores(*x.shape[2:])
        pixels = self._pixels(*x.shape[2:])
        if self.content:
            query, key = self._queries_and_keys(x)
            keys = key.new_zeros(*key.shape[:2], len(pixels), self.key_dim)
            keys[:, :, pixels] = key
            scores = (query @ keys.transpose(-1, -2) / math.sqrt(self.key_dim)).to(scores.dtype) + scores
        return functional.softmax_or_zero(scores)[..., pixels].to(x.dtype)

    def attention_probs(
        self, x: Float[Tensor, "batch in_channels height width"]
    ) -> Float[Tensor, "batch head query pixel"]:
        """Return the full map of every image of the batch.

        Its rows may sum to less than 1: what is missing went to keys that hold zeros.
        """
        x = self._checked(x)
        return self._map(x).expand(len(x), -1, -1, -1)

    # ---- the layer ------------------------------------------------------------------------------------------

    def forward(
        self, x: Float[Tensor, "batch in_channels height width"]
    ) -> Float[Tensor, "batch out_channels height width"]:
        """Attend; height and width stay."""
        x = self._checked(x)
        if self.method == "dense":
            result = functional.attention_dense(x, self._map(x), self.head_matrices.to(x.dtype))
        elif self.content:
            result = self._by_content(x)
        else:
            result = self._shared(x)
        return result if self.bias is None else result + self.bias.to(x.dtype)[:, None, None]

    def _shared(self, x: Tensor) -> Tensor:
        """Apply one map to all images: large products in the layout (row, column, batch, channel)."""
        batch, _, height, width = x.shape
        weights = [one.to(x.dtype) for one in self._weights()]
        tokens = x.permute(2, 3, 0, 1).flatten(0, 1)  # pixel, batch, channel
        probabilities = self._map(x)
        if self.head_dim is None:
            mixed = probabilities.flatten(0, 1) @ tokens.flatten(1)
        else:
            values = (tokens @ _beside(weights[0])).unflatten(2, (self.heads, self.head_dim))
            mixed = probabilities @ values.permute(2, 0, 1, 3).flatten(2)
        mixed = mixed.view(self.heads, height, width, batch, weights[-1].shape[1])
        return (mixed.permute(1, 2, 3, 0, 4).flatten(3) @ weights[-1].flatten(0, 1)).permute(2, 3, 0, 1)

    def _by_content(self, x: Tensor) -> Tensor:
        """Apply a map an image. Heads of full width share their values, others go to PyTorch's fused attention.

        Keys that hold zeros have no content, so all of them are one key, with the log of their summed exponentials
        as its score. To fused attention, the position scores are a mask of numbers.
        """
        height, width = x.shape[2:]
        weights = [one.to(x.dtype) for one in self._weights()]
        query, key = self._queries_and_keys(x)
        value = x.flatten(2).transpose(1, 2)[:, None]
        if self.head_dim is not None:
            value = (value @ _beside(weights[0])).unflatten(-1, (self.heads, self.head_dim))[:, 0].transpose(1, 2)
        scores, pixels = self.position_scores(height, width), self._pixels(height, width)
        if len(pixels) > height * width:
            zeros = functional.logsumexp_or_nothing(scores[..., ~pixels])
            scores = torch.cat([scores[..., pixels], zeros], dim=-1)
            key, value = (nn.functional.pad(one, (0, 0, 0, 1)) for one in (key, value))
        nothing = scores.isneginf().all(dim=-1, keepdim=True)
        scores = scores.masked_fill(nothing, 0)
        if self.head_dim is None:
            products = (query / math.sqrt(self.key_dim)) @ key.transpose(-1, -2)
            probabilities = torch.softmax(products + scores, dim=-1).to(x.dtype)
            mixed = (probabilities.flatten(1, 2) @ value[:, 0]).unflatten(1, (self.heads, height * width))
        else:
            mask = scores.to(query.dtype)[None]
            mixed = nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=mask)
        mixed = mixed.masked_fill(nothing, 0).transpose(1, 2).flatten(2)
        return (mixed @ weights[-1].flatten(0, 1)).transpose(1, 2).unflatten(2, (height, width))

    def _weights(self) -> list[Tensor]:
        return [self.weight] if self.head_dim is None else [self.w_val, self.w_out]

    def extra_repr(self) -> str:
        """Sizes and options, as PyTorch prints its layers."""
        options = f"size={self.size}, margins={self.margins}, border={self.border!r}, key_dim={self.key_dim}"
        return f"{super().extra_repr()}, {options}"


def _beside(matrices: Float[Tensor, "head channels head_dim"]) -> Float[Tensor, "channels head_times_head_dim"]:
    """Put the matrices of the heads beside each other, for one large product."""
    return matrices.transpose(0, 1).flatten(1)


def _four(name: str, value: int | Sequence[int]) -> tuple[int, int, int, int]:
    """Return one number, or four for above, below, left and right, as four."""
    values = [value] * 4 if not isinstance(value, Sequence) else value
    if len(values) != 4:
        raise ValueError(f"{name}: expected one integer or four (above, below, left, right), got {value!r}")
    return tuple(checks.integer(name, one, least=0) for one in values)


def _modulo(table: Tensor, dim: int, size: int, first: int, far_score: float) -> Tensor:
    """Turn an axis of shifts from −first into one of the shifts 0 … size − 1, which are meant modulo size.

    Where several shifts are the same modulo size, the highest of their scores counts.
    """
    table = table.movedim(dim, -1)
    table = nn.functional.pad(table, (0, max(0, size - table.shape[-1])), value=far_score)
    before = -first % size
    after = -(before + table.shape[-1]) % size
    table = nn.functional.pad(table, (before, after), value=-math.inf)
    return table.unflatten(-1, (-1, size)).amax(dim=-2).movedim(-1, dim)
