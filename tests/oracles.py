"""Trusted implementations in this project's layout, for the tests to compare with."""

import torch

MODES = {"zeros": "constant", "replicate": "replicate", "reflect": "reflect", "circular": "circular"}


def by_pytorch(image, kernel, bias=None, *, padding="zeros", stride=1, dilation=(1, 1), groups=1):
    """Convolve an image (height, width, channels) by PyTorch's own padding and `conv2d`."""
    batch = torch.from_numpy(image.transpose(2, 0, 1)[None].copy())
    if padding != "none":
        totals = [d * (k - 1) for k, d in zip(kernel.shape[:2], dilation, strict=True)]
        (top, bottom), (left, right) = ((t // 2, t - t // 2) for t in totals)
        batch = torch.nn.functional.pad(batch, (left, right, top, bottom), mode=MODES[padding])
    result = torch.nn.functional.conv2d(
        batch,
        torch.from_numpy(kernel.transpose(3, 2, 0, 1).copy()),
        None if bias is None else torch.from_numpy(bias),
        stride=stride,
        dilation=dilation,
        groups=groups,
    )
    return result[0].numpy().transpose(1, 2, 0)
