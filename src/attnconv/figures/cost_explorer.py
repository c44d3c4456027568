"""Chapter 14: what a network costs, part by part."""

from collections.abc import Mapping, Sequence

from attnconv import checks, plot
from attnconv.figures.core import Figure

_KINDS = ("quadratic", "learned", "content", "convolution")
_SIZES = {
    "side": (8, 16, 32, 64, 128, 256),
    "downsample": (1, 2, 4, 8),
    "layers": range(1, 25),
    "heads": range(1, 26),
    "width": range(16, 801, 16),
    "intermediate": range(32, 3201, 32),
    "key_dim": range(8, 801, 8),
}


def cost_explorer(
    presets: Mapping[str, Mapping[str, int]],
    published: Mapping[str, tuple[str, float, float]],
) -> Figure:
    """Choose the sizes of a network, and see its parameters and operations beside published ones.

    Args:
        presets: sizes to start from, by name; the first is shown. Each has `side` of the picture, `downsample`,
            `layers`, `heads`, `width`, `intermediate` and `key_dim`.
        published: what to compare with, by kind of scores (`quadratic`, `learned`, `content` or `convolution`):
            the name of a preset, accuracy and operations as published.

    Raises:
        ValueError: no preset, a wrong kind, a size that the sliders do not have, or a name of no preset.
    """
    if not presets:
        raise ValueError("presets: expected at least one, got none")
    sizes = {name: _checked(name, preset) for name, preset in presets.items()}
    others = []
    for kind, (preset, accuracy, flops) in published.items():
        checks.choice("published", kind, _KINDS)
        checks.choice(f"published[{kind!r}]", preset, tuple(presets))
        others.append({"kind": kind, "accuracy": float(accuracy), "flops": float(flops)} | sizes[preset])
    return Figure(
        "cost_explorer",
        {"presets": sizes, "published": others},
        alt=(
            "Bars for the parameters and for the operations of a network whose sizes are set by sliders, divided "
            "into head matrices, output, mlp, queries and keys, maps and the rest, above bars for the networks of "
            "the paper and for ResNet-18."
        ),
        caption=(
            "Choose sizes. The bars show where parameters and operations sit; below yours are the networks of the "
            "paper, with their published accuracy on CIFAR-10, and ResNet-18 for pictures of your size. *The "
            "upright line* on a bar of operations is the published count: what is to its right, the maps, was not "
            "counted. Make the picture larger and watch the maps; then apply them as rows × columns. Every number "
            "is computed in this page."
        ),
        picture=_stand_in(others),
    )


def _checked(name: str, preset: Mapping[str, int]) -> dict:
    for size, allowed in _SIZES.items():
        if preset[size] not in allowed:
            step = allowed[1] - allowed[0] if isinstance(allowed, range) else None
            wanted = f"{allowed[0]} to {allowed[-1]} in steps of {step}" if step else f"one of {allowed}"
            raise ValueError(f"presets[{name!r}][{size!r}]: expected {wanted}, got {preset[size]}")
    rest = {size: int(preset[size]) for size in _SIZES if size != "key_dim"}
    return rest | {"keyDim": int(preset["key_dim"])}


def _stand_in(published: Sequence[dict]) -> plot.Picture:
    figure, axes = plot.drawing(6.0, 0.7 + 0.4 * len(published))
    names = [f"{one['kind']}, {one['accuracy']:.1%}" for one in published]
    axes.barh(range(len(names)), [one["flops"] / 1e9 for one in published], color=plot.ACCENT)
    axes.set_yticks(range(len(names)), names)
    axes.invert_yaxis()
    axes.set_xlabel("published operations for one picture, in billions")
    alt = "Bars: the published operations of the networks of the paper."
    return plot.picture(figure, alt=alt)
