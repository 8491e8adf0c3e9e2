"""The file of an ensemble, and whether models fit it."""

from __future__ import annotations

import json
import random
from typing import Any

import numpy as np
import pytest
from hypothesis import given as with_any
from hypothesis import strategies as st

from edge.gateway.ensembles.fitting import check, fit, inward, outward
from edge.gateway.ensembles.scheduling import MOST_STEPS, Scheduling, parse, read
from edge.gateway.errors import GatewayError
from edge.gateway.ports import DATATYPES, Port, Ports
from lite_runtime.graph import numpy_dtype
from tests.edge.gateway.ensembles.parts import document, step

TRITON = """
name = "ensemble_model"
platform = "ensemble"
max_batch_size = 1

[[input]]
name = "IMAGE"
data_type = "TYPE_STRING"
dims = [1]

[[output]]
name = "CLASSIFICATION"
data_type = "TYPE_FP32"
dims = [1000]

[[output]]
name = "SEGMENTATION"
data_type = "TYPE_FP32"
dims = [3, 224, 224]

[[ensemble_scheduling.step]]
model_name = "image_preprocess_model"
model_version = -1
input_map = {RAW_IMAGE = "IMAGE"}
output_map = {PREPROCESSED_OUTPUT = "preprocessed_image"}

[[ensemble_scheduling.step]]
model_name = "classification_model"
model_version = 2
input_map = {FORMATTED_IMAGE = "preprocessed_image"}
output_map = {CLASSIFICATION_OUTPUT = "CLASSIFICATION"}

[[ensemble_scheduling.step]]
model_name = "segmentation_model"
model_label = "canary"
input_map = {FORMATTED_IMAGE = "preprocessed_image"}
output_map = {SEGMENTATION_OUTPUT = "SEGMENTATION"}
"""
"""The example of Triton's documentation, with a version and a label."""


def refused(given: Any, match: str) -> None:
    with pytest.raises(GatewayError, match=match) as caught:
        parse(given)
    assert caught.value.status == 400


def test_tritons_example_in_toml_and_json() -> None:
    import tomllib

    graph = read(TRITON.encode(), "ensemble.toml", "ensemble_model")
    assert graph == read(json.dumps(tomllib.loads(TRITON)).encode(), "x/ensemble.json", "ensemble_model")
    assert [s.version for s in graph.steps] == ["", "2", "canary"] and graph.max_batch == 1
    assert [s.after for s in graph.steps] == [(), (0,), (0,)] and graph.uses["preprocessed_image"] == 2
    assert graph.inputs["IMAGE"].datatype == "BYTES" and graph.outputs["SEGMENTATION"].dims == (3, 224, 224)
    with pytest.raises(GatewayError, match=r"ensemble\.toml: name: expected 'other', where the file is"):
        read(TRITON.encode(), "/secret/place/ensemble.toml", "other")


@pytest.mark.parametrize(("data", "match"), [
    (b"a = ", "ensemble.toml: expected TOML"),
    (b"\xff", "ensemble.toml: expected TOML"),
    (b"x = " + b"[" * 100_000, "ensemble.toml: expected TOML"),
    (b'a = 1\nb = 2', "ensemble.toml: a: no such key"),
])  # fmt: skip
def test_what_is_no_file_of_an_ensemble(data: bytes, match: str) -> None:
    with pytest.raises(GatewayError, match=match):
        read(data, "ensemble.toml", "e")


def test_json_is_strict() -> None:
    with pytest.raises(GatewayError, match="duplicate key"):
        read(b'{"input": [], "input": []}', "e.json", "e")
    with pytest.raises(GatewayError, match="expected JSON"):
        read(b"[" * 100_000, "e.json", "e")


A, Z = {"x": "A"}, {"y": "Z"}
REFUSED = {
    "nothing": ({}, "input: expected a list of at least one input, got none"),
    "no steps": (document(["A"], ["Z"]), "ensemble_scheduling.step: expected a list of 1 to 64 steps"),
    "no inputs": (document([], ["Z"], step("m", A, Z)), "input: expected a list of at least one input"),
    "too many": (document(["A"], ["Z"], *[step("m", A, Z)] * (MOST_STEPS + 1)), "a list of 1 to 64 steps"),
    "no model": (document(["A"], ["Z"], {"input_map": A, "output_map": Z}), "model_name: expected the name of a model"),
    "a path": (document(["A"], ["Z"], step("../m", A, Z)), "model_name: expected the name of a model, got '../m'"),
    "empty map": (document(["A"], ["Z"], step("m", {}, Z)), "input_map: expected a table of at least one tensor"),
    "in flight": (
        document(["A"], ["Z"], step("m", A, Z)) | {"max_inflight_requests": 4},
        "max_inflight_requests: no such key",
    ),
    "version 0": (document(["A"], ["Z"], step("m", A, Z, model_version=0)), "model_version: expected -1 or a version"),
    "both": (
        document(["A"], ["Z"], step("m", A, Z, model_version=1, model_label="a")),
        "model_version or model_label, got both",
    ),
    "platform": (document(["A"], ["Z"], step("m", A, Z), platform="onnx"), "platform: expected 'ensemble'"),
    "unknown tensor": (
        document(["A"], ["Z"], step("m", A, {"y": "between"}), step("m", {"x": "betwen"}, Z)),
        r"step 2 \(model 'm'\): input_map: tensor 'betwen' is neither .*; did you mean 'between'\?",
    ),
    "unknown output": (document(["A"], ["Y"], step("m", A, Z)), "output: tensor 'Y' is neither"),
    "made twice": (
        document(["A"], ["Z"], step("m", A, Z), step("k", A, Z)),
        r"step 2 \(model 'k'\): output_map: tensor 'Z' is it and step 1 \(model 'm'\)",
    ),
    "made and given": (document(["A"], ["A"], step("m", A, {"y": "A"})), "is it and an input of the ensemble"),
    "made twice by one": (document(["A"], ["Z"], step("m", A, {"y": "Z", "z": "Z"})), "'Z' is two of its outputs"),
    "unused output": (
        document(["A"], ["Z"], step("m", A, {"y": "Z", "z": "W"})),
        r"step 1 \(model 'm'\): output_map: tensor 'W' is not used",
    ),
    "unused input": (document(["A", "B"], ["Z"], step("m", A, Z)), "input 'B' is not used"),
    "passed through": (document(["A", "B"], ["Z", "B"], step("m", A, Z)), "output 'B' is an input of the ensemble"),
    "twice": (document(["A", "A"], ["Z"], step("m", A, Z)), "input 'A' is listed twice"),
    "itself": (document(["A"], ["Z"], step("m", {"x": "A", "w": "Z"}, Z)), "steps 1 → 1 are a circle"),
    "circle": (
        document(
            ["A"], ["Z"], step("m", {"a": "A", "b": "q"}, {"y": "p"}), step("m", {"x": "p"}, {"y": "q", "z": "Z"})
        ),
        "steps (1 → 2 → 1|2 → 1 → 2) are a circle",
    ),
    "type": (
        document([{"name": "A", "data_type": "FP32"}], ["Z"], step("m", A, Z)),
        r"input\[0\].data_type: expected 'T",
    ),
    "dims": (
        document([{"name": "A", "dims": [-2]}], ["Z"], step("m", A, Z)),
        r"input\[0\].dims\[0\]: expected a whole number",
    ),
    "zero": (document([{"name": "A", "dims": [0]}], ["Z"], step("m", A, Z)), "input 'A': expected sizes from 1"),
    "reshape alone": (
        document([{"name": "A", "reshape": {"shape": []}}], ["Z"], step("m", A, Z)),
        "reshape: expected dims beside it",
    ),
    "reshape": (
        document([{"name": "A", "dims": [6], "reshape": {"shape": [4]}}], ["Z"], step("m", A, Z)),
        r"reshape.shape: expected as many elements as dims \[6\]",
    ),
    "open reshape": (
        document([{"name": "A", "dims": [-1, -1], "reshape": {"shape": [-1, -1]}}], ["Z"], step("m", A, Z)),
        "one size -1",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused(case: str) -> None:
    refused(*REFUSED[case])


_LEAVES = (
    st.none() | st.booleans() | st.integers(-3, 3) | st.sampled_from(["A", "Z", "m", "x", "", "TYPE_FP32", "\ud800"])
)
_KEYS = st.sampled_from(
    (
        "name",
        "input",
        "output",
        "ensemble_scheduling",
        "step",
        "model_name",
        "input_map",
        "output_map",
        "model_version",
        "model_label",
        "dims",
        "reshape",
        "shape",
        "data_type",
        "x",
    )
)
_ANYTHING = st.recursive(_LEAVES, lambda of: st.lists(of, max_size=3) | st.dictionaries(_KEYS, of, max_size=4))


@with_any(_ANYTHING, _ANYTHING, st.lists(_ANYTHING, max_size=3))
def test_whatever_is_in_the_file_there_is_one_kind_of_error(whole: Any, end: Any, steps: list[Any]) -> None:
    for given in (whole, document([end], ["Z"], *steps), {**document(["A"], ["Z"], step("m", A, Z)), "input": end}):
        try:
            assert isinstance(parse(given), Scheduling)
        except GatewayError as error:
            assert error.status == 400 and str(error)


def random_graph(rng: random.Random, count: int) -> tuple[dict[str, Any], list[set[int]]]:
    """A file with so many steps in random order, and for every step, by its place in the file, those that it needs."""
    order = rng.sample(range(count), count)
    made: list[tuple[str, int]] = [("A", -1)]
    steps: list[Any] = [None] * count
    needs: list[set[int]] = [set() for _ in range(count)]
    for place in order:
        read_ = [rng.choice(made) for _ in range(rng.randint(1, 3))]
        needs[place] = {maker for _, maker in read_ if maker >= 0}
        tensors = [f"t{place}_{i}" for i in range(rng.randint(1, 2))]
        steps[place] = step("m", {f"i{i}": name for i, (name, _) in enumerate(read_)},
                            {f"o{i}": name for i, name in enumerate(tensors)})  # fmt: skip
        made += [(name, place) for name in tensors]
    used = {name for each in steps for name in each["input_map"].values()}
    outputs = [name for name, maker in made if maker >= 0 and name not in used]
    return document(["A"] if "A" in used else [], outputs, *steps), needs


@pytest.mark.parametrize("seed", range(40))
def test_the_order_of_steps_in_the_file_does_not_matter(seed: int) -> None:
    rng = random.Random(seed)
    given, needs = random_graph(rng, rng.randint(1, 20))
    graph = parse(given)
    place = {s.number - 1: i for i, s in enumerate(graph.steps)}
    assert sorted(place) == list(range(len(needs)))
    for i, s in enumerate(graph.steps):
        assert all(i in graph.steps[j].before for j in s.after) and all(i in graph.steps[j].after for j in s.before)
        assert all(j < i for j in s.after) and set(s.after) == {place[n] for n in needs[s.number - 1]}


@pytest.mark.parametrize("seed", range(20))
def test_a_circle_is_found_wherever_it_is(seed: int) -> None:
    rng = random.Random(seed)
    given, needs = random_graph(rng, rng.randint(2, 15))
    steps = given["ensemble_scheduling"]["step"]
    late = rng.choice([i for i, before in enumerate(needs) if before] or [0])
    early = rng.choice(sorted(needs[late]) or [late])
    steps[early]["input_map"]["back"] = next(iter(steps[late]["output_map"].values()))
    refused(given, rf"steps .*\b{early + 1}\b.* are a circle")


# -- models that fit, and others ---------------------------------------------------------------------------------------


def port(name: str, datatype: str, *shape: Any) -> Port:
    dtype = numpy_dtype(DATATYPES[datatype])
    return Port(name, datatype, dtype, 0 if dtype.hasobject else dtype.itemsize, tuple(shape))


def ports(inputs: list[Port], outputs: list[Port], batched: bool = True) -> Ports:
    return Ports({p.name: p for p in inputs}, {p.name: p for p in outputs}, batched)


def chain(**more: Any) -> Scheduling:
    return parse(document(["A"], ["Z"], step("m", A, {"y": "t"}), step("k", {"x": "t"}, Z), **more))


M = ports([port("x", "FP32", "n", 4)], [port("y", "FP32", "n", 8)])
K = ports([port("x", "FP32", "batch", 8)], [port("y", "INT64", "batch")])


def test_models_that_fit() -> None:
    found = fit(chain(), [M, K])
    assert found.batched and found.inputs["A"].open == (-1, 4) and found.outputs["Z"].open == (-1,)
    assert (found.outputs["Z"].datatype, found.outputs["Z"].itemsize) == ("INT64", 8)


def test_an_open_size_is_narrowed_by_whoever_knows_it() -> None:
    """By another model that reads the same tensor, or by the file."""
    both = parse(document(["A"], ["Y", "Z"], step("m", A, {"y": "Y"}), step("k", A, Z)))
    open_ = ports([port("x", "FP32", "n", "w")], [port("y", "FP32", "n", "w")])
    found = fit(both, [open_, ports([port("x", "FP32", "n", 7)], [port("y", "FP32", "n", 7)])])
    assert found.inputs["A"].open == (-1, 7) and found.outputs["Y"].open == (-1, -1)
    declared = document([{"name": "A", "data_type": "TYPE_FP32", "dims": [5]}], ["Z"], step("m", A, Z))
    assert fit(parse(declared), [open_]).inputs["A"].open == (-1, 5)


UNFIT = {
    "datatype": (
        [M, ports([port("x", "FP16", "n", 8)], [port("y", "INT64", "n")])],
        r"'t': output 'y' of step 1 \(model 'm'\) has FP32 \[-1, 8\], input 'x' of step 2 \(model 'k'\) has FP16",
    ),
    "size": ([M, ports([port("x", "FP32", "n", 9)], [port("y", "INT64", "n")])], r"FP32 \[-1, 8\].*FP32 \[-1, 9\]"),
    "rank": ([M, ports([port("x", "FP32", "n", 8, 1)], [port("y", "INT64", "n")])], r"FP32 \[-1, 8, 1\]"),
    "name": (
        [M, ports([port("scores", "FP32", "n", 8)], [port("y", "INT64", "n")])],
        r"step 2 \(model 'k'\): input_map: the model has no input 'x'",
    ),
    "output name": (
        [ports([port("x", "FP32", "n", 4)], [port("Y", "FP32", "n", 8)]), K],
        "the model has no output 'y'",
    ),
    "more inputs": (
        [M, ports([port("x", "FP32", "n", 8), port("w", "FP32", "n")], [port("y", "INT64", "n")])],
        "expected a tensor for each input of the model, got none for 'w'",
    ),
}


@pytest.mark.parametrize("case", UNFIT)
def test_models_that_do_not_fit(case: str) -> None:
    parts, match = UNFIT[case]
    with pytest.raises(GatewayError, match=match) as caught:
        fit(chain(), parts)
    assert caught.value.status == 503


@pytest.mark.parametrize(("end", "match"), [
    ({"dims": [5]}, r"tensor 'A': input 'x' of step 1 \(model 'm'\) has FP32 \[-1, 4\], the file's input 'A' has any"),
    ({"data_type": "TYPE_INT8"}, "the file's input 'A' has INT8 any shape"),
    ({"dims": [-1, 4]}, r"any datatype \[-1, -1, 4\]"),
])  # fmt: skip
def test_a_file_that_says_something_else(end: dict[str, Any], match: str) -> None:
    given = document([{"name": "A", **end}], ["Z"], step("m", A, {"y": "t"}), step("k", {"x": "t"}, Z))
    with pytest.raises(GatewayError, match=match):
        fit(parse(given), [M, K])


def test_the_axis_of_rows() -> None:
    single = ports([port("x", "FP32", 1, 8)], [port("y", "INT64", 1)], batched=False)
    found = fit(chain(), [M, single])
    assert not found.batched and found.inputs["A"].open == (-1, 4) and found.outputs["Z"].open == (1,)
    with pytest.raises(GatewayError, match=r"max_batch_size is 4, but step 2 \(model 'k'\) takes no rows"):
        fit(chain(max_batch_size=4), [M, single])
    whole = document([{"name": "A", "dims": [-1, 4]}], ["Z"], step("m", A, {"y": "t"}), step("k", {"x": "t"}, Z),
                     max_batch_size=0)  # fmt: skip
    assert not fit(parse(whole), [M, K]).batched


def test_reshaped_at_both_ends() -> None:
    """[rows, 1] outside, [rows] inside, as a model that takes images has it; and back."""
    images = ports([port("x", "BYTES", "n")], [port("y", "FP32", "n", "m", 3)])
    ends = ([{"name": "A", "dims": [1], "reshape": {"shape": []}}],
            [{"name": "Z", "dims": [3, -1], "reshape": {"shape": [-1, 3]}}])  # fmt: skip
    graph = parse(document(*ends, step("m", A, Z)))
    found = fit(graph, [images])
    assert found.inputs["A"].open == (-1, 1) and found.outputs["Z"].open == (-1, 3, -1)
    x = np.array([[b"a"], [b"b"]], object)
    assert inward(graph, {"A": x}, True)["A"].shape == (2,)
    y = np.arange(12, dtype=np.float32).reshape(2, 2, 3)
    np.testing.assert_array_equal(outward(graph, found, {"Z": y})["Z"], y.reshape(2, 3, 2))
    with pytest.raises(GatewayError, match=r"output 'Z': expected shape \[-1, 3, -1\].* got \[2, 5\]") as caught:
        outward(graph, found, {"Z": y.reshape(2, 6)[:, :5]})
    assert caught.value.status == 500


def test_the_shapes_of_a_request() -> None:
    one = parse(document(["A", "B"], ["Z"], step("m", {"a": "A", "b": "B"}, Z))).steps[0]
    two = ports([port("a", "FP32", "n", "w"), port("b", "FP32", "n", "w")], [port("y", "FP32", "n")])
    assert check(one, two, {"a": np.zeros((3, 2)), "b": np.zeros((3, 2))}) == 3
    for a, b in (((3, 2), (2, 2)), ((3, 2), (3, 1)), ((3, 2), (3,)), ((0, 2), (0, 2))):
        with pytest.raises(
            GatewayError, match=r"step 1 \(model 'm'\): input '[ab]': expected shape \[-1, -1\]"
        ) as caught:
            check(one, two, {"a": np.zeros(a), "b": np.zeros(b)})
        assert caught.value.status == 400
    fixed = ports([port("a", "FP32", 2), port("b", "FP32", None)], [port("y", "FP32", 2)], batched=False)
    assert check(one, fixed, {"a": np.zeros(2), "b": np.zeros(9)}) == 1
