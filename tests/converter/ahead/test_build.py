"""A built folder computes in Node what the runtime computes here; what it cannot run is refused by name."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from gzip import compress
from pathlib import Path

import numpy as np
import pytest

import lite_runtime
from converter import convert
from converter.ahead import build, building
from lite_runtime import bundle
from lite_runtime._files import write_atomically
from lite_runtime.errors import InputError, MsedgeError, UnsupportedOpError
from lite_runtime.graph import Array, Value, numpy_dtype
from lite_runtime.native.target import host, runnable
from tests.converter.ahead import models, node
from tests.converter.support import Builder

pytestmark = pytest.mark.skipif(host() is None, reason="no native kernels on this processor")
SHARED = ("mlperftiny_ic_resnet8_int8.tflite", "mlperftiny_kws_dscnn_int8.tflite", "onnxzoo_mnist_8.onnx")


def random(values: tuple[Value, ...], seed: int) -> dict[str, Array]:
    rng = np.random.default_rng(seed)

    def one(value: Value) -> Array:
        shape = tuple(d if isinstance(d, int) else 1 for d in value.shape or ())
        dtype = numpy_dtype(value.dtype)
        if dtype.kind == "f":
            return rng.standard_normal(shape).astype(dtype)
        if dtype.itemsize == 1 and dtype.kind in "iu":
            return rng.integers(np.iinfo(dtype).min, np.iinfo(dtype).max + 1, shape).astype(dtype)
        return rng.integers(0, 2, shape).astype(dtype)

    return {value.name: one(value) for value in values}


def check(source: bytes | str, folder: Path) -> None:
    """Build, run on fresh inputs in Node, compare with this machine's kernels."""
    model = lite_runtime.load(source)
    inputs = random(model.inputs(), seed=5)
    build(source, folder, shapes={name: array.shape for name, array in inputs.items()})
    wanted, (found, answer) = model.run(inputs), node.run(folder, inputs)
    assert answer["same"] and answer["bundle"] == model.bundle.digest
    assert [row["name"] for row in answer["compared"]] == list(wanted)
    assert list(found) == list(wanted)
    for name, want in wanted.items():
        got = found[name]
        assert (got.shape, got.dtype) == (want.shape, want.dtype)
        if want.dtype.kind == "f":
            assert np.abs(got - want).max() <= 1e-5 * np.abs(want).max()
        else:
            np.testing.assert_array_equal(got, want)


@node.needs_node
@pytest.mark.parametrize("name", models.MODELS)
def test_node_computes_what_kernels_compute_here(name: str, tmp_path: Path) -> None:
    check(models.MODELS[name](), tmp_path / "built")


@node.needs_node
@pytest.mark.skipif("x86-64-v2" not in {target.name for target in runnable()}, reason="another processor")
def test_floats_have_the_bits_of_the_target_that_does_not_fuse_either(tmp_path: Path) -> None:
    (tmp_path / "model.mslite").write_bytes(models.transformer())
    x = np.random.default_rng(2).standard_normal((1, 9, 16)).astype(np.float32)
    np.save(tmp_path / "x.npy", x)
    build(tmp_path / "model.mslite", tmp_path / "built")
    code = (
        "import sys, numpy, lite_runtime\n"
        "model = lite_runtime.load('model.mslite', backend='native')\n"
        "[y] = model.run({'x': numpy.load('x.npy')}).values()\n"
        "numpy.save('y.npy', y)\n"
    )
    environment = {**os.environ, "MSEDGE_TARGET": "x86-64-v2", "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=environment, check=True)
    [found] = node.run(tmp_path / "built", {"x": x}).outputs.values()
    assert found.tobytes() == np.load(tmp_path / "y.npy").tobytes()


@node.needs_node
@pytest.mark.parametrize("name", SHARED)
def test_real_models(name: str, shared_models: Path, tmp_path: Path) -> None:
    convert(shared_models / name, output=tmp_path / "model.mslite")
    check(str(tmp_path / "model.mslite"), tmp_path / "built")
    if name == SHARED[0]:
        assert len(compress((tmp_path / "built/kernels.wasm").read_bytes(), 9)) <= 40 << 10


@node.needs_node
def test_wrong_calls_are_told(tmp_path: Path) -> None:
    build(models.dense(), tmp_path / "built")
    told = node.ask(tmp_path / "built", "throw")
    parts = {
        "noFile": "none.msflat cannot be read",
        "noSource": "model: expected a URL, a path or bytes, got a number",
        "noKernels": "kernels: expected the module with the SHA-256",
        "noModel": "expected 96 bytes or more, got 4",
        "noInputs": "inputs: expected the names x, got none",
        "unknown": "inputs: expected the names x, got x, other",
        "wrongType": "input x: expected a Float32Array of 4 elements (float32 [1,4]), got a Uint8ClampedArray of 4",
        "wrongLength": "got a Float32Array of 3",
        "notArrays": "got an Array of 4",
    }
    assert told.keys() == parts.keys()
    for name, part in parts.items():
        assert told[name].startswith("MsedgeError: ") and part in told[name], name


@node.needs_node
def test_an_index_outside_is_told_with_its_operator(tmp_path: Path) -> None:
    b = Builder()
    made = convert(b.model(b("Gather", b.input("x", (5,)), b.input("i", (2,), np.int64)))).bundle
    assert made is not None
    build(made, tmp_path / "built")
    x = np.arange(5, dtype=np.float32)
    [picked] = node.run(tmp_path / "built", {"x": x, "i": np.array([4, -5])}).outputs.values()
    np.testing.assert_array_equal(picked, [4, 0])
    with pytest.raises(AssertionError, match=r"MsedgeError: Gather .*: an index is outside the tensor"):
        node.run(tmp_path / "built", {"x": x, "i": np.array([0, 5])})


def test_a_folder_has_what_its_package_names(tmp_path: Path) -> None:
    made = build(models.several(), tmp_path / "built")
    there = {path.name: path.stat().st_size for path in (tmp_path / "built").iterdir()}
    assert there == dict(made.files)
    package = json.loads((tmp_path / "built/package.json").read_text())
    assert set(package["files"]) <= set(there)
    types = (tmp_path / "built/msedge.d.mts").read_text()
    assert '"i": BigInt64Array;' in types and '"c": Uint8Array;' in types
    assert "new BigInt64Array(3)" in (tmp_path / "built/README.md").read_text()


def test_equal_bundles_give_equal_files(tmp_path: Path) -> None:
    for name in ("one", "two"):
        build(models.dense(), tmp_path / name)
        build(models.dense(), tmp_path / name)  # replaces what it made
    for path in (tmp_path / "one").iterdir():
        assert path.read_bytes() == (tmp_path / "two" / path.name).read_bytes()


def test_a_folder_of_others_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "package.json").write_text("{}")
    with pytest.raises(MsedgeError, match=r"did not make \(package.json\).*choose a new folder"):
        build(models.dense(), tmp_path)
    with pytest.raises(MsedgeError, match="choose another folder"):
        build(models.dense(), tmp_path / "package.json")
    assert [path.name for path in tmp_path.iterdir()] == ["package.json"]


@pytest.mark.parametrize("written", range(7))
def test_a_build_that_was_killed_is_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, written: int) -> None:
    """After any number of files: what is there is no model yet, and the same command makes one."""
    left = iter([*[True] * written, False])

    def killed(path: str, content: bytes) -> None:
        if not next(left, False):
            Path(path).with_name(f".msedge-{0:016x}.tmp").write_bytes(content[:5])
            raise KeyboardInterrupt
        write_atomically(path, content)

    with monkeypatch.context() as patch, contextlib.suppress(KeyboardInterrupt):
        patch.setattr(building, "write_atomically", killed)
        build(models.dense(), tmp_path)
    assert (tmp_path / "model.msflat").exists() == (written >= 6)
    assert build(models.dense(), tmp_path).files.keys() <= {path.name for path in tmp_path.iterdir()}


def refused(source: bytes, kind: type[Exception], match: str, folder: Path, **shapes: tuple[int, ...]) -> None:
    with pytest.raises(kind, match=match):
        build(source, folder, shapes=shapes)
    assert not folder.exists()


def test_what_has_no_kernel_is_refused_by_name(tmp_path: Path) -> None:
    b = Builder()
    x = b.input("x", (2, 2))
    made = convert(b.model(b("Relu", b("Det", x)))).bundle
    assert made is not None
    refused(made, UnsupportedOpError, r"Det .*msedge cut", tmp_path / "built")
    b = Builder()
    made = convert(b.model(b("NonZero", b.input("x", (2, 2))))).bundle
    assert made is not None
    refused(made, UnsupportedOpError, "NonZero", tmp_path / "built")


def test_control_flow_is_refused_by_name(tmp_path: Path) -> None:
    inner = Builder()
    other = Builder(seed=1)
    b = Builder()
    x, when = b.input("x", (2, 2)), b.input("when", (), np.bool_)
    graphs = []
    for build_of, op in ((inner, "Relu"), (other, "Neg")):
        made = build_of(op, x)
        graph = build_of.model(made).graph
        graph.ClearField("input")
        graphs.append(graph)
    y = b("If", when, then_branch=graphs[0], else_branch=graphs[1])
    made = convert(b.model(y)).bundle
    assert made is not None
    refused(made, UnsupportedOpError, r"If .*(control flow|NumPy)", tmp_path / "built")


def test_open_sizes_are_refused_with_the_option_that_closes_them(tmp_path: Path) -> None:
    b = Builder()
    made = convert(b.model(b("Relu", b.input("x", ("n", "m"))))).bundle
    assert made is not None
    refused(made, InputError, r"'x' \[n, m\].*--input-shape x=1,1", tmp_path / "built")
    refused(made, InputError, "expected shapes of the inputs x, got one of y", tmp_path / "built", y=(2, 3))
    assert build(made, tmp_path / "built", shapes={"x": (2, 3)}).steps == 1


def test_an_open_batch_is_one_unless_it_is_given(tmp_path: Path) -> None:
    b = Builder()
    made = convert(b.model(b("Add", b.input("x", ("n", 3)), b.input("z", ("n", 3))))).bundle
    assert made is not None
    wrong = {"x": (2, 4), "z": (2, 3)}
    refused(made, InputError, r"'x': expected a shape like \['n', 3\], got \[2, 4\]", tmp_path / "built", **wrong)
    refused(made, InputError, r"'z' \[n, 3\].*--input-shape z=1,3", tmp_path / "built", x=(2, 3))
    assert build(made, tmp_path / "built").inputs == {"x": (1, 3), "z": (1, 3)}
    assert build(made, tmp_path / "built", shapes={"x": (2, 3), "z": (2, 3)}).inputs["x"] == (2, 3)


def test_text_and_state_are_refused(tmp_path: Path) -> None:
    b = Builder()
    h = b("Add", b.input("x", (2,)), b.input("h", (2,)))
    stateful = convert(b.model(b("Relu", h), h), state={"h": h}).bundle
    assert stateful is not None
    refused(stateful, UnsupportedOpError, "keeps state between runs", tmp_path / "built")
    graph = bundle.read(models.dense()).signatures["predict"]
    text = graph.replace(inputs=(*graph.inputs, Value("t", "string", (1,))))
    refused(bundle.write(None, {"predict": text}), UnsupportedOpError, "input 't' is a string", tmp_path / "built")


def test_unknown_targets_and_signatures_are_listed(tmp_path: Path) -> None:
    with pytest.raises(MsedgeError, match="expected a target of wasm32, got z80"):
        build(models.dense(), tmp_path / "built", "z80")
    with pytest.raises(InputError, match="expected a signature of predict, got 'train'"):
        build(models.dense(), tmp_path / "built", signature="train")
