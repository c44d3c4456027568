"""ResNet-18 for small pictures: the convolutional network the attention networks are compared with.

He, Zhang, Ren and Sun 2016, in the usual form for 32 × 32 pixels: a 3 × 3 stem without pooling, four stages of two
basic blocks with 64, 128, 256 and 512 channels, the mean over the last image, one linear layer.
"""

from itertools import pairwise

from jaxtyping import Float
from torch import Tensor, nn

from attnconv import checks


class BasicBlock(nn.Module):
    """Two 3 × 3 convolutions beside a shortcut: `relu(conv(relu(conv(x))) + shortcut(x))`."""

    def __init__(self, in_channels: int, out_channels: int, stride: int):
        super().__init__()
        self.conv1 = nn.Conv2d(in_channels, out_channels, 3, stride=stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(out_channels)
        self.conv2 = nn.Conv2d(out_channels, out_channels, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(out_channels)
        self.relu = nn.ReLU()
        self.shortcut = nn.Identity()
        if stride != 1 or in_channels != out_channels:
            self.shortcut = nn.Sequential(
                nn.Conv2d(in_channels, out_channels, 1, stride=stride, bias=False), nn.BatchNorm2d(out_channels)
            )

    def forward(self, x: Float[Tensor, "batch in_channels height width"]) -> Tensor:
        """Apply the block."""
        y = self.relu(self.bn1(self.conv1(x)))
        return self.relu(self.bn2(self.conv2(y)) + self.shortcut(x))


class ResNet18(nn.Module):
    """ResNet-18 for small pictures, 11.2 million parameters at ten classes.

    Args:
        in_channels: channels of a picture.
        classes: number of classes.
        width: channels of the first stage; the others have twice, four and eight times as many.

    Raises:
        ValueError: a size that is not a positive integer.
    """

    def __init__(self, in_channels: int = 3, classes: int = 10, *, width: int = 64):
        super().__init__()
        in_channels = checks.integer("in_channels", in_channels, least=1)
        classes = checks.integer("classes", classes, least=1)
        width = checks.integer("width", width, least=1)
        self.conv1 = nn.Conv2d(in_channels, width, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU()
        widths = [width, width, 2 * width, 4 * width, 8 * width]
        stages = [
            nn.Sequential(BasicBlock(before, after, 1 if n == 0 else 2), BasicBlock(after, after, 1))
            for n, (before, after) in enumerate(pairwise(widths))
        ]
        self.layer1, self.layer2, self.layer3, self.layer4 = stages
        self.fc = nn.Linear(8 * width, classes)

    def forward(self, x: Float[Tensor, "batch in_channels height width"]) -> Float[Tensor, "batch classes"]:
        """Return the logits."""
        x = self.relu(self.bn1(self.conv1(x)))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.fc(x.mean(dim=(2, 3)))
