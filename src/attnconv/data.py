"""Labelled pictures to train on: digits that ship with scikit-learn, and CIFAR-10.

CIFAR-10 is fetched on first use, in its binary form, with the checksum its author publishes; or it is read from
the folder that the environment variable `ATTNCONV_DATA` names. No pickle is loaded, nothing is unpacked: what is
kept on disk is the archive itself, which is either whole or not there.
"""

import hashlib
import os
import tarfile
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int, UInt8
from torch import Tensor
from torch.nn import functional

from attnconv import checks

FOLDER = "ATTNCONV_DATA"
NOTE = "source.txt"  # beside unpacked files: which edition of the pictures they are
CIFAR10_URL = "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz"
CIFAR10_MD5 = "c32a1d4ab5d03f1284b67883e8d87530"
CIFAR10_CLASSES = (
    "airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck",
)  # fmt: skip
_RECORDS, _RECORD = 10_000, 1 + 3 * 32 * 32  # records of a file; a label byte and the pixels, channels first
_FILES = (*(f"data_batch_{n}.bin" for n in range(1, 6)), "test_batch.bin")


class Pictures(NamedTuple):
    """Pictures with labels."""

    images: UInt8[Tensor, "n channels height width"]
    labels: Int[Tensor, " n"]

    def __getitem__(self, index):
        """Select pictures by an index, a slice or a mask; a number selects a field, as in every named tuple."""
        if isinstance(index, int):
            return tuple.__getitem__(self, index)
        return Pictures(self.images[index], self.labels[index])


class Dataset(NamedTuple):
    """Pictures to train on and pictures to test on.

    `mean` and `std` belong to the channels of the training pictures, scaled to 0 … 1; `source` says which pictures
    they are, for the record of a run.
    """

    name: str
    train: Pictures
    test: Pictures
    classes: tuple[str, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    source: str


def digits() -> Dataset:
    """1 797 handwritten digits of 8 × 8 pixels, which ship with scikit-learn: 1 437 to train, 360 to test.

    From the test set of the NIST digits prepared by Alpaydin and Kaynak (UCI, 1998). The split is ours: class by
    class, with a fixed seed.
    """
    from sklearn.datasets import load_digits

    bundle = load_digits()
    images = torch.from_numpy(np.round(bundle.images * (255 / 16)).astype(np.uint8))[:, None]
    everything = Pictures(images, torch.from_numpy(bundle.target.astype(np.int64)))
    train, test = split(everything, 1437, seed=0)
    names = tuple(str(n) for n in range(10))
    return Dataset("digits", train, test, names, *_moments(train.images), "scikit-learn's digits")


def cifar10(folder: str | os.PathLike | None = None) -> Dataset:
    """CIFAR-10: 50 000 pictures of 32 × 32 pixels to train, 10 000 to test, ten classes (Krizhevsky 2009).

    Args:
        folder: where the binary version lies, unpacked (`data_batch_1.bin` …) or as its archive; else the folder
            that `ATTNCONV_DATA` names; else the archive is downloaded once into the user's cache. Unpacked files
            may have a `source.txt` beside them, which says which edition they are.

    Raises:
        ValueError: a file that is missing, has a wrong size or a label that is none, by name.
        OSError: no network, or no room.
    """
    folder = folder or os.environ.get(FOLDER)
    if folder is None:
        contents, source = _from_archive(_downloaded()), "CIFAR-10"
    else:
        contents, source = _from_folder(Path(folder))
    batches = [_parsed(name, contents(name)) for name in _FILES]
    train = Pictures(*(torch.cat(parts) for parts in zip(*batches[:-1], strict=True)))
    return Dataset("cifar10", train, batches[-1], CIFAR10_CLASSES, *_moments(train.images), source)


def _downloaded() -> Path:
    """Path of the archive, fetched if need be; pooch writes elsewhere and moves what has the right checksum."""
    import pooch

    return Path(
        pooch.retrieve(
            CIFAR10_URL,
            known_hash=f"md5:{CIFAR10_MD5}",
            fname=CIFAR10_URL.rpartition("/")[2],
            path=pooch.os_cache("attnconv"),
            progressbar=True,
        )
    )


def _from_folder(folder: Path):
    """Return a function that reads a file of the binary version by name, and what the pictures are."""
    if not folder.is_dir():
        raise ValueError(f"{FOLDER}: expected a folder with the binary version of CIFAR-10, got {folder}")
    archive = folder / CIFAR10_URL.rpartition("/")[2]
    unpacked = next((f for f in (folder / "cifar-10-batches-bin", folder) if (f / _FILES[0]).exists()), None)
    if unpacked is None:
        if not archive.exists():
            raise ValueError(
                f"{FOLDER}: expected {_FILES[0]} or {archive.name} in {folder}, found neither; "
                f"{CIFAR10_URL} is the archive, and without {FOLDER} it is fetched"
            )
        with archive.open("rb") as file:
            md5 = hashlib.file_digest(file, "md5").hexdigest()
        if md5 != CIFAR10_MD5:
            raise ValueError(
                f"{archive}: expected the MD5 {CIFAR10_MD5}, got {md5}; delete the file and fetch it again"
            )
        return _from_archive(archive), "CIFAR-10"

    def read(name: str) -> bytes:
        path = unpacked / name
        if not path.is_file():
            raise ValueError(f"{path}: this batch is missing; unpack {archive.name} again")
        return path.read_bytes()

    note = unpacked / NOTE
    return read, note.read_text(encoding="utf-8").strip() if note.is_file() else f"CIFAR-10 as in ${FOLDER}"


def _from_archive(archive: Path):
    contents = {}
    try:
        with tarfile.open(archive) as tar:
            for member in tar:
                name = member.name.rpartition("/")[2]
                if name in _FILES and member.isfile():
                    contents[name] = tar.extractfile(member).read()
    except (tarfile.TarError, EOFError) as error:
        raise ValueError(
            f"{archive}: expected an archive, got {error}; delete the file and fetch it again"
        ) from error

    def read(name: str) -> bytes:
        if name not in contents:
            raise ValueError(f"{archive}: {name} is missing; delete the archive and fetch it again")
        return contents[name]

    return read


def _parsed(name: str, content: bytes) -> Pictures:
    if len(content) != _RECORDS * _RECORD:
        raise ValueError(
            f"{name}: expected {_RECORDS} records of {_RECORD} bytes, {_RECORDS * _RECORD} in all, "
            f"got {len(content)}; the file is cut off or another one: fetch it again"
        )
    records = torch.frombuffer(bytearray(content), dtype=torch.uint8).view(_RECORDS, _RECORD)
    labels = records[:, 0].long()
    wrong = (labels >= len(CIFAR10_CLASSES)).nonzero()
    if len(wrong):
        record = int(wrong[0])
        raise ValueError(
            f"{name}: expected labels from 0 to 9, got {int(labels[record])} in record {record}; "
            "fetch the file again"
        )
    return Pictures(records[:, 1:].reshape(_RECORDS, 3, 32, 32), labels)


def _moments(images: UInt8[Tensor, "n channels height width"]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation of every channel, scaled to 0 … 1."""
    counts = [torch.bincount(channel.flatten().long(), minlength=256).double() for channel in images.unbind(1)]
    values = torch.arange(256).double() / 255
    means = [float((n * values).sum() / n.sum()) for n in counts]
    stds = [float(((n * (values - m) ** 2).sum() / n.sum()).sqrt()) for n, m in zip(counts, means, strict=True)]
    return tuple(round(m, 6) for m in means), tuple(round(s, 6) for s in stds)


# ---- parts of a data set ------------------------------------------------------------------------------------


def split(pictures: Pictures, count: int, *, seed: int) -> tuple[Pictures, Pictures]:
    """Draw `count` pictures, as many of each class as its share, and return them and the rest.

    Raises:
        ValueError: a count that is not between 0 and the number of pictures.
    """
    total = len(pictures.labels)
    count = checks.integer("count", count, least=0)
    if count > total:
        raise ValueError(f"count: expected at most the {total} pictures there are, got {count}")
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(total, generator=generator)
    # Place each picture by its rank within its class, so that any beginning of the order is balanced.
    labels = pictures.labels[order]
    place = torch.empty(total, dtype=torch.float64)
    for label in labels.unique():
        own = (labels == label).nonzero()[:, 0]
        place[own] = (torch.arange(len(own), dtype=torch.float64) + 0.5) / len(own)
    order = order[place.argsort(stable=True)]
    return pictures[order[:count].sort().values], pictures[order[count:].sort().values]


# ---- what happens to a batch --------------------------------------------------------------------------------


def normalize(
    images: UInt8[Tensor, "n channels height width"], mean: tuple[float, ...], std: tuple[float, ...]
) -> Float[Tensor, "n channels height width"]:
    """Scale bytes to 0 … 1, then every channel to mean 0 and standard deviation 1."""
    mean, std = (torch.tensor(one, device=images.device)[:, None, None] for one in (mean, std))
    return (images.float() / 255 - mean) / std


def augment(
    images: Float[Tensor, "n channels height width"],
    *,
    crop: int = 4,
    flip: bool = True,
    generator: torch.Generator,
) -> Float[Tensor, "n channels height width"]:
    """Move every picture by up to `crop` pixels, filled with zeros, and mirror half of them.

    Args:
        images: pictures with mean 0.
        crop: largest move in rows and in columns.
        flip: mirror left and right with probability ½.
        generator: source of all chance, on the CPU, so that every device draws the same.
    """
    count, _, height, width = images.shape
    crop = checks.integer("crop", crop, least=0)
    moves = torch.randint(2 * crop + 1, (2, count, 1), generator=generator)
    mirrored = (torch.rand(count, 1, generator=generator) < 0.5) & flip
    rows = moves[0] + torch.arange(height)
    columns = torch.arange(width).expand(count, -1)
    columns = moves[1] + torch.where(mirrored, columns.flip(1), columns)
    padded = functional.pad(images, (crop,) * 4).movedim(1, -1)
    rows, columns = rows.to(images.device), columns.to(images.device)
    picked = padded[torch.arange(count, device=images.device)[:, None, None], rows[:, :, None], columns[:, None, :]]
    return picked.movedim(-1, 1)


def downsample(
    images: Float[Tensor, "*batch channels height width"], factor: int = 2
) -> Float[Tensor, "*batch more_channels fewer_rows fewer_columns"]:
    """Turn every factor × factor square of pixels into one pixel with factor² times the channels; nothing is lost.

    Channel c, row i and column j of a square become channel c · factor² + i · factor + j. `upsample` inverts it.

    Raises:
        ValueError: a height or width that the factor does not divide.
    """
    factor = checks.integer("factor", factor, least=1)
    height, width = images.shape[-2:]
    if height % factor or width % factor:
        raise ValueError(f"images: expected height and width divisible by {factor}, got {height} × {width}")
    return functional.pixel_unshuffle(images, factor)


def upsample(
    images: Float[Tensor, "*batch more_channels fewer_rows fewer_columns"], factor: int = 2
) -> Float[Tensor, "*batch channels height width"]:
    """Invert `downsample`.

    Raises:
        ValueError: a number of channels that factor² does not divide.
    """
    factor = checks.integer("factor", factor, least=1)
    if images.shape[-3] % factor**2:
        raise ValueError(f"images: expected channels divisible by {factor**2}, got {images.shape[-3]}")
    return functional.pixel_shuffle(images, factor)
