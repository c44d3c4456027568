"""Promises about the package as a whole."""

import subprocess
import sys

import pytest

HALF = [
    "attnconv",
    "attnconv.shifts",
    "attnconv.reference",
    "attnconv.theory",
    "attnconv.images",
    "attnconv.plot",
    "attnconv.figures",
]


def run(code):
    return subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=False)


def test_the_numpy_half_works_where_torch_cannot_be_imported():
    """An interpreter that refuses torch must still import everything, convolve, attend and draw a figure."""
    result = run(
        f"""
import importlib, sys
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "torch":
            raise ImportError("torch is not installed here")
sys.meta_path.insert(0, Refuse())
for name in {HALF!r}:
    importlib.import_module(name)
import numpy as np
from attnconv import figures, images, reference, shifts
photo = images.photograph("china", (8, 8), gray=True)
kernel = np.ones((3, 3, 1, 1)) / 9
convolved = reference.convolution(photo, kernel)
scores = reference.quadratic_scores(shifts.relative_shifts(8, 8), np.zeros(2), 1.0)
reference.mhsa(scores[None], photo.reshape(64, 1), np.ones((1, 1, 1)), np.ones((1, 1)))
figures.sum_of_shifts(photo, {{"blur": kernel[..., 0, 0]}}).html()
try:
    import torch
except ImportError:
    print("done without torch")
"""
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout == "done without torch\n"


@pytest.mark.parametrize("name", HALF)
def test_import_is_silent_and_light(name):
    """Nothing prints, and neither torch, scikit-learn nor pyplot comes along."""
    result = run(
        f"import sys, {name}; print(sorted({{'torch', 'sklearn', 'matplotlib.pyplot'}} & set(sys.modules)))"
    )
    assert (result.returncode, result.stdout, result.stderr) == (0, "[]\n", "")
