r"""Train a network, from a shell.

    python -m attnconv.train --model quadratic --data cifar10 --preset small --output runs/quadratic

Device and precision are chosen from what is there: CUDA, else the CPU, with bfloat16 where the processor has it.
A run that was stopped, by whatever, goes on from its last checkpoint when the same command is given again, and on
one device it ends with the same bits. Several processes or machines share a batch by Accelerate:

    accelerate launch --multi_gpu --num_processes 2 -m attnconv.train …

(the launcher's option stands for several processes; on CPUs they talk by gloo). The batch size is that of one
process. All chance comes from the seed and the number of the step, so nothing else
needs to be kept. A fixed part of the training pictures is held out for validation; test pictures are looked at
once, at the end.

`--preset two-phase` trains a vision transformer in two phases: first its twin, which has convolutions in the
place of attention, then itself, from the twin's weights. `--convolution-epochs` and `--epochs` are the lengths of
the phases, `--alpha` chooses how sharp the heads start, `--fraction` how many of the training pictures are used.

Files of a run, in its output folder:

    run.json               command, options, seed, data, device, versions, wall time, result
    metrics.csv            a row an epoch: network of the phase, losses, validation accuracy, seconds
    heads.safetensors      centres and sharpness of quadratic heads, (epoch, layer, head, …)
    weights.safetensors    final weights, in 16 bits
    checkpoint.safetensors while the run is not finished
"""

import argparse
import contextlib
import csv
import dataclasses
import errno
import io
import json
import math
import os
import platform
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save
from torch import Tensor, nn
from tqdm.auto import tqdm

from attnconv import checks, data
from attnconv.recipes import (
    DATA,
    MODELS,
    PRESETS,
    STARTS,
    Recipe,
    build_model,
    build_optimizer,
    learning_rate,
    mixed_seed,
    next_model,
)

# ---- parts --------------------------------------------------------------------------------------------------


def batch_of(
    pictures: data.Pictures, recipe: Recipe, step: int, *, size: int, mean: tuple, std: tuple, share: slice
) -> tuple[Tensor, Tensor]:
    """Return the pictures and labels of a step, augmented: all of them decided by seed and step.

    `size` is the batch of all processes together, `share` the part that this one takes.
    """
    count = len(pictures.labels)
    per_epoch = max(1, count // size)
    epoch, place = divmod(step, per_epoch)
    order = torch.randperm(count, generator=torch.Generator().manual_seed(mixed_seed(recipe.seed, 1, epoch)))
    index = order[place * size : (place + 1) * size]
    chance = torch.Generator().manual_seed(mixed_seed(recipe.seed, 2, step))
    images = data.normalize(pictures.images[index], mean, std)
    images = data.augment(images, crop=recipe.crop, flip=recipe.flip, generator=chance)
    return images[share], pictures.labels[index][share]


@torch.no_grad()
def evaluate(
    model: nn.Module,
    pictures: data.Pictures,
    *,
    mean: tuple,
    std: tuple,
    device: torch.device,
    batch_size: int = 250,
) -> tuple[float, float]:
    """Return mean cross-entropy and accuracy over pictures, without augmentation."""
    training = model.training
    model.eval()
    loss, right = 0.0, 0
    for images, labels in zip(pictures.images.split(batch_size), pictures.labels.split(batch_size), strict=True):
        logits = model(data.normalize(images.to(device), mean, std)).float()
        labels = labels.to(device)
        loss += nn.functional.cross_entropy(logits, labels, reduction="sum").item()
        right += int((logits.argmax(dim=1) == labels).sum())
    model.train(training)
    count = max(1, len(pictures.labels))
    return loss / count, right / count


def head_positions(model: nn.Module) -> dict[str, Tensor]:
    """Return centres (layer, head, 2) and sharpness (layer, head) of quadratic heads; nothing for other models."""
    layers = [one for one in model.modules() if getattr(one, "isotropic", False)]
    if not layers:
        return {}
    return {
        name: torch.stack([getattr(one, name).detach().float().cpu() for one in layers])
        for name in ("centers", "alpha")
    }


# ---- files --------------------------------------------------------------------------------------------------


class NoRoomError(OSError):
    """A file could not be written; the one before it is whole."""


def write(path: Path, content: bytes) -> None:
    """Write a file whole or not at all.

    Raises:
        NoRoomError: the disk is full, or a limit is reached.
    """
    part = path.with_name(path.name + ".part")
    try:
        with part.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    except OSError as error:
        part.unlink(missing_ok=True)
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise NoRoomError(
                f"{path}: no room for {len(content):,} bytes ({error.strerror}); what was there before is whole: "
                "make room and give the same command again"
            ) from error
        raise


def table(rows: list[dict]) -> bytes:
    """Return rows as the content of a CSV file."""
    text = io.StringIO()
    writer = csv.DictWriter(text, rows[0], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue().encode()


def _copies(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return tensors of their own on the CPU, as safetensors wants them."""
    return {name: one.detach().cpu().contiguous().clone() for name, one in tensors.items()}


def _progress_of(path: Path) -> dict | None:
    """Return what a checkpoint knows besides its tensors."""
    if not path.is_file():
        return None
    try:
        with safe_open(path, "pt") as file:
            return json.loads(file.metadata()["progress"])
    except Exception as error:
        raise ValueError(f"{path}: expected a checkpoint, got a file that is none ({error}); delete it") from error


# ---- the run ------------------------------------------------------------------------------------------------


class _Run:
    """A run under way: its networks, how far it is, and its files."""

    def __init__(self, recipe: Recipe, output: Path, dataset: data.Dataset, accelerator, precision: str):
        self.recipe, self.output, self.dataset = recipe, output, dataset
        self.accelerator, self.precision = accelerator, precision
        self.started = time.monotonic()
        self.checkpoint = output / "checkpoint.safetensors"
        self.scale = {"mean": dataset.mean, "std": dataset.std}
        self.validation, training = data.split(dataset.train, recipe.validation, seed=0)
        count = round(recipe.fraction * len(training.labels))
        self.training, _ = data.split(training, count, seed=recipe.seed)
        self.size = recipe.batch_size * accelerator.num_processes
        if count < self.size:
            raise ValueError(f"batch_size: expected at most the {count} training pictures, got {self.size}")
        own = recipe.batch_size * accelerator.process_index
        self.share = slice(own, own + recipe.batch_size)
        self.phases = recipe.phases()
        self.per_epoch = count // self.size
        self.steps = [phase.epochs * self.per_epoch for phase in self.phases]
        channels, side = dataset.train.images.shape[1:3]
        self.pictures = {"channels": channels, "size": side, "classes": len(dataset.classes)}
        self.settings = dataclasses.asdict(recipe) | {
            "processes": accelerator.num_processes,
            "precision": precision,
        }
        self.progress = _progress_of(self.checkpoint)
        self.history = {}
        if self.progress is None:
            self.progress = {"settings": self.settings, "phase": 0, "step": 0}
            self.progress |= {"rows": [], "losses": [], "seconds": 0.0}
            self.model = build_model(recipe, **self.pictures)
            self._begin()
            self._remember_heads()
        else:
            self._restore()
        self.seconds_before = self.progress["seconds"]

    def _restore(self) -> None:
        """Take everything from the checkpoint."""
        saved = self.progress["settings"]
        if saved != self.settings:
            other = {name: value for name, value in self.settings.items() if saved.get(name) != value}
            raise ValueError(f"output: {self.output} holds a run that differs in {other}; name another folder")
        self.model = build_model(self.recipe, **self.pictures)
        for _ in range(self.progress["phase"]):
            self.model = next_model(self.recipe, self.model)
        with safe_open(self.checkpoint, "pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        parts = {}
        for name, tensor in tensors.items():
            kind, _, rest = name.partition(".")
            parts.setdefault(kind, {})[rest] = tensor
        self.model.load_state_dict(parts["model"])
        self.history = parts.get("history", {})
        self._begin(parts.get("optimizer", {}))

    def _begin(self, optimizer_state: dict[str, Tensor] | None = None) -> None:
        """Make the optimiser of a phase, and hand it and the network to the launcher."""
        optimizer = build_optimizer(self.recipe, self.model)
        if optimizer_state:
            state = optimizer.state_dict()
            for name, tensor in optimizer_state.items():
                number, _, key = name.partition(".")
                state["state"].setdefault(int(number), {})[key] = tensor
            optimizer.load_state_dict(state)
        self.network, self.optimizer = self.accelerator.prepare(self.model, optimizer)
        self.network.train()

    @property
    def steps_before(self) -> int:
        """Steps of the phases that are over."""
        return sum(self.steps[: self.progress["phase"]])

    @property
    def phase_is_over(self) -> bool:
        """Whether all steps of the phase are done."""
        return self.progress["step"] >= self.steps[self.progress["phase"]]

    @property
    def is_over(self) -> bool:
        """Whether all steps are done."""
        return self.progress["phase"] == len(self.phases) - 1 and self.phase_is_over

    def seconds(self) -> float:
        """Time of this run so far, of all its parts."""
        return round(self.seconds_before + time.monotonic() - self.started, 1)

    def autocast(self) -> torch.autocast:
        """Context in which the network computes in the precision of the run."""
        return torch.autocast(self.accelerator.device.type, torch.bfloat16, enabled=self.precision == "bf16")

    def step(self) -> float:
        """Make one step, and return its loss over all processes."""
        while self.phase_is_over:
            self.progress |= {"phase": self.progress["phase"] + 1, "step": 0}
            self.model = next_model(self.recipe, self.accelerator.unwrap_model(self.network).cpu())
            self._begin()
        phase, step = self.phases[self.progress["phase"]], self.progress["step"]
        overall = self.steps_before + step
        torch.manual_seed(mixed_seed(self.recipe.seed, 3, overall, self.accelerator.process_index))
        rate = learning_rate(phase.lr, self.recipe.warmup, step, self.steps[self.progress["phase"]])
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        images, labels = batch_of(
            self.training, self.recipe, overall, size=self.size, share=self.share, **self.scale
        )
        images, labels = images.to(self.accelerator.device), labels.to(self.accelerator.device)
        with self.autocast():
            logits = self.network(images)
        smoothing = self.recipe.label_smoothing
        loss = nn.functional.cross_entropy(logits.float(), labels, label_smoothing=smoothing)
        self.optimizer.zero_grad()
        self.accelerator.backward(loss)
        self.optimizer.step()
        mean = self.accelerator.reduce(loss.detach(), "mean").item()
        if not math.isfinite(mean):
            raise ValueError(f"lr: the loss is {mean} at step {overall}; a smaller rate than {phase.lr} is needed")
        self.progress["losses"].append(mean)
        self.progress["step"] = step + 1
        if (step + 1) % self.per_epoch == 0:
            self._end_epoch(phase.network, (overall + 1) // self.per_epoch)
        return mean

    def evaluate(self, pictures: data.Pictures) -> tuple[float, float]:
        """Return cross-entropy and accuracy of the network over pictures."""
        with self.autocast():
            return evaluate(self.model, pictures, device=self.accelerator.device, **self.scale)

    def _end_epoch(self, network: str, epoch: int) -> None:
        """Validate, and write a row of the table."""
        loss, accuracy = self.evaluate(self.validation)
        losses, self.progress["losses"] = self.progress["losses"], []
        row = {"epoch": epoch, "network": network, "train_loss": round(sum(losses) / len(losses), 5)}
        row |= {"val_loss": round(loss, 5), "val_accuracy": round(accuracy, 5), "seconds": self.seconds()}
        self.progress["rows"].append(row)
        self._remember_heads()
        if self.accelerator.is_main_process:
            write(self.output / "metrics.csv", table(self.progress["rows"]))

    def _remember_heads(self) -> None:
        for name, one in head_positions(self.model).items():
            self.history[name] = torch.cat([*([self.history[name]] if name in self.history else []), one[None]])

    def save(self) -> None:
        """Write a checkpoint."""
        if not self.accelerator.is_main_process:
            return
        self.progress["seconds"] = self.seconds()
        tensors = {f"model.{name}": one for name, one in self.model.state_dict().items()}
        for number, state in self.optimizer.state_dict()["state"].items():
            tensors |= {f"optimizer.{number}.{k}": one for k, one in state.items() if isinstance(one, Tensor)}
        tensors |= {f"history.{name}": one for name, one in self.history.items()}
        write(self.checkpoint, save(_copies(tensors), {"progress": json.dumps(self.progress)}))

    def finish(self, command: str, keep_weights: bool) -> dict:
        """Look at the test pictures, write the record, and remove the checkpoint."""
        loss, accuracy = self.evaluate(self.dataset.test)
        record = {
            **provenance(command, self.accelerator.device),
            "settings": self.settings,
            "data": self.dataset.source,
            "pictures": self.pictures,
            "parameters": sum(one.numel() for one in self.model.parameters()),
            "seconds": self.seconds(),
            "test_loss": round(loss, 5),
            "test_accuracy": round(accuracy, 5),
        }
        if self.accelerator.is_main_process:
            if self.history:
                write(self.output / "heads.safetensors", save(_copies(self.history)))
            if keep_weights:
                half = {n: t.half() if t.is_floating_point() else t for n, t in self.model.state_dict().items()}
                write(self.output / "weights.safetensors", save(_copies(half)))
            write(self.output / "run.json", (json.dumps(record, indent=2) + "\n").encode())
            self.checkpoint.unlink(missing_ok=True)
        self.accelerator.wait_for_everyone()
        return record


def run(
    recipe: Recipe,
    output: str | os.PathLike,
    *,
    precision: str = "auto",
    device: str = "auto",
    minutes: float = math.inf,
    checkpoint_seconds: float = 60.0,
    dataset: data.Dataset | None = None,
    keep_weights: bool = True,
    command: str = "",
) -> dict | None:
    """Train, or go on training, and return the record of the run; None if its time was up before the end.

    Args:
        recipe: what to train.
        output: folder of the run.
        precision: `auto`, `fp32` or `bf16` (autocast).
        device: `auto`, `cpu` or `cuda`.
        minutes: stop with a checkpoint after so many.
        checkpoint_seconds: least time between checkpoints.
        dataset: pictures, instead of those that the recipe names.
        keep_weights: write the final weights, in 16 bits.
        command: how the run was started, for its record.

    Raises:
        ValueError: a wrong option; an output folder that holds another run.
        NoRoomError: the disk is full.
    """
    from accelerate import Accelerator

    checks.choice("precision", precision, ("auto", "fp32", "bf16"))
    checks.choice("device", device, ("auto", "cpu", "cuda"))
    if device == "cuda" and not torch.cuda.is_available():
        raise ValueError("device: expected cpu or auto, since there is no CUDA device, got cuda")
    on_cpu = device == "cpu" or not torch.cuda.is_available()
    if precision == "auto":
        precision = "bf16" if (_cpu_has_bf16() if on_cpu else torch.cuda.is_bf16_supported()) else "fp32"
    torch.set_flush_denormal(True)
    output = Path(output)
    output.mkdir(parents=True, exist_ok=True)
    if (output / "run.json").is_file():
        raise ValueError(
            f"output: expected a folder without a finished run, got {output}; name another or delete it"
        )
    dataset = DATA[recipe.data]() if dataset is None else dataset
    accelerator = Accelerator(cpu=on_cpu, mixed_precision="no")
    state = _Run(recipe, output, dataset, accelerator, precision)

    saved = time.monotonic()
    bar = tqdm(
        total=sum(state.steps), initial=state.steps_before + state.progress["step"], unit="step", mininterval=1.0,
        desc=f"{recipe.model}, seed {recipe.seed}", disable=not accelerator.is_main_process,
    )  # fmt: skip
    with bar, _asked_to_stop() as asked:
        while not state.is_over:
            state.step()
            bar.update()
            if state.progress["rows"] and not state.progress["losses"]:
                row = state.progress["rows"][-1]
                bar.set_postfix(loss=f"{row['train_loss']:.3f}", validation=f"{row['val_accuracy']:.3f}")
            stop = bool(asked) or time.monotonic() - state.started > 60 * minutes
            if accelerator.num_processes > 1:  # all stop together
                stop = accelerator.reduce(torch.tensor(float(stop), device=accelerator.device), "sum").item() > 0
            if stop and not state.is_over:
                state.save()
                bar.write(f"stopped after {bar.n} of {bar.total} steps; the same command goes on", file=sys.stderr)
                if asked:
                    raise KeyboardInterrupt
                return None
            if time.monotonic() - saved >= checkpoint_seconds:
                state.save()
                saved = time.monotonic()
    return state.finish(command, keep_weights)


@contextlib.contextmanager
def _asked_to_stop() -> Iterator[list[int]]:
    """Collect the signals that ask a process to end, so that a step is never cut in two."""
    asked = []
    if threading.current_thread() is not threading.main_thread():
        yield asked
        return
    numbers = (signal.SIGINT, signal.SIGTERM)
    handlers = [signal.signal(number, lambda number, _: asked.append(number)) for number in numbers]
    try:
        yield asked
    finally:
        for number, handler in zip(numbers, handlers, strict=True):
            signal.signal(number, handler)


def _cpu_has_bf16() -> bool:
    """Whether the processor multiplies bfloat16 itself (AVX-512 or AMX on x86)."""
    tests = ("_is_avx512_bf16_supported", "_is_amx_tile_supported")
    return any(getattr(torch.cpu, name, lambda: False)() for name in tests)


def provenance(command: str, device: torch.device) -> dict:
    """Return how and where a result was made: command, commit, date, device, threads, versions."""
    return {
        "command": command,
        "commit": _commit(),
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "device": _device_name(device),
        "threads": torch.get_num_threads(),
        "versions": {"python": platform.python_version(), "torch": torch.__version__},
    }


def _commit() -> str:
    try:
        done = subprocess.run(
            ["git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"],
            cwd=Path(__file__).parent,
            capture_output=True,
            text=True,
            check=False,
        )
    except OSError:
        return ""
    return done.stdout.strip()


def _device_name(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    return next(
        (line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine()
    )


def load(folder: str | os.PathLike) -> tuple[nn.Module, dict]:
    """Return the network of a finished run, with its final weights, and the record of the run.

    Raises:
        ValueError: a folder without a finished run or without weights.
    """
    folder = Path(folder)
    files = [folder / name for name in ("run.json", "weights.safetensors")]
    for file in files:
        if not file.is_file():
            raise ValueError(f"folder: expected a finished run with its weights, got {folder} without {file.name}")
    record = json.loads(files[0].read_text(encoding="utf-8"))
    model = network(record)
    model.load_state_dict(load_file(files[1]))
    return model.eval(), record


def network(record: dict) -> nn.Module:
    """Return the network that a record describes, that of the last phase, without its training."""
    fields = {field.name for field in dataclasses.fields(Recipe)}
    recipe = Recipe(**{name: value for name, value in record["settings"].items() if name in fields})
    model = build_model(recipe, **record["pictures"])
    for _ in recipe.phases()[1:]:
        model = next_model(recipe, model)
    return model


def runs(folder: str | os.PathLike) -> list[dict]:
    """Return the records of the finished runs in a folder of runs, in the order of their names.

    A record is what `run.json` says, with two entries more: `name` is that of the run's folder, and `metrics` has
    one dictionary for each epoch, a row of `metrics.csv`. Runs under way are left out, and a folder that is not
    there has no runs.
    """
    records = []
    for metrics in sorted(Path(folder).glob("*/metrics.csv")):
        file = metrics.with_name("run.json")
        if not file.is_file():
            continue
        record = {"name": file.parent.name} | json.loads(file.read_text(encoding="utf-8"))
        with metrics.open(encoding="utf-8", newline="") as lines:
            rows = list(csv.DictReader(lines))
        numbers = {"epoch": int, "network": str}
        record["metrics"] = [{name: numbers.get(name, float)(text) for name, text in row.items()} for row in rows]
        records.append(record)
    return records


# ---- the command --------------------------------------------------------------------------------------------


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line: one option for each field of `Recipe`, and those of `run`."""
    result = argparse.ArgumentParser(
        prog="python -m attnconv.train", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    result.add_argument(
        "--preset", choices=tuple(PRESETS), default="digits", help="sizes and schedule to start from"
    )
    result.add_argument("--output", required=True, help="folder of the run")
    choices = {"model": MODELS, "data": tuple(DATA), "optimizer": ("adamw", "sgd"), "start": STARTS}
    for field in dataclasses.fields(Recipe):
        name = "--" + field.name.replace("_", "-")
        if field.name in choices:
            result.add_argument(name, choices=choices[field.name])
        elif field.type is bool:
            result.add_argument(name, action=argparse.BooleanOptionalAction)
        else:
            result.add_argument(name, type=float if field.type in (float, float | None) else int)
    result.add_argument("--precision", choices=("auto", "fp32", "bf16"), default="auto")
    result.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    result.add_argument("--minutes", type=float, default=math.inf, help="stop with a checkpoint after so many")
    result.add_argument("--checkpoint-seconds", type=float, default=60.0)
    result.add_argument("--threads", type=int, help="threads of a process on a CPU")
    result.add_argument("--keep-weights", action=argparse.BooleanOptionalAction, default=True)
    return result


def main(arguments: list[str] | None = None) -> int:
    """Run the command; return its exit status."""
    words = sys.argv[1:] if arguments is None else arguments
    options = vars(parser().parse_args(words))
    preset, output, threads = (options.pop(name) for name in ("preset", "output", "threads"))
    fields = {field.name for field in dataclasses.fields(Recipe)}
    chosen = {name: value for name, value in options.items() if name in fields and value is not None}
    others = {name: value for name, value in options.items() if name not in fields}
    if threads:
        torch.set_num_threads(threads)
    try:
        recipe = Recipe(**(PRESETS[preset] | chosen))
        record = run(recipe, output, command=shlex.join(["python", "-m", "attnconv.train", *words]), **others)
    except KeyboardInterrupt:
        return 130
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    if record is not None and os.environ.get("RANK", "0") == "0":
        accuracy = f"test accuracy {record['test_accuracy']:.4f}"
        print(f"{recipe.model} on {record['data']}: {accuracy}, {record['seconds']} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
