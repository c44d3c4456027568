"""Checks of arguments: each error names the argument, what was expected and what came."""

import operator
from collections.abc import Sequence

import numpy as np

PADDINGS = ("zeros", "replicate", "reflect", "circular", "none")
BORDERS = ("ring", "sink", "mask", "circular")


def array(name: str, value: object, axes: str | None, *, infinite: bool = False, **sizes: int) -> np.ndarray:
    """Return `value` as a float64 array with one axis for each word of `axes`; with None, of any number of axes.

    `sizes` fixes the length of some axes. Entries must be finite; with `infinite`, −∞ passes too, as masked
    scores need it.
    """
    try:
        result = np.asarray(value, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{name}: expected an array of real numbers, got {_describe(value)}") from error
    names = [f"axis{i}" for i in range(result.ndim)] if axes is None else axes.split()
    fits = result.ndim == len(names) and all(
        length == sizes.get(axis, length) for axis, length in zip(names, result.shape, strict=True)
    )
    if not fits:
        wanted = ", ".join(f"{axis}={sizes[axis]}" if axis in sizes else axis for axis in names)
        raise ValueError(f"{name}: expected shape ({wanted}), got {result.shape}")
    if 0 in result.shape:
        raise ValueError(f"{name}: expected at least one entry on every axis, got shape {result.shape}")
    wrong = ~np.isfinite(result)
    if infinite:
        wrong &= result != -np.inf
    if wrong.any():
        where = tuple(int(i) for i in np.argwhere(wrong)[0])
        expected = "finite numbers or -inf" if infinite else "finite numbers"
        raise ValueError(f"{name}: expected {expected}, got {result[where]} at index {where}")
    return result


def bias(name: str, value: object, out_channels: int) -> np.ndarray:
    """Return `value` as an array with a number for each output channel; None stands for zeros."""
    if value is None:
        return np.zeros(out_channels)
    return array(name, value, "out_channels", out_channels=out_channels)


def integer(name: str, value: object, *, least: int) -> int:
    """Return `value` as an int that is at least `least`."""
    try:
        number = operator.index(value)
    except TypeError:
        number = None
    if number is None or isinstance(value, bool | np.bool_) or number < least:
        raise ValueError(f"{name}: expected an integer of at least {least}, got {_describe(value)}")
    return number


def pair(name: str, value: object, *, least: int) -> tuple[int, int]:
    """Return `value`, one integer or two (rows before columns), as two."""
    if isinstance(value, Sequence | np.ndarray) and not isinstance(value, str):
        if len(value) != 2:
            raise ValueError(f"{name}: expected one integer or two, got {_describe(value)}")
        return integer(name, value[0], least=least), integer(name, value[1], least=least)
    number = integer(name, value, least=least)
    return number, number


def coordinates(name: str, value: object) -> np.ndarray:
    """Return `value` as an array of integers with (row, column) on its last axis."""
    result = np.asarray(value)
    if result.ndim == 0 or result.shape[-1] != 2 or not np.issubdtype(result.dtype, np.integer):
        raise ValueError(
            f"{name}: expected integers with (row, column) on the last axis, "
            f"got shape {result.shape} of {result.dtype}"
        )
    return result


def choice(name: str, value: object, options: Sequence[str]) -> str:
    """Return `value`, which must be one of `options`."""
    if value not in options:
        raise ValueError(f"{name}: expected one of {', '.join(options)}, got {value!r}")
    return value


def _describe(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{type(value).__name__} {text[:60]}…"
