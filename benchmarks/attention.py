"""Time and memory of position-only attention over an image, side by side with the alternatives.

    python benchmarks/attention.py [--threads 2] [--repeats 7] [--seconds 10] [--largest 512]
                                   [--output results/attention]

All methods compute one layer of nine quadratic heads on the 3 × 3 shifts (α = 2, float32, batch 1), in one
process, interleaved, and the median of the repeats counts. `conv2d`, a 3 × 3 convolution with as many channels,
is the floor.

    separable          ours: rows times columns, no N × N map
    hard               ours, heads that look at one pixel (a converted convolution)
    dense              the plain formula, its map recomputed each time, as in training
    dense, map kept    the plain formula with a map from before, as in inference
    sdpa               scaled_dot_product_attention with the scores as a mask, kept
    flex               compiled FlexAttention (on a CPU it has no backward pass)

Subnormal numbers are flushed for all. A method is left out where its map alone would take more than 4 GiB. Writes
`OUTPUT.csv`, `OUTPUT.json` (machine, versions, command) and `OUTPUT.svg`.
"""

import argparse
import csv
import json
import math
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

from attnconv import plot
from attnconv.nn import QuadraticAttention2d, conv_to_attention, functional
from attnconv.train import provenance

HEADS, ALPHA, LIMIT = 9, 2.0, 4 * 2**30
CENTERS = torch.cartesian_prod(torch.arange(-1.0, 2), torch.arange(-1.0, 2))
METHODS = ("conv2d", "hard", "separable", "dense", "dense, map kept", "sdpa", "flex")


def build(method: str, size: int, channels: int) -> Callable | None:
    """Return a function of the image that runs the method, or None where its map does not fit."""
    torch.manual_seed(0)
    conv = nn.Conv2d(channels, channels, 3, padding=1, bias=False).to(memory_format=torch.channels_last)
    if method == "conv2d":
        return conv
    if method == "hard":
        return conv_to_attention(conv)
    layer = QuadraticAttention2d(channels, channels, alpha=ALPHA, centers=CENTERS, bias=False)
    if method == "separable":
        return layer
    pixels = size * size
    if method != "flex" and 4 * HEADS * pixels**2 > LIMIT:
        return None
    if method == "dense":
        layer.method = "dense"
        return layer
    if method == "dense, map kept":
        with torch.no_grad():
            probabilities = layer.attention_probs(size, size)
        return lambda x: functional.attention_dense(x, probabilities, layer.weight)
    empty = torch.zeros(1, HEADS, pixels, 16)

    def values(x: torch.Tensor) -> torch.Tensor:
        return torch.einsum("bkc,hco->bhko", x.flatten(2).transpose(1, 2), layer.weight)

    def image(heads: torch.Tensor) -> torch.Tensor:
        return heads.sum(dim=1).transpose(1, 2).unflatten(2, (size, size))

    if method == "sdpa":
        with torch.no_grad():
            rows, columns = layer.axis_scores(size, size)
            scores = rows[:, :, None, :, None] + columns[:, None, :, None, :]
            mask = scores.reshape(1, HEADS, pixels, pixels)
        attend = nn.functional.scaled_dot_product_attention
        return lambda x: image(attend(empty, empty, values(x), attn_mask=mask))
    from torch.nn.attention.flex_attention import flex_attention

    if pixels > 64 * 64:
        return None  # every key is visited: minutes
    attend = torch.compile(flex_attention)

    def score(_, b, head, q, k):
        row = k // size - q // size - (head // 3 - 1)
        column = k % size - q % size - (head % 3 - 1)
        return -ALPHA * (row * row + column * column).float()

    return lambda x: image(attend(empty, empty, values(x), score_mod=score))


def run(function: Callable, x: torch.Tensor, backward: bool) -> None:
    """Run once, forward or forward and backward."""
    if not backward:
        with torch.no_grad():
            function(x)
        return
    function(x.detach().requires_grad_()).sum().backward()


def seconds(function: Callable, x: torch.Tensor, backward: bool) -> float:
    """Time one run."""
    start = time.perf_counter()
    run(function, x, backward)
    return time.perf_counter() - start


def image_of(size: int, channels: int) -> torch.Tensor:
    """Return the image all methods get."""
    torch.manual_seed(1)
    return torch.randn(1, channels, size, size).contiguous(memory_format=torch.channels_last)


def peak_memory(method: str, size: int, channels: int, backward: bool) -> float | None:
    """MiB that a run adds to the resident memory of a process of its own."""
    code = f"import attention; print(attention.added_memory({method!r}, {size}, {channels}, {backward}))"
    result = subprocess.run(
        [sys.executable, "-c", code], cwd=Path(__file__).parent, capture_output=True, text=True, check=False
    )
    return float(result.stdout.split()[-1]) if result.returncode == 0 else None


def added_memory(method: str, size: int, channels: int, backward: bool) -> float:
    """Body of `peak_memory`, on Linux; a small image comes first, so that libraries are loaded before."""
    torch.set_flush_denormal(True)
    run(build(method, 8, channels), image_of(8, channels), backward)
    x = image_of(size, channels)
    Path("/proc/self/clear_refs").write_text("5")  # forget the peak so far
    before = _resident("VmRSS")
    run(build(method, size, channels), x, backward)
    return round((_resident("VmHWM") - before) / 1024, 1)


def _resident(field: str) -> int:
    """Resident memory of this process, now (VmRSS) or at its peak (VmHWM), in KiB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith(field)))


def measure(sizes: list[int], repeats: int, budget: float) -> list[dict]:
    """Return one row a method, size, number of channels and direction; repeat as long as the budget lasts."""
    rows = []
    for channels in (64, 400):
        for size in sizes:
            x = image_of(size, channels)
            for backward in (False, True):
                methods = {}
                for method in METHODS:
                    if backward and method in ("flex", "dense, map kept"):
                        continue
                    function = build(method, size, channels)
                    if function is not None:
                        methods[method] = function
                times = {method: [] for method in methods}
                for function in methods.values():
                    run(function, x, backward)  # the first run compiles and fills caches
                start = time.perf_counter()
                for round_number in range(repeats):
                    if round_number and time.perf_counter() - start > budget:
                        break
                    for method, function in methods.items():
                        times[method].append(seconds(function, x, backward))
                floor = statistics.median(times["conv2d"])
                for method, all_times in times.items():
                    median = statistics.median(all_times)
                    rows.append(
                        {
                            "channels": channels,
                            "side": size,
                            "pass": "forward+backward" if backward else "forward",
                            "method": method,
                            "milliseconds": round(1000 * median, 3),
                            "times_conv2d": round(median / floor, 2),
                            "repeats": len(all_times),
                            "mebibytes": peak_memory(method, size, channels, backward),
                        }
                    )
                    print(*rows[-1].values(), sep="\t", flush=True)
                del methods
    return rows


def machine() -> dict:
    """Return what the numbers depend on."""
    about = provenance(" ".join(["python", "benchmarks/attention.py", *sys.argv[1:]]), torch.device("cpu"))
    return {
        "command": about["command"],
        "commit": about["commit"],
        "date": about["date"],
        "cpu": about["device"],
        "threads": about["threads"],
        **about["versions"],
        "heads": HEADS,
        "alpha": ALPHA,
        "dtype": "float32",
        "batch": 1,
        "load": Path("/proc/loadavg").read_text().split()[0] if Path("/proc/loadavg").exists() else None,
    }


def draw(rows: list[dict], path: Path) -> None:
    """Write the times as two log–log plots, forward, one a number of channels."""
    figure, axes = plot.drawing(8, 3.6, columns=2, sharey=True)
    for ax, channels in zip(axes, (64, 400), strict=True):
        for method in METHODS:
            points = [
                (row["side"] ** 2, row["milliseconds"])
                for row in rows
                if (row["method"], row["channels"], row["pass"]) == (method, channels, "forward")
            ]
            if points:
                ax.loglog(*zip(*points, strict=True), marker="o", label=method)
        ax.set(title=f"{channels} channels, forward", xlabel="pixels", ylabel="milliseconds")
    axes[0].legend(fontsize=8)
    picture = plot.picture(figure, alt="Time against pixels for each method, on logarithmic axes.")
    path.write_text(picture.svg, encoding="utf-8")


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=10.0, help="time for the repeats of one comparison")
    parser.add_argument("--largest", type=int, default=512)
    parser.add_argument("--output", type=Path, default=Path("results/attention"))
    arguments = parser.parse_args()
    torch.set_flush_denormal(True)
    torch.set_num_threads(arguments.threads)
    sizes = [2**n for n in range(4, 1 + int(math.log2(arguments.largest)))]
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    rows = measure(sizes, arguments.repeats, arguments.seconds)
    with arguments.output.with_suffix(".csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)
    arguments.output.with_suffix(".json").write_text(json.dumps(machine(), indent=2) + "\n", encoding="utf-8")
    draw(rows, arguments.output.with_suffix(".svg"))


if __name__ == "__main__":
    main()
