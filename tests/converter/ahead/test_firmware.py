"""Models on emulated Cortex-M boards: the bits of this machine's results, memory as it was told, and `msedge build`'s
firmware."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import lite_runtime
from converter import Training, convert
from converter.ahead import build
from converter.ahead.building import Built
from lite_runtime.errors import MsedgeError
from lite_runtime.graph import Array
from lite_runtime.native.target import host
from lite_runtime.targets import Target
from tests import boards
from tests.converter.ahead import models

pytestmark = pytest.mark.skipif(host() is None, reason="no native kernels on this processor")
each_target = pytest.mark.parametrize("target", boards.TARGETS, ids=lambda target: target.name)
PROGRAM = Path(__file__).with_name("board.c")
ROUNDS = 3
EXAMPLE = 256
"""Bytes of stack of the test's own functions."""


class _Numbers:
    """The numbers of `board.c`."""

    def __init__(self) -> None:
        self._state = 1

    def array(self, dtype: str, shape: tuple[int, ...]) -> Array:
        count = int(np.prod(shape))
        found = np.empty(count, np.uint32)
        for i in range(count):
            self._state = (self._state * 1664525 + 1013904223) & 0xFFFFFFFF
            found[i] = self._state >> 16
        if dtype == "float32":
            return (found.astype(np.uint8).view(np.int8) / np.float32(32)).astype(np.float32).reshape(shape)
        if dtype in ("bool", "int64"):
            return (found % (2 if dtype == "bool" else 3)).astype(dtype).reshape(shape)
        kind = np.dtype(dtype)
        return found.astype(f"u{kind.itemsize}").view(kind).reshape(shape)


def expected(bundle: bytes | Path, made: Built) -> Iterator[tuple[str, bytes]]:
    """What the board prints for every output and state, by this machine's kernels. State is given as inputs, as on the
    board."""
    held = lite_runtime.bundle.read(bundle)
    model = lite_runtime.load(held.data).explicit(list(made.signatures))
    numbers, state = _Numbers(), dict(held.state)
    for _ in range(ROUNDS):
        for name, shapes in made.signatures.items():
            use = held.uses.get(name)
            reads, writes = (use.reads, use.writes) if use else ({}, {})
            dtypes = {value.name: value.dtype for value in held.signatures[name].inputs}
            inputs = {key: numbers.array(dtypes[key], shape) for key, shape in shapes.items()}
            outputs = model.run({**inputs, **{key: state[of] for key, of in reads.items()}}, name)
            state |= {of: outputs[key] for key, of in writes.items()}
            yield from ((key, value.tobytes()) for key, value in outputs.items() if key not in writes)
    used = {of for use in held.uses.values() for of in (*use.reads.values(), *use.writes.values())}
    yield from ((name, value.tobytes()) for name, value in state.items() if name in used)


def printed(target: Target, folder: Path, built: Built) -> tuple[list[tuple[str, bytes]], int]:
    """What the board prints, and how much stack it took; memory must be what the folder says."""
    src = folder / "src"
    library = src / target.cpu / "libmsedge_kernels.a"
    sources = [PROGRAM, src / "msedge.c", src / "model.S", library]
    program = boards.compiled(target, sources, folder / "test.elf", f"-I{src}", f"-DROUNDS={ROUNDS}")
    first, *lines, last = boards.ran(target, program).splitlines()
    assert built.ram is not None and first == f"needed {built.ram.memory}"
    parts = (line.rpartition(" ") for line in lines)
    return [(name, bytes.fromhex(data)) for name, _, data in parts], int(last.split()[1])


def lstm(quantize: str) -> bytes:
    """A small recurrent classifier, quantised."""
    b = models.Builder()
    x = b("Transpose", b.input("x", (1, 9, 6)), perm=[1, 0, 2])
    _, last, _ = b("LSTM", x, b.weight(1, 48, 6), b.weight(1, 48, 12), b.weight(1, 96), outputs=3, hidden_size=12)
    y = b("Gemm", b("Squeeze", last, b.const(np.array([0]))), b.weight(12, 5), b.weight(5))
    rows = np.random.default_rng(1).standard_normal((16, 1, 9, 6)).astype(np.float32)
    made = convert(b.model(y), quantize=quantize, calibration=[{"x": row} for row in rows]).bundle
    assert isinstance(made, bytes)
    return made


def last_layer() -> bytes:
    """A quantised convolution block whose last layer is trained."""
    b = models.Builder()
    x = b.input("x", (1, 3, 13, 11))
    features = b("Flatten", b("GlobalAveragePool", b("Relu", b("Conv", x, b.weight(8, 3, 3, 3), b.weight(8)))))
    weights, bias = b.weight(8, 3), b.weight(3)
    rows = np.random.default_rng(1).standard_normal((16, 3, 13, 11)).astype(np.float32)
    made = convert(
        b.model(b("Gemm", features, weights, bias)),
        quantize="int8",
        calibration=[{"x": row[None]} for row in rows],
        trainable=Training(trainable=[weights, bias]),
    ).bundle
    assert isinstance(made, bytes)
    return made


MODELS = {
    "int8": models.int8_convnet,
    "float32": models.float_convnet,
    "int16x8": lambda: lstm("int16x8"),
    "lstm": lambda: lstm("int8"),
    "several": models.several,
    "training": last_layer,
    "adam": models.trainable,  # powers in float64, which M4 and some M7 do not have
}


@boards.needs_boards
@pytest.mark.parametrize("model", MODELS)
@each_target
def test_boards_give_this_machines_bits(target: Target, model: str, tmp_path: Path) -> None:
    bundle = MODELS[model]()
    made = build(bundle, tmp_path / "made", target.name)
    found, stack = printed(target, tmp_path / "made", made)
    assert found == list(expected(bundle, made))
    assert made.ram is not None and stack <= made.ram.stack + EXAMPLE


@boards.needs_boards
@pytest.mark.parametrize("name", ["ic_resnet8", "kws_dscnn", "ad_autoencoder"])
@each_target
def test_models_of_mlperf_tiny(shared_models: Path, target: Target, name: str, tmp_path: Path) -> None:
    made = convert(shared_models / f"mlperftiny_{name}_int8.tflite").bundle
    assert isinstance(made, bytes)
    built = build(made, tmp_path / "made", target.name)
    found, _ = printed(target, tmp_path / "made", built)
    assert found == list(expected(made, built))


@boards.needs_boards
def test_resnet8_takes_little_of_a_cortex_m7(shared_models: Path, tmp_path: Path) -> None:
    """Code: kernels and the reader. RAM: TensorFlow Lite Micro's arena is 55,984 bytes (tflite-micro of 2026-10-23)."""
    made = convert(shared_models / "mlperftiny_ic_resnet8_int8.tflite").bundle
    assert isinstance(made, bytes)
    built = build(made, tmp_path / "made", "cortex-m7", ram=64 << 10)
    src, target = tmp_path / "made/src", boards.TARGETS[1]
    reader, flags = tmp_path / "msedge.o", boards.BOARDS[target.name].flags.split()
    subprocess.run(["arm-none-eabi-gcc", *flags, "-Os", "-c", str(src / "msedge.c"), "-o", str(reader)], check=True)
    sized = ["arm-none-eabi-size", str(src / "cortex-m7/libmsedge_kernels.a"), str(reader)]
    rows = subprocess.run(sized, capture_output=True, text=True, check=True).stdout.splitlines()[1:]
    assert sum(int(row.split()[0]) for row in rows) <= 20 << 10
    assert built.files["src/model.msflat"] <= 100 << 10
    assert built.ram is not None and built.ram.memory <= 55_984 and built.ram.stack <= 2 << 10


@boards.needs_boards
@each_target
def test_the_firmware_that_is_written_runs(target: Target, tmp_path: Path) -> None:
    build(last_layer(), tmp_path / "made", target.name)
    command = ["make", "-s", "-C", str(tmp_path / "made/firmware"), "run"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    text = done.stdout + done.stderr
    for signature in ("predict", "train_step"):
        assert f"{signature}: as on the machine that built it\n" in text
    assert "warning" not in text


def test_one_folder_is_a_library_a_module_and_firmware(tmp_path: Path) -> None:
    made = build(models.int8_convnet(), tmp_path / "made", "cortex-m7")
    there = [path for path in (tmp_path / "made").rglob("*") if path.is_file()]
    files = {path.relative_to(tmp_path / "made").as_posix() for path in there}
    assert files == set(made.files)
    assert {"library.properties", "zephyr/module.yml", "src/cortex-m7/libmsedge_kernels.a", "README.md"} <= files
    for name in ("firmware/Makefile", "zephyr/CMakeLists.txt"):
        text = (tmp_path / "made" / name).read_text()
        assert "src/cortex-m7/libmsedge_kernels.a" in text and "@" not in text.replace("$@", "")
    assert made.ram is not None
    assert f"#define MSEDGE_MODEL_MEMORY {made.ram.memory}\n" in (tmp_path / "made/src/msedge_model.h").read_text()
    build(models.int8_convnet(), tmp_path / "made", "cortex-m7", ram=made.ram.total)  # the same folder again


def test_too_little_ram_is_refused_with_what_would_fit(tmp_path: Path) -> None:
    bundle = last_layer()
    whole = build(bundle, tmp_path / "whole", "cortex-m7").ram
    alone = build(bundle, tmp_path / "alone", "cortex-m7", signatures=["predict"]).ram
    assert whole is not None and alone is not None and alone.total < whole.total
    told = rf"needs {whole.total} \(.* of arena.*\); predict.* would fit without the others: --signature predict"
    with pytest.raises(MsedgeError, match=told):
        build(bundle, tmp_path / "none", "cortex-m7", ram=whole.total - 1)
    with pytest.raises(MsedgeError, match=r"an arena of at most 0 would fit, and .* alone takes \d+ of it"):
        build(bundle, tmp_path / "none", "cortex-m7", ram=1000)
    with pytest.raises(MsedgeError, match=r"a microcontroller for a limit of RAM \(cortex-m55.*\), got wasm32"):
        build(bundle, tmp_path / "none", "wasm32", ram=1 << 20)
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize("target", ["wasm32", "x86-64-v3"])
def test_a_folder_of_another_kind_is_left_alone(target: str, tmp_path: Path) -> None:
    build(models.int8_convnet(), tmp_path / "made", target)
    with pytest.raises(MsedgeError, match="has files that msedge build did not make"):
        build(models.int8_convnet(), tmp_path / "made", "cortex-m4")
