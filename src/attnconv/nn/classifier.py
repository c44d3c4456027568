"""Image classifiers made of attention alone: the networks of the paper, in three kinds of scores.

A picture is cut down by an invertible rearrangement, each pixel is embedded, blocks of attention and a small
network for each pixel follow, and the mean over the pixels is classified.
"""

import math
from collections.abc import Callable
from contextlib import ExitStack

from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import pixel_unshuffle

from attnconv import checks
from attnconv.nn import functional
from attnconv.nn.attention import ContentAttention2d, LearnedAttention2d, QuadraticAttention2d

ATTENTIONS = ("quadratic", "generalized", "learned", "content", "convolution")


def attention_layer(kind: str, channels: int, *, heads: int, size: int, key_dim: int | None = None) -> nn.Module:
    """Return one layer of attention of a kind, for images of at most size × size pixels.

    The kind `convolution` is what the others are compared with: as many taps as they have heads.
    """
    if kind == "convolution":
        side = math.isqrt(heads)
        if side**2 != heads:
            raise ValueError(f"heads: expected a square number for a convolution of as many taps, got {heads}")
        return nn.Conv2d(channels, channels, side, padding="same")
    if kind == "learned":
        return LearnedAttention2d(channels, channels, heads=heads, size=size)
    if kind == "content":
        return ContentAttention2d(channels, channels, heads=heads, size=size, key_dim=key_dim)
    return QuadraticAttention2d(channels, channels, heads=heads, isotropic=kind == "quadratic")


class AttentionBlock(nn.Module):
    """Attention and a network for each pixel, each with a shortcut and layer normalisation.

    x ← norm(x + output(attention(x)));  x ← norm(x + mlp(x))          as the authors' network does
    x ← x + output(attention(norm(x)));  x ← x + mlp(norm(x))          with `norm_first`

    `output` is a linear layer, or nothing without `project`, for attention that has its own.
    """

    def __init__(
        self,
        attention: nn.Module,
        width: int,
        intermediate: int,
        *,
        dropout: float,
        norm_first: bool,
        project: bool = True,
    ):
        super().__init__()
        self.norm_first = norm_first
        self.attention = attention
        linear = [nn.Linear(width, width)] if project else []
        self.output = nn.Sequential(*linear, nn.Dropout(dropout))
        self.mlp = nn.Sequential(
            nn.Linear(width, intermediate), nn.GELU(), nn.Linear(intermediate, width), nn.Dropout(dropout)
        )
        self.norm1, self.norm2 = nn.LayerNorm(width, eps=1e-12), nn.LayerNorm(width, eps=1e-12)

    def attend(self, x: Float[Tensor, "height width batch channels"]) -> Tensor:
        """Apply the attention and what follows it."""
        return self.output(self.attention(x.permute(2, 3, 0, 1)).permute(2, 3, 0, 1))

    def forward(self, x: Float[Tensor, "height width batch channels"]) -> Tensor:
        """Apply the block."""
        if self.norm_first:
            x = x + self.attend(self.norm1(x))
            return x + self.mlp(self.norm2(x))
        x = self.norm1(x + self.attend(x))
        return self.norm2(x + self.mlp(x))


class Classifier(nn.Module):
    """What all classifiers share: pictures cut down, pixels embedded, blocks, the mean over what they give.

    Args:
        block: returns a new block; it is called once a layer, when `side` is known.
        image_size: height and width of a picture.
        in_channels: channels of a picture.
        classes: number of classes.
        layers: number of blocks.
        channels: channels of a hidden pixel.
        patch_size: side of the squares of hidden pixels that become one token.
        downsample: side of the squares of pixels that become one hidden pixel; nothing is lost.
        dropout: probability of a dropped entry of the embedding.
        norm_first: normalise before the mean.

    Raises:
        ValueError: a wrong size or option.
    """

    def __init__(
        self,
        block: Callable[[], nn.Module],
        *,
        image_size: int,
        in_channels: int,
        classes: int,
        layers: int,
        channels: int,
        patch_size: int = 1,
        downsample: int,
        dropout: float,
        norm_first: bool,
    ):
        super().__init__()
        self.downsample = checks.integer("downsample", downsample, least=1)
        self.image_size = checks.integer("image_size", image_size, least=1)
        self.patch_size = checks.integer("patch_size", patch_size, least=1)
        if self.image_size % self.downsample:
            raise ValueError(f"downsample: expected a divisor of image_size={image_size}, got {downsample}")
        if self.image_size // self.downsample % self.patch_size:
            raise ValueError(
                f"patch_size: expected a divisor of image_size/downsample={self.image_size // self.downsample}, "
                f"got {patch_size}"
            )
        if not 0 <= dropout < 1:
            raise ValueError(f"dropout: expected a probability below 1, got {dropout}")
        in_channels = checks.integer("in_channels", in_channels, least=1)
        self.width = checks.integer("channels", channels, least=1) * self.patch_size**2
        self.side = self.image_size // (self.downsample * self.patch_size)
        self.embedding = nn.Linear(in_channels * self.downsample**2, channels)
        self.dropout = nn.Dropout(dropout)
        self.blocks = nn.ModuleList(block() for _ in range(checks.integer("layers", layers, least=1)))
        self.norm = nn.LayerNorm(self.width, eps=1e-12) if norm_first else nn.Identity()
        self.classifier = nn.Linear(self.width, checks.integer("classes", classes, least=1))

    def embed(self, x: Float[Tensor, "batch in_channels height width"]) -> Tensor:
        """Return the tokens before the first block: (row, column, batch, channel)."""
        if x.dim() != 4 or x.shape[2:] != (self.image_size, self.image_size):
            expected = f"(batch, channels, {self.image_size}, {self.image_size})"
            raise ValueError(f"x: expected shape {expected}, got {tuple(x.shape)}")
        x = self.dropout(self.embedding(pixel_unshuffle(x, self.downsample).permute(2, 3, 0, 1)))
        if self.patch_size == 1:
            return x
        tokens = functional.image_to_patches(x.permute(2, 3, 0, 1), (self.patch_size, self.patch_size))
        return tokens.permute(2, 3, 0, 1)

    def forward(self, x: Float[Tensor, "batch in_channels height width"]) -> Float[Tensor, "batch classes"]:
        """Return the logits."""
        x = self.embed(x)
        for block in self.blocks:
            x = block(x)
        return self.classifier(self.norm(x).mean(dim=(0, 1)))

    def attention_inputs(self, x: Float[Tensor, "batch in_channels height width"]) -> list[Tensor]:
        """Return what each layer that mixes is given for these pictures: (batch, channel, row, column)."""
        given = []
        with ExitStack() as hooks:
            for block in self.blocks:
                hook = block.attention.register_forward_pre_hook(lambda _, inputs: given.append(inputs[0]))
                hooks.enter_context(hook)
            self(x)
        return given


class AttentionClassifier(Classifier):
    """Classifier of images without a convolution, Section 4 of Cordonnier, Loukas and Jaggi (2020).

    The sizes at the start are the paper's: 12 086 844 parameters with quadratic scores, 12 278 682 with learned
    ones, 29 484 282 with learned scores and content. Each head has the full width, W^(h) is one matrix.

    Args:
        attention: `quadratic`, `generalized` (a 2 × 2 matrix a head instead of a sharpness), `learned` (row and
            column encodings), `content` (queries, keys and learned encodings); `convolution` puts a convolution
            of as many taps in the place of attention, for comparison.
        image_size: height and width of a picture.
        in_channels: channels of a picture.
        classes: number of classes.
        layers: number of blocks.
        heads: heads of a layer.
        width: channels of the hidden image.
        intermediate: width of the network for each pixel.
        key_dim: width of queries and keys of a head, for `content`; `width` by default.
        downsample: side of the squares of pixels that become one pixel with more channels; nothing is lost.
        dropout: probability of a dropped entry after attention, after the network, and of the embedding.
        norm_first: normalise before attention and network instead of after the shortcut.

    Raises:
        ValueError: a wrong size or option.
    """

    def __init__(
        self,
        attention: str = "quadratic",
        *,
        image_size: int = 32,
        in_channels: int = 3,
        classes: int = 10,
        layers: int = 6,
        heads: int = 9,
        width: int = 400,
        intermediate: int = 512,
        key_dim: int | None = None,
        downsample: int = 2,
        dropout: float = 0.1,
        norm_first: bool = False,
    ):
        checks.choice("attention", attention, ATTENTIONS)
        width = checks.integer("width", width, least=1)
        intermediate = checks.integer("intermediate", intermediate, least=1)

        def block() -> AttentionBlock:
            layer = attention_layer(attention, width, heads=heads, size=self.side, key_dim=key_dim)
            return AttentionBlock(layer, width, intermediate, dropout=dropout, norm_first=norm_first)

        super().__init__(
            block,
            image_size=image_size,
            in_channels=in_channels,
            classes=classes,
            layers=layers,
            channels=width,
            downsample=downsample,
            dropout=dropout,
            norm_first=norm_first,
        )
