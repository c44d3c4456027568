"""Helpers of *Attention as Convolution, an executable book*.

Two halves with a clear border. The mathematics is plain NumPy in float64, channels last:

- `shifts`: pixel grids, the kernel's shifts Δ_K, relative shifts δ = k − q
- `reference`: convolution, self-attention and position encodings, exactly as the definitions read
- `theory`: what the theorems construct
- `images`, `plot`, `figures`: photographs, Matplotlib pictures, interactive figures

None of these imports torch, and none prints, downloads or draws on import.
"""

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("attnconv")
except PackageNotFoundError:  # a source tree that was never installed
    __version__ = "0+unknown"
