"""What training in two phases, convolution and then transformer, gains with how much data.

    python benchmarks/two_phase.py [--data cifar10] [--output results/two-phase-digits]

Small vision transformers learn scikit-learn's digits, or CIFAR-10, from a fraction of the training pictures. Four
ways to spend the same number of multiply–accumulates, counted by `attnconv.nn.cost`:

    twin         all of them on the convolutional twin
    two phases   half on the twin, half on the transformer that takes over its weights
    untrained    all on a transformer that takes over the weights of a twin that has not learned anything
    random       all on a transformer with random weights

The budget is that of so many steps of the transformer with the twin's weights; what a step costs decides how many
steps the others get. Each way has the learning rate that does best on validation pictures with a tenth of the
training pictures, on seeds that are not used again. A seed draws all weights and the pictures, which are the same
for each way. On digits also, at a tenth: other sharpnesses of the hand-over, and the random transformer with as
many steps as both phases have; and with a tenth and with all pictures, a second phase at ten times the rate.

Writes a row a run to `OUTPUT/runs.csv` and goes on where it stopped; `OUTPUT/run.json` says how it was made.
"""

import argparse
import csv
import dataclasses
import json
import shlex
import sys
import time
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn

from attnconv import data, theory
from attnconv.nn import ViT, cost
from attnconv.recipes import DATA, Recipe, build_model, build_optimizer, learning_rate, next_model
from attnconv.train import batch_of, evaluate, provenance, table, write

WAYS = ("twin", "two phases", "untrained", "random")
RATES = (3e-4, 1e-3, 3e-3, 1e-2)
FASTER = 3e-3  # of the second phase; on validation pictures of digits as good as the smallest rate
POINTS = 8  # of a learning curve, a phase


class Setup(NamedTuple):
    """What the comparison is made with. The recipe's α leaks a fifth at the hand-over."""

    recipe: Recipe
    fractions: tuple[float, ...]  # in an order in which an early stop leaves whole columns
    seeds: int
    tuning_seeds: tuple[int, ...]
    budget: int  # in steps of the transformer with the twin's weights
    precision: torch.dtype = torch.float32
    extras: bool = False  # other hand-overs, longer and faster runs


SETUPS = {
    "digits": Setup(
        Recipe(model="vit", layers=2, width=48, intermediate=96, patch_size=2, batch_size=32, alpha=5.0),
        fractions=(0.01, 0.1, 1.0, 0.05, 0.25), seeds=5, tuning_seeds=(100, 101), budget=300, extras=True,
    ),
    "cifar10": Setup(
        Recipe(
            model="vit", data="cifar10", validation=1000, layers=2, width=64, intermediate=128, key_dim=16,
            patch_size=2, downsample=2, batch_size=64, crop=4, flip=True, alpha=6.0,
        ),
        fractions=(0.1, 1.0, 0.01), seeds=3, tuning_seeds=(100,), budget=600, precision=torch.bfloat16,
    ),
}  # fmt: skip


class Arm(NamedTuple):
    """A way to spend the budget. Steps None are what the budget buys."""

    way: str
    rate: float
    first_rate: float | None
    alpha: float | None
    compensate: bool = True
    steps: int | None = None


class Bench:
    """The pictures, what a step costs, and twins that have been trained."""

    def __init__(self, setup: Setup):
        self.setup = setup
        self.data = DATA[setup.recipe.data]()
        self.scale = {"mean": self.data.mean, "std": self.data.std}
        self.validation, self.pool = data.split(self.data.train, setup.recipe.validation, seed=0)
        one = torch.zeros(1, *self.pool.images.shape[1:])
        twin = self.model("twin", 0)
        self.costs = {
            "twin": cost(twin, one).total,
            "vit": cost(next_model(setup.recipe, twin), one).total,
            "random": cost(self.model("vit", 0), one).total,
        }
        self.total = setup.budget * self.costs["vit"]
        self.twins = {}

    def model(self, kind: str, seed: int) -> ViT:
        """Return a network before training."""
        _, channels, size, _ = self.pool.images.shape
        recipe = dataclasses.replace(self.setup.recipe, model=kind, seed=seed)
        return build_model(recipe, channels=channels, size=size, classes=10)

    def autocast(self) -> torch.autocast:
        """Context in which networks compute in the precision of the set-up."""
        return torch.autocast("cpu", torch.bfloat16, enabled=self.setup.precision == torch.bfloat16)

    def steps(self, kind: str, share: float = 1.0) -> int:
        """How many steps a share of the budget buys."""
        return round(share * self.total / self.costs[kind])

    def train(
        self, model: ViT, pictures: data.Pictures, recipe: Recipe, steps: int, first: int = 0
    ) -> list[tuple[int, float]]:
        """Train in place; return the validation accuracy after some of the steps."""
        optimizer = build_optimizer(recipe, model)
        when = {round(steps * (n + 1) / POINTS) for n in range(POINTS)}
        curve = []
        model.train()
        for step in range(steps):
            for group in optimizer.param_groups:
                group["lr"] = learning_rate(recipe.lr, recipe.warmup, step, steps)
            share = slice(0, recipe.batch_size)
            images, labels = batch_of(
                pictures, recipe, first + step, size=recipe.batch_size, share=share, **self.scale
            )
            with self.autocast():
                logits = model(images)
            loss = nn.functional.cross_entropy(logits.float(), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if step + 1 in when:
                curve.append((step + 1, self.accuracy(model, self.validation)[1]))
        return curve

    def accuracy(self, model: ViT, pictures: data.Pictures) -> tuple[float, float]:
        """Return loss and accuracy."""
        with self.autocast():
            return evaluate(model, pictures, device=torch.device("cpu"), **self.scale)

    def run(self, arm: Arm, fraction: float, seed: int) -> dict:
        """Train once and return a row of the table."""
        start = time.process_time()
        pictures, _ = data.split(self.pool, round(fraction * len(self.pool.labels)), seed=seed)
        size = min(self.setup.recipe.batch_size, len(pictures.labels))
        recipe = dataclasses.replace(self.setup.recipe, seed=seed, batch_size=size, lr=arm.rate)
        soft = {"alpha": arm.alpha, "compensate": arm.compensate}
        row = {"twin_steps": 0, "vit_steps": 0, "val_first": "", "test_first": "", "test_handed": ""}
        curve, kind = [], "random" if arm.way == "random" else "vit"
        if arm.way == "twin":
            model = self.model("twin", seed)
            row["twin_steps"] = steps = self.steps("twin")
            curve = [(n * self.costs["twin"], a) for n, a in self.train(model, pictures, recipe, steps)]
        else:
            share, first = 1.0, 0
            if arm.way == "random":
                model = self.model("vit", seed)
            elif arm.way == "untrained":
                model = next_model(recipe, self.model("twin", seed), **soft)
            else:
                share, first = 0.5, self.steps("twin", 0.5)
                key = fraction, seed, arm.first_rate
                if key not in self.twins:
                    twin = self.model("twin", seed)
                    before = self.train(twin, pictures, dataclasses.replace(recipe, lr=arm.first_rate), first)
                    self.twins[key] = twin, before
                twin, before = self.twins[key]
                curve = [(n * self.costs["twin"], a) for n, a in before]
                row |= {"twin_steps": first, "val_first": curve[-1][1]}
                row["test_first"] = self.accuracy(twin, self.data.test)[1]
                model = next_model(recipe, twin, **soft)
                row["test_handed"] = self.accuracy(model, self.data.test)[1]
            row["vit_steps"] = steps = arm.steps or self.steps(kind, share)
            looks = attention(model, self.images())
            spent = first * self.costs["twin"]
            more = self.train(model, pictures, recipe, steps, first)
            curve += [(spent + n * self.costs[kind], a) for n, a in more]
            after = attention(model, self.images())
            row |= {f"{name}_{when}": value for when, one in (("start", looks), ("end", after)) for name, value in
                    one.items()}  # fmt: skip
        loss, right = self.accuracy(model, self.data.test)
        products = row["twin_steps"] * self.costs["twin"] + row["vit_steps"] * self.costs[kind]
        row |= {"pictures": len(pictures.labels), "batch": size}
        row |= {"macs": products * size, "val_accuracy": curve[-1][1], "test_loss": loss, "test_accuracy": right}
        row["curve"] = " ".join(f"{n / self.total:.3f}:{a:.4f}" for n, a in curve)
        row["seconds"] = time.process_time() - start
        return {name: round(x, 5) if isinstance(x, float) else x for name, x in row.items()}

    def images(self) -> Tensor:
        """Return the pictures on which attention is measured."""
        return data.normalize(self.data.test.images[:120], **self.scale)


@torch.no_grad()
def attention(model: ViT, images: Tensor) -> dict[str, float]:
    """Measure where the first nine heads of each layer look, over pictures.

    `mass` is the attention on the patch at the head's shift, over queries that have one, `kept` the number of heads
    whose favourite shift is still that one, `favourite` the attention on the favourite shift, and `content` the
    attention that moves with the picture: half the summed distance to the head's average map. All but `kept` are
    means over heads and layers.
    """
    shifts = theory.patch_shifts(3, 2)
    model.eval()
    given = model.attention_inputs(images)
    maps = [block.attention.attention_probs(x) for block, x in zip(model.blocks, given, strict=True)]
    side = model.side
    places = torch.cartesian_prod(torch.arange(side), torch.arange(side))
    between = places[None] - places[:, None]
    reach = range(1 - side, side)
    pairs = {(i, j): (between == torch.tensor((i, j))).all(dim=-1) for i in reach for j in reach}
    result = {"mass": 0.0, "kept": 0, "favourite": 0.0, "content": 0.0}
    for one in maps:
        average = one.mean(dim=0)
        result["content"] += ((one - average).abs().sum(dim=-1).mean(dim=(0, 2)) / 2)[:9].mean().item() / len(maps)
        for head, own in enumerate(shifts.tolist()):
            by_shift = {shift: average[head][here].mean().item() for shift, here in pairs.items()}
            best = max(by_shift, key=by_shift.get)
            result["kept"] += int(best == tuple(own))
            result["mass"] += by_shift[tuple(own)] / (9 * len(maps))
            result["favourite"] += by_shift[best] / (9 * len(maps))
    return result


FIELDS = (
    "part", "way", "fraction", "seed", "alpha", "compensate", "rate", "first_rate", "pictures", "batch",
    "twin_steps", "vit_steps", "macs", "val_first", "test_first", "test_handed", "val_accuracy", "test_loss",
    "test_accuracy", "mass_start", "kept_start", "favourite_start", "content_start", "mass_end", "kept_end",
    "favourite_end", "content_end", "seconds", "curve",
)  # fmt: skip


class Table:
    """The file of rows: what is there is not run again."""

    def __init__(self, path: Path):
        self.path, self.rows = path, []
        if path.exists():
            with path.open(newline="", encoding="utf-8") as file:
                self.rows = list(csv.DictReader(file))

    def row(self, bench: Bench, part: str, arm: Arm, fraction: float, seed: int) -> dict:
        """Return the row of a run, which is made if it is missing."""
        about = {"part": part, "way": arm.way, "fraction": fraction, "seed": seed, "rate": arm.rate}
        about |= {"first_rate": arm.first_rate, "alpha": arm.alpha, "compensate": arm.compensate}
        if arm.way in ("twin", "random"):
            about |= {"alpha": "", "compensate": ""}
        about = {name: "" if value is None else str(value) for name, value in about.items()}
        for row in self.rows:
            if all(row[name] == value for name, value in about.items()):
                return row
        row = about | {name: str(value) for name, value in bench.run(arm, fraction, seed).items()}
        row = {name: row.get(name, "") for name in FIELDS}
        self.rows.append(row)
        write(self.path, table(self.rows))
        print(*(row[n] for n in ("part", *FIELDS[1:6], "rate", "test_accuracy", "seconds")), sep="\t", flush=True)
        return row


def tuned(runs: Table, bench: Bench) -> dict[str, float]:
    """Return the learning rate of each way: the best on validation pictures, at a tenth of the pictures."""
    rates = {}
    for way in WAYS:
        scores = {}
        for rate in RATES:
            arm = Arm(way, rate, rates.get("twin") if way == "two phases" else None, bench.setup.recipe.alpha)
            rows = [runs.row(bench, "tuning", arm, 0.1, seed) for seed in bench.setup.tuning_seeds]
            scores[rate] = sum(float(row["val_accuracy"]) for row in rows)
        rates[way] = max(scores, key=scores.get)
        print(f"{way}: {rates[way]}", flush=True)
    return rates


def extras(runs: Table, bench: Bench, arms: dict[str, Arm]) -> None:
    """Other hand-overs, as many steps as both phases have, and a faster second phase."""
    setup = bench.setup
    for seed in range(setup.seeds):
        for alpha, compensate in ((2.0, True), (10.0, True), (None, False), (setup.recipe.alpha, False)):
            arm = arms["two phases"]._replace(alpha=alpha, compensate=compensate)
            runs.row(bench, "alpha", arm, 0.1, seed)
    steps = bench.steps("twin", 0.5) + bench.steps("vit", 0.5)
    for seed in range(setup.seeds):
        runs.row(bench, "equal steps", arms["random"]._replace(steps=steps), 0.1, seed)
    for fraction in (0.1, 1.0):
        for seed in range(setup.seeds):
            runs.row(bench, "faster", arms["two phases"]._replace(rate=FASTER), fraction, seed)


def main() -> None:
    """Run what is missing."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", choices=tuple(SETUPS), default="digits")
    parser.add_argument("--output", type=Path, help="results/two-phase-DATA by default")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    command = shlex.join(["python", "benchmarks/two_phase.py", *sys.argv[1:]])
    about = provenance(command, torch.device("cpu"))
    print(command, about["commit"], flush=True)
    output = arguments.output or Path("results") / f"two-phase-{arguments.data}"
    output.mkdir(parents=True, exist_ok=True)
    bench, runs = Bench(SETUPS[arguments.data]), Table(output / "runs.csv")
    setup = bench.setup
    rates = tuned(runs, bench)
    arms = {
        way: Arm(way, rates[way], rates["twin"] if way == "two phases" else None, setup.recipe.alpha)
        for way in WAYS
    }
    for fraction in setup.fractions:
        for seed in range(setup.seeds):
            for arm in arms.values():
                runs.row(bench, "main", arm, fraction, seed)
    if setup.extras:
        extras(runs, bench, arms)
    record = {
        **about,
        "data": bench.data.source,
        "pictures": {
            "training": len(bench.pool.labels),
            "validation": setup.recipe.validation,
            "test": len(bench.data.test.labels),
        },
        "recipe": {
            f.name: getattr(setup.recipe, f.name)
            for f in dataclasses.fields(Recipe)
            if getattr(setup.recipe, f.name) != f.default
        },
        "precision": str(setup.precision).removeprefix("torch."),
        "products_of_a_forward_pass": bench.costs,
        "budget_in_steps": setup.budget,
        "rates": rates,
        "seconds": round(sum(float(row["seconds"]) for row in runs.rows)),
    }
    (output / "run.json").write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
