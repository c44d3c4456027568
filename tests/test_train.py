"""Training: a run is decided by its recipe, survives everything, and says what is wrong."""

import csv
import json
import math
import os
import random
import resource
import signal
import subprocess
import sys
import time

import pytest
import torch
from safetensors.torch import load_file, save_file

from attnconv import data, recipes, train
from attnconv.nn import AttentionClassifier, QuadraticAttention2d, ViT

TINY = [
    "--preset",
    "digits",
    "--layers",
    "1",
    "--width",
    "8",
    "--intermediate",
    "8",
    "--heads",
    "4",
    "--epochs",
    "2",
]
COMMAND = [sys.executable, "-W", "error", "-m", "attnconv.train", *TINY, "--device", "cpu", "--threads", "1"]


@pytest.fixture(autouse=True)
def one_thread():
    """Small products do not gain from threads, and waiting threads cost much where others work too."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def environment():
    return {**os.environ, "OMP_NUM_THREADS": "1"}


def metrics(folder):
    """Rows of a run, without the times."""
    with (folder / "metrics.csv").open() as file:
        return [
            {k: float(v) for k, v in row.items() if k not in ("seconds", "network")} for row in csv.DictReader(file)
        ]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run that nobody disturbed."""
    folder = tmp_path_factory.mktemp("whole")
    done = subprocess.run([*COMMAND, "--output", str(folder)], capture_output=True, text=True, env=environment())
    assert done.returncode == 0, done.stderr
    return folder


def test_a_run_leaves_what_it_says(whole):
    assert sorted(f.name for f in whole.iterdir()) == [
        "heads.safetensors",
        "metrics.csv",
        "run.json",
        "weights.safetensors",
    ]
    record = json.loads((whole / "run.json").read_text())
    assert record["settings"]["seed"] == 0
    assert record["data"] == "scikit-learn's digits"
    assert "--epochs 2" in record["command"]
    rows = metrics(whole)
    assert [row["epoch"] for row in rows] == [1, 2]
    heads = load_file(whole / "heads.safetensors")
    assert heads["centers"].shape == (3, 1, 4, 2)
    assert heads["alpha"].shape == (3, 1, 4)
    digits = data.digits()
    model, loaded = train.load(whole)
    assert loaded == record
    _, accuracy = train.evaluate(model, digits.test, mean=digits.mean, std=digits.std, device=torch.device("cpu"))
    assert accuracy == pytest.approx(record["test_accuracy"], abs=0.02)


def test_load_refuses_unfinished_runs(whole, tmp_path):
    with pytest.raises(ValueError, match=r"without run\.json"):
        train.load(tmp_path)
    (tmp_path / "run.json").write_bytes((whole / "run.json").read_bytes())
    with pytest.raises(ValueError, match=r"without weights\.safetensors"):
        train.load(tmp_path)


def test_runs_lists_what_is_finished(whole, tmp_path):
    assert train.runs(tmp_path / "nowhere") == []
    (tmp_path / "under-way").mkdir()
    for name in ("b", "a"):
        (tmp_path / name).symlink_to(whole)
    found = train.runs(tmp_path)
    assert [record["name"] for record in found] == ["a", "b"]
    record = json.loads((whole / "run.json").read_text())
    assert {name: found[0][name] for name in record} == record
    assert [row["epoch"] for row in found[0]["metrics"]] == [1, 2]
    assert {row["network"] for row in found[0]["metrics"]} == {"quadratic"}
    assert [{k: row[k] for k in rows} for row, rows in zip(found[0]["metrics"], metrics(whole), strict=True)] == (
        metrics(whole)
    )
    model = train.network(found[0])
    assert sum(p.numel() for p in model.parameters()) == record["parameters"]


def test_killed_at_any_time_a_run_ends_with_the_same_bits(whole, tmp_path):
    command = [*COMMAND, "--output", str(tmp_path), "--checkpoint-seconds", "0"]
    chance = random.Random(time.time_ns())
    kills = 0
    while not (tmp_path / "run.json").exists():
        assert kills < 20
        process = subprocess.Popen(command, env=environment(), stderr=subprocess.DEVNULL)
        before = (tmp_path / "checkpoint.safetensors").stat().st_mtime_ns if kills else 0
        while kills < 3 and process.poll() is None:
            file = tmp_path / "checkpoint.safetensors"
            if file.exists() and file.stat().st_mtime_ns > before:  # it has begun to train
                time.sleep(chance.uniform(0, 0.3))
                process.send_signal(signal.SIGKILL)
                break
            time.sleep(0.01)
        process.wait()
        kills += 1
    assert kills >= 2
    for name in ("weights.safetensors", "heads.safetensors"):
        assert (tmp_path / name).read_bytes() == (whole / name).read_bytes()
    assert metrics(tmp_path) == metrics(whole)
    assert sorted(f.name for f in tmp_path.iterdir()) == sorted(f.name for f in whole.iterdir())


def test_two_processes_have_the_losses_of_one_with_the_doubled_batch(tmp_path):
    options = [*TINY, "--device", "cpu", "--precision", "fp32"]
    launch = ["-m", "accelerate.commands.launch", "--multi_gpu", "--num_processes", "2", "--num_machines", "1"]
    launch += ["--mixed_precision", "no", "--dynamo_backend", "no"]
    one = [
        sys.executable,
        "-m",
        "attnconv.train",
        *options,
        "--batch-size",
        "64",
        "--output",
        str(tmp_path / "one"),
    ]
    two = [sys.executable, *launch, "-m", "attnconv.train", *options, "--batch-size", "32"]
    two += ["--output", str(tmp_path / "two")]
    for command in (one, two):
        done = subprocess.run(command, capture_output=True, text=True, env=environment())
        assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "two" / "run.json").read_text())["settings"]["processes"] == 2
    for ours, wanted in zip(metrics(tmp_path / "two"), metrics(tmp_path / "one"), strict=True):
        assert ours == pytest.approx(wanted, abs=2e-3)


def test_time_slices_and_interrupts_go_on(whole, tmp_path):
    recipe = recipes.Recipe(layers=1, width=8, intermediate=8, heads=4, epochs=2)
    slices = 0
    while (record := train.run(recipe, tmp_path, device="cpu", minutes=0)) is None:
        slices += 1
        assert slices < 100
    assert slices == 37  # one step each, and the last one ends the run
    assert record["test_accuracy"] == json.loads((whole / "run.json").read_text())["test_accuracy"]
    assert (tmp_path / "weights.safetensors").read_bytes() == (whole / "weights.safetensors").read_bytes()
    with pytest.raises(ValueError, match="without a finished run"):
        train.run(recipe, tmp_path, device="cpu")


def test_two_phases_go_on_from_every_step(tmp_path):
    recipe = recipes.Recipe(
        model="vit", start="convolution", layers=1, width=16, intermediate=16, batch_size=50, fraction=0.08,
        convolution_epochs=2, epochs=2,
    )  # fmt: skip
    whole = train.run(recipe, tmp_path / "whole", device="cpu")
    slices = 0
    while train.run(recipe, tmp_path / "sliced", device="cpu", minutes=0) is None:
        slices += 1
    assert slices == 7
    for name in ("weights.safetensors", "metrics.csv"):
        files = [tmp_path / folder / name for folder in ("whole", "sliced")]
        if name.endswith("csv"):
            assert metrics(files[0].parent) == metrics(files[1].parent)
        else:
            assert files[0].read_bytes() == files[1].read_bytes()
    with (tmp_path / "whole" / "metrics.csv").open() as file:
        assert [row["network"] for row in csv.DictReader(file)] == ["twin", "twin", "vit", "vit"]
    model, record = train.load(tmp_path / "whole")
    assert record == whole
    assert isinstance(model, ViT)
    assert model.mixer == "attention"


def test_a_second_phase_starts_with_the_logits_of_the_first():
    recipe = recipes.Recipe(model="vit", start="convolution", convolution_epochs=1)
    twin = recipes.build_model(recipe, channels=1, size=8, classes=10).double()
    x = torch.randn(5, 1, 8, 8).double()
    torch.testing.assert_close(recipes.next_model(recipe, twin)(x), twin(x), rtol=1e-9, atol=1e-9)


def test_a_fraction_is_balanced_and_seeded(tmp_path):
    dataset = data.digits()
    _, training = data.split(dataset.train, 180, seed=0)
    parts = [data.split(training, 100, seed=seed)[0] for seed in (0, 0, 1)]
    assert torch.equal(parts[0].images, parts[1].images)
    assert not torch.equal(parts[0].images, parts[2].images)
    assert torch.bincount(parts[2].labels).tolist() == pytest.approx([10] * 10, abs=1)


def test_full_disk_leaves_the_last_checkpoint(tmp_path):
    """The largest file a process may write is limited, as a full disk would."""
    command = [*COMMAND, "--output", str(tmp_path), "--checkpoint-seconds", "0"]

    assert (
        subprocess.run([*command, "--minutes", "0"], env=environment(), stderr=subprocess.DEVNULL).returncode == 0
    )
    before = (tmp_path / "checkpoint.safetensors").read_bytes()

    def limit():
        resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) // 2, len(before) // 2))
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)

    done = subprocess.run(command, capture_output=True, text=True, env=environment(), preexec_fn=limit)
    assert done.returncode == 1
    assert "checkpoint.safetensors: no room for" in done.stderr
    assert "Traceback" not in done.stderr
    assert (tmp_path / "checkpoint.safetensors").read_bytes() == before
    assert not list(tmp_path.glob("*.part"))
    assert subprocess.run(command, env=environment(), stderr=subprocess.DEVNULL).returncode == 0


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--epochs", "0"], "epochs: expected an integer of at least 1, got 0"),
        (["--lr", "-1"], "lr: expected a number from 0"),
        (["--dropout", "1"], "dropout: expected a number from 0 and below 1"),
        (["--batch-size", "5000"], "batch_size: expected at most the 1257 training pictures, got 5000"),
        (["--downsample", "3"], "downsample: expected a divisor of image_size=8, got 3"),
        (["--fraction", "0"], "fraction: expected a number above 0 and up to 1, got 0.0"),
        (["--start", "convolution"], "start: expected 'random' for the model 'quadratic'"),
        (["--convolution-epochs", "3"], "convolution_epochs: expected 0 without start='convolution'"),
        (["--model", "vit", "--width", "6"], "width: expected a multiple of patch_size"),
        (["--validation", "9999"], "count: expected at most the 1437 pictures"),
        (["--data", "cifar10"], "ATTNCONV_DATA: expected a folder"),
        (["--lr", "1e30", "--optimizer", "sgd"], "lr: the loss is"),
    ],
)
def test_wrong_arguments_are_named(options, says, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("ATTNCONV_DATA", str(tmp_path / "nowhere"))
    assert train.main([*TINY, *options, "--device", "cpu", "--output", str(tmp_path)]) == 1
    assert says in capsys.readouterr().err


def test_a_folder_of_another_run_is_refused(tmp_path):
    recipe = recipes.Recipe(layers=1, width=8, intermediate=8, heads=4, epochs=2)
    train.run(recipe, tmp_path, device="cpu", minutes=0)
    other = recipes.Recipe(layers=1, width=8, intermediate=8, heads=4, epochs=2, lr=0.01)
    with pytest.raises(ValueError, match=r"differs in \{'lr': 0\.01\}"):
        train.run(other, tmp_path, device="cpu")
    (tmp_path / "checkpoint.safetensors").write_bytes(b"nonsense")
    with pytest.raises(ValueError, match="expected a checkpoint"):
        train.run(recipe, tmp_path, device="cpu")
    save_file({"a": torch.zeros(1)}, tmp_path / "checkpoint.safetensors")
    with pytest.raises(ValueError, match="expected a checkpoint"):
        train.run(recipe, tmp_path, device="cpu")


@pytest.mark.parametrize("model", recipes.MODELS)
def test_every_model_learns_digits(model, tmp_path):
    sizes = {"layers": 1, "width": 16, "intermediate": 32, "epochs": 8, "validation": 0, "key_dim": 8, "lr": 0.01}
    record = train.run(recipes.Recipe(model=model, **sizes), tmp_path, device="cpu", precision="fp32")
    assert record["test_accuracy"] > 0.16  # chance is 0.10 ± 0.016


def test_epochs_see_every_picture_once_and_processes_share_a_batch():
    count = 103
    pictures = data.Pictures(torch.zeros(count, 1, 2, 2, dtype=torch.uint8), torch.arange(count))
    recipe = recipes.Recipe(crop=0)
    options = {"size": 10, "mean": (0.0,), "std": (1.0,)}
    for epoch in range(3):
        seen = torch.cat(
            [
                train.batch_of(pictures, recipe, epoch * 10 + n, share=share, **options)[1]
                for n in range(10)
                for share in (slice(0, 5), slice(5, 10))
            ]
        )
        assert len(seen.unique()) == 100
    first, again = (train.batch_of(pictures, recipe, 3, share=slice(0, 10), **options)[1] for _ in range(2))
    assert torch.equal(first, again)


def test_learning_rate_warms_up_and_ends_at_zero():
    rates = [recipes.learning_rate(0.1, 0.1, step, 1000) for step in range(1001)]
    assert rates[0] == pytest.approx(0.1 / 101)
    assert max(rates) == pytest.approx(0.1)
    assert rates.index(max(rates)) == 100
    assert rates[1000] == pytest.approx(0, abs=1e-12)
    assert rates[550] == pytest.approx(0.05)


def test_only_matrices_decay():
    model = AttentionClassifier("learned", image_size=4, layers=1, heads=2, width=4, intermediate=4)
    groups = recipes.build_optimizer(recipes.Recipe(), model).param_groups
    decaying = {id(one) for one in groups[0]["params"]}
    names = {name for name, one in model.named_parameters() if id(one) in decaying}
    assert "blocks.0.attention.weight" in names
    assert not {name for name in names if "table" in name or "norm" in name or name.endswith("bias")}
    quadratic = QuadraticAttention2d(2, 2)
    groups = recipes.build_optimizer(recipes.Recipe(), quadratic).param_groups
    assert len(groups[0]["params"]) == 1
    assert math.isclose(groups[1]["weight_decay"], 0)
