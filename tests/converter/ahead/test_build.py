"""A built folder computes in Node what the runtime computes here; what it cannot run is refused by name."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from fnmatch import fnmatch
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
_NOT_PACKED = {"package.json", "README.md"}  # npm packs these without being told
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
    wanted, ([found, again], _, answer) = model.run(inputs), node.run(folder, inputs, inputs)
    assert answer["bundle"] == model.bundle.digest
    assert [row["name"] for row in answer["compared"]] == list(wanted)
    assert all(again[name].tobytes() == array.tobytes() for name, array in found.items())
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


not_fused = pytest.mark.skipif("x86-64-v2" not in {target.name for target in runnable()}, reason="another processor")


def without_fusing(bundle: bytes, scratch: Path, *runs: dict[str, Array], signature: str) -> tuple[list[Array], Array]:
    """The first output of each run, and all state after them as bytes, by the kernels of x86-64-v2."""
    (scratch / "model.mslite").write_bytes(bundle)
    np.savez(scratch / "runs.npz", *(array for run in runs for array in run.values()))
    code = (
        "import sys, numpy, lite_runtime\n"
        "model = lite_runtime.load('model.mslite', backend='native')\n"
        "arrays, names = list(numpy.load('runs.npz').values()), sys.argv[2:]\n"
        "runs = [dict(zip(names, arrays[i:])) for i in range(0, len(arrays), len(names))]\n"
        "found = [next(iter(model.run(run, sys.argv[1]).values())) for run in runs]\n"
        "state = b''.join(array.tobytes() for array in model.state_dict().values())\n"
        "numpy.savez('found.npz', *found, numpy.frombuffer(state, numpy.uint8))\n"
    )
    environment = {**os.environ, "MSEDGE_TARGET": "x86-64-v2", "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", code, signature, *runs[0]]
    subprocess.run(command, cwd=scratch, env=environment, check=True)
    *found, state = np.load(scratch / "found.npz").values()
    return found, state


@node.needs_node
@not_fused
def test_floats_have_the_bits_of_the_target_that_does_not_fuse_either(tmp_path: Path) -> None:
    x = np.random.default_rng(2).standard_normal((1, 9, 16)).astype(np.float32)
    build(models.transformer(), tmp_path / "built")
    [wanted], _ = without_fusing(models.transformer(), tmp_path, {"x": x}, signature="predict")
    [[found]] = [outputs.values() for outputs in node.run(tmp_path / "built", {"x": x}).outputs]
    assert found.tobytes() == wanted.tobytes()


def trains(source: bytes, folder: Path, batch: int) -> None:
    """Losses and state of five steps on random batches have the bits of x86-64-v2."""
    model = lite_runtime.load(source)
    rng = np.random.default_rng(7)
    image = next(value for value in model.inputs("train_step") if value.name != "labels")
    shapes = {f"train_step/{image.name}": (batch, *(d for d in (image.shape or ())[1:] if isinstance(d, int)))}
    sized = image._replace(shape=shapes[f"train_step/{image.name}"])
    batches = [{**random((sized,), seed), "labels": rng.integers(0, 3, batch)} for seed in range(5)]
    made = build(source, folder / "built", shapes=shapes)
    assert list(made.signatures) == ["predict", "evaluate", "gradients", "train_step"]
    assert made.signatures["predict"][image.name][0] == 1 and made.signatures["train_step"]["labels"] == (batch,)
    found = node.run(folder / "built", *batches, signatures=["train_step"])
    wanted, state = without_fusing(source, folder, *batches, signature="train_step")
    assert [outputs["loss"].tobytes() for outputs in found.outputs] == [loss.tobytes() for loss in wanted]
    assert b"".join(array.tobytes() for array in found.state.values()) == state.tobytes()
    assert len({loss.tobytes() for loss in wanted}) == 5


@node.needs_node
@not_fused
def test_a_whole_model_trains(tmp_path: Path) -> None:
    trains(models.trainable(), tmp_path, 4)


@node.needs_node
@not_fused
def test_the_last_layer_of_a_real_model_trains(shared_models: Path, tmp_path: Path) -> None:
    made = convert(shared_models / SHARED[0], trainable="model/dense/*").bundle
    assert made is not None
    trains(made, tmp_path, 3)


@node.needs_node
def test_state_goes_on_and_stays_as_it_was_after_a_run_that_failed(tmp_path: Path) -> None:
    """Two states that are handed on, of which outputs are views."""
    source = models.stream()
    model = lite_runtime.load(source)
    inputs = [{**random(model.inputs()[:1], seed), "i": np.array([2, 0, seed % 3])} for seed in range(5)]
    start = {name: np.float32([1, 2, 3]) for name in ("a", "b")}
    model.load_state_dict(start)
    build(source, tmp_path / "built")
    found = node.run(tmp_path / "built", *inputs, state=start)
    for outputs, each in zip(found.outputs, inputs, strict=True):
        for name, want in model.run(each).items():
            np.testing.assert_array_equal(outputs[name], want)
    for name, want in model.state_dict().items():
        np.testing.assert_array_equal(found.state[name], want)
    failed = node.ask(tmp_path / "built", "fails", given={"x": [4, 5, 6], "i": ["0", "3", "1"]})
    assert "an index is outside the tensor" in failed["error"] and failed["before"] == failed["after"]


@node.needs_node
def test_signatures_are_chosen(tmp_path: Path) -> None:
    made = build(models.trainable(), tmp_path / "built", signatures=["evaluate", "predict", "evaluate"])
    assert list(made.signatures) == ["evaluate", "predict"] and made.state_bytes == 4 * (108 + 6 + 108 + 3)
    x = {"x": np.zeros((1, 2, 5, 4), np.float32)}
    [found] = node.run(tmp_path / "built", {**x, "labels": np.array([1])}, signatures=["evaluate"]).outputs
    assert list(found) == ["loss", "examples", "correct"] and found["examples"] == 1
    with pytest.raises(InputError, match=r"expected a signature of .*, got 'train'"):
        build(models.trainable(), tmp_path / "other", signatures=["train"])


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
        "noFile": "none/model.msflat cannot be read",
        "noSource": "model.msflat: expected a URL, a path or bytes, got a number",
        "noList": "kernels.json: expected the SHA-256",
        "noKernels": "kernels.wasm: expected the SHA-256",
        "threads": "threads: expected an integer of 1 to 64, got 1.5",
        "closed": "the model was closed; load it again",
        "noModel": "expected 224 bytes or more, got 4",
        "noInputs": "inputs: expected the names x, got none",
        "unknown": "inputs: expected the names x, got x, other",
        "wrongType": "input x: expected a Float32Array of 4 elements (float32 [1,4]), got a Uint8ClampedArray of 4",
        "wrongLength": "got a Float32Array of 3",
        "noSignature": "expected a signature of predict, got other",
        "noState": "state: expected names of none, got h",
        "noObject": "state: expected names of none, got no object",
        "notArrays": "got an Array of 4",
    }
    assert told.keys() == parts.keys()
    for name, part in parts.items():
        assert told[name].startswith("MsedgeError: ") and part in told[name], name


@node.needs_node
def test_what_an_engine_lacks_is_told(tmp_path: Path) -> None:
    build(models.dense(), tmp_path / "built")
    told = node.ask(tmp_path / "built", "engines")
    assert "kernels.wasm: WebAssembly does not start here" in told["noSimd"] and "needs 128-bit SIMD" in told["noSimd"]
    assert told["noMemory"].startswith("MsedgeError: the model needs 1 MiB of memory, which this engine refuses")
    assert told["noWebAssembly"].startswith("MsedgeError: WebAssembly is not there")
    assert told["whole"] == ""


@node.needs_node
def test_an_index_outside_is_told_with_its_operator(tmp_path: Path) -> None:
    b = Builder()
    made = convert(b.model(b("Gather", b.input("x", (5,)), b.input("i", (2,), np.int64)))).bundle
    assert made is not None
    build(made, tmp_path / "built")
    x = np.arange(5, dtype=np.float32)
    [[picked]] = [
        outputs.values() for outputs in node.run(tmp_path / "built", {"x": x, "i": np.array([4, -5])}).outputs
    ]
    np.testing.assert_array_equal(picked, [4, 0])
    with pytest.raises(AssertionError, match=r"MsedgeError: Gather .*: an index is outside the tensor"):
        node.run(tmp_path / "built", {"x": x, "i": np.array([0, 5])})


def test_a_folder_has_what_its_package_names(tmp_path: Path) -> None:
    made = build(models.several(), tmp_path / "built")
    there = {path.name: path.stat().st_size for path in (tmp_path / "built").iterdir()}
    assert there == dict(made.files)
    package = json.loads((tmp_path / "built/package.json").read_text())
    assert all(any(fnmatch(name, pattern) for pattern in package["files"]) for name in there if name not in _NOT_PACKED)
    assert all((tmp_path / "built" / path).exists() for path in package["exports"]["."].values())
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


@pytest.mark.parametrize("written", range(13))
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
    assert (tmp_path / "model.msflat").exists() == (written >= 13)
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
    both = {"predict": {"x": (1, 3), "z": (1, 3)}}
    assert build(made, tmp_path / "built").signatures == both
    both["predict"] = {"x": (2, 3), "z": (2, 3)}
    for name in ("x", "z", "predict/x"):
        assert build(made, tmp_path / "built", shapes={name: (2, 3)}).signatures == both


def test_text_is_refused(tmp_path: Path) -> None:
    graph = bundle.read(models.dense()).signatures["predict"]
    text = graph.replace(inputs=(*graph.inputs, Value("t", "string", (1,))))
    refused(bundle.write(None, {"predict": text}), UnsupportedOpError, "input 't' is a string", tmp_path / "built")
    both = bundle.write(None, {"predict": text, "other": graph})
    refused(both, UnsupportedOpError, r"signature 'predict': input 't'.*--signature other", tmp_path / "built")
    assert list(build(both, tmp_path / "built", signatures=["other"]).signatures) == ["other"]


def test_unknown_targets_and_signatures_are_listed(tmp_path: Path) -> None:
    with pytest.raises(MsedgeError, match=r"expected a target of wasm32, .*, riscv64, .*, windows-arm64, got z80"):
        build(models.dense(), tmp_path / "built", "z80")
    with pytest.raises(InputError, match="expected a signature of predict, got 'train'"):
        build(models.dense(), tmp_path / "built", signatures=["train"])
