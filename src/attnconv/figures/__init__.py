"""Figures to touch, one small ES module each.

A module exports `default { render({ model, el }) }`, the interface of anywidget. The same file serves a running
notebook, through anywidget, and a built page, through `host.mjs`, which needs no library and no network.

To add a figure: `name.mjs` with the module, `name.py` with a function that computes the state it starts from and
the picture that stands in where scripts do not run, and one line below.
"""

from attnconv.figures.converted_kernel import converted_kernel
from attnconv.figures.core import Figure, module_source
from attnconv.figures.cost_explorer import cost_explorer
from attnconv.figures.down_sampling import down_sampling
from attnconv.figures.family_of_heads import family_of_heads
from attnconv.figures.fewest_heads import fewest_heads
from attnconv.figures.fine_print import fine_print
from attnconv.figures.handed_over import handed_over
from attnconv.figures.head_explorer import head_explorer
from attnconv.figures.heads_on_off import heads_on_off
from attnconv.figures.merged_heads import merged_heads
from attnconv.figures.nine_heads import nine_heads
from attnconv.figures.nine_neighbours import nine_neighbours
from attnconv.figures.rows_times_columns import rows_times_columns
from attnconv.figures.sharp_head import sharp_head
from attnconv.figures.shuffled_pixels import shuffled_pixels
from attnconv.figures.sum_of_shifts import sum_of_shifts
from attnconv.figures.training_heads import training_heads
from attnconv.figures.translated_picture import translated_picture
from attnconv.figures.two_phases import two_phases

__all__ = [
    "Figure",
    "converted_kernel",
    "cost_explorer",
    "down_sampling",
    "family_of_heads",
    "fewest_heads",
    "fine_print",
    "handed_over",
    "head_explorer",
    "heads_on_off",
    "merged_heads",
    "module_source",
    "nine_heads",
    "nine_neighbours",
    "rows_times_columns",
    "sharp_head",
    "shuffled_pixels",
    "sum_of_shifts",
    "training_heads",
    "translated_picture",
    "two_phases",
]
