"""What the theorems construct: position encodings whose products with one vector a head are the scores we want.

Source: Cordonnier, Loukas and Jaggi 2020, equation 9.
"""

import numpy as np
from jaxtyping import Float, Int, Real

from attnconv import checks


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
