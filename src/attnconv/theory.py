"""What the theorems construct and bound.

From a convolution to the parameters of a self-attention layer that computes it: position encodings under which a
head looks at one shift, head matrices from kernels, how much a head of finite sharpness leaks, and how many heads
a kernel needs.

Sources: the quadratic encoding, Lemma 1, Lemma 2 and Theorem 1 are from Cordonnier, Loukas and Jaggi 2020. The
circle encoding, the leakage in closed form, the treatment of borders and the number of heads from the rank of the
kernel are this book's, proved in chapters 6 to 8.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int, Real

from attnconv import checks, reference
from attnconv.shifts import kernel_shifts, pixel_grid

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
    alpha = checks.array("alpha", alpha, " ".join(f"axis{i}" for i in range(np.ndim(alpha))))
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
    eps = checks.array("eps", eps, " ".join(f"axis{i}" for i in range(np.ndim(eps))))
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
        (top, left), (bottom, right) = np.maximum(-self.centers.min(0), 0), np.maximum(self.centers.max(0), 0)
        return int(top), int(bottom), int(left), int(right)

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
    out_channels = kernel.shape[3]
    if bias is None:
        bias = np.zeros(out_channels)
    bias = checks.array("bias", bias, "out_channels", out_channels=out_channels)
    padding = checks.choice("padding", padding, checks.PADDINGS)
    if alpha is not None:
        alpha = float(checks.array("alpha", alpha, ""))
        if alpha <= 0:
            raise ValueError(f"alpha: expected a positive sharpness, or None for the hard limit, got {alpha}")
    shifts, matrices = kernel_shifts(kernel.shape[:2], dilation), head_matrices(kernel)
    if head_dim is None:
        pieces = [(shift, matrix) for shift, matrix in zip(shifts, matrices, strict=True)]
        head_dim = out_channels
    else:
        head_dim = checks.integer("head_dim", head_dim, least=1)
        pieces = [
            (shift, piece)
            for shift, matrix in zip(shifts, matrices, strict=True)
            for piece in _narrow(matrix, head_dim)
        ] or [(shifts[0], matrices[0])]  # a kernel of zeros still is a layer
    split = [split_head_matrix(piece, head_dim) for _, piece in pieces]
    centers = np.stack([shift for shift, _ in pieces])
    return MHSAParameters(
        centers=centers,
        alpha=alpha,
        v=np.stack([quadratic_vector(center, 1.0 if alpha is None else alpha) for center in centers]),
        w_val=np.stack([w_val for w_val, _ in split]),
        w_out=np.concatenate([w_out for _, w_out in split]),
        b_out=bias,
        padding=padding,
    )


def _narrow(matrix: np.ndarray, head_dim: int) -> list[np.ndarray]:
    """Split a matrix into a sum of ⌈rank / head_dim⌉ matrices of rank at most head_dim."""
    left, values, right = np.linalg.svd(matrix, full_matrices=False)
    rank = _rank(values, matrix.shape)
    if 0 < rank <= head_dim:
        return [matrix]
    cuts = range(0, rank, head_dim)
    return [(left[:, i : i + head_dim] * values[i : i + head_dim]) @ right[i : i + head_dim] for i in cuts]


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


def _kernel(value: np.ndarray) -> np.ndarray:
    return checks.array("kernel", value, "kernel_height kernel_width in_channels out_channels")


def _table(kernel: np.ndarray) -> np.ndarray:
    return kernel.reshape(kernel.shape[0] * kernel.shape[1], -1)


def _rank(singular_values: np.ndarray, shape: tuple[int, ...]) -> int:
    """Count singular values above rounding, by NumPy's own rule for `matrix_rank`."""
    tolerance = singular_values.max(initial=0.0) * max(shape) * np.finfo(np.float64).eps
    return int((singular_values > tolerance).sum())
