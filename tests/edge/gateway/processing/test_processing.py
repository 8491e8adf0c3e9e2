from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from converter import convert
from edge import prepared
from edge.cli.app import app
from edge.gateway.errors import GatewayError
from edge.gateway.ports import ports_of
from edge.gateway.processing import Processing
from edge.gateway.processing.processing import LIMIT, ROWS, SOURCE_OF, STEP_OF
from lite_runtime import bundle
from lite_runtime import load as load_bundle
from lite_runtime.bundle.processing import AFTER, BEFORE, KEY, SOURCES, ProcessingError, check, load
from tests.converter.support import Builder
from tests.edge.conftest import Small
from tests.edge.gateway.processing.files import declared, png, port, ports, texts

RNG = np.random.default_rng(3)
PICTURE = RNG.integers(0, 256, (10, 16, 3), dtype=np.uint8)
IMAGE = [
    {"step": "image"},
    {"step": "resize", "size": 8},
    {"step": "normalize", "scale": 1 / 255},
    {"step": "channels_first"},
]
X = port("x", "float32", "n", 3, 8, 8)
LABELS = ["a", "b", "c", "d", "e"]
TOML = """
[[inputs]]
name = "image"
feeds = "x"
steps = [
  {step = "image"},
  {step = "resize", size = [8, 8], fit = "cover"},
  {step = "normalize", scale = 0.00392156862745098, mean = 0.5, std = [0.25, 0.25, 0.5]},
  {step = "channels_first"},
]

[[outputs]]
names = ["probabilities", "labels"]
of = "scores"
steps = [{step = "softmax"}, {step = "top_k", k = 3, labels_file = "labels.txt"}]
"""


@pytest.fixture(scope="module")
def served(small: Small, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("processing")
    (folder / "labels.txt").write_text("\n".join(LABELS) + "\n")
    (folder / "processing.toml").write_text(TOML)
    command = ["convert", str(small.source), "-o", str(folder / "m.mslite"), "--processing"]
    done = CliRunner().invoke(app, [*command, str(folder / "processing.toml")])
    assert done.exit_code == 0, done.output
    return folder / "m.mslite"


def test_a_picture_to_a_label_through_a_real_bundle(served: Path) -> None:
    model, held = load_bundle(served, backend="reference"), bundle.read(served)
    processing = Processing.of(held.metadata, ports_of(model))
    assert processing is not None
    assert [(p.name, p.datatype, p.open) for p in processing.ports.inputs.values()] == [("image", "BYTES", (-1,))]
    found = [(p.name, p.datatype, p.open) for p in processing.ports.outputs.values()]
    assert found == [("probabilities", "FP32", (-1, 3)), ("labels", "BYTES", (-1, 3))]
    outer = processing.ports
    assert outer.batched and outer.inputs["image"].shape[0] == outer.outputs["labels"].shape[0]  # type: ignore[index]
    files = texts(png(PICTURE), png(PICTURE[::-1]))
    logits = model.run(processing.before({"image": files}))["scores"]
    made = processing.after({"scores": logits})
    powers = np.exp(logits.astype(np.float64))
    order = np.argsort(-logits, 1)[:, :3]
    np.testing.assert_allclose(
        made["probabilities"], np.take_along_axis(powers / powers.sum(1, keepdims=True), order, 1), rtol=1e-5
    )
    assert made["labels"].tolist() == [[LABELS[i] for i in row] for row in order.tolist()]
    alone = model.run(processing.before({"image": files[1:]}))["scores"]
    np.testing.assert_allclose(alone[0], logits[1], rtol=1e-5)


def test_threads_do_not_meet(served: Path) -> None:
    processing = Processing.of(bundle.read(served).metadata, ports_of(load_bundle(served, backend="reference")))
    assert processing is not None
    files = [texts(png(RNG.integers(0, 256, (30, 20 + i, 3), dtype=np.uint8))) for i in range(8)]
    want = [processing.before({"image": f})["x"] for f in files]
    wrong: list[int] = []

    def work(i: int) -> None:
        for _ in range(10):
            if not np.array_equal(processing.before({"image": files[i]})["x"], want[i]):
                wrong.append(i)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_no_processing_if_none_is_declared() -> None:
    assert Processing.of({"labels": LABELS}, ports([X])) is None


def test_the_key_in_bundles_stays_pipelines(served: Path) -> None:
    """Files that exist have this key, and would be served without their processing under any other."""
    stored = bundle.read(served).metadata["pipelines"]
    assert Processing.of({"pipelines": stored}, ports_of(load_bundle(served, backend="reference"))) is not None


def test_what_is_not_named_goes_through() -> None:
    model = ports([X, port("gain", "float32", "n", 1)], [port("y", "float32", "n", 5), port("z", "int64", "n")])
    doc = declared(IMAGE, [{"names": "best", "of": "y", "steps": [{"step": "argmax"}]}])
    processing = Processing(doc, model)
    assert list(processing.ports.inputs) == ["file", "gain"] and list(processing.ports.outputs) == ["best", "z"]
    gain, z = np.ones((1, 1), np.float32), np.zeros(1, np.int64)
    made = processing.before({"gain": gain, "file": texts(png(PICTURE))})
    assert list(made) == ["x", "gain"] and made["gain"] is gain
    after = processing.after({"y": np.eye(1, 5, 2, dtype=np.float32), "z": z})
    assert after["best"].tolist() == [2] and after["z"] is z


def test_one_output_two_ways() -> None:
    outputs = [{"names": "raw", "of": "y"}, {"names": "best", "of": "y", "steps": [{"step": "argmax"}]}]
    made = Processing({"version": 1, "outputs": outputs}, ports([X])).after({"y": np.eye(2, 10, 4, dtype=np.float32)})
    assert made["raw"].shape == (2, 10) and made["best"].tolist() == [4, 5]


def test_tensors_through_steps() -> None:
    steps = [{"step": "tensor", "dtype": "uint8", "shape": [-1, -1, 3]}, *IMAGE[1:]]
    processing = Processing(declared(steps), ports([X]))
    assert processing.ports.inputs["file"] == port("file", "uint8", "n", None, None, 3)
    image = Processing(declared(IMAGE), ports([X]))
    want = image.before({"file": texts(png(PICTURE), png(PICTURE[::-1]))})["x"]
    np.testing.assert_array_equal(processing.before({"file": np.stack([PICTURE, PICTURE[::-1]])})["x"], want)


def test_a_model_without_an_axis_of_rows() -> None:
    single = Processing(declared(IMAGE), ports([port("x", "float32", 3, 8, 8)], batched=False))
    assert single.ports.inputs["file"].shape == (1,)
    assert single.before({"file": texts(png(PICTURE))})["x"].shape == (3, 8, 8)
    with pytest.raises(GatewayError, match=r"expected 1..1 rows, got 2"):
        single.before({"file": texts(png(PICTURE), png(PICTURE))})


def test_quantised_inputs() -> None:
    steps = [*IMAGE[:2], {"step": "normalize"}, {"step": "quantize", "scale": 1.0, "zero_point": -128}]
    made = Processing(declared(steps), ports([port("x", "int8", "n", 8, 8, 3)])).before({"file": texts(png(PICTURE))})[
        "x"
    ]
    plain = Processing(declared(IMAGE[:2]), ports([port("x", "uint8", "n", 8, 8, 3)])).before(
        {"file": texts(png(PICTURE))}
    )["x"]
    np.testing.assert_array_equal(made, plain.astype(np.int32) - 128)


@given(st.lists(st.integers(1, 5), min_size=1, max_size=4), st.booleans(), st.booleans())
@settings(max_examples=40, deadline=None)
def test_normalising_is_its_formula(shape: list[int], means: bool, stds: bool) -> None:
    values = RNG.integers(0, 256, (2, *shape)).astype(np.uint8)
    mean = RNG.uniform(-2, 2, shape[-1] if means else 1).tolist()
    std = RNG.uniform(0.1, 2, shape[-1] if stds else 1).tolist()
    steps = [
        {"step": "tensor", "dtype": "uint8", "shape": shape},
        {"step": "normalize", "scale": 0.25, "mean": mean, "std": std},
    ]
    processing = Processing(declared(steps), ports([port("x", "float32", "n", *shape)]))
    made, kept = processing.before({"file": values})["x"], values.copy()
    np.testing.assert_allclose(made, (values * 0.25 - np.array(mean)) / np.array(std), rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(values, kept)


@pytest.mark.parametrize("dtype", ["uint8", "int8", "int32", "uint32", "int64", "uint64"])
def test_casts_stay_within_their_type(dtype: str) -> None:
    values = np.array([[np.nan, np.inf, -np.inf, 2.5, 3.5, -1.5, 1e30, 300.0]], np.float32)
    processing = Processing(
        declared([{"step": "tensor", "shape": [8]}, {"step": "cast", "dtype": dtype}]),
        ports([port("x", dtype, "n", 8)]),
    )
    low, high = int(np.iinfo(dtype).min), int(np.iinfo(dtype).max)
    want = [0, high, low, 2, 4, max(low, -2), high, min(high, 300)]
    assert processing.before({"file": values})["x"].tolist() == [want]


def test_rows_that_differ_are_refused() -> None:
    loose = Processing(declared([{"step": "image"}]), ports([port("x", "uint8", "n", "h", "w", 3)]))
    with pytest.raises(GatewayError, match=r"\[9, 16, 3\] for row 1 and \[10, 16, 3\] for row 0") as caught:
        loose.before({"file": texts(png(PICTURE), png(PICTURE[1:]))})
    assert caught.value.status == 400
    fixed = Processing(declared([{"step": "image"}]), ports([port("x", "uint8", "n", 8, "w", 3)]))
    with pytest.raises(GatewayError, match="row 0: expected shape") as caught:
        fixed.before({"file": texts(png(PICTURE))})
    assert caught.value.status == 400


def test_an_error_names_the_row() -> None:
    with pytest.raises(GatewayError, match="input 'file', row 1: "):
        Processing(declared(IMAGE), ports([X])).before({"file": texts(png(PICTURE), png(PICTURE)[:-60])})


def test_numbers_that_are_none_and_tensors_without_any() -> None:
    features = [{"step": "spectrogram", "fft": 64, "hop": 32}, {"step": "log"}, {"step": "cast", "dtype": "float16"}]
    doc = declared([{"step": "tensor", "shape": [-1]}, *features])
    processing = Processing(doc, ports([port("x", "float16", "n", None, 33)]))
    odd = np.array([[np.nan] * 64, [np.inf] * 64, [3e38] * 64, [1e-40] * 64], np.float32)
    made = processing.before({"file": odd})["x"]
    assert made.shape == (4, 3, 33) and np.isnan(made[0]).all() and np.isfinite(made[3]).all()
    with pytest.raises(GatewayError, match="row 0: expected a non-empty array") as caught:
        processing.before({"file": odd[:, :0]})
    assert caught.value.status == 400
    picture = Processing(declared([{"step": "tensor", "dtype": "uint8", "shape": [-1, -1, 3]}, *IMAGE[1:]]), ports([X]))
    with pytest.raises(GatewayError, match="row 0: expected a non-empty array"):
        picture.before({"file": np.zeros((1, 0, 4, 3), np.uint8)})


def test_small_files_do_not_become_much() -> None:
    big = [{"step": "image"}, {"step": "resize", "size": 4096}, {"step": "normalize"}]
    processing = Processing(declared(big), ports([port("x", "float32", "n", 4096, 4096, 3)]))
    one = png(np.zeros((1, 1, 3), np.uint8))
    with pytest.raises(GatewayError, match=f"more than {LIMIT}") as caught:
        processing.before({"file": texts(*[one] * 3)})
    assert caught.value.status == 413
    with pytest.raises(GatewayError, match=f"expected 1..{ROWS} rows") as caught:
        processing.before({"file": texts(*[one] * (ROWS + 1))})
    assert caught.value.status == 413
    with pytest.raises(GatewayError, match="got 0") as caught:
        processing.before({"file": texts()})
    assert caught.value.status == 400


# declarations


def test_words_and_what_they_mean_are_the_same() -> None:
    assert set(SOURCE_OF) == set(SOURCES) and set(STEP_OF) == set(BEFORE) | set(AFTER)
    for name, options in (*SOURCES.items(), *BEFORE.items(), *AFTER.items()):
        made: Any = SOURCE_OF.get(name) or STEP_OF[name]
        assert set(made.__dataclass_fields__) == set(options), name


def test_checking_twice_changes_nothing(served: Path) -> None:
    doc = bundle.read(served).metadata[KEY]
    assert check(doc) == doc
    assert json.loads(json.dumps(doc)) == doc


OUT = {"names": ["v", "i"], "of": ["y"], "steps": [{"step": "top_k", "k": 2}]}
WRONG: dict[str, Any] = {
    "no object": [],
    "null": None,
    "no version": {},
    "another version": {"version": 2},
    "a version that is true": {"version": True},
    "an unknown key": {"version": 1, "input": []},
    "inputs as an object": {"version": 1, "inputs": {}},
    "too many inputs": {"version": 1, "inputs": [declared(IMAGE)["inputs"][0]] * 65},
    "twice the same": {"version": 1, "inputs": [declared(IMAGE)["inputs"][0]] * 2},
    "no steps": declared([]),
    "too many steps": declared([*IMAGE, *[{"step": "channels_first"}] * 40]),
    "no source": declared(IMAGE[1:]),
    "two sources": declared([IMAGE[0], IMAGE[0]]),
    "unknown step": declared([IMAGE[0], {"step": "__class__"}]),
    "step of outputs": declared([IMAGE[0], {"step": "softmax"}]),
    "step as text": declared(["image"]),  # type: ignore[list-item]
    "unknown option": declared([{"step": "image", "colour": "rgb"}]),
    "option missing": declared([{"step": "image"}, {"step": "resize"}]),
    "null for a size": declared([{"step": "image"}, {"step": "resize", "size": None}]),
    "size of 0": declared([{"step": "image"}, {"step": "resize", "size": 0}]),
    "huge size": declared([{"step": "image"}, {"step": "resize", "size": [10**9, 10**9]}]),
    "size of true": declared([{"step": "image"}, {"step": "resize", "size": True}]),
    "size of text": declared([{"step": "image"}, {"step": "resize", "size": "8"}]),
    "three sizes": declared([{"step": "image"}, {"step": "resize", "size": [8, 8, 8]}]),
    "no more pixels": declared([{"step": "image", "max_pixels": 10**12}]),
    "std of 0": declared([*IMAGE[:2], {"step": "normalize", "std": 0}, IMAGE[3]]),
    "mean of NaN": declared([*IMAGE[:2], {"step": "normalize", "mean": float("nan")}, IMAGE[3]]),
    "scale beyond reals": declared([*IMAGE[:2], {"step": "normalize", "scale": 10**400}, IMAGE[3]]),
    "two means": declared([*IMAGE[:2], {"step": "normalize", "mean": [1, 2]}, IMAGE[3]]),
    "two means, three stds": declared([*IMAGE[:2], {"step": "normalize", "mean": [1, 2], "std": [1, 1, 1]}, IMAGE[3]]),
    "other size than the model's": declared([IMAGE[0], {"step": "resize", "size": 9}, *IMAGE[2:]]),
    "channels last": declared(IMAGE[:3]),
    "another type": declared([*IMAGE[:2], IMAGE[3]]),
    "sound for a picture": declared([{"step": "audio", "rate": 16000}]),
    "a sound's step": declared([*IMAGE, {"step": "length", "samples": 5}]),
    "not this input": {"version": 1, "inputs": [{"name": "file", "feeds": "nothing", "steps": IMAGE}]},
    "not this output": declared(IMAGE, [OUT | {"of": ["x"]}]),
    "a name that is taken": declared(IMAGE, [OUT | {"names": ["z", "v"]}]),
    "one name too few": declared(IMAGE, [OUT | {"names": "v"}]),
    "no name": declared(IMAGE, [OUT | {"names": []}]),
    "an empty name": declared(IMAGE, [OUT | {"names": ["", "i"]}]),
    "a number as name": declared(IMAGE, [OUT | {"names": [1, "i"]}]),
    "k beyond the classes": declared(IMAGE, [OUT | {"steps": [{"step": "top_k", "k": 11}]}]),
    "labels too few": declared(IMAGE, [OUT | {"steps": [{"step": "top_k", "k": 2, "labels": LABELS}]}]),
    "labels that are numbers": declared(IMAGE, [OUT | {"steps": [{"step": "top_k", "k": 2, "labels": [1] * 10}]}]),
    "steps after two arrays": declared(IMAGE, [OUT | {"steps": [OUT["steps"][0], {"step": "softmax"}]}]),
    "boxes of one array": declared(IMAGE, [OUT | {"steps": [{"step": "nms"}]}]),
    "softmax of labels": declared(
        IMAGE, [{"names": "v", "of": "y", "steps": [{"step": "argmax"}, {"step": "softmax"}]}]
    ),
    "no rows": declared(IMAGE, [{"names": "v", "of": "scalar", "steps": [{"step": "threshold"}]}]),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_declarations_are_refused(name: str) -> None:
    model = ports(
        [X], [port("y", "float32", "n", 10), port("z", "float32", "n"), port("scalar", "float32")], batched=False
    )
    with pytest.raises(GatewayError) as caught:
        Processing.of({KEY: WRONG[name]}, model)
    assert caught.value.status == 400 and "the bundle's" in str(caught.value)


def shapes_of(*steps: dict[str, Any], rate: int = 8000) -> list[dict[str, Any]]:
    return [{"step": "audio", "rate": rate}, {"step": "length", "samples": 400}, *steps]


SPECTROGRAM = {"step": "spectrogram", "fft": 64, "hop": 32}


@pytest.mark.parametrize(
    "steps",
    [
        shapes_of({"step": "spectrogram", "fft": 64, "window": 65, "hop": 32}),
        shapes_of({"step": "spectrogram", "fft": 1024, "hop": 32, "pad": "none"}),
        shapes_of({"step": "frames", "length": 500, "hop": 1}),
        shapes_of({"step": "mel", "rate": 8000, "bands": 10}),
        shapes_of(SPECTROGRAM, {"step": "mel", "rate": 16000, "bands": 10}),
        shapes_of(SPECTROGRAM, {"step": "mel", "rate": 8000, "bands": 10, "high": 5000}),
        shapes_of(SPECTROGRAM, {"step": "mel", "rate": 8000, "bands": 10, "low": 900, "high": 800}),
        shapes_of(SPECTROGRAM, {"step": "dct", "coefficients": 34}),
        shapes_of({"step": "dct", "coefficients": 3}),
        shapes_of({"step": "resize", "size": 8}),
        shapes_of({"step": "transpose", "axes": [0, 0]}),
        shapes_of({"step": "expand", "axis": 2}),
        shapes_of({"step": "channels_first"}),
    ],
)
def test_steps_that_do_not_suit_each_other(steps: list[dict[str, Any]]) -> None:
    with pytest.raises(ProcessingError, match="processing of input 'file'"):
        Processing(declared(steps), ports([port("x", "float32", "n", None, None)]))


WORDS = st.sampled_from([*SOURCES, *BEFORE, *AFTER, "step"])
KEYS = st.sampled_from(["step", "name", "feeds", "of", "size", "k"]) | st.text(max_size=3)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | WORDS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=12,
)


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The way to every part of a JSON value."""
    yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield from places(item, (*path, key))


WHOLE = declared(IMAGE, [OUT])


@given(st.sampled_from(list(places(WHOLE))[1:]), JSON)
@settings(max_examples=200, deadline=None)
def test_damaged_declarations_are_refused_or_read(path: tuple[Any, ...], value: Any) -> None:
    doc = json.loads(json.dumps(WHOLE))
    inner = doc
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    try:
        Processing.of({KEY: doc}, ports([X]))
    except GatewayError as error:
        assert error.status == 400


# at conversion


def test_a_declaration_that_does_not_fit_leaves_no_file(small: Small, tmp_path: Path) -> None:
    out, toml = tmp_path / "m.mslite", tmp_path / "p.toml"
    command = ["convert", str(small.source), "-o", str(out), "--processing", str(toml)]
    for text, said in (
        ("[[inputs]", "expected TOML"),
        ("[[inputs]]\nname = 'a'\nfeeds = 'q'\nsteps = [{step = 'image'}]", "an input of the model (x), got q"),
        ("[[inputs]]\nname = 'a'\nfeeds = 'x'\nsteps = [{step = 'image'}]", "to make float32[3, 8, 8]"),
        (TOML, "labels_file 'labels.txt'"),
    ):
        toml.write_text(text)
        done = CliRunner().invoke(app, command)
        assert done.exit_code == 3 and said in " ".join(done.stderr.split()), (done.exit_code, done.stderr)
        assert not out.exists()
    assert CliRunner().invoke(app, [*command[:-1], str(tmp_path / "none.toml")]).exit_code == 3


def test_only_bundles_can_declare_processing(small: Small) -> None:
    with pytest.raises(ProcessingError, match="only a bundle can contain one"):
        convert(small.source, to="onnx", processing={"version": 1})


def test_a_bundle_without_one_is_what_it_was(small: Small) -> None:
    assert KEY not in bundle.read(convert(small.source).bundle).metadata


def test_labels_come_from_a_file(tmp_path: Path) -> None:
    (tmp_path / "labels.txt").write_text("\n".join(LABELS))
    (tmp_path / "p.toml").write_text(TOML)
    doc = load(tmp_path / "p.toml")
    assert doc["outputs"][0]["steps"][1]["labels"] == LABELS
    (tmp_path / "p.toml").write_text(TOML.replace('"labels.txt"', "7"))
    with pytest.raises(ProcessingError, match="expected a path"):
        load(tmp_path / "p.toml")


def test_a_program_prepares_what_the_gateway_prepares() -> None:
    b = Builder()
    network = b.model(b("Add", b.input("x", ("n", 4, 4, 1)), b.input("other", ("n", 4, 4, 1))))
    document = declared([{"step": "image", "mode": "gray"}, {"step": "normalize", "scale": 0.5}])
    model = load_bundle(convert(network, processing=document).bundle)
    pictures = np.random.default_rng().integers(0, 256, (3, 4, 4), dtype=np.uint8)
    other = np.ones((3, 4, 4, 1), np.float32)
    found = prepared(model, {"file": [png(each) for each in pictures], "other": other})
    np.testing.assert_array_equal(found["x"], pictures[..., None] * np.float32(0.5))
    assert found["other"] is other
    with pytest.raises(GatewayError, match="expected the inputs file, other, got x"):
        prepared(model, {"x": other})
    plain = load_bundle(convert(network).bundle)
    with pytest.raises(GatewayError, match="expected a bundle that declares processing"):
        prepared(plain, {"x": other, "other": other})
