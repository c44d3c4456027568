"""Data sets: what is read is what was written, and nothing else passes."""

import io
import tarfile

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.datasets import load_digits

from attnconv import data


@pytest.fixture(scope="module")
def batches():
    """Records in the binary layout, with known pixels."""
    rng = np.random.default_rng(0)
    names = [f"data_batch_{n}.bin" for n in range(1, 6)] + ["test_batch.bin"]
    return {
        name: np.concatenate(
            [rng.integers(10, size=(10_000, 1)), rng.integers(256, size=(10_000, 3072))], axis=1
        ).astype(np.uint8)
        for name in names
    }


@pytest.fixture
def folder(batches, tmp_path):
    for name, records in batches.items():
        (tmp_path / name).write_bytes(records.tobytes())
    return tmp_path


def test_digits_are_scikit_learns_and_split_by_class():
    digits = data.digits()
    assert (len(digits.train.labels), len(digits.test.labels)) == (1437, 360)
    images = torch.cat([digits.train.images, digits.test.images])[:, 0].double() * (16 / 255)
    ours = {tuple(one.flatten().round().int().tolist()) for one in images}
    assert ours == {tuple(one.astype(int).tolist()) for one in load_digits().data}
    shares = torch.bincount(digits.test.labels).double() / torch.bincount(digits.train.labels)
    assert (shares - 360 / 1437).abs().max() < 0.01
    scaled = digits.train.images.double() / 255
    assert digits.mean == pytest.approx([scaled.mean().item()], abs=1e-5)
    assert digits.std == pytest.approx([scaled.std(unbiased=False).item()], abs=1e-5)


def test_cifar10_reads_binary_files(batches, folder, monkeypatch):
    monkeypatch.setenv("ATTNCONV_DATA", str(folder))
    (folder / "source.txt").write_text("noise\n")
    dataset = data.cifar10()
    assert dataset.source == "noise"
    assert dataset.train.images.shape == (50_000, 3, 32, 32)
    third = batches["data_batch_3.bin"]
    assert torch.equal(dataset.train.labels[20_000:30_000], torch.from_numpy(third[:, 0].astype(np.int64)))
    assert np.array_equal(dataset.train.images[29_999].numpy().ravel(), third[-1, 1:])
    assert np.array_equal(dataset.test.images[7].numpy().ravel(), batches["test_batch.bin"][7, 1:])


@pytest.mark.parametrize(
    ("harm", "says"),
    [
        (lambda f: f.unlink(), "data_batch_2.bin: this batch is missing"),
        (lambda f: f.write_bytes(f.read_bytes()[:-1]), "data_batch_2.bin: expected 10000 records"),
        (lambda f: f.write_bytes(f.read_bytes() + b"\0"), "data_batch_2.bin: expected 10000 records"),
        (lambda f: f.write_bytes(b""), "data_batch_2.bin: expected 10000 records"),
        (lambda f: f.write_bytes(b"\x0a" + f.read_bytes()[1:]), "expected labels from 0 to 9, got 10 in record 0"),
    ],
)
def test_cifar10_refuses_harmed_files_by_name(folder, harm, says):
    harm(folder / "data_batch_2.bin")
    with pytest.raises(ValueError, match=says):
        data.cifar10(folder)


def test_cifar10_refuses_wrong_folders(tmp_path):
    with pytest.raises(ValueError, match="expected a folder"):
        data.cifar10(tmp_path / "nowhere")
    with pytest.raises(ValueError, match=r"expected data_batch_1\.bin or cifar-10-binary\.tar\.gz"):
        data.cifar10(tmp_path)
    (tmp_path / "cifar-10-binary.tar.gz").write_bytes(b"half an archive")
    with pytest.raises(ValueError, match="expected the MD5 c32a1d4a"):
        data.cifar10(tmp_path)


def archive(batches, leave_out=()):
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w:gz", compresslevel=0) as tar:
        for name, records in batches.items():
            if name not in leave_out:
                info = tarfile.TarInfo(f"cifar-10-batches-bin/{name}")
                info.size = records.size
                tar.addfile(info, io.BytesIO(records.tobytes()))
    return file.getvalue()


def test_cifar10_is_read_from_an_archive_without_unpacking(batches, tmp_path, monkeypatch):
    import hashlib

    path = tmp_path / "cifar-10-binary.tar.gz"
    path.write_bytes(archive(batches))
    monkeypatch.setattr(data, "CIFAR10_MD5", hashlib.md5(path.read_bytes()).hexdigest())
    dataset = data.cifar10(tmp_path)
    assert np.array_equal(dataset.test.images[9].numpy().ravel(), batches["test_batch.bin"][9, 1:])
    assert [f.name for f in tmp_path.iterdir()] == [path.name]
    path.write_bytes(archive(batches, leave_out=["data_batch_4.bin"]))
    monkeypatch.setattr(data, "CIFAR10_MD5", hashlib.md5(path.read_bytes()).hexdigest())
    with pytest.raises(ValueError, match=r"data_batch_4\.bin is missing"):
        data.cifar10(tmp_path)


def test_download_is_checked_and_whole(batches, tmp_path, monkeypatch):
    """Fetched from a server of our own: a wrong or cut-off archive is never kept, a right one is fetched once."""
    import functools
    import hashlib
    import http.server
    import threading

    import pooch

    served = tmp_path / "served"
    served.mkdir()
    asked = []

    class Handler(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *arguments):
            asked.append(arguments)

    right = archive(batches)
    monkeypatch.delenv("ATTNCONV_DATA", raising=False)
    monkeypatch.setattr(pooch, "os_cache", lambda name: tmp_path / "cache")
    monkeypatch.setattr(data, "CIFAR10_MD5", hashlib.md5(right).hexdigest())
    with http.server.ThreadingHTTPServer(("localhost", 0), functools.partial(Handler, directory=served)) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setattr(data, "CIFAR10_URL", f"http://localhost:{server.server_port}/cifar-10-binary.tar.gz")
        (served / "cifar-10-binary.tar.gz").write_bytes(right[: len(right) // 2])
        with pytest.raises(ValueError, match="hash"):
            data.cifar10()
        assert list((tmp_path / "cache").iterdir()) == []
        (served / "cifar-10-binary.tar.gz").write_bytes(right)
        assert data.cifar10().source == "CIFAR-10"
        count = len(asked)
        data.cifar10()
        assert len(asked) == count
        server.shutdown()


@given(st.integers(0, 300), st.integers(0, 2**31))
def test_split_is_balanced_and_loses_nothing(count, seed):
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(7, (300,), generator=generator)
    images = torch.arange(300, dtype=torch.int64)[:, None, None, None].to(torch.uint8)
    pictures = data.Pictures(images, labels)
    first, rest = data.split(pictures, count, seed=seed)
    assert len(first.labels) == count
    assert torch.equal(
        torch.bincount(first.labels, minlength=7) + torch.bincount(rest.labels, minlength=7),
        torch.bincount(labels, minlength=7),
    )
    wanted = torch.bincount(labels, minlength=7) * count / 300
    assert (torch.bincount(first.labels, minlength=7) - wanted).abs().max() <= 1
    again, _ = data.split(pictures, count, seed=seed)
    assert torch.equal(first.images, again.images)


def test_augment_moves_and_mirrors_each_picture():
    images = torch.randn(500, 3, 9, 7)
    result = data.augment(images, crop=2, generator=torch.Generator().manual_seed(1))
    padded = torch.nn.functional.pad(images, (2,) * 4)
    seen = set()
    for one, wide in zip(result, padded, strict=True):
        options = {
            (i, j, flipped): part.flip(-1) if flipped else part
            for i in range(5)
            for j in range(5)
            for flipped in (False, True)
            for part in [wide[:, i : i + 9, j : j + 7]]
        }
        found = [key for key, option in options.items() if torch.equal(one, option)]
        assert len(found) == 1
        seen.add(found[0])
    assert len(seen) == 50
    plain = data.augment(images, crop=0, flip=False, generator=torch.Generator())
    assert torch.equal(plain, images)


def test_normalize_gives_mean_0_and_deviation_1():
    digits = data.digits()
    images = data.normalize(digits.train.images, digits.mean, digits.std)
    assert abs(images.mean().item()) < 1e-4
    assert images.std(unbiased=False).item() == pytest.approx(1, abs=1e-4)


@given(st.integers(1, 4), st.integers(1, 5), st.integers(1, 5), st.integers(1, 3))
def test_downsample_is_invertible_and_as_documented(factor, rows, columns, channels):
    images = torch.randn(2, channels, factor * rows, factor * columns)
    small = data.downsample(images, factor)
    assert small.shape == (2, channels * factor**2, rows, columns)
    assert torch.equal(data.upsample(small, factor), images)
    i, j, c = factor - 1, 0, channels - 1
    assert torch.equal(small[:, c * factor**2 + i * factor + j], images[:, c, i::factor, j::factor])


def test_downsample_refuses_what_does_not_divide(no_signature_checks):
    with pytest.raises(ValueError, match="divisible by 2, got 3 × 4"):
        data.downsample(torch.zeros(1, 3, 4))
    with pytest.raises(ValueError, match="divisible by 4, got 3"):
        data.upsample(torch.zeros(3, 2, 2))
    with pytest.raises(ValueError, match="at most the 3 pictures"):
        data.split(data.Pictures(torch.zeros(3, 1, 1, 1, dtype=torch.uint8), torch.zeros(3).long()), 4, seed=0)
