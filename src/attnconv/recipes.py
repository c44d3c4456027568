"""What decides the result of a run: network, data, schedule. A recipe is all that `attnconv.train` needs."""

import dataclasses
import math
from typing import NamedTuple

import torch
from torch import nn

from attnconv import checks, data
from attnconv.nn import AttentionClassifier, ResNet18, ViT
from attnconv.nn.classifier import ATTENTIONS

MODELS = (*ATTENTIONS, "resnet18", "vit", "twin")
DATA = {"digits": data.digits, "cifar10": data.cifar10}
STARTS = ("random", "convolution")


class Phase(NamedTuple):
    """A part of a run: one network, one schedule."""

    network: str
    epochs: int
    lr: float


@dataclasses.dataclass(frozen=True)
class Recipe:
    """Everything that decides the result of a run, apart from the machine.

    Sizes of the network are those of `AttentionClassifier`, of which `resnet18` uses `width` alone. `vit` is a
    vision transformer with tokens of `width` numbers, `twin` the same network with convolutions; both are
    `attnconv.nn.ViT`. A `vit` that starts from a `convolution` is trained in two phases: first its twin, for
    `convolution_epochs`, then itself, with the weights of the twin and scores of sharpness `alpha`.
    """

    model: str = "quadratic"
    data: str = "digits"
    seed: int = 0
    fraction: float = 1.0
    validation: int = 180
    layers: int = 3
    heads: int = 9
    width: int = 32
    intermediate: int = 64
    key_dim: int | None = None
    downsample: int = 1
    dropout: float = 0.0
    norm_first: bool = True
    patch_size: int = 2
    content: bool = True
    start: str = "random"
    convolution_epochs: int = 0
    alpha: float = 5.0
    epochs: int = 30
    batch_size: int = 64
    optimizer: str = "adamw"
    lr: float = 3e-3
    convolution_lr: float | None = None
    weight_decay: float = 0.05
    warmup: float = 0.05
    label_smoothing: float = 0.0
    crop: int = 1
    flip: bool = False

    def __post_init__(self):
        checks.choice("model", self.model, MODELS)
        checks.choice("data", self.data, tuple(DATA))
        checks.choice("optimizer", self.optimizer, ("adamw", "sgd"))
        checks.choice("start", self.start, STARTS)
        sizes = ("layers", "heads", "width", "intermediate", "downsample", "patch_size", "epochs", "batch_size")
        for name in sizes:
            checks.integer(name, getattr(self, name), least=1)
        for name in ("seed", "crop", "validation", "convolution_epochs"):
            checks.integer(name, getattr(self, name), least=0)
        for name, low, high in (
            ("lr", 0, math.inf), ("weight_decay", 0, math.inf), ("warmup", 0, 1), ("label_smoothing", 0, 1),
            ("dropout", 0, 1), ("alpha", 0, math.inf),
        ):  # fmt: skip
            if not low <= getattr(self, name) < high:
                raise ValueError(
                    f"{name}: expected a number from {low} and below {high}, got {getattr(self, name)}"
                )
        if not 0 < self.fraction <= 1:
            raise ValueError(f"fraction: expected a number above 0 and up to 1, got {self.fraction}")
        if self.start == "convolution" and self.model != "vit":
            raise ValueError(f"start: expected 'random' for the model {self.model!r}, got 'convolution'")
        if self.convolution_epochs and self.start != "convolution":
            raise ValueError(
                f"convolution_epochs: expected 0 without start='convolution', got {self.convolution_epochs}"
            )
        if self.model in ("vit", "twin") and self.width % self.patch_size**2:
            raise ValueError(
                f"width: expected a multiple of patch_size² = {self.patch_size**2} for tokens of whole pixels, "
                f"got {self.width}"
            )

    def phases(self) -> list[Phase]:
        """Return the parts of the run, in order."""
        own = Phase(self.model, self.epochs, self.lr)
        if self.start == "random":
            return [own]
        lr = self.lr if self.convolution_lr is None else self.convolution_lr
        return [Phase("twin", self.convolution_epochs, lr), own]


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
    "two-phase": {
        "model": "vit", "start": "convolution", "width": 48, "intermediate": 96, "convolution_epochs": 20,
        "epochs": 10, "lr": 2e-3,
    },
}  # fmt: skip


# ---- networks -----------------------------------------------------------------------------------------------


def build_model(recipe: Recipe, *, channels: int, size: int, classes: int) -> nn.Module:
    """Return the network of the first phase, for pictures of a size, with weights drawn from the seed."""
    torch.manual_seed(recipe.seed)
    kind = recipe.phases()[0].network
    if kind == "resnet18":
        return ResNet18(channels, classes, width=recipe.width).to(memory_format=torch.channels_last)
    options = {"image_size": size, "in_channels": channels, "classes": classes}
    names = ["layers", "intermediate", "key_dim", "downsample", "dropout"]
    if kind in ("vit", "twin"):
        options["channels"] = recipe.width // recipe.patch_size**2
        options |= {name: getattr(recipe, name) for name in (*names, "patch_size", "content")}
        return ViT("attention" if kind == "vit" else "convolution", **options)
    options |= {name: getattr(recipe, name) for name in (*names, "heads", "width", "norm_first")}
    return AttentionClassifier(kind, **options)


def next_model(recipe: Recipe, model: nn.Module, **options: object) -> nn.Module:
    """Return the network of the second phase: the transformer with the logits of its trained twin.

    Options of `ViT.from_convolutional` take the place of the recipe's.
    """
    torch.manual_seed(mixed_seed(recipe.seed, 4))
    own = {"alpha": recipe.alpha, "compensate": True, "content": recipe.content, "key_dim": recipe.key_dim}
    return ViT.from_convolutional(model, **own | options)


# ---- optimisation -------------------------------------------------------------------------------------------


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


def learning_rate(lr: float, warmup: float, step: int, steps: int) -> float:
    """Return the rate of a step of a phase: linear warm-up, then half a cosine down to zero."""
    warm = warmup * steps
    if step < warm:
        return lr * (step + 1) / (warm + 1)
    return lr * 0.5 * (1 + math.cos(math.pi * (step - warm) / max(1, steps - warm)))


def mixed_seed(*numbers: int) -> int:
    """Mix numbers into one seed."""
    result = 0
    for number in numbers:
        result = (result * 1_000_003 + number + 12_345) % (2**63 - 1)
    return result
