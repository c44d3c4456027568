r"""Convolution, self-attention and position encodings, as their definitions read.

Plain float64 NumPy: the text every faster version is compared with. Images are (height, width, channels);
attention works on their pixels as tokens in reading order, (pixels, channels). A score matrix has a row a
query and a column a key.

Sources: Vaswani et al. 2017 for multi-head self-attention; Dai et al. 2019 (Transformer-XL) for the four terms
of the relative score; Li, Chen, He and Hsieh 2021 for patches as tokens; Cordonnier, Loukas and Jaggi 2020 for
the rest. The borders of a grid of patches are this book's.
"""

import numpy as np
from jaxtyping import Float, Int, Real

from attnconv import checks
from attnconv.shifts import kernel_shifts, margins, pixel_grid, shift_image

# ---- convolution ----------------------------------------------------------------------------------------


def convolution(
    image: Float[np.ndarray, "height width in_channels"],
    kernel: Float[np.ndarray, "kernel_height kernel_width in_channels_per_group out_channels"],
    bias: Float[np.ndarray, " out_channels"] | None = None,
    *,
    padding: str = "zeros",
    stride: int | tuple[int, int] = 1,
    dilation: int | tuple[int, int] = 1,
    groups: int = 1,
) -> Float[np.ndarray, "out_height out_width out_channels"]:
    r"""Convolution of deep learning (a cross-correlation), written as a sum of shifts.

        Conv(X)_q = Σ_{δ ∈ Δ_K} X_{q+δ} W_δ + b

    Args:
        image: the image X.
        kernel: W, one matrix W_δ of shape (in_channels / groups, out_channels) a tap.
        bias: b, or None for zero.
        padding: what stands outside the image: `zeros`, `replicate`, `reflect`, `circular`; or `none`, which
            keeps only the queries whose whole window lies inside.
        stride: keep every stride-th query, starting with the first; one number or (rows, columns).
        dilation: distance between taps in pixels; one number or (rows, columns).
        groups: channels are split into so many groups that do not mix; 1 for an ordinary convolution,
            in_channels for a depthwise one.

    Returns:
        An image of ⌈height / stride⌉ × ⌈width / stride⌉ pixels (smaller by the window for `none`).

    Raises:
        ValueError: wrong shapes, sizes, paddings, NaN or infinite entries; a window larger than the image
            with padding `none`.
    """
    groups = checks.integer("groups", groups, least=1)
    image = checks.array("image", image, "height width in_channels")
    height, width, in_channels = image.shape
    if in_channels % groups:
        raise ValueError(f"groups: expected a divisor of in_channels={in_channels}, got {groups}")
    kernel = checks.array(
        "kernel",
        kernel,
        "kernel_height kernel_width in_channels_per_group out_channels",
        in_channels_per_group=in_channels // groups,
    )
    out_channels = kernel.shape[-1]
    if out_channels % groups:
        raise ValueError(f"groups: expected a divisor of out_channels={out_channels}, got {groups}")
    bias = checks.bias("bias", bias, out_channels)
    padding = checks.choice("padding", padding, checks.PADDINGS)
    row_stride, column_stride = checks.pair("stride", stride, least=1)
    shifts = kernel_shifts(kernel.shape[:2], dilation)

    matrices = kernel.reshape(len(shifts), in_channels // groups, groups, out_channels // groups)
    result = np.zeros((height, width, groups, out_channels // groups)) + bias.reshape(groups, -1)
    for shift, matrix in zip(shifts, matrices, strict=True):
        shifted = shift_image(image, shift, "zeros" if padding == "none" else padding)
        shifted = shifted.reshape(height, width, groups, in_channels // groups)
        result += np.einsum("hwgi,igo->hwgo", shifted, matrix)
    result = result.reshape(height, width, out_channels)
    if padding == "none":
        (top, left), (bottom, right) = -shifts.min(axis=0), shifts.max(axis=0)
        if height <= top + bottom or width <= left + right:
            raise ValueError(
                f"kernel: expected a window of at most {height} × {width} pixels with padding 'none', "
                f"got {top + bottom + 1} × {left + right + 1}"
            )
        result = result[top : height - bottom, left : width - right]
    return result[::row_stride, ::column_stride]


# ---- attention ------------------------------------------------------------------------------------------


def softmax(scores: Float[np.ndarray, "*batch key"]) -> Float[np.ndarray, "*batch key"]:
    r"""Softmax over the last axis: `softmax(a)_k = exp(a_k) / Σ_l exp(a_l)`.

    The largest score is subtracted first, which changes nothing but avoids overflow. A score of −∞ masks its
    key.

    Args:
        scores: a, a row of scores along the last axis.

    Raises:
        ValueError: NaN or +∞ among the scores, or a query all of whose keys are masked.
    """
    shape = np.shape(scores)
    scores = checks.array("scores", scores, " ".join(f"axis{i}" for i in range(max(len(shape), 1))), infinite=True)
    largest = scores.max(axis=-1, keepdims=True)
    if np.isneginf(largest).any():
        raise ValueError("scores: expected a finite score in every row, got a row of -inf alone")
    exponentials = np.exp(scores - largest)
    return exponentials / exponentials.sum(axis=-1, keepdims=True)


def self_attention(
    scores: Float[np.ndarray, "query key"],
    x: Float[np.ndarray, "key in_channels"],
    w_val: Float[np.ndarray, "in_channels head_dim"],
) -> Float[np.ndarray, "query head_dim"]:
    """One head: every query takes the average of the values, weighted by its attention.

        Self-Attention(X)_q = Σ_k softmax(A_q)_k X_k W_val

    Args:
        scores: A, before the softmax; −∞ masks a key.
        x: the tokens X, one row a key.
        w_val: value matrix.

    Raises:
        ValueError: shapes that do not fit, NaN or infinite entries.
    """
    x = checks.array("x", x, "key in_channels")
    scores = checks.array("scores", scores, "query key", infinite=True, key=len(x))
    w_val = checks.array("w_val", w_val, "in_channels head_dim", in_channels=x.shape[1])
    return softmax(scores) @ x @ w_val


def mhsa(
    scores: Float[np.ndarray, "head query key"],
    x: Float[np.ndarray, "key in_channels"],
    w_val: Float[np.ndarray, "head in_channels head_dim"],
    w_out: Float[np.ndarray, "head_times_head_dim out_channels"],
    b_out: Float[np.ndarray, " out_channels"] | None = None,
) -> Float[np.ndarray, "query out_channels"]:
    """Multi-head self-attention in its concatenated form.

        MHSA(X) = concat_h [Self-Attention_h(X)] W_out + b_out

    Args:
        scores: A^(h), one matrix a head.
        x: the tokens X, one row a pixel.
        w_val: value matrices, D_in × D_h a head.
        w_out: output matrix, N_h·D_h × D_out; rows h·D_h … (h+1)·D_h − 1 belong to head h.
        b_out: output bias, or None for zero.

    Raises:
        ValueError: shapes that do not fit, NaN or infinite entries.
    """
    scores = checks.array("scores", scores, "head query key", infinite=True)
    w_val = checks.array("w_val", w_val, "head in_channels head_dim", head=len(scores))
    rows = w_val.shape[0] * w_val.shape[2]
    w_out = checks.array("w_out", w_out, "head_times_head_dim out_channels", head_times_head_dim=rows)
    heads = [self_attention(a, x, w) for a, w in zip(scores, w_val, strict=True)]
    return np.concatenate(heads, axis=1) @ w_out + checks.bias("b_out", b_out, w_out.shape[1])


# ---- scores ---------------------------------------------------------------------------------------------


def content_scores(
    x: Float[np.ndarray, "pixels in_channels"],
    w_qry: Float[np.ndarray, "in_channels key_dim"],
    w_key: Float[np.ndarray, "in_channels key_dim"],
    *,
    scale: float = 1.0,
) -> Float[np.ndarray, "query key"]:
    """Scores that compare contents: `A = scale · X W_qry W_keyᵀ Xᵀ`.

    Args:
        x: the tokens X, one row a pixel.
        w_qry: the query matrix.
        w_key: the key matrix.
        scale: factor of the scores. The theory has 1; transformers have 1/√D_k.

    Raises:
        ValueError: shapes that do not fit, NaN or infinite entries.
    """
    x = checks.array("x", x, "pixels in_channels")
    w_qry = checks.array("w_qry", w_qry, "in_channels key_dim", in_channels=x.shape[1])
    w_key = checks.array("w_key", w_key, "in_channels key_dim", in_channels=x.shape[1], key_dim=w_qry.shape[1])
    return float(checks.array("scale", scale, "")) * (x @ w_qry) @ (x @ w_key).T


def absolute_scores(
    x: Float[np.ndarray, "pixels in_channels"],
    positions: Float[np.ndarray, "pixels in_channels"],
    w_qry: Float[np.ndarray, "in_channels key_dim"],
    w_key: Float[np.ndarray, "in_channels key_dim"],
) -> Float[np.ndarray, "query key"]:
    """Scores with absolute positions: a vector P_p is added to each token.

        A = (X + P) W_qry W_keyᵀ (X + P)ᵀ

    Args:
        x: the tokens X, one row a pixel.
        positions: the vectors P_p, one row a pixel, for example `sinusoidal_encoding(pixel_grid(…), dim)`.
        w_qry: the query matrix.
        w_key: the key matrix.

    Raises:
        ValueError: shapes that do not fit, NaN or infinite entries.
    """
    x = checks.array("x", x, "pixels in_channels")
    positions = checks.array("positions", positions, "pixels in_channels", pixels=len(x), in_channels=x.shape[1])
    return content_scores(x + positions, w_qry, w_key)


def relative_scores(
    x: Float[np.ndarray, "pixels in_channels"],
    encodings: Float[np.ndarray, "query key position_dim"],
    w_qry: Float[np.ndarray, "in_channels key_dim"],
    w_key: Float[np.ndarray, "in_channels key_dim"],
    w_key_position: Float[np.ndarray, "position_dim key_dim"],
    u: Float[np.ndarray, " key_dim"],
    v: Float[np.ndarray, " key_dim"],
) -> Float[np.ndarray, "query key"]:
    """Scores with relative positions, the four terms of Transformer-XL.

        A_{q,k} = X_q W_qry W_keyᵀ X_kᵀ + X_q W_qry Ŵ_keyᵀ r_δ + u·(X_k W_key) + v·(Ŵ_keyᵀ r_δ),   δ = k − q

    In turn: content with content, content of the query with position, content of the key alone, position alone.

    Args:
        x: the tokens X, one row a pixel.
        encodings: r_δ for every pair of query and key, for example
            `theory.quadratic_encoding(shifts.relative_shifts(height, width))`.
        w_qry: the query matrix.
        w_key: the key matrix of contents.
        w_key_position: Ŵ_key, the key matrix of positions.
        u: what the head seeks in every key's content, whatever the query.
        v: what the head seeks in every shift, whatever the query.

    Raises:
        ValueError: shapes that do not fit, NaN or infinite entries.
    """
    content = content_scores(x, w_qry, w_key)
    x, w_qry, w_key = (np.asarray(a, dtype=np.float64) for a in (x, w_qry, w_key))
    pixels, key_dim = len(x), w_qry.shape[1]
    encodings = checks.array("encodings", encodings, "query key position_dim", query=pixels, key=pixels)
    w_key_position = checks.array(
        "w_key_position",
        w_key_position,
        "position_dim key_dim",
        position_dim=encodings.shape[2],
        key_dim=key_dim,
    )
    u = checks.array("u", u, "key_dim", key_dim=key_dim)
    v = checks.array("v", v, "key_dim", key_dim=key_dim)
    position_keys = encodings @ w_key_position
    query_with_position = np.einsum("qd,qkd->qk", x @ w_qry, position_keys)
    return content + query_with_position + (x @ w_key) @ u + position_keys @ v


def quadratic_scores(
    shifts: Int[np.ndarray, "*batch 2"], center: tuple[float, float] | Real[np.ndarray, " 2"], alpha: float
) -> Float[np.ndarray, "*batch"]:
    """Scores of a head that looks at one place: `A_δ = −α ‖δ − Δ‖²`.

    Args:
        shifts: δ, on the last axis (rows, columns), in pixels.
        center: Δ, in pixels.
        alpha: sharpness α, in 1/pixels²; the attention is a Gaussian of standard deviation 1/√(2α) pixels.

    Raises:
        ValueError: shapes that do not fit, NaN or infinite entries.
    """
    shifts = checks.coordinates("shifts", shifts)
    center = checks.array("center", center, "coordinate", coordinate=2)
    alpha = float(checks.array("alpha", alpha, ""))
    return -alpha * ((shifts - center) ** 2).sum(axis=-1)


# ---- position encodings ---------------------------------------------------------------------------------


def row_column_encoding(
    shifts: Int[np.ndarray, "*batch 2"],
    rows: Float[np.ndarray, "row_shifts half_dim"],
    columns: Float[np.ndarray, "column_shifts half_dim"],
) -> Float[np.ndarray, "*batch position_dim"]:
    """Learned encoding of a shift: a vector for its rows beside a vector for its columns.

        r_δ = (rows[δ₁], columns[δ₂])

    Args:
        shifts: δ, on the last axis (rows, columns), in pixels.
        rows: a table with an odd number of entries, 2H − 1 for an image of height H; δ₁ = 0 is the middle one.
        columns: the same for the columns.

    Raises:
        ValueError: a table with an even number of entries or too few for the shifts; NaN or infinite entries.
    """
    shifts = checks.coordinates("shifts", shifts)
    halves = []
    for axis, (name, table) in enumerate((("rows", rows), ("columns", columns))):
        table = checks.array(name, table, f"{name[:-1]}_shifts half_dim")
        farthest = int(np.abs(shifts[..., axis]).max())
        if len(table) % 2 == 0 or len(table) < 2 * farthest + 1:
            raise ValueError(
                f"{name}: expected an odd number of entries, at least {2 * farthest + 1} for shifts up to "
                f"{farthest}, got {len(table)}"
            )
        halves.append(table[shifts[..., axis] + len(table) // 2])
    return np.concatenate(halves, axis=-1)


def sinusoidal_encoding(
    positions: Int[np.ndarray, "*batch 2"], dim: int, *, longest: float = 10_000.0
) -> Float[np.ndarray, "*batch position_dim"]:
    """Fixed encoding of a position: sines and cosines of its row beside those of its column.

        (sin(ω_i p), cos(ω_i p)),   ω_i = longest^(−4i/dim),   i = 0 … dim/4 − 1

    Args:
        positions: on the last axis (rows, columns), in pixels.
        dim: length of the encoding, a multiple of 4.
        longest: the slowest wave has a length near 2π · longest pixels.

    Raises:
        ValueError: a dimension that is no multiple of 4, positions that are no integers, a length that is not
            positive.
    """
    positions = checks.coordinates("positions", positions)
    dim = checks.integer("dim", dim, least=4)
    if dim % 4:
        raise ValueError(f"dim: expected a multiple of 4, got {dim}")
    longest = float(checks.array("longest", longest, ""))
    if longest <= 0:
        raise ValueError(f"longest: expected a positive number, got {longest}")
    frequencies = longest ** (-4 * np.arange(dim // 4) / dim)
    angles = positions[..., :, None] * frequencies
    waves = np.stack([np.sin(angles), np.cos(angles)], axis=-1)
    return waves.reshape(*positions.shape[:-1], dim)


# ---- patches --------------------------------------------------------------------------------------------


def image_to_patches(
    image: Float[np.ndarray, "height width channels"], patch: int | tuple[int, int]
) -> Float[np.ndarray, "rows columns patch_channels"]:
    """Cut an image into patches, each of them one token.

        T_p[(t, c)] = X_{P p + t, c},   0 ≤ t < P

    Args:
        image: X, of shape (height, width, channels).
        patch: P, the size of a patch in pixels; one number or (rows, columns).

    Returns:
        Tokens of shape (height / P, width / P, P·P·channels), the entries of a patch in the order row, column,
        channel.

    Raises:
        ValueError: an image that is no whole number of patches; wrong shape, NaN or infinite entries.
    """
    image = checks.array("image", image, "height width channels")
    rows, columns = checks.pair("patch", patch, least=1)
    height, width, channels = image.shape
    if height % rows or width % columns:
        raise ValueError(f"image: expected whole patches of {rows} × {columns} pixels, got {height} × {width}")
    tiles = image.reshape(height // rows, rows, width // columns, columns, channels)
    return tiles.swapaxes(1, 2).reshape(height // rows, width // columns, -1)


def patches_to_image(
    tokens: Float[np.ndarray, "rows columns patch_channels"], patch: int | tuple[int, int]
) -> Float[np.ndarray, "height width channels"]:
    """Put patches together to an image: the inverse of `image_to_patches`.

    Args:
        tokens: of shape (rows, columns, P·P·channels), rows and columns counted in patches.
        patch: P, the size of a patch in pixels; one number or (rows, columns).

    Raises:
        ValueError: tokens whose length is no multiple of P·P; wrong shape, NaN or infinite entries.
    """
    tokens = checks.array("tokens", tokens, "rows columns patch_channels")
    rows, columns = checks.pair("patch", patch, least=1)
    height, width, length = tokens.shape
    if length % (rows * columns):
        raise ValueError(f"tokens: expected a multiple of {rows * columns} on the last axis, got {length}")
    tiles = tokens.reshape(height, width, rows, columns, -1).swapaxes(1, 2)
    return tiles.reshape(height * rows, width * columns, -1)


def patch_scores(
    height: int,
    width: int,
    shifts: Int[np.ndarray, "head 2"],
    border: str = "ring",
    *,
    alpha: float | None = None,
    gamma: float = 0.0,
) -> Float[np.ndarray, "head query key"]:
    """Scores of heads that look at one patch each: α at the patch wanted, 0 at the others.

        A^(h)_{q,k} = α if k − q = δ^(h), else 0

    With `alpha=None` they are the limit α → ∞: 0 at the patch wanted and −∞ at the others. The borders differ in
    what a query finds whose neighbour q + δ lies outside the grid:

    - `ring`: more keys around the grid, as many as the shifts reach (`shifts.margins`), all in reading order.
    - `sink`: one more key behind the patches, with the score α + γ (γ in the limit) for every query.
    - `mask`: nothing; the query's scores are all −∞.
    - `circular`: the patch on the other side; k − q = δ is meant modulo the size of the grid.

    Args:
        height: rows of the grid, in patches.
        width: columns of the grid, in patches.
        shifts: δ^(h), one a head, in patches.
        border: `ring`, `sink`, `mask` or `circular`.
        alpha: α, or None for the hard limit.
        gamma: γ, by how much the sink's score exceeds that of the patch wanted.

    Raises:
        ValueError: wrong sizes, shifts, border, NaN or infinite numbers.
    """
    shifts = _head_shifts(shifts)
    border = checks.choice("border", border, checks.BORDERS)
    high, low = (0.0, -np.inf) if alpha is None else (float(checks.array("alpha", alpha, "")), 0.0)
    gamma = float(checks.array("gamma", gamma, ""))
    queries = keys = pixel_grid(height, width)
    if border == "ring":
        top, bottom, left, right = margins(shifts)
        keys = pixel_grid(height + top + bottom, width + left + right) - [top, left]
    misses = keys - queries[:, None] - shifts[:, None, None]
    if border == "circular":
        misses %= [height, width]
    wanted = ~misses.any(axis=-1)
    scores = np.where(wanted, high, low)
    if border == "mask":
        scores[~wanted.any(axis=-1)] = -np.inf
    if border == "sink":
        scores = np.concatenate([scores, np.full((*scores.shape[:2], 1), high + gamma)], axis=-1)
    return scores


def patch_attention(
    height: int,
    width: int,
    shifts: Int[np.ndarray, "head 2"],
    border: str = "ring",
    *,
    alpha: float | None = None,
    gamma: float = 0.0,
) -> Float[np.ndarray, "head query key"]:
    """Attention of heads that look at one patch each: the softmax of `patch_scores`.

    A query with no score above −∞, as the border `mask` makes them, attends to nothing: its row is zero.

    Args:
        height: rows of the grid, in patches.
        width: columns of the grid, in patches.
        shifts: δ^(h), one a head, in patches.
        border: `ring`, `sink`, `mask` or `circular`; see `patch_scores`.
        alpha: α, or None for the hard limit.
        gamma: γ, by how much the sink's score exceeds that of the patch wanted.

    Returns:
        One matrix a head, for the keys of `patch_keys`.

    Raises:
        ValueError: wrong sizes, shifts, border, NaN or infinite numbers.
    """
    scores = patch_scores(height, width, shifts, border, alpha=alpha, gamma=gamma)
    nothing = np.isneginf(scores).all(axis=-1, keepdims=True)
    return np.where(nothing, 0.0, softmax(np.where(nothing, 0.0, scores)))


def patch_keys(
    tokens: Float[np.ndarray, "rows columns patch_channels"],
    shifts: Int[np.ndarray, "head 2"],
    border: str = "ring",
) -> Float[np.ndarray, "key patch_channels"]:
    """What the heads of `patch_scores` look at: the patches, and zeros around (`ring`) or behind them (`sink`).

    Args:
        tokens: patches, as `image_to_patches` gives them.
        shifts: δ^(h), one a head, in patches.
        border: `ring`, `sink`, `mask` or `circular`.

    Raises:
        ValueError: wrong shapes or border, NaN or infinite entries.
    """
    tokens = checks.array("tokens", tokens, "rows columns patch_channels")
    shifts = _head_shifts(shifts)
    border = checks.choice("border", border, checks.BORDERS)
    if border == "ring":
        top, bottom, left, right = margins(shifts)
        tokens = np.pad(tokens, ((top, bottom), (left, right), (0, 0)))
    keys = tokens.reshape(-1, tokens.shape[2])
    return np.concatenate([keys, np.zeros_like(keys[:1])]) if border == "sink" else keys


def _head_shifts(shifts: np.ndarray) -> np.ndarray:
    shifts = checks.coordinates("shifts", shifts)
    if shifts.ndim != 2 or not len(shifts):
        raise ValueError(f"shifts: expected shape (head, 2) with at least one head, got {shifts.shape}")
    return shifts
