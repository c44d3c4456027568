"""Chapter 16: what training in two phases gains with how much data, every run of it."""

from collections.abc import Sequence

from attnconv import checks, plot
from attnconv.figures.core import Figure


def two_phases(
    ways: Sequence[str],
    results: dict[str, Sequence[Sequence[tuple[float, Sequence[tuple[float, float]]]]]],
    *,
    change: float = 0.5,
    start: int = 0,
) -> Figure:
    """Show the learning curves and the final accuracies of every seed.

    Args:
        ways: names of what is compared, four at most.
        results: by name of the data, for each way a list of runs. A run is its test accuracy and a curve of points
            (share of the budget spent, validation accuracy).
        change: share of the budget at which the phases change.
        start: which data are shown first.

    Raises:
        ValueError: other numbers of ways; a way without a run; a curve without points; numbers beyond 0 … 1.
    """
    ways = list(ways)
    if not 1 <= len(ways) <= 4:
        raise ValueError(f"ways: expected one to four, got {ways}")
    if not results:
        raise ValueError("results: expected at least one, got none")
    packed = []
    for name, runs in results.items():
        if len(runs) != len(ways) or not all(runs):
            raise ValueError(f"results[{name!r}]: expected runs of {len(ways)} ways, got {[len(r) for r in runs]}")
        packed.append({"name": name, "runs": [[_packed(name, *run) for run in way] for way in runs]})
    change = float(checks.array("change", change, ""))
    start = checks.integer("start", start, least=0)
    if start >= len(packed):
        raise ValueError(f"start: expected a number below {len(packed)}, got {start}")
    return Figure(
        "two_phases",
        {"ways": ways, "results": packed, "change": change, "start": start},
        alt=(
            "Learning curves of every seed, validation accuracy against the share of the budget, one colour for "
            "each way to spend it; beside them a dot for the final test accuracy of every seed, with mean and "
            "standard deviation. Controls choose the number of training pictures and the ways that are shown."
        ),
        caption=(
            "Choose how many training pictures there are, and which ways are shown. Each line and each dot is one "
            "seed. Point at the curves, or use the arrow keys, to read them at another place. The dashed upright "
            "is where the two phases meet; look at what happens there. The bars are means and standard deviations."
        ),
        picture=_still(ways, packed[start]["runs"]),
    )


def _packed(name: str, test: float, curve: Sequence[tuple[float, float]]) -> dict:
    points = [[float(x), float(y)] for x, y in curve]
    if not points or not all(0 <= y <= 1 for y in (float(test), *(y for _, y in points))):
        raise ValueError(f"results[{name!r}]: expected accuracies from 0 to 1 and curves with points, got {curve}")
    return {"test": float(test), "curve": points}


def _still(ways: list[str], runs: list[list[dict]]) -> plot.Picture:
    """What stands in where scripts do not run: the curves that are shown first."""
    figure, axes = plot.drawing(6.5, 3)
    colors = [plot.HEAD_COLORS[n] for n in (0, 1, 2, 7)]
    for way, own, color, style in zip(ways, runs, colors, ("-", "-", "--", ":"), strict=False):
        for n, run in enumerate(own):
            label = way if n == 0 else None
            axes.plot(*zip(*run["curve"], strict=True), style, color=color, linewidth=1, label=label)
    axes.set(xlabel="share of the budget", ylabel="validation accuracy")
    axes.legend(fontsize=8)
    return plot.picture(figure, alt="Learning curves of every seed for each way to spend the budget.")
