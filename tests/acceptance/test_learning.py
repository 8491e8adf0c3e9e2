"""Learning on devices as a newcomer sees it: the documents' code and commands as written, and bad examples."""

from __future__ import annotations

import json
import re
import runpy
import shlex
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from typer.testing import CliRunner, Result

import lite_runtime
import msedge
from cloud.zoo.build import BATCH, Builder
from edge.cli.app import app
from lite_runtime.errors import InputError
from tests.federated import conftest  # noqa: F401 - Flower's first import
from tests.language.models import model

ROOT = Path(__file__).parents[2]
ALONE = (
    "import runpy, sys;"
    "sys.modules.update(dict.fromkeys(['numba', 'llvmlite', 'onnx', 'onnx_ir', 'jax', 'flwr', 'typer']));"
    "runpy.run_module('lite_runtime', run_name='__main__')"
)
"""`python -m lite_runtime` where NumPy is the only package."""

Arrays = dict[str, np.ndarray]


def command(*words: object) -> Result:
    """`msedge …`, which answers everything and never with a traceback."""
    done = CliRunner().invoke(app, [str(word) for word in words], prog_name="msedge")
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    assert "bug in msedge" not in done.stderr, done.stderr
    return done


def blocks(document: str, language: str) -> list[str]:
    """The fenced pieces of a document that are in a language; "": commands."""
    found = re.findall(r"^```(\w*)\n(.*?)^```$", (ROOT / document).read_text(encoding="utf-8"), re.S | re.M)
    return [text for of, text in found if of == language]


def commands(document: str, *first: str) -> list[list[str]]:
    """The commands of a document that begin with these words."""
    lines = "\n".join(blocks(document, "")).replace("\\\n", " ").splitlines()
    return [shlex.split(line, comments=True) for line in lines if line.split()[: len(first)] == list(first)]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model whose parameters have the documents' names, and arrays for it."""
    folder = tmp_path_factory.mktemp("home")
    b = Builder("model", 0)
    y = b.relu(b.dense(b.input("x", (BATCH, 8)), 6, name="attn"))
    ir.save(b.model(logits=b.dense(y, 3, name="head")), folder / "model.onnx")
    rng = np.random.default_rng(0)
    np.save(folder / "x.npy", rng.standard_normal((5, 8)).astype(np.float32))
    np.save(folder / "labels.npy", rng.integers(0, 3, 5))
    np.savez(folder / "samples.npz", x=rng.standard_normal((32, 8)).astype(np.float32))
    return folder


def test_the_code_of_the_documents_runs(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(home)
    words: dict[str, Any] = {"msedge": msedge, "x": np.load("x.npy"), "labels": np.load("labels.npy")}
    exec(blocks("docs/training.md", "python")[0], words)
    learned = words["model"].state_dict()
    exec(next(code for code in blocks("README.md", "python") if "save_state" in code), words)
    assert lite_runtime.load("model.mslite", state="mine.state").state_dict().keys() == learned.keys()


def test_the_commands_of_the_documents_run(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(home)
    converts = [*commands("docs/training.md", "msedge", "convert"), *commands("README.md", "msedge", "convert")]
    converts = [words for words in converts if {"--trainable", "--lora"} & {*words} and "smollm2.gguf" not in words]
    assert len(converts) >= 3
    for words in converts:
        done = command(*words[1:])
        assert done.exit_code == 0 and "train_step" in done.stdout, (words, done.stderr)
    steps = commands("docs/training.md", "python", "-m", "lite_runtime")
    assert len(steps) == 2
    for _, _, _, *words in steps:
        ran = subprocess.run([sys.executable, "-c", ALONE, *words], capture_output=True, text=True, timeout=300)
        assert ran.returncode == 0, ran.stderr


def test_the_command_of_the_readme_for_a_language_model_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("smollm2.gguf").symlink_to(model("smollm2"))
    (words,) = [words for words in commands("README.md", "msedge", "convert") if "smollm2.gguf" in words]
    done = command(*words[1:])
    assert done.exit_code == 0 and "train_step" in done.stdout, (words, done.stderr)


MISUSE: Mapping[str, tuple[tuple[str, ...], str]] = {
    "a glob of nothing": (("--trainable", "nothing.*"), "there are 'attn.weight' [6, 8]"),
    "no such rank": (("--lora", "0"), "rank: expected a whole number of 1 or more, got 0"),
    "an adapter beside a trained weight": (("--trainable", "head.*", "--lora", "2:head*"), "itself trained"),
    "a rate that is no number": (("--trainable", "*", "--learning-rate", "nan"), "learning_rate: expected"),
    "a clip of nothing": (("--trainable", "*", "--clip-norm", "0"), "clip_norm: expected a positive number"),
    "ranges of nothing": (("--trainable", "head.*", "--quantize", "int8"), "needs calibration data"),
    "integers outside": (
        ("--trainable", "head.*", "--quantize", "int8", "--calibration", "samples.npz", "--io", "int8"), "io: a train"
    ),
    "a search": (
        ("--trainable", "head.*", "--quantize", "int8", "--calibration", "samples.npz", "--accuracy-budget", "1%"),
        "cannot be combined with trainable",
    ),
    "another format": (("--trainable", "head.*", "--to", "onnx"), "only a bundle can be trainable"),
}  # fmt: skip


@pytest.mark.parametrize("name", MISUSE)
def test_impossible_training_options_are_refused(home: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(home)
    options, says = MISUSE[name]
    done = command("convert", "model.onnx", "-o", "refused.out", *options)
    assert done.exit_code == 3 and says in done.stderr and not Path("refused.out").exists()


def test_the_device_wheel_can_take_part_in_federated_learning(tmp_path: Path) -> None:
    build = [sys.executable, "-m", "pip", "wheel", str(ROOT / "wheels" / "federated"), "--no-deps", "--no-index"]
    subprocess.run([*build, "--no-build-isolation", "-q", "-w", str(tmp_path)], check=True, timeout=300)
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        (metadata,) = (name for name in names if name.endswith("METADATA"))
        needs = re.findall(r"^Requires-Dist: (.*)$", archive.read(metadata).decode(), re.M)
    held = {name for name in names if ".dist-info/" not in name}
    wanted = {path.relative_to(ROOT).as_posix() for path in (ROOT / "federated").rglob("*.py")}
    assert wanted | {"federated/py.typed"} == held
    assert any("flwr" in need for need in needs) and not any(need.startswith("msedge") for need in needs)
    assert not any(heavy in need for need in needs for heavy in ("jax", "onnx", "numba"))


# Fleets.


@pytest.fixture(scope="module")
def example(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `examples/federated/make_fleet.py` leaves."""
    folder = tmp_path_factory.mktemp("example")
    patch = pytest.MonkeyPatch()
    with patch.context() as only:
        only.setattr(sys, "argv", ["make_fleet.py", str(folder)])
        runpy.run_path(str(ROOT / "examples" / "federated" / "make_fleet.py"), run_name="__main__")
    return folder


@pytest.fixture
def fleet(example: Path, tmp_path: Path) -> Path:
    """A copy of it, for two rounds."""
    folder = tmp_path / "fleet"
    folder.mkdir()
    for name in ("model.mslite", "devices.npz", "run.toml"):
        shutil.copy(example / name, folder)
    text = (folder / "run.toml").read_text().replace("count = 5", "count = 2").replace("every = 5", "every = 2")
    (folder / "run.toml").write_text(text)
    return folder


def simulated(folder: Path) -> tuple[Result, dict[str, Any]]:
    """A run of a fleet, and its report."""
    done = command("federate", folder / "run.toml", "--simulate", "0")
    report = folder / "run.json"
    return done, json.loads(report.read_text()) if report.exists() else {}


def test_the_fleet_of_the_examples_learns(example: Path, tmp_path: Path) -> None:
    page = tmp_path / "run.html"
    done = command("federate", example / "run.toml", "--simulate", "0", "--report", page)
    assert done.exit_code == 0 and "refused: nothing" in done.stdout, done.stderr
    summary = json.loads((example / "run.json").read_text())["rows"][-1]["evaluation"]["training"]["summary"]
    assert summary["accuracy_after"]["mean"] > summary["accuracy_before"]["mean"] > 0.3
    assert "device-03" in page.read_text()


def alter(folder: Path, change: Callable[[Arrays], Arrays]) -> None:
    """Change the devices' examples. `first`: those of device-00."""
    with np.load(folder / "devices.npz") as archive:
        arrays = dict(archive)
    np.savez(folder / "devices.npz", **(arrays | change(arrays | {"first": arrays["device"] == "device-00"})))


@pytest.mark.parametrize("bad", [np.nan, np.inf, 1e30])
def test_a_device_with_corrupt_examples_is_named_and_excluded(fleet: Path, bad: float) -> None:
    alter(fleet, lambda held: {"x": np.where(held["first"][:, None], np.float32(bad), held["x"])})
    done, report = simulated(fleet)
    assert done.exit_code == 0 and sum(report["refused"].values()) == 2
    assert all(row["answered"] == 9 for row in report["rows"])
    assert done.stderr.count("device-00: refused: ") == 1, "told once, not every round"


def test_a_device_with_examples_of_one_class_takes_part(fleet: Path) -> None:
    alter(fleet, lambda held: {"labels": np.where(held["first"], 3, held["labels"])})
    done, report = simulated(fleet)
    assert done.exit_code == 0 and not report["refused"]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda held: {"x": held["x"].astype(np.float64)}, "float64"),
        (lambda held: {"x": held["x"][:, :59]}, "59"),
        (lambda held: {"x": np.full_like(held["x"], np.nan)}, "finite"),
        (lambda held: {"x": held["x"][:7]}, "one length"),
        (lambda held: {name: held[name][:0] for name in ("x", "labels", "device")}, "no examples"),
    ],
)
def test_a_fleet_that_cannot_learn_says_why(fleet: Path, change: Callable[[Arrays], Arrays], says: str) -> None:
    alter(fleet, change)
    done, _ = simulated(fleet)
    assert done.exit_code == 3 and says in done.stderr


def test_a_page_that_cannot_be_written_is_refused_before_the_first_round(fleet: Path) -> None:
    done = command("federate", fleet / "run.toml", "--simulate", "0", "--report", fleet / "no" / "run.html")
    assert done.exit_code == 2 and "create it first" in done.stderr and not (fleet / "run.json").exists()


# A device alone.


@pytest.fixture(scope="module")
def learner(home: Path) -> Path:
    path = home / "learner.mslite"
    msedge.convert(home / "model.onnx", output=path, trainable="*")
    return path


def test_damaged_state_replaces_nothing(home: Path, learner: Path, tmp_path: Path) -> None:
    model = lite_runtime.load(learner)
    examples = {"x": np.load(home / "x.npy"), "labels": np.load(home / "labels.npy")}
    model.run(examples, "train_step")
    model.save_state(tmp_path / "mine.state")
    kept = (tmp_path / "mine.state").read_bytes()
    model.run(examples | {"x": np.full_like(examples["x"], np.nan)}, "train_step")
    with pytest.raises(InputError, match=r"expected finite numbers, got others in .*head\.weight"):
        model.save_state(tmp_path / "mine.state")
    assert (tmp_path / "mine.state").read_bytes() == kept
    model.load_state(tmp_path / "mine.state")
    assert np.isfinite(model.run(examples, "train_step")["loss"])


@pytest.mark.parametrize("damage", ["empty", "half", "text", "archive"])
def test_damaged_arrays_are_refused(home: Path, learner: Path, tmp_path: Path, damage: str) -> None:
    whole = (home / "x.npy").read_bytes()
    archive = (home / "samples.npz").read_bytes()[:400]
    path = tmp_path / "x.npy"
    path.write_bytes({"empty": b"", "half": whole[:150], "text": b"x = 1\n", "archive": archive}[damage])
    done = command("run", learner, "-i", f"x={path}")
    assert done.exit_code == 3 and "x.npy" in done.stderr
    words = [sys.executable, "-m", "lite_runtime", "run", str(learner), "-i", f"x={path}"]
    ran = subprocess.run(words, capture_output=True, text=True, timeout=300)
    assert ran.returncode == 3 and "not a readable .npy file" in ran.stderr and "Traceback" not in ran.stderr


def test_help_is_plain() -> None:
    for name in ("federate", "convert", "run"):
        assert "\\[" not in command(name, "--help").stdout
