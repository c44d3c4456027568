"""A small vision transformer and its convolutional twin: the same network with another layer that mixes tokens.

Train the twin, hand its weights over, go on as a transformer: the two phases of Li, Chen, He and Hsieh 2021.
"""

import math

from jaxtyping import Float
from torch import Tensor, nn

from attnconv import checks, theory
from attnconv.nn import functional
from attnconv.nn.classifier import AttentionBlock, Classifier
from attnconv.nn.patches import conv_to_patch_attention
from attnconv.nn.relative import RelativeAttention2d
from attnconv.shifts import margins

MIXERS = ("attention", "convolution")


class TokenConv2d(nn.Module):
    """Convolution of the pixels that tokens are made of: tokens to an image, `nn.Conv2d`, and back to tokens."""

    def __init__(self, conv: nn.Conv2d, patch_size: tuple[int, int]):
        super().__init__()
        self.conv, self.patch_size = conv, patch_size

    def forward(
        self, tokens: Float[Tensor, "batch patch_channels rows columns"]
    ) -> Float[Tensor, "batch patch_channels rows columns"]:
        """Convolve."""
        image = functional.patches_to_image(tokens, self.patch_size)
        return functional.image_to_patches(self.conv(image), self.patch_size)


class ViT(Classifier):
    """Vision transformer for small pictures: normalised first, with relative scores and a mean over the tokens.

        x ← x + mix(norm(x));   x ← x + mlp(norm(x))

    Every token is a P × P patch of a hidden image with C channels, P²·C numbers in all. Normalisation, shortcuts
    and network see the whole token. What mixes tokens is attention over the patches (`RelativeAttention2d`), or in
    the convolutional twin a convolution of the hidden pixels. All else is the same, so that `from_convolutional`
    carries the weights of the twin over.

    Linear layers and head matrices start from a truncated normal distribution of variance 1 / fan-in, tables of
    scores from one of variance 1, convolutions as PyTorch's. The usual deviation of 0.02 suits wide tokens; a small
    network learns far more slowly from it.

    Args:
        mixer: `attention`, or `convolution` for the twin.
        image_size: height and width of a picture.
        in_channels: channels of a picture.
        classes: number of classes.
        layers: number of blocks.
        channels: C, channels of a hidden pixel.
        patch_size: P, side of a token in hidden pixels. A token covers P·downsample pixels of the picture a side.
        downsample: side of the squares of pixels that become one hidden pixel; nothing is lost.
        intermediate: width of the network for each token; twice the width of a token by default.
        dropout: probability of a dropped entry after mixing, after the network, and of the embedding.
        kernel_size: K of the twin's convolutions. For attention it sets the margins, and the number of heads if
            none is given.
        border: `ring`, `sink` or `mask`, which are padding with zeros in the twin, or `circular`.
        heads: heads of a layer; by default as many as the twin's convolution needs, nine for 3 ≤ K ≤ 2P + 1.
        head_dim: width D_h of a head; None keeps one matrix W^(h) a head.
        content: add the products of queries and keys.
        key_dim: width of queries and keys.

    Raises:
        ValueError: a wrong size or option.
    """

    def __init__(
        self,
        mixer: str = "attention",
        *,
        image_size: int = 32,
        in_channels: int = 3,
        classes: int = 10,
        layers: int = 6,
        channels: int = 32,
        patch_size: int = 2,
        downsample: int = 2,
        intermediate: int | None = None,
        dropout: float = 0.0,
        kernel_size: int = 3,
        border: str = "ring",
        heads: int | None = None,
        head_dim: int | None = None,
        content: bool = True,
        key_dim: int | None = None,
    ):
        self.options = {name: value for name, value in locals().items() if name not in ("self", "__class__")}
        self.mixer = checks.choice("mixer", mixer, MIXERS)
        checks.choice("border", border, checks.BORDERS)
        shifts = theory.patch_shifts(kernel_size, patch_size)
        if intermediate is not None:
            intermediate = checks.integer("intermediate", intermediate, least=1)

        def layer() -> nn.Module:
            if mixer == "convolution":
                padding_mode = "circular" if border == "circular" else "zeros"
                conv = nn.Conv2d(channels, channels, kernel_size, padding="same", padding_mode=padding_mode)
                return TokenConv2d(conv, (self.patch_size, self.patch_size))
            return RelativeAttention2d(
                self.width,
                self.width,
                heads=len(shifts) if heads is None else heads,
                head_dim=head_dim,
                size=(self.side, self.side),
                margins=margins(shifts),
                border=border,
                content=content,
                key_dim=key_dim,
            )

        def block() -> AttentionBlock:
            inner = 2 * self.width if intermediate is None else intermediate
            return AttentionBlock(layer(), self.width, inner, dropout=dropout, norm_first=True, project=False)

        super().__init__(
            block,
            image_size=image_size,
            in_channels=in_channels,
            classes=classes,
            layers=layers,
            channels=channels,
            patch_size=patch_size,
            downsample=downsample,
            dropout=dropout,
            norm_first=True,
        )
        self.apply(_initialize)

    @classmethod
    def from_convolutional(
        cls,
        twin: "ViT",
        *,
        alpha: float | None = None,
        gamma: float = 0.0,
        compensate: bool = False,
        border: str | None = None,
        head_dim: int | None = None,
        content: bool = True,
        key_dim: int | None = None,
    ) -> "ViT":
        """Hand the weights of a convolutional twin over to a transformer with the same logits.

        Every convolution becomes attention over patches by `conv_to_patch_attention`; everything else is copied.

        Args:
            twin: a `ViT("convolution", …)`; it stays as it is.
            alpha: score of the patch wanted where all others have 0, which chooses how soft the start is. None is
                the hard limit, the same logits to rounding, or with content as hard as rounding allows. A finite α
                leaks, `theory.patch_leakage` a head.
            gamma: γ, by how much a sink's score exceeds that of the patch wanted.
            compensate: add one head a layer that takes the leak away, with borders `ring` and `circular`: the same
                logits at every α.
            border: `ring`, `sink` or `mask` for a twin that pads with zeros; that of the twin by default.
            head_dim: width D_h of a head; narrow heads are as many as the kernel of each layer needs.
            content: give the heads queries and keys, which change nothing at first.
            key_dim: width of queries and keys.

        Raises:
            ValueError: no twin; options that `conv_to_patch_attention` does not take.
        """
        if not isinstance(twin, ViT) or twin.mixer != "convolution":
            kind = type(twin).__name__ + (f"({twin.mixer!r})" if isinstance(twin, ViT) else "")
            raise ValueError(f"twin: expected a ViT('convolution', …), got {kind}")
        border = twin.options["border"] if border is None else border
        attentions = [
            conv_to_patch_attention(
                block.attention.conv,
                twin.patch_size,
                head_dim=head_dim,
                border=border,
                content=content,
                key_dim=key_dim,
                alpha=alpha,
                gamma=gamma,
                compensate=compensate,
                image_size=twin.side * twin.patch_size,
            ).attention
            for block in twin.blocks
        ]
        options = twin.options | {"mixer": "attention", "border": border, "heads": attentions[0].heads}
        options |= {"head_dim": head_dim, "content": content, "key_dim": key_dim}
        model = cls(**options).to(twin.classifier.weight)
        model.load_state_dict(
            {name: value for name, value in twin.state_dict().items() if ".attention." not in name}, strict=False
        )
        for block, attention in zip(model.blocks, attentions, strict=True):
            block.attention = attention
        return model.train(twin.training)


def _initialize(module: nn.Module) -> None:
    if isinstance(module, RelativeAttention2d):
        *values, output = module._weights()
        for weight in values:
            nn.init.trunc_normal_(weight, std=1 / math.sqrt(module.in_channels))
        nn.init.trunc_normal_(output, std=1 / math.sqrt(output.shape[:2].numel()))
    elif isinstance(module, nn.Linear):
        nn.init.trunc_normal_(module.weight, std=1 / math.sqrt(module.in_features))
    if isinstance(module, RelativeAttention2d | nn.Linear) and module.bias is not None:
        nn.init.zeros_(module.bias)
