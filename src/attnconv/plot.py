"""Static pictures: Matplotlib drawings that take the colours and the type of the page they stand on.

A picture is inline SVG. What Matplotlib draws in black takes the page's own text colour, in the light theme and in
the dark one, and it always carries words for readers who do not see it.
"""

import hashlib
import html
import io
import re
from collections.abc import Sequence

import numpy as np
from jaxtyping import Bool, Real
from matplotlib import colormaps, rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Drawing
from matplotlib.patches import Circle, Rectangle

from attnconv import checks

# One colour a head, in reading order of a 3 × 3 grid, the same in all chapters. Each has a contrast of at least
# 3 to 1 with the light and with the dark page.
HEAD_COLORS = (
    "#3b7dd8",
    "#d9730d",
    "#0e9384",
    "#c9449b",
    "#6b7684",
    "#4c9a2a",
    "#8a63d2",
    "#d64545",
    "#a6761d",
)
ACCENT = "#1f7a8c"
ATTENTION = "cividis"  # attention probabilities, 0 to 1
SIGNED = "PuOr_r"  # numbers with a sign, zero in the middle

_INK = "#000000"  # what is drawn in black shows in the page's own text colour
_BLACK = "#010203"  # for marks on a picture, which stay as they are
_STYLE = {
    "svg.fonttype": "none",
    "svg.hashsalt": "attnconv",
    "font.family": "sans-serif",
    "font.size": 10,
    "axes.titlesize": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.prop_cycle": f"cycler('color', {HEAD_COLORS!r})",
    "lines.linewidth": 2,
    "figure.constrained_layout.use": True,
    "image.interpolation": "nearest",
    **dict.fromkeys(("figure.facecolor", "axes.facecolor", "savefig.facecolor"), "none"),
}


class Picture:
    """A drawing as inline SVG with its text alternative and caption; display it as the last value of a cell."""

    def __init__(self, svg: str, alt: str, caption: str = ""):
        self.svg, self.alt, self.caption = svg, alt, caption

    def _repr_mimebundle_(self, include=None, exclude=None) -> dict:
        caption = f"<figcaption>{caption_html(self.caption)}</figcaption>" if self.caption else ""
        figure = f'<figure class="attnconv-picture"><div>{self.svg}</div>{caption}</figure>'
        return {"text/plain": f"[picture] {self.alt}", "text/html": figure}


def drawing(width: float = 7.0, height: float = 3.0, *, rows: int = 1, columns: int = 1, **options: object):
    """Return a Matplotlib figure in the book's style and its axes.

    It belongs to no window and to no list of open figures. Pass it to `picture` when it is drawn.

    Args:
        width: in inches; a page is about 7 wide.
        height: in inches.
        rows: rows of axes.
        columns: columns of axes.
        options: passed to `matplotlib.figure.Figure.subplots`.
    """
    with rc_context(_STYLE):
        figure = Drawing(figsize=(width, height))
        return figure, figure.subplots(rows, columns, **options)


def picture(figure: Drawing, *, alt: str, caption: str = "") -> Picture:
    """Turn a Matplotlib figure into a picture for the page.

    Args:
        figure: made by `drawing`.
        alt: what a reader who does not see the picture should know.
        caption: what to look at.

    Raises:
        ValueError: no alternative text.
    """
    alt = required_text("alt", alt)
    for axes in figure.axes:
        if legend := axes.get_legend():
            legend.set_frame_on(False)
    buffer = io.StringIO()
    with rc_context(_STYLE):
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None})
    svg = buffer.getvalue()
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.S).replace(_INK, "currentColor")
    # The family of the type is the page's.
    svg = re.sub(r"font: (italic )?(\d[\d.]*px) [^;\"]*", _font, svg)
    svg = re.sub(r"font-family: [^;\"]*;? ?", "", svg)
    width, height = (float(n) for n in re.search(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', svg).groups())
    # Names inside a picture must not meet those of the next one on the page, and nobody asks for most of them.
    used = set(re.findall(r"url\(#([^)]+)\)", svg)) | set(re.findall(r'href="#([^"]+)"', svg))
    prefix = "p" + hashlib.sha256(svg.encode()).hexdigest()[:8]
    svg = re.sub(r' id="([^"]+)"', lambda m: f' id="{prefix}-{m[1]}"' if m[1] in used else "", svg)
    svg = re.sub(r'(url\(|href=")#', rf"\1#{prefix}-", svg)
    pixels = f"{width * 4 / 3:.0f}"
    tag = (  # Matplotlib leaves out the fill of what it fills with black, so the root says it
        f'<svg class="attnconv-static" role="img" aria-label="{html.escape(alt)}" '
        f'viewBox="0 0 {width:g} {height:g}" width="{pixels}" xmlns="http://www.w3.org/2000/svg" '
        'xmlns:xlink="http://www.w3.org/1999/xlink" fill="currentColor" '
        f'style="--width:{pixels}px;max-width:100%;height:auto">'
    )
    svg = re.sub(r"<svg[^>]*?>", lambda _: tag, svg, count=1)
    return Picture(svg, alt, caption)


def show_image(
    axes: Axes,
    image: Real[np.ndarray, "height width *channels"],
    title: str = "",
    *,
    signed: bool = False,
    largest: float | None = None,
):
    """Draw an image without axes: three channels as colours, one as gray, or as signed colours around zero.

    Args:
        axes: where to draw.
        image: (height, width), or (height, width, channels) with one or three channels.
        title: a line above.
        signed: values have a sign; zero takes the middle of the colour map.
        largest: value that takes the last colour; the largest magnitude present by default.
    """
    pixels = np.asarray(image, dtype=np.float64)
    if pixels.ndim == 3 and pixels.shape[2] == 1:
        pixels = pixels[:, :, 0]
    if not (pixels.ndim == 2 or (pixels.ndim == 3 and pixels.shape[2] == 3)):
        raise ValueError(f"image: expected (height, width) with one or three channels, got shape {pixels.shape}")
    if pixels.ndim == 3:
        axes.imshow(np.clip(pixels, 0, 1))
    elif signed:
        limit = largest or np.abs(pixels).max() or 1.0
        axes.imshow(pixels, cmap=SIGNED, vmin=-limit, vmax=limit)
    else:
        axes.imshow(pixels, cmap="gray", vmin=0, vmax=largest or max(pixels.max(), 1e-12))
    _bare(axes, title)


def show_attention(
    axes: Axes,
    probabilities: Real[np.ndarray, "height width"] | Bool[np.ndarray, "height width"],
    title: str = "",
    *,
    query: tuple[int, int] | None = None,
):
    """Draw where a query looks: probabilities over the image, (height, width), the query framed."""
    axes.imshow(np.asarray(probabilities, dtype=np.float64), cmap=ATTENTION, vmin=0)
    if query is not None:
        frame_pixel(axes, query)
    _bare(axes, title)


def frame_pixel(axes: Axes, pixel: tuple[int, int]):
    """Draw a frame around a pixel, (row, column), white with black edges: seen on light and on dark."""
    row, column = pixel
    frame = {"width": 1, "height": 1, "fill": False}
    axes.add_patch(Rectangle((column - 0.5, row - 0.5), edgecolor=_BLACK, linewidth=3, **frame))
    axes.add_patch(Rectangle((column - 0.5, row - 0.5), edgecolor="white", linewidth=1.5, **frame))


def show_centers(
    axes: Axes,
    centers: Real[np.ndarray, "head 2"],
    alphas: Real[np.ndarray, " head"],
    title: str = "",
    *,
    reach: int = 4,
    window: int = 1,
):
    """Draw where the heads of a layer look: one colour a head, a dot at its centre Δ, and circles of its mass.

    The solid circle holds 50 % of a Gaussian of sharpness α, the dashed one 90 %: radii 1.177 σ and 2.146 σ with
    σ = 1/√(2α). The filled square is the query, the frame the taps of a kernel.

    Args:
        axes: where to draw.
        centers: (row, column) of each head, in pixels from the query.
        alphas: sharpness of each head; circles are left out where it is not positive.
        title: a line above.
        reach: pixels shown on either side of the query.
        window: pixels of the frame on either side of the query; a kernel of size 3 has 1.
    """
    centers = checks.array("centers", centers, "head coordinate", coordinate=2)
    alphas = checks.array("alphas", alphas, "head", head=len(centers))
    edge = reach + 0.5
    for n in np.arange(-edge, edge + 1):
        for line in (axes.axhline, axes.axvline):
            line(n, color="#8a939e", linewidth=0.5, alpha=0.5)
    axes.add_patch(Rectangle((-0.3, -0.3), 0.6, 0.6, color=_INK, linewidth=0))
    side = 2 * window + 1
    axes.add_patch(Rectangle((-side / 2, -side / 2), side, side, fill=False, edgecolor=_INK, linewidth=1.2))
    for h, ((row, column), alpha) in enumerate(zip(centers, alphas, strict=True)):
        color = HEAD_COLORS[h % len(HEAD_COLORS)]
        for share, style, width in ((0.5, "-", 1.8), (0.9, "--", 1.0)) if alpha > 0 else ():
            radius = np.sqrt(-np.log(1 - share) / alpha)
            options = {"edgecolor": color, "linestyle": style, "linewidth": width, "fill": False}
            axes.add_patch(Circle((column, row), radius, **options))
        axes.plot(*np.clip([column, row], -edge, edge), "o", color=color, markersize=5)
    axes.set(xlim=(-edge, edge), ylim=(edge, -edge), aspect="equal")
    _bare(axes, title)


def show_matrix(axes: Axes, matrix: Real[np.ndarray, "rows columns"], title: str = "", *, digits: int | None = 2):
    """Draw a matrix or a kernel as signed colours around zero, its numbers written into the cells.

    Args:
        axes: where to draw.
        matrix: (rows, columns).
        title: a line above.
        digits: decimals of the numbers; None writes none.
    """
    values = checks.array("matrix", matrix, "rows columns")
    limit = np.abs(values).max() or 1.0
    axes.imshow(values, cmap=SIGNED, vmin=-1.4 * limit, vmax=1.4 * limit)
    for (i, j), value in np.ndenumerate(values) if digits is not None else ():
        text = f"{value:.{digits}f}".replace("-", "−")
        axes.text(j, i, text, ha="center", va="center", color="#14181e")
    _bare(axes, title)


def panels(
    images: Sequence[Real[np.ndarray, "height width *channels"]],
    titles: Sequence[str],
    *,
    alt: str,
    caption: str = "",
    signed: bool = False,
) -> Picture:
    """Draw images side by side.

    Args:
        images: as for `show_image`.
        titles: one for each.
        alt: what a reader who does not see the picture should know.
        caption: what to look at.
        signed: one-channel images have a sign and share one scale around zero.
    """
    if not len(images):
        raise ValueError("images: expected at least one, got none")
    if len(images) != len(titles):
        raise ValueError(f"titles: expected {len(images)}, one for each image, got {len(titles)}")
    height, width = np.shape(images[0])[:2]
    across = 7.0 / len(images)
    figure, axes = drawing(7.0, across * height / width + 0.4, columns=len(images), squeeze=False)
    largest = max(np.abs(image).max() for image in images) if signed else None
    for ax, image, title in zip(axes[0], images, titles, strict=True):
        show_image(ax, image, title, signed=signed, largest=largest)
    return picture(figure, alt=alt, caption=caption)


def colors_for_scripts() -> dict:
    """Return the colours of the interactive figures: one a head, and the two colour maps as lists of stops."""

    def stops(name: str) -> list:
        return [[round(255 * c) for c in colormaps[name](t)[:3]] for t in np.linspace(0, 1, 17)]

    return {"heads": list(HEAD_COLORS), "attention": stops(ATTENTION), "diverging": stops(SIGNED)}


def required_text(name: str, text: str) -> str:
    """Return `text`, which must not be empty."""
    if not isinstance(text, str) or not text.strip():
        raise ValueError(f"{name}: expected words, got {text!r}")
    return text


def caption_html(text: str) -> str:
    """Escape a caption; `*words*` become emphasis."""
    return re.sub(r"\*([^*]+)\*", r"<em>\1</em>", html.escape(text, quote=False))


def _font(match: re.Match) -> str:
    return f"{'font-style: italic; ' if match[1] else ''}font-size: {match[2]}"


def _bare(axes: Axes, title: str) -> None:
    axes.set(xticks=[], yticks=[])
    for spine in axes.spines.values():
        spine.set_visible(False)
    axes.set_title(title)
