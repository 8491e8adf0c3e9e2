"""The device's wheel: small, complete, and enough to run a bundle natively where there is no compiler."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest

from lite_runtime import bundle
from lite_runtime.errors import MsedgeError
from lite_runtime.graph import Graph, Node, Value
from lite_runtime.native import build, wheel
from lite_runtime.native.target import host
from lite_runtime.targets import TARGETS

ROOT = Path(__file__).parents[3]
RUN = """
import json, resource, sys, numpy as np, lite_runtime
from importlib.util import find_spec
model = lite_runtime.load(sys.argv[1], backend=sys.argv[2])
y = model.run({"x": np.arange(24, dtype=np.float32).reshape(3, 8)})["y"]
planner = "lite_runtime.planning.plan" in sys.modules
print(json.dumps([y.tolist(), lite_runtime.__file__, find_spec("numba") is not None, planner]))
"""


def test_a_device_gets_everything_except_what_only_compiling_needs() -> None:
    files = wheel.device_files(str(ROOT / "lite_runtime"))
    kept = "running/session.py bundle/reading.py reference/linear.py ops/linear.py native/build.py kernels/_opcodes.py"
    assert set(kept.split()) <= set(files)
    left_out = "native/simd.py native/compile.py native/wheel.py native/checking.py native/portable.py"
    assert not {*left_out.split(), "kernels/gemm.py", "kernels/_math.py"} & set(files)
    assert not any(path.startswith("native/codegen") for path in files)
    assert {"steps/__init__.py", "steps/declaration.py", "steps/gemm.py", "planning/listing.py"} <= set(files)


def test_no_file_of_a_device_names_the_compiler() -> None:
    """Tables that planning shares with kernels are in separate files."""
    for path in wheel.device_files(str(ROOT / "lite_runtime")):
        text = (ROOT / "lite_runtime" / path).read_text(encoding="utf-8")
        assert "import numba" not in text and "from numba" not in text and "lite_runtime.native.simd" not in text, path


def test_an_unknown_target_is_refused(tmp_path: Path) -> None:
    with pytest.raises(MsedgeError, match="got z80"):
        wheel.pack(str(tmp_path), ["z80"])


def test_a_systems_name_stands_for_all_of_its_targets() -> None:
    assert [t.name for t in wheel.expanded(["linux-aarch64"])] == ["aarch64-i8mm", "aarch64-dotprod", "aarch64"]
    assert [t.name for t in wheel.expanded(["armv7", "linux-armv7"])] == ["armv7"]
    assert {t.name for t in wheel.expanded(list(wheel.SYSTEMS))} == {t.name for t in TARGETS}


def test_a_wheels_platform_is_that_of_its_targets() -> None:
    """A wheel of two processors could be installed on neither."""
    assert wheel.platforms(wheel.DEFAULTS) == "manylinux2014_x86_64.musllinux_1_1_x86_64"
    assert wheel.platforms(["aarch64", "aarch64-i8mm"]) == "manylinux2014_aarch64.musllinux_1_1_aarch64"
    with pytest.raises(MsedgeError, match=r"one system and processor in a wheel, .* linux-aarch64, linux-riscv64"):
        wheel.platforms(["linux-riscv64", "aarch64"])


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, for this machine's target alone."""
    target = host()
    if target is None or not build.available():
        pytest.skip("no native kernels on this machine")
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "pip", "wheel", str(ROOT / "wheels" / "runtime"), "--no-deps", "--no-index"]
    done = subprocess.run(
        [*command, "--no-build-isolation", "--quiet", "--wheel-dir", str(folder)],
        env={**os.environ, "MSEDGE_TARGETS": target.name},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    (path,) = folder.glob("*.whl")
    return path


def test_the_archive_in_the_wheel_has_no_times(built: Path) -> None:
    """So that two builds of the same files have equal bits (tests/test_release.py)."""
    with zipfile.ZipFile(built) as outer, outer.open("lite_runtime/reference.zip") as file:
        entries = zipfile.ZipFile(file).infolist()
    assert entries and {(entry.date_time, entry.external_attr) for entry in entries} == {
        ((1980, 1, 1, 0, 0, 0), 0o644 << 16)
    }


@pytest.fixture(scope="module")
def device(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Python of an environment that holds NumPy and the wheel, nothing else."""
    folder = tmp_path_factory.mktemp("device")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder / "venv")], check=True)
    python = folder / "venv" / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--no-deps", "--no-index", "--quiet"]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    subprocess.run([*pip, str(built)], check=True, env=environment)
    assert np.__file__
    numpy = Path(np.__file__).parent
    (folder / "numpy").mkdir()
    for there in (numpy, numpy.with_name("numpy.libs")):
        if there.exists():
            (folder / "numpy" / there.name).symlink_to(there)
    (site,) = (folder / "venv" / "lib").glob("python*/site-packages")
    (site / "numpy.pth").write_text(str(folder / "numpy"), encoding="utf-8")
    return python


def start(device: Path, model: Path, cache: Path | str, backend: str = "native") -> tuple[list[list[float]], bool]:
    """A result, and whether the process had to plan."""
    environment = {"MSEDGE_CACHE": str(cache), "PATH": os.environ["PATH"]}
    command = [str(device), "-I", "-c", RUN, str(model), backend]
    if "MSEDGE_TARGET" in os.environ:
        environment["MSEDGE_TARGET"] = os.environ["MSEDGE_TARGET"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0 and not done.stderr, done.stderr
    result, file, numba, planned = json.loads(done.stdout)
    assert str(device.parents[1]) in file and not numba
    return result, planned


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rng = np.random.default_rng(0)
    graph = Graph(
        (Value("x", "float32", ("n", 8)),),
        (Value("y", "float32", ("n", 4)),),
        (Node("MatMul", ("x", "w"), ("z",)), Node("Relu", ("z",), ("y",))),
        {"w": rng.standard_normal((8, 4)).astype(np.float32)},
    )
    path = tmp_path_factory.mktemp("model") / "model.mslite"
    bundle.write(path, {"predict": graph})
    return path


@pytest.mark.slow
def test_the_wheel_runs_a_bundle_natively_without_a_compiler(device: Path, model: Path, tmp_path: Path) -> None:
    wanted, _ = start(device, model, tmp_path / "unused", "reference")
    first, planned = start(device, model, tmp_path / "cache")
    again, planned_again = start(device, model, tmp_path / "cache")
    assert np.allclose(first, wanted, rtol=1e-5) and again == first
    assert planned and not planned_again
    assert {path.name for path in (tmp_path / "cache").iterdir()} == {"kernels", "programs"}


@pytest.mark.slow
def test_the_wheel_runs_where_nothing_can_be_written(device: Path, model: Path, tmp_path: Path) -> None:
    wanted, _ = start(device, model, tmp_path)
    made, planned = start(device, model, "/proc/no/such/folder")
    assert made == wanted and planned


@pytest.mark.slow
def test_the_wheel_is_small_and_holds_a_licence(built: Path, device: Path) -> None:
    """Installed files with the kernels of one target; four more targets add 0.65 MB. Of these, checking signatures is
    0.03 MB, LiteRT's integers of 16 bits, recurrent cells and Softmax 0.05 MB, the table of targets and asking the
    processor 0.02 MB, buffers that live from record to record and targets with small memory 0.01 MB, other systems'
    libraries and what these systems are asked 0.02 MB. Language models are 0.85 MB: tokenizers with their tables of
    Unicode, generation, adapters, learning, embeddings, five families of kernels. Updates, which are documents of a hub
    and deltas, are 0.15 MB; explanations 0.18 MB, choosing examples for labels 0.08 MB, texts of
    encoder-decoders 0.01 MB."""
    (site,) = (device.parents[1] / "lib").glob("python*/site-packages")
    installed = [path for path in (site / "lite_runtime").rglob("*") if path.is_file()]
    assert any(path.suffix == ".pyc" for path in installed)
    assert sum(path.stat().st_size for path in installed) < 4_620_000
    names = zipfile.ZipFile(built).namelist()
    assert "lite_runtime/LICENSE" in names and not any("kernels/gemm" in name for name in names)
    assert not any(name.startswith("lite_runtime/reference/") for name in names)
