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

Files of a run, in its output folder:

    run.json               command, options, seed, data, device, versions, wall time, result
    metrics.csv            a row an epoch
    heads.safetensors      centres and sharpness of quadratic heads, (epoch, layer, head, …)
    weights.safetensors    final weights, in 16 bits
    checkpoint.safetensors while the run is not finished
"""

import argparse
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
import time
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save
from torch import Tensor, nn
from tqdm.auto import tqdm

from attnconv import checks, data
from attnconv.nn import AttentionClassifier, ResNet18
from attnconv.nn.classifier import ATTENTIONS

MODELS = (*ATTENTIONS, "resnet18")
DATA = {"digits": data.digits, "cifar10": data.cifar10}


@dataclasses.dataclass(frozen=True)
class Recipe:
    """Everything that decides the result of a run, apart from the machine.

    Sizes of the network are those of `AttentionClassifier`; `resnet18` uses `width` alone.
    """

    model: str = "quadratic"
    data: str = "digits"
    seed: int = 0
    layers: int = 3
    heads: int = 9
    width: int = 32
    intermediate: int = 64
    key_dim: int | None = None
    downsample: int = 1
    dropout: float = 0.0
    norm_first: bool = True
    epochs: int = 30
    batch_size: int = 64
    optimizer: str = "adamw"
    lr: float = 3e-3
    weight_decay: float = 0.05
    warmup: float = 0.05
    label_smoothing: float = 0.0
    crop: int = 1
    flip: bool = False
    validation: int = 180

    def __post_init__(self):
        checks.choice("model", self.model, MODELS)
        checks.choice("data", self.data, tuple(DATA))
        checks.choice("optimizer", self.optimizer, ("adamw", "sgd"))
        for name in ("layers", "heads", "width", "intermediate", "downsample", "epochs", "batch_size"):
            checks.integer(name, getattr(self, name), least=1)
        for name in ("seed", "crop", "validation"):
            checks.integer(name, getattr(self, name), least=0)
        for name, low, high in (
            ("lr", 0, math.inf), ("weight_decay", 0, math.inf), ("warmup", 0, 1),
            ("label_smoothing", 0, 1), ("dropout", 0, 1),
        ):  # fmt: skip
            if not low <= getattr(self, name) < high:
                raise ValueError(
                    f"{name}: expected a number from {low} and below {high}, got {getattr(self, name)}"
                )


PRESETS = {
    "digits": {},
    "small": {
        "data": "cifar10", "layers": 4, "width": 128, "intermediate": 256, "key_dim": 16, "downsample": 4,
        "epochs": 10, "batch_size": 64, "lr": 2e-3, "crop": 4, "flip": True, "validation": 2500,
    },
    "paper": {
        "data": "cifar10", "layers": 6, "width": 400, "intermediate": 512, "downsample": 2, "dropout": 0.1,
        "norm_first": False, "epochs": 300, "batch_size": 100, "optimizer": "sgd", "lr": 0.1,
        "weight_decay": 1e-4, "crop": 4, "flip": True, "validation": 5000,
    },
}  # fmt: skip


# ---- parts --------------------------------------------------------------------------------------------------


def build_model(recipe: Recipe, *, channels: int, size: int, classes: int) -> nn.Module:
    """Return the network of a recipe for pictures of a size, with weights drawn from its seed."""
    torch.manual_seed(recipe.seed)
    if recipe.model == "resnet18":
        return ResNet18(channels, classes, width=recipe.width).to(memory_format=torch.channels_last)
    names = ("layers", "heads", "width", "intermediate", "key_dim", "downsample", "dropout", "norm_first")
    options = {name: getattr(recipe, name) for name in names}
    return AttentionClassifier(recipe.model, image_size=size, in_channels=channels, classes=classes, **options)


def build_optimizer(recipe: Recipe, model: nn.Module) -> torch.optim.Optimizer:
    """Return the optimiser; matrices decay, positions, biases and normalisations do not."""
    positions = ("centers", "alpha", "inverse_root", "row_table", "column_table", "table")
    decays, stays = [], []
    for name, parameter in model.named_parameters():
        group = stays if parameter.dim() < 2 or name.rpartition(".")[2] in positions else decays
        group.append(parameter)
    groups = [{"params": decays, "weight_decay": recipe.weight_decay}, {"params": stays, "weight_decay": 0.0}]
    if recipe.optimizer == "sgd":
        return torch.optim.SGD(groups, lr=recipe.lr, momentum=0.9)
    return torch.optim.AdamW(groups, lr=recipe.lr, betas=(0.9, 0.99))


def learning_rate(recipe: Recipe, step: int, steps: int) -> float:
    """Return the rate of a step: linear warm-up, then half a cosine down to zero."""
    warm = recipe.warmup * steps
    if step < warm:
        return recipe.lr * (step + 1) / (warm + 1)
    return recipe.lr * 0.5 * (1 + math.cos(math.pi * (step - warm) / max(1, steps - warm)))


def batch_of(
    pictures: data.Pictures, recipe: Recipe, step: int, *, size: int, mean: tuple, std: tuple, share: slice
) -> tuple[Tensor, Tensor]:
    """Return the pictures and labels of a step, augmented: all of them decided by seed and step.

    `size` is the batch of all processes together, `share` the part that this one takes.
    """
    count = len(pictures.labels)
    per_epoch = max(1, count // size)
    epoch, place = divmod(step, per_epoch)
    order = torch.randperm(count, generator=torch.Generator().manual_seed(_seed(recipe.seed, 1, epoch)))
    index = order[place * size : (place + 1) * size]
    chance = torch.Generator().manual_seed(_seed(recipe.seed, 2, step))
    images = data.normalize(pictures.images[index], mean, std)
    images = data.augment(images, crop=recipe.crop, flip=recipe.flip, generator=chance)
    return images[share], pictures.labels[index][share]


def _seed(*numbers: int) -> int:
    """Mix numbers into one seed."""
    result = 0
    for number in numbers:
        result = (result * 1_000_003 + number + 12_345) % (2**63 - 1)
    return result


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


def _table(rows: list[dict]) -> bytes:
    text = io.StringIO()
    writer = csv.DictWriter(text, rows[0], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue().encode()


def _flat(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Return all tensors of the state, by name."""
    tensors = {f"model.{name}": one for name, one in model.state_dict().items()}
    for number, state in optimizer.state_dict()["state"].items():
        tensors |= {f"optimizer.{number}.{name}": one for name, one in state.items() if isinstance(one, Tensor)}
    return {name: one.detach().cpu().contiguous().clone() for name, one in tensors.items()}


def _restore(path: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    with safe_open(path, "pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    model.load_state_dict({n.removeprefix("model."): t for n, t in tensors.items() if n.startswith("model.")})
    state = optimizer.state_dict()
    for name, tensor in tensors.items():
        if name.startswith("optimizer."):
            _, number, key = name.split(".")
            state["state"].setdefault(int(number), {})[key] = tensor
    optimizer.load_state_dict(state)


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

    started = time.monotonic()
    checks.choice("precision", precision, ("auto", "fp32", "bf16"))
    checks.choice("device", device, ("auto", "cpu", "cuda"))
    if device == "cuda" and not torch.cuda.is_available():
        raise ValueError("device: expected cpu or auto, since there is no CUDA device, got cuda")
    on_cpu = device == "cpu" or not torch.cuda.is_available()
    if precision == "auto":
        precision = "bf16" if (_cpu_has_bf16() if on_cpu else torch.cuda.is_bf16_supported()) else "fp32"
    accelerator = Accelerator(cpu=on_cpu, mixed_precision="no")

    def autocast() -> torch.autocast:
        return torch.autocast(accelerator.device.type, torch.bfloat16, enabled=precision == "bf16")

    torch.set_flush_denormal(True)
    dataset = DATA[recipe.data]() if dataset is None else dataset
    validation, training = data.split(dataset.train, recipe.validation, seed=0)
    size = recipe.batch_size * accelerator.num_processes
    if len(training.labels) < size:
        raise ValueError(f"batch_size: expected at most the {len(training.labels)} training pictures, got {size}")
    per_epoch = len(training.labels) // size
    steps = recipe.epochs * per_epoch
    share = slice(
        recipe.batch_size * accelerator.process_index, recipe.batch_size * (accelerator.process_index + 1)
    )
    scale = {"mean": dataset.mean, "std": dataset.std}

    output = Path(output)
    output.mkdir(parents=True, exist_ok=True)
    checkpoint = output / "checkpoint.safetensors"
    settings = dataclasses.asdict(recipe) | {"processes": accelerator.num_processes, "precision": precision}
    if (output / "run.json").is_file():
        raise ValueError(
            f"output: expected a folder without a finished run, got {output}; name another or delete it"
        )
    channels, size_of_picture = dataset.train.images.shape[1:3]
    pictures = {"channels": channels, "size": size_of_picture, "classes": len(dataset.classes)}
    model = build_model(recipe, **pictures)
    optimizer = build_optimizer(recipe, model)
    progress = _progress_of(checkpoint)
    if progress is None:
        progress = {"settings": settings, "step": 0, "rows": [], "losses": [], "seconds": 0.0}
        history = {name: one[None] for name, one in head_positions(model).items()}
    else:
        if progress["settings"] != settings:
            other = {k: v for k, v in settings.items() if progress["settings"].get(k) != v}
            raise ValueError(f"output: {output} holds a run that differs in {other}; name another folder")
        _restore(checkpoint, model, optimizer)
        with safe_open(checkpoint, "pt") as file:
            names = [name for name in file.keys() if name.startswith("history.")]  # noqa: SIM118
            history = {name.removeprefix("history."): file.get_tensor(name) for name in names}
    network, optimizer = accelerator.prepare(model, optimizer)

    def save_checkpoint() -> None:
        if accelerator.is_main_process:
            progress["seconds"] = seconds()
            tensors = _flat(model, optimizer)
            tensors |= {f"history.{name}": one.contiguous() for name, one in history.items()}
            write(checkpoint, save(tensors, {"progress": json.dumps(progress)}))

    before = progress["seconds"]

    def seconds() -> float:
        return round(before + time.monotonic() - started, 1)

    wanted = []
    handlers = {}
    for number in (signal.SIGINT, signal.SIGTERM):
        handlers[number] = signal.signal(number, lambda number, _: wanted.append(number))
    bar = tqdm(
        total=steps, initial=progress["step"], unit="step", disable=not accelerator.is_main_process,
        desc=f"{recipe.model}, seed {recipe.seed}", mininterval=1.0,
    )  # fmt: skip
    saved = time.monotonic()
    try:
        network.train()
        while progress["step"] < steps:
            step = progress["step"]
            torch.manual_seed(_seed(recipe.seed, 3, step, accelerator.process_index))
            for group in optimizer.param_groups:
                group["lr"] = learning_rate(recipe, step, steps)
            images, labels = batch_of(training, recipe, step, size=size, share=share, **scale)
            images, labels = images.to(accelerator.device), labels.to(accelerator.device)
            with autocast():
                logits = network(images)
            loss = nn.functional.cross_entropy(logits.float(), labels, label_smoothing=recipe.label_smoothing)
            optimizer.zero_grad()
            accelerator.backward(loss)
            optimizer.step()
            mean_loss = accelerator.reduce(loss.detach(), "mean").item()
            if not math.isfinite(mean_loss):
                raise ValueError(
                    f"lr: the loss is {mean_loss} at step {step}; a smaller rate than {recipe.lr} is needed"
                )
            progress["losses"].append(mean_loss)
            progress["step"] = step + 1
            bar.update()
            if (step + 1) % per_epoch == 0:
                with autocast():
                    val_loss, val_accuracy = evaluate(model, validation, device=accelerator.device, **scale)
                row = {
                    "epoch": (step + 1) // per_epoch,
                    "train_loss": round(sum(progress["losses"]) / len(progress["losses"]), 5),
                    "val_loss": round(val_loss, 5),
                    "val_accuracy": round(val_accuracy, 5),
                    "seconds": seconds(),
                }
                progress["rows"].append(row)
                progress["losses"] = []
                for name, one in head_positions(model).items():
                    history[name] = torch.cat([history[name], one[None]])
                bar.set_postfix(loss=f"{row['train_loss']:.3f}", validation=f"{val_accuracy:.3f}")
                if accelerator.is_main_process:
                    write(output / "metrics.csv", _table(progress["rows"]))
            over = time.monotonic() - started > 60 * minutes
            if accelerator.num_processes > 1:  # all stop together
                flag = torch.tensor([float(over or bool(wanted))], device=accelerator.device)
                over = accelerator.reduce(flag, "sum").item() > 0
            if (over or wanted) and step + 1 < steps:
                save_checkpoint()
                bar.write(f"stopped after step {step + 1} of {steps}; the same command goes on")
                if wanted:
                    raise KeyboardInterrupt
                return None
            if time.monotonic() - saved >= checkpoint_seconds:
                save_checkpoint()
                saved = time.monotonic()
    finally:
        bar.close()
        for number, handler in handlers.items():
            signal.signal(number, handler)

    with autocast():
        test_loss, test_accuracy = evaluate(model, dataset.test, device=accelerator.device, **scale)
    record = {
        "command": command,
        "commit": _commit(),
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "settings": settings,
        "data": dataset.source,
        "pictures": pictures,
        "device": _device_name(accelerator.device),
        "threads": torch.get_num_threads(),
        "versions": {"python": platform.python_version(), "torch": torch.__version__},
        "parameters": sum(one.numel() for one in model.parameters()),
        "seconds": seconds(),
        "test_loss": round(test_loss, 5),
        "test_accuracy": round(test_accuracy, 5),
    }
    if accelerator.is_main_process:
        if history:
            write(output / "heads.safetensors", save({name: one.contiguous() for name, one in history.items()}))
        if keep_weights:
            half = {n: t.detach().cpu().contiguous() for n, t in model.state_dict().items()}
            half = {n: t.half() if t.is_floating_point() else t for n, t in half.items()}
            write(output / "weights.safetensors", save(half))
        write(output / "run.json", (json.dumps(record, indent=2) + "\n").encode())
        checkpoint.unlink(missing_ok=True)
    accelerator.wait_for_everyone()
    return record


def _cpu_has_bf16() -> bool:
    """Whether the processor multiplies bfloat16 itself (AVX-512 or AMX on x86)."""
    tests = ("_is_avx512_bf16_supported", "_is_amx_tile_supported")
    return any(getattr(torch.cpu, name, lambda: False)() for name in tests)


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
    fields = {field.name for field in dataclasses.fields(Recipe)}
    recipe = Recipe(**{name: value for name, value in record["settings"].items() if name in fields})
    model = build_model(recipe, **record["pictures"])
    model.load_state_dict(load_file(files[1]))
    return model.eval(), record


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
    for field in dataclasses.fields(Recipe):
        name = "--" + field.name.replace("_", "-")
        if field.name in ("model", "data"):
            result.add_argument(name, choices=MODELS if field.name == "model" else tuple(DATA))
        elif isinstance(field.default, bool):
            result.add_argument(name, action=argparse.BooleanOptionalAction)
        else:
            result.add_argument(
                name, type=float if isinstance(field.default, float) else int if field.name != "optimizer" else str
            )
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
