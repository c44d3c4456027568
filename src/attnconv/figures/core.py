"""From a module, a state and a picture to something a notebook or a page can show."""

import base64
import hashlib
import html
import json
import os
import re
from functools import lru_cache
from importlib.resources import files
from importlib.util import find_spec

import numpy as np
from jaxtyping import Float

from attnconv import checks, plot


@lru_cache
def _read(name: str) -> str:
    return files(__package__).joinpath(name).read_text(encoding="utf-8")


def module_source(name: str) -> str:
    """Source of a figure as one ES module that imports nothing: `common.mjs`, then `name.mjs`."""
    own = re.sub(r'^import \{[^}]*\} from "\./common\.mjs";\n', "", _read(f"{name}.mjs"), flags=re.M)
    return _read("common.mjs") + own


def encode_pixels(image: Float[np.ndarray, "height width channels"]) -> dict:
    """An image with values between 0 and 1 as bytes, the form that `decode` in `common.mjs` reads."""
    image = checks.array("image", image, "height width channels")
    if image.min() < 0 or image.max() > 1:
        raise ValueError(f"image: expected values from 0 to 1, got {image.min()} to {image.max()}")
    pixels = np.rint(image * 255).astype(np.uint8)
    return {"shape": list(image.shape), "bytes": base64.b64encode(pixels.tobytes()).decode()}


def named_kernels(kernels: dict[str, Float[np.ndarray, "3 3"]]) -> dict[str, Float[np.ndarray, "3 3"]]:
    """Return the kernels a reader may choose from, checked: at least one, each 3 × 3."""
    if not kernels:
        raise ValueError("kernels: expected at least one, got none")
    return {
        name: checks.array(f"kernels[{name!r}]", kernel, "rows columns", rows=3, columns=3)
        for name, kernel in kernels.items()
    }


class Figure:
    """An interactive figure: display it as the last value of a cell.

    In a running notebook it is a widget; `value` then holds what the reader has set. On a built page, or where
    anywidget is missing, it is plain HTML with the module inside. Where no script runs, `picture` stands in.

    Args:
        module: name of the ES module beside this file.
        state: what the figure starts from; numbers, strings, lists and dictionaries.
        alt: what a reader who does not see the figure should know.
        caption: what to look at and what to do.
        picture: what stands in where scripts do not run.
    """

    def __init__(self, module: str, state: dict, *, alt: str, caption: str, picture: plot.Picture):
        self.module = module
        self.state = state | {"colors": plot.colors_for_scripts()}
        self.alt = plot.required_text("alt", alt)
        self.caption = plot.required_text("caption", caption)
        self.picture = picture
        self._widget = None

    @property
    def value(self) -> dict:
        """What the reader has set, where the figure runs as a widget; empty elsewhere."""
        return {} if self._widget is None else dict(self._widget.value)

    def html(self) -> str:
        """Return the figure as HTML that runs by itself."""
        state = json.dumps(self.state, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")
        name = f"figure-{self.module}-{hashlib.sha256(state.encode()).hexdigest()[:8]}".replace("_", "-")
        own = re.sub(r"^export (?=const|function)", "", module_source(self.module), flags=re.M)
        own = own.replace("export default", "const figure =")
        host = _read("host.mjs").replace("export function", "function")
        alt = html.escape(self.alt)
        return (
            f'<figure class="attnconv-figure" id="{name}" data-figure="{self.module}">\n'
            f"<style>{_read('figure.css')}</style>\n"
            f'<div class="attnconv-stage" role="group" aria-label="{alt}">{self.picture.svg}</div>\n'
            f"<figcaption>{plot.caption_html(self.caption)}</figcaption>\n"
            f'<script type="application/json">{state}</script>\n'
            f'<script type="module">\n{own}\n{host}\nmount(document.getElementById("{name}"), figure);\n</script>\n'
            "</figure>"
        )

    def widget(self):
        """Return the figure as an anywidget, made on first use."""
        if self._widget is None:
            import anywidget
            import traitlets

            class Live(anywidget.AnyWidget):
                _esm = module_source(self.module)
                _css = _read("figure.css")
                state = traitlets.Dict().tag(sync=True)
                value = traitlets.Dict().tag(sync=True)

            self._widget = Live(state=self.state)
            self._widget.add_class("attnconv-figure")
            self._widget.add_class("attnconv-stage")
        return self._widget

    def _repr_mimebundle_(self, include=None, exclude=None) -> dict:
        bundle = {"text/plain": f"[figure] {self.alt}", "text/html": self.html()}
        # A built page has no kernel to talk to; the book's build says so with this variable.
        if find_spec("anywidget") and not os.environ.get("ATTNCONV_STATIC"):
            live = self.widget()._repr_mimebundle_()
            live = live[0] if isinstance(live, tuple) else live
            bundle |= {kind: data for kind, data in live.items() if "widget-view" in kind}
        return bundle
