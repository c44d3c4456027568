"""What the theorems construct and bound.

From a convolution to the parameters of a self-attention layer that computes it: position encodings under which a
head looks at one shift, head matrices from kernels, how much a head of finite sharpness leaks, and how many heads
a kernel needs.

Sources: the quadratic encoding, Lemma 1, Lemma 2 and Theorem 1 are from Cordonnier, Loukas and Jaggi 2020, the
theorem on patches from Li, Chen, He and Hsieh 2021. The circle encoding, the leakage in closed form, the treatment
of borders and the number of heads from the rank of the kernel are this book's, proved in chapters 6 to 8. So are
the borders of a grid of patches, the ranks of the blocks, and the counts for even kernels, strides and dilations,
chapter 15.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int, Real

from attnconv import checks, reference
from attnconv.shifts import kernel_shifts, margins, pixel_grid

# ---- encodings under which a head looks at one shift ------------------------------------------------------


def quadratic_encoding(shifts: Int[np.ndarray, "*batch 2"]) -> Float[np.ndarray, "*batch 3"]:
    """Quadratic encoding of a shift: `r_δ = (‖δ‖², δ₁, δ₂)`.

    Args:
        shifts: δ, on the last axis (rows, columns), in pixels.

    Raises:
        ValueError: no integers, or the last axis does not hold two of them.
    """
    shifts = checks.coordinates("shifts", shifts).astype(np.float64)
    return np.concatenate([(shifts**2).sum(axis=-1, keepdims=True), shifts], axis=-1)


def quadratic_vector(center: tuple[float, float] | Real[np.ndarray, " 2"], alpha: float) -> Float[np.ndarray, " 3"]:
    """The vector that turns the quadratic encoding into the scores of a head: `v = −α (1, −2Δ₁, −2Δ₂)`.

    Its product with `quadratic_encoding` is `v · r_δ = −α (‖δ − Δ‖² − ‖Δ‖²)`: up to a constant, which softmax
    does not see, the score −α‖δ − Δ‖².

    Args:
        center: Δ, in pixels.
        alpha: sharpness α, in 1/pixels².

    Raises:
        ValueError: wrong shape, NaN or infinite entries.
    """
    center = checks.array("center", center, "coordinate", coordinate=2)
    alpha = float(checks.array("alpha", alpha, ""))
    return -alpha * np.array([1.0, -2 * center[0], -2 * center[1]])


class CircleEncoding(NamedTuple):
    """A two-dimensional encoding and the score gap it leaves; see `circle_encoding`."""

    encodings: Float[np.ndarray, "*batch 2"]
    gap: float


def circle_encoding(shifts: Int[np.ndarray, "*batch 2"]) -> CircleEncoding:
    """Encode n different shifts as n points evenly spaced on a circle: `r_δ = (cos θ_δ, sin θ_δ)`.

    The vector `v = α r_Δ` then selects Δ: its scores are `α cos(θ_δ − θ_Δ)`, largest at δ = Δ alone. No position
    encoding needs more than two dimensions on a finite image, but the price is a tiny gap between the largest
    score and the next, `1 − cos(2π/n)` for α = 1, so that α has to be large.

    Args:
        shifts: δ, on the last axis (rows, columns), in pixels; a shift may occur many times.

    Returns:
        The encodings, and the gap.

    Raises:
        ValueError: no integers, or the last axis does not hold two of them.
    """
    shifts = checks.coordinates("shifts", shifts)
    different, index = np.unique(shifts.reshape(-1, 2), axis=0, return_inverse=True)
    angles = 2 * np.pi * index.reshape(shifts.shape[:-1]) / len(different)
    gap = 2 * np.sin(np.pi / len(different)) ** 2 if len(different) > 1 else np.inf
    return CircleEncoding(np.stack([np.cos(angles), np.sin(angles)], axis=-1), float(gap))


# ---- how sharp is sharp enough ----------------------------------------------------------------------------


def leakage(alpha: float | Real[np.ndarray, "*batch"]) -> float | Float[np.ndarray, "*batch"]:
    """Attention that a quadratic head centred on a pixel of an unbounded grid leaves to the other pixels.

        ε(α) = 1 − 1/θ₃(e^(−α))²,   θ₃(q) = 1 + 2 Σ_{n ≥ 1} q^(n²)

    For large α this is close to 4e^(−α), the share of the four nearest neighbours. The result is accurate to a
    relative error of about 1e-13 however small it is.

    Args:
        alpha: sharpness α ≥ 0, in 1/pixels²; a number or an array.

    Returns:
        ε, between 0 and 1; of the shape of alpha.

    Raises:
        ValueError: a negative, NaN or infinite sharpness.
    """
    alpha = checks.array("alpha", alpha, None)
    if (alpha < 0).any():
        raise ValueError(f"alpha: expected no negative sharpness, got {alpha.min()}")
    n_squared = np.arange(1, 8) ** 2.0
    with np.errstate(under="ignore", divide="ignore"):
        # ε = s(s + 2)/(1 + s)² with s = θ₃ − 1 subtracts nothing, and seven terms are plenty from α = 1.
        s = 2 * np.exp(-np.maximum(alpha, 1)[..., None] * n_squared).sum(axis=-1)
        sharp = s * (s + 2) / (1 + s) ** 2
        # Below, Poisson's formula θ₃(e^(−α)) = √(π/α) θ₃(e^(−π²/α)) turns a slow series into a fast one.
        dual = 1 + 2 * np.exp(-(np.pi**2) / np.minimum(alpha, 1)[..., None] * n_squared).sum(axis=-1)
        soft = 1 - alpha / np.pi / dual**2
    result = np.where(alpha >= 1, sharp, soft)
    return result if result.ndim else float(result)


def sharpness(eps: float | Real[np.ndarray, "*batch"]) -> float | Float[np.ndarray, "*batch"]:
    """Sharpness α at which a head leaks eps: the inverse of `leakage`.

    Args:
        eps: ε with 0 < ε < 1; a number or an array.

    Returns:
        α, in 1/pixels²; of the shape of eps.

    Raises:
        ValueError: an eps that is not strictly between 0 and 1.
    """
    eps = checks.array("eps", eps, None)
    if not ((eps > 0) & (eps < 1)).all():
        raise ValueError(f"eps: expected numbers strictly between 0 and 1, got {eps}")
    low, high = np.full(eps.shape, 1e-17), np.full(eps.shape, 800.0)  # leakage(800) is less than any float
    for _ in range(110):  # halve the interval; geometrically, since α spans twenty orders of magnitude
        middle = np.sqrt(low * high)
        leaks_more = leakage(middle) > eps
        low, high = np.where(leaks_more, middle, low), np.where(leaks_more, high, middle)
    return high if high.ndim else float(high)


def hard_alpha(dtype: object) -> float:
    """Sharpness from which a softmax in floating point looks at exactly one pixel.

    At this α the weight e^(−α) of the nearest neighbours, and so every other weight, is rounded to zero; what is
    left is a row with a single 1. It is ln 2 · (1 − log₂ of the smallest positive number): 17.3 for float16,
    92.9 for bfloat16, 104.0 for float32, 745.1 for float64.

    Args:
        dtype: a NumPy dtype, its name, `bfloat16`, or a PyTorch dtype.

    Raises:
        ValueError: no floating-point type.
    """
    name = str(dtype).removeprefix("torch.")
    if name == "bfloat16":
        smallest = 2.0**-133
    else:
        try:
            kind = np.dtype(dtype if name == str(dtype) else name)
            smallest = float(np.finfo(kind).smallest_subnormal)
        except (TypeError, ValueError) as error:
            raise ValueError(f"dtype: expected a floating-point type, got {dtype!r}") from error
    return float(np.log(2) * (1 - np.log2(smallest)))


# ---- matrices of heads --------------------------------------------------------------------------------------


def head_matrices(
    kernel: Float[np.ndarray, "kernel_height kernel_width in_channels out_channels"],
) -> Float[np.ndarray, "shifts in_channels out_channels"]:
    """Matrices W_δ of a kernel, one a shift, in the order of `shifts.kernel_shifts`.

    Raises:
        ValueError: wrong shape, NaN or infinite entries.
    """
    kernel = _kernel(kernel)
    return kernel.reshape(-1, *kernel.shape[2:])


def split_head_matrix(
    matrix: Float[np.ndarray, "in_channels out_channels"], head_dim: int, *, best: bool = False
) -> tuple:
    """Write the matrix of a head as a product of its value matrix and its part of the output matrix.

        W^(h) = W_val^(h) W_out^(h),   D_in × D_out = (D_in × D_h)(D_h × D_out)

    Args:
        matrix: W^(h).
        head_dim: D_h, the width of the head.
        best: where no exact product exists, give the closest one (in the Frobenius norm) instead of an error.

    Returns:
        (W_val, W_out); with `best` also the Frobenius norm of what is missing.

    Raises:
        ValueError: the rank of the matrix exceeds head_dim, unless `best`; wrong shapes, NaN or infinite entries.
    """
    matrix = checks.array("matrix", matrix, "in_channels out_channels")
    head_dim = checks.integer("head_dim", head_dim, least=1)
    in_channels, out_channels = matrix.shape
    w_val, w_out, error = np.zeros((in_channels, head_dim)), np.zeros((head_dim, out_channels)), 0.0
    if head_dim >= out_channels:  # the paper's choice: all of the kernel in W_val
        w_val[:, :out_channels], w_out[:out_channels] = matrix, np.eye(out_channels)
    elif head_dim >= in_channels:
        w_val[:, :in_channels], w_out[:in_channels] = np.eye(in_channels), matrix
    else:
        left, values, right = np.linalg.svd(matrix, full_matrices=False)
        rank = _rank(values, matrix.shape)
        if rank > head_dim and not best:
            raise ValueError(f"head_dim: expected at least {rank}, the rank of the matrix, got {head_dim}")
        w_val, w_out = left[:, :head_dim] * values[:head_dim], right[:head_dim]
        error = float(np.linalg.norm(values[head_dim:])) if rank > head_dim else 0.0
    return (w_val, w_out, error) if best else (w_val, w_out)


@dataclass(frozen=True, eq=False)
class MHSAParameters:
    """A self-attention layer built from a convolution; see `conv_to_mhsa`.

    Attributes:
        centers: Δ^(h), the shift each head looks at, in pixels.
        alpha: sharpness of all heads, or None for the hard limit.
        v: the vectors v^(h) that turn the quadratic encoding into scores (for α = 1 in the hard limit).
        w_val: value matrices W_val^(h).
        w_out: output matrix, its rows grouped by head.
        b_out: output bias.
        padding: what stands outside the image.
    """

    centers: Int[np.ndarray, "head 2"]
    alpha: float | None
    v: Float[np.ndarray, "head 3"]
    w_val: Float[np.ndarray, "head in_channels head_dim"]
    w_out: Float[np.ndarray, "head_times_head_dim out_channels"]
    b_out: Float[np.ndarray, " out_channels"]
    padding: str

    @property
    def margins(self) -> tuple[int, int, int, int]:
        """Width of the ring of extra keys around the image: top, bottom, left, right."""
        if self.padding in ("replicate", "circular", "none"):
            return (0, 0, 0, 0)
        return margins(self.centers)

    def positions(self, height: int, width: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the positions of the queries and of the keys for an image of this size, each (number, 2)."""
        top, bottom, left, right = self.margins
        keys = pixel_grid(height + top + bottom, width + left + right) - [top, left]
        queries = pixel_grid(height, width)
        if self.padding == "none":
            inside = [((q + self.centers >= 0) & (q + self.centers < [height, width])).all() for q in queries]
            queries = queries[inside]
        return queries, keys

    def encodings(self, height: int, width: int) -> Float[np.ndarray, "query key 3"]:
        """Return the quadratic encoding r_δ of every pair of query and key."""
        return quadratic_encoding(self._shifts(height, width))

    def scores(self, height: int, width: int) -> Float[np.ndarray, "head query key"]:
        """Return the scores v^(h) · r_δ, for the hard limit their limit: 0 where a head looks, −∞ elsewhere."""
        encodings, v = self.encodings(height, width), self.v
        if self.padding == "circular":  # a centre beyond half the torus is nearer the other way round
            size = np.array([height, width])
            wrapped = (self.centers + size // 2) % size - size // 2
            v = np.array([quadratic_vector(center, self.alpha or 1.0) for center in wrapped])
        scores = np.einsum("hd,qkd->hqk", v, encodings)
        if self.alpha is None:
            scores = np.where(scores == scores.max(axis=-1, keepdims=True), 0.0, -np.inf)
        return scores

    def keys(self, image: Float[np.ndarray, "height width in_channels"]) -> Float[np.ndarray, "key in_channels"]:
        """Return the tokens the heads look at: the pixels of the image, with a ring around it where needed."""
        image = checks.array("image", image, "height width in_channels", in_channels=self.w_val.shape[1])
        top, bottom, left, right = self.margins
        mode = {"zeros": "constant", "reflect": "reflect"}.get(self.padding, "edge")
        padded = np.pad(image, ((top, bottom), (left, right), (0, 0)), mode=mode)
        return padded.reshape(-1, image.shape[2])

    def __call__(self, image: Float[np.ndarray, "height width in_channels"]) -> np.ndarray:
        """Run the layer on an image through `reference.mhsa`; the result has the layout of the image."""
        keys = self.keys(image)
        height, width = np.shape(image)[:2]
        queries, _ = self.positions(height, width)
        result = reference.mhsa(self.scores(height, width), keys, self.w_val, self.w_out, self.b_out)
        size = queries.max(axis=0) - queries.min(axis=0) + 1
        return result.reshape(*size, -1)

    def _shifts(self, height: int, width: int) -> Int[np.ndarray, "query key 2"]:
        queries, keys = self.positions(height, width)
        if not len(queries):
            raise ValueError(f"image: expected one larger than the kernel's window, got {height} × {width}")
        shifts = keys[None] - queries[:, None]
        if self.padding == "circular":
            half = np.array([height // 2, width // 2])
            shifts = (shifts + half) % [height, width] - half
        return shifts


def conv_to_mhsa(
    kernel: Float[np.ndarray, "kernel_height kernel_width in_channels out_channels"],
    bias: Float[np.ndarray, " out_channels"] | None = None,
    *,
    padding: str = "zeros",
    dilation: int | tuple[int, int] = 1,
    alpha: float | None = None,
    head_dim: int | None = None,
) -> MHSAParameters:
    """Theorem 1: the parameters of a self-attention layer that computes a convolution.

    Head h looks at the shift Δ^(h) through the quadratic encoding, and its matrices multiply to the kernel's
    matrix at that shift: `W_val^(h) W_out^(h) = W_Δ`.

    Borders: keys that are pixels of the image give `replicate`. `circular` takes shifts on the torus. `zeros` and
    `reflect` need a ring of extra keys around the image, which hold zeros or mirrored pixels. `none` keeps the
    queries whose window lies inside.

    Args:
        kernel: W.
        bias: b, or None for zero.
        padding: what stands outside the image: `zeros`, `replicate`, `reflect`, `circular` or `none`.
        dilation: distance between taps in pixels; one number or (rows, columns).
        alpha: sharpness α > 0 in 1/pixels²; None for the limit α → ∞, in which the layer is exact.
        head_dim: D_h. None takes D_out, as the paper does, with one head a shift. A smaller width takes
            `⌈rank W_δ / D_h⌉` heads at each shift.

    Raises:
        ValueError: wrong shapes, options, NaN or infinite entries.
    """
    kernel = _kernel(kernel)
    bias = checks.bias("bias", bias, kernel.shape[3])
    padding = checks.choice("padding", padding, checks.PADDINGS)
    if alpha is not None:
        alpha = float(checks.array("alpha", alpha, ""))
        if alpha <= 0:
            raise ValueError(f"alpha: expected a positive sharpness, or None for the hard limit, got {alpha}")
    shifts, matrices = kernel_shifts(kernel.shape[:2], dilation), head_matrices(kernel)
    centers, w_val, w_out = _heads(shifts, matrices, head_dim)
    return MHSAParameters(
        centers=centers,
        alpha=alpha,
        v=np.stack([quadratic_vector(center, 1.0 if alpha is None else alpha) for center in centers]),
        w_val=w_val,
        w_out=w_out,
        b_out=bias,
        padding=padding,
    )


def _heads(
    shifts: np.ndarray, matrices: np.ndarray, head_dim: int | None
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Shift, value matrix and part of the output matrix of every head: one a shift, or as many as its rank asks."""
    if head_dim is None:
        splits = [[split_head_matrix(matrix, matrices.shape[2])] for matrix in matrices]
    else:
        head_dim = checks.integer("head_dim", head_dim, least=1)
        splits = [_narrow(matrix, head_dim) for matrix in matrices]
    if not any(splits):  # a kernel of zeros still is a layer
        splits[0] = [split_head_matrix(matrices[0], head_dim)]
    centers = np.repeat(shifts, [len(split) for split in splits], axis=0)
    w_val, w_out = zip(*(head for split in splits for head in split), strict=True)
    return centers, np.stack(w_val), np.concatenate(w_out)


def _narrow(matrix: np.ndarray, head_dim: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """Write a matrix as the sum of ⌈rank / head_dim⌉ products (W_val, W_out) of width head_dim."""
    if head_dim >= min(matrix.shape):
        return [split_head_matrix(matrix, head_dim)] if matrix.any() else []
    core, rows, columns = _core(matrix)
    left, values, right = np.linalg.svd(core, full_matrices=False)
    rank, heads = _rank(values, core.shape), []
    for first in range(0, rank, head_dim):
        part, width = slice(first, min(first + head_dim, rank)), min(head_dim, rank - first)
        w_val, w_out = np.zeros((len(matrix), head_dim)), np.zeros((head_dim, len(matrix[0])))
        w_val[rows, :width] = left[:, part] * values[part]
        w_out[:width, columns] = right[part]
        heads.append((w_val, w_out))
    return heads


def _core(matrix: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The matrix without its zero rows and columns, and which ones are left: the blocks of patches have many."""
    rows, columns = matrix.any(axis=1), matrix.any(axis=0)
    return matrix[np.ix_(rows, columns)], rows, columns


# ---- how many heads -----------------------------------------------------------------------------------------


class HeadDecomposition(NamedTuple):
    """Attention patterns and head matrices that add up to a kernel; see `decompose_heads`."""

    patterns: Float[np.ndarray, "head kernel_height kernel_width"]
    matrices: Float[np.ndarray, "head in_channels out_channels"]


def kernel_rank(kernel: Float[np.ndarray, "kernel_height kernel_width in_channels out_channels"]) -> int:
    """Rank ρ of the kernel as a matrix with a row a shift and a column an entry of W_δ: K² × D_in·D_out.

    No self-attention layer with fewer than ρ heads equals the convolution.

    Raises:
        ValueError: wrong shape, NaN or infinite entries.
    """
    table = _table(_kernel(kernel))
    return _rank(np.linalg.svd(table, compute_uv=False), table.shape)


def heads_needed(
    kernel: Float[np.ndarray, "kernel_height kernel_width in_channels out_channels"], finite: bool = False
) -> int:
    """Fewest heads of attention over the kernel's window that express the kernel: ρ or ρ + 1, never above K².

    It is ρ if the columns of the kernel's table have a combination that is positive at every shift the kernel
    uses (at every shift of the window, if `finite`), else ρ + 1.

    Args:
        kernel: W.
        finite: all scores within the window are finite, so that no shift can be masked.

    Raises:
        ValueError: wrong shape, NaN or infinite entries.
    """
    kernel = _kernel(kernel)
    _, basis = _columns(kernel, finite)
    rank = basis.shape[1]
    return rank if rank == 0 or _positive(basis) is not None else rank + 1


def decompose_heads(
    kernel: Float[np.ndarray, "kernel_height kernel_width in_channels out_channels"], finite: bool = False
) -> HeadDecomposition:
    """Write a kernel with as few heads as possible: `W_δ = Σ_h p^(h)_δ M^(h)`.

    Each p^(h) is an attention pattern over the kernel's shifts, non-negative with sum one; M^(h) is the matrix
    of that head. There are `heads_needed(kernel, finite)` of them.

    Args:
        kernel: W.
        finite: patterns are strictly positive, as a softmax of finite scores is; otherwise zeros are allowed,
            as masks or the hard limit give them.

    Raises:
        ValueError: wrong shape, NaN or infinite entries.
    """
    kernel = _kernel(kernel)
    used, basis = _columns(kernel, finite)
    rank = basis.shape[1]
    table = _table(kernel)[used]
    if rank == 0:
        patterns = np.zeros((0, len(table)))
    elif (inside := _positive(basis)) is not None:
        # The cone of positive vectors has an inside, so go from a point there along a basis until the wall.
        directions = basis - np.outer(inside, inside @ basis) / (inside @ inside)
        left, _, _ = np.linalg.svd(directions, full_matrices=False)
        steps = left[:, : rank - 1]
        reach = np.min(inside[:, None] / np.maximum(np.abs(steps), 1e-300), axis=0)
        walls = inside[:, None] + (0.9 if finite else 1.0) * reach * steps
        patterns = np.maximum(np.concatenate([inside[:, None], walls], axis=1).T, 0.0)
    else:
        # One more pattern, large enough to lift every basis vector above zero.
        lift = np.maximum(-basis, 0).max(axis=1)
        lift = lift + np.abs(basis).max() if finite else lift
        patterns = np.concatenate([lift[:, None], basis + lift[:, None]], axis=1).T
    patterns = patterns / patterns.sum(axis=1, keepdims=True)
    matrices = np.linalg.lstsq(patterns.T, table, rcond=None)[0]
    whole = np.zeros((len(patterns), len(used)))
    whole[:, used] = patterns
    return HeadDecomposition(
        whole.reshape(-1, *kernel.shape[:2]), matrices.reshape(len(patterns), *kernel.shape[2:])
    )


def _columns(kernel: np.ndarray, finite: bool) -> tuple[np.ndarray, np.ndarray]:
    """Which shifts the patterns may use, and an orthonormal basis of the table's column space on them."""
    table = _table(kernel)
    left, values, _ = np.linalg.svd(table, full_matrices=False)
    rank = _rank(values, table.shape)
    used = np.full(len(table), True) if finite else table.any(axis=1)
    return used, left[used, :rank]


def _positive(basis: np.ndarray) -> np.ndarray | None:
    """A combination of the columns that is positive in every entry, far from zero, if there is one."""
    from scipy.optimize import linprog  # its import takes a while

    entries, columns = basis.shape
    # Largest t with basis @ c ≥ t and |c| ≤ 1, over (c, t).
    solution = linprog(
        c=np.r_[np.zeros(columns), -1.0],
        A_ub=np.c_[-basis, np.ones(entries)],
        b_ub=np.zeros(entries),
        bounds=[(-1, 1)] * columns + [(None, 1)],
    )
    combination = basis @ solution.x[:-1]
    return combination if combination.min() > 1e-9 else None


# ---- patches as tokens --------------------------------------------------------------------------------------


def patch_shifts(
    K: int | tuple[int, int],
    P: int | tuple[int, int],
    stride: int | tuple[int, int] = 1,
    dilation: int | tuple[int, int] = 1,
) -> Int[np.ndarray, "shifts 2"]:
    """Shifts between patches that a convolution of the pixels needs, one head each.

    Tap u of the kernel takes pixel s of a patch to pixel s + u, which lies `⌊(s + u)/P⌋` patches away. An axis
    needs each value this takes for the taps u and the outputs s = 0, S, 2S … < P. At dilation 1 these are
    `−⌈a/P⌉ … ⌊(b + P − S)/P⌋` with `a = ⌊(K−1)/2⌋` and `b = ⌊K/2⌋`. At stride 1 their number is

        n = 1 + ⌈a/P⌉ + ⌈b/P⌉

    and the layer takes n² heads: nine for every odd K with 3 ≤ K ≤ 2P + 1 and every even K with 4 ≤ K ≤ 2P.

    The nine heads are Theorem 1 of Li, Chen, He and Hsieh 2021. The count for even kernels, strides and dilations
    is this book's.

    Args:
        K: size of the kernel in pixels; one number or (rows, columns). An even K takes its extra tap right or
            below, as in `shifts.kernel_shifts`.
        P: size of a patch in pixels; one number or (rows, columns).
        stride: S, a divisor of P; one number or (rows, columns).
        dilation: distance between taps in pixels; one number or (rows, columns).

    Returns:
        The shifts δ in patches, in reading order.

    Raises:
        ValueError: no positive integers, or a stride that does not divide the patch.
    """
    sizes, patch = checks.pair("K", K, least=1), checks.pair("P", P, least=1)
    rows, columns = (offsets for offsets, _ in _patch_axes(sizes, patch, stride, dilation))
    return np.stack(np.meshgrid(rows, columns, indexing="ij"), axis=-1).reshape(-1, 2)


def patch_matrices(
    kernel: Float[np.ndarray, "kernel_height kernel_width in_channels_per_group out_channels"],
    patch: int | tuple[int, int],
    *,
    stride: int | tuple[int, int] = 1,
    dilation: int | tuple[int, int] = 1,
    groups: int = 1,
) -> Float[np.ndarray, "shifts patch_in_channels patch_out_channels"]:
    """Matrices that turn a convolution of pixels into one of patches, a matrix a shift of `patch_shifts`.

        Y_p = Σ_δ X_{p+δ} W_δ,   W_δ[(t, c), (s, o)] = k_u[c, o]   with u = P δ + t − s·S

    and 0 where u is no tap of the kernel. Here t is a pixel of the patch that is read, s one of the patch that is
    written. All blocks together have `(P/S)² K² C_in C_out / groups` entries taken from the kernel.

    With an axis of length one, `patch_matrices(…)[:, None]` is the kernel of a convolution over patches. As such it
    goes into `kernel_rank`, `heads_needed` and `decompose_heads`.

    Args:
        kernel: k, over pixels.
        patch: P, the size of a patch in pixels; one number or (rows, columns).
        stride: S, a divisor of P. The patches that are written then measure P/S.
        dilation: distance between taps in pixels; one number or (rows, columns).
        groups: so many groups of channels that do not mix.

    Returns:
        The blocks W_δ, (P·P·C_in) × (P/S·P/S·C_out) each, rows and columns in the order row, column, channel of
        `reference.image_to_patches`.

    Raises:
        ValueError: wrong shapes or sizes, a stride that does not divide the patch, NaN or infinite entries.
    """
    kernel = _ungrouped(kernel, groups)
    patch = checks.pair("patch", patch, least=1)
    (_, rows), (_, columns) = _patch_axes(kernel.shape[:2], patch, stride, dilation)
    blocks = np.einsum("atsj,bTSJ,jJio->abtTisSo", rows, columns, kernel, optimize=True)
    count, inputs = blocks.shape[0] * blocks.shape[1], patch[0] * patch[1] * kernel.shape[2]
    return blocks.reshape(count, inputs, -1)


def patch_ranks(K: int | tuple[int, int], P: int | tuple[int, int]) -> Int[np.ndarray, " shifts"]:
    """Rank of every block of a generic kernel with one channel, at stride and dilation 1.

        r(δ₁) r(δ₂),   r(0) = P,   r(δ) = min(P, b − P(δ − 1)) for δ > 0,   min(P, a − P(−δ − 1)) for δ < 0

    With channels, the rank of W_δ is at most `min(C_in, C_out)` times this, and equal to it for almost every
    kernel. The sum over all shifts is `(P + K − 1)²`, the pixels that a patch of the result depends on. This book's
    own, chapter 15.

    Args:
        K: size of the kernel in pixels; one number or (rows, columns).
        P: size of a patch in pixels; one number or (rows, columns).

    Returns:
        The ranks, in the order of `patch_shifts(K, P)`.

    Raises:
        ValueError: no positive integers.
    """
    sizes, patch = checks.pair("K", K, least=1), checks.pair("P", P, least=1)
    ranks = []
    for (offsets, _), size, pixels in zip(_patch_axes(sizes, patch, 1, 1), sizes, patch, strict=True):
        reach = np.where(offsets > 0, size // 2, (size - 1) // 2)
        ranks.append(np.where(offsets == 0, pixels, np.minimum(pixels, reach - pixels * (np.abs(offsets) - 1))))
    return np.outer(*ranks).ravel()


def patch_heads(
    kernel: Float[np.ndarray, "kernel_height kernel_width in_channels_per_group out_channels"],
    patch: int | tuple[int, int],
    head_dim: int | None = None,
    *,
    stride: int | tuple[int, int] = 1,
    dilation: int | tuple[int, int] = 1,
    groups: int = 1,
) -> int:
    """Heads that attention over patches needs for a convolution of the pixels.

    For heads as wide as they like it is the fewest there can be: `heads_needed` of the blocks W_δ, which is their
    rank ρ or ρ + 1. The grid must hold the window of at least one query, and other patches may be masked; where all
    scores are finite and a patch lies outside the window, it takes ρ + 1.

    For heads of width D_h it is the number that `conv_to_patch_mhsa` builds, `Σ_δ ⌈rank W_δ / D_h⌉`. Fewer may do.

    Li, Chen, He and Hsieh 2021 bound the number of heads too. The counts here are this book's, chapter 15.

    Args:
        kernel: k, over pixels.
        patch: P, the size of a patch in pixels; one number or (rows, columns).
        head_dim: D_h, or None for heads that are wide enough.
        stride: S, a divisor of P; one number or (rows, columns).
        dilation: distance between taps in pixels; one number or (rows, columns).
        groups: so many groups of channels that do not mix.

    Raises:
        ValueError: wrong shapes or sizes, a stride that does not divide the patch, NaN or infinite entries.
    """
    matrices = patch_matrices(kernel, patch, stride=stride, dilation=dilation, groups=groups)
    if head_dim is None:
        return heads_needed(matrices[:, None])
    head_dim = checks.integer("head_dim", head_dim, least=1)
    cores = [_core(matrix)[0] for matrix in matrices]
    ranks = [_rank(np.linalg.svd(core, compute_uv=False), core.shape) for core in cores]
    return sum(-(-rank // head_dim) for rank in ranks)


@dataclass(frozen=True, eq=False)
class PatchMHSAParameters:
    """A self-attention layer over patches built from a convolution of pixels; see `conv_to_patch_mhsa`.

    Attributes:
        shifts: δ^(h), the patch each head looks at.
        border: what a head finds outside the grid; see `reference.patch_scores`.
        alpha: score of the patch wanted, or None for the hard limit.
        gamma: by how much the sink's score exceeds that of the patch wanted.
        w_val: value matrices W_val^(h).
        w_out: output matrix, its rows grouped by head.
        b_out: output bias, the bias of the convolution once a pixel of the patch.
        patch: size of the patches that are read, (rows, columns) in pixels.
        out_patch: size of the patches that are written, P/S.
    """

    shifts: Int[np.ndarray, "head 2"]
    border: str
    alpha: float | None
    gamma: float
    w_val: Float[np.ndarray, "head patch_in_channels head_dim"]
    w_out: Float[np.ndarray, "head_times_head_dim patch_out_channels"]
    b_out: Float[np.ndarray, " patch_out_channels"]
    patch: tuple[int, int]
    out_patch: tuple[int, int]

    def scores(self, height: int, width: int) -> Float[np.ndarray, "head query key"]:
        """Return the scores before the softmax, for a grid of height × width patches."""
        return reference.patch_scores(height, width, self.shifts, self.border, alpha=self.alpha, gamma=self.gamma)

    def attention(self, height: int, width: int) -> Float[np.ndarray, "head query key"]:
        """Return the attention probabilities, for a grid of height × width patches."""
        return reference.patch_attention(
            height, width, self.shifts, self.border, alpha=self.alpha, gamma=self.gamma
        )

    def keys(self, tokens: Float[np.ndarray, "rows columns patch_in_channels"]) -> np.ndarray:
        """Return the tokens the heads look at: the patches, with zeros around or behind them where needed."""
        return reference.patch_keys(tokens, self.shifts, self.border)

    def __call__(self, image: Float[np.ndarray, "height width in_channels"]) -> np.ndarray:
        """Run the layer on an image; the result is an image as well."""
        in_channels = self.w_val.shape[1] // (self.patch[0] * self.patch[1])
        image = checks.array("image", image, "height width in_channels", in_channels=in_channels)
        tokens = reference.image_to_patches(image, self.patch)
        height, width, _ = tokens.shape
        values = self.attention(height, width) @ self.keys(tokens) @ self.w_val
        result = np.concatenate(list(values), axis=1) @ self.w_out + self.b_out
        return reference.patches_to_image(result.reshape(height, width, -1), self.out_patch)


def conv_to_patch_mhsa(
    kernel: Float[np.ndarray, "kernel_height kernel_width in_channels_per_group out_channels"],
    patch: int | tuple[int, int],
    bias: Float[np.ndarray, " out_channels"] | None = None,
    *,
    border: str = "ring",
    stride: int | tuple[int, int] = 1,
    dilation: int | tuple[int, int] = 1,
    groups: int = 1,
    alpha: float | None = None,
    gamma: float = 0.0,
    head_dim: int | None = None,
) -> PatchMHSAParameters:
    """Theorem 1 of Li, Chen, He and Hsieh 2021: self-attention over patches that computes a convolution of pixels.

    Head h looks at the patch δ^(h), and its matrices multiply to the block of the kernel: `W_val^(h) W_out^(h) =
    W_δ`. In the hard limit the layer is exact. The borders are this book's: `ring`, `sink` and `mask` give a
    convolution with zeros outside the image, `circular` one on the torus. A sink takes the share `e^γ / (1 + e^γ)`
    of every query whose patch exists, so there the value matrices are `1 + e^γ` times as large.

    Args:
        kernel: k, over pixels.
        patch: P, the size of a patch in pixels; one number or (rows, columns).
        bias: b, or None for zero.
        border: `ring`, `sink`, `mask` or `circular`; see `reference.patch_scores`.
        stride: S, a divisor of P; one number or (rows, columns).
        dilation: distance between taps in pixels; one number or (rows, columns).
        groups: so many groups of channels that do not mix.
        alpha: score of the patch wanted where all others have 0; None for the limit α → ∞.
        gamma: γ, by how much the sink's score exceeds that of the patch wanted.
        head_dim: D_h. None takes (P/S)² C_out with one head a shift. A smaller width takes `⌈rank W_δ / D_h⌉`
            heads at each shift.

    Raises:
        ValueError: wrong shapes, sizes or options, a stride that does not divide the patch, NaN or infinite
            entries.
    """
    matrices = patch_matrices(kernel, patch, stride=stride, dilation=dilation, groups=groups)
    bias = checks.bias("bias", bias, np.shape(kernel)[3])
    border = checks.choice("border", border, checks.BORDERS)
    if alpha is not None:
        alpha = float(checks.array("alpha", alpha, ""))
    gamma = float(checks.array("gamma", gamma, ""))
    patch, steps = checks.pair("patch", patch, least=1), checks.pair("stride", stride, least=1)
    shifts = patch_shifts(np.shape(kernel)[:2], patch, stride, dilation)
    shifts, w_val, w_out = _heads(shifts, matrices, head_dim)
    out_patch = (patch[0] // steps[0], patch[1] // steps[1])
    return PatchMHSAParameters(
        shifts=shifts,
        border=border,
        alpha=alpha,
        gamma=gamma,
        w_val=w_val * (1 + np.exp(gamma)) if border == "sink" else w_val,
        w_out=w_out,
        b_out=np.tile(bias, out_patch[0] * out_patch[1]),
        patch=patch,
        out_patch=out_patch,
    )


def patch_leakage(alpha: float | Real[np.ndarray, "*batch"], keys: int) -> float | Float[np.ndarray, "*batch"]:
    """Attention that a head leaves to other keys when it scores the key wanted α and all others 0.

        ε = (N − 1) / (N − 1 + e^α)

    So much leaks in `reference.patch_attention`. With a sink, the other patches get the leakage of α + ln(1 + e^γ),
    where N counts the patches alone.

    Args:
        alpha: α; a number or an array.
        keys: N, the number of keys, a ring's among them.

    Returns:
        ε, between 0 and 1; of the shape of alpha.

    Raises:
        ValueError: NaN or infinite scores, no positive number of keys.
    """
    alpha = checks.array("alpha", alpha, None)
    others = checks.integer("keys", keys, least=1) - 1
    with np.errstate(under="ignore"):  # fractions of the larger exponential never overflow
        weight = others * np.exp(-np.maximum(alpha, 0))
        result = weight / (weight + np.exp(np.minimum(alpha, 0)))
    return result if result.ndim else float(result)


def patch_sharpness(eps: float | Real[np.ndarray, "*batch"], keys: int) -> float | Float[np.ndarray, "*batch"]:
    """Score α at which a head leaks eps to the other keys: the inverse of `patch_leakage`.

        α = ln((N − 1)(1 − ε)/ε)

    Args:
        eps: ε with 0 < ε < 1; a number or an array. From (N − 1)/N on, the share of uniform attention, α ≤ 0.
        keys: N ≥ 2, the number of keys.

    Returns:
        α, of the shape of eps.

    Raises:
        ValueError: an eps that is not strictly between 0 and 1, fewer than two keys.
    """
    eps = checks.array("eps", eps, None)
    if not ((eps > 0) & (eps < 1)).all():
        raise ValueError(f"eps: expected numbers strictly between 0 and 1, got {eps}")
    result = np.log(checks.integer("keys", keys, least=2) - 1) + np.log1p(-eps) - np.log(eps)
    return result if np.ndim(result) else float(result)


def _patch_axes(
    sizes: tuple[int, int],
    patch: tuple[int, int],
    stride: int | tuple[int, int],
    dilation: int | tuple[int, int],
) -> list[tuple[np.ndarray, np.ndarray]]:
    """For rows and columns: the shifts δ, and a 1 at [δ, t, s, j] where tap j takes pixel s to t of patch δ."""
    steps, dilations = checks.pair("stride", stride, least=1), checks.pair("dilation", dilation, least=1)
    if patch[0] % steps[0] or patch[1] % steps[1]:
        raise ValueError(f"stride: expected a divisor of the patch {patch}, got {steps}")
    axes = []
    for size, pixels, step, distance in zip(sizes, patch, steps, dilations, strict=True):
        taps = kernel_shifts((size, 1), (distance, 1))[:, 0]
        shift, pixel = np.divmod(np.arange(0, pixels, step)[:, None] + taps, pixels)
        offsets, index = np.unique(shift, return_inverse=True)
        chosen = np.zeros((len(offsets), pixels, *shift.shape))
        written, tap = np.indices(shift.shape)
        chosen[index.reshape(shift.shape), pixel, written, tap] = 1
        axes.append((offsets, chosen))
    return axes


def _ungrouped(kernel: np.ndarray, groups: int) -> np.ndarray:
    """The same convolution with one group: the matrices W_δ become block-diagonal."""
    kernel, groups = _kernel(kernel), checks.integer("groups", groups, least=1)
    *size, inputs, outputs = kernel.shape
    if outputs % groups:
        raise ValueError(f"groups: expected a divisor of out_channels={outputs}, got {groups}")
    split = kernel.reshape(*size, inputs, groups, outputs // groups)
    return np.einsum("hwigo,gn->hwnigo", split, np.eye(groups)).reshape(*size, groups * inputs, outputs)


def _kernel(value: np.ndarray) -> np.ndarray:
    return checks.array("kernel", value, "kernel_height kernel_width in_channels out_channels")


def _table(kernel: np.ndarray) -> np.ndarray:
    return kernel.reshape(kernel.shape[0] * kernel.shape[1], -1)


def _rank(singular_values: np.ndarray, shape: tuple[int, ...]) -> int:
    """Count singular values above rounding, by NumPy's own rule for `matrix_rank`."""
    tolerance = singular_values.max(initial=0.0) * max(shape) * np.finfo(np.float64).eps
    return int((singular_values > tolerance).sum())
