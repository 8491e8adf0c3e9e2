"""Ensembles on gateways that listen: answers over every protocol, models that come, change and go, limits, access."""

from __future__ import annotations

import asyncio
import json
import random
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edge.client import Client
from edge.gateway.access import tokens
from edge.gateway.ensembles.ensemble import DEPTH
from edge.gateway.errors import GatewayError
from edge.gateway.exchange import Answer, Ask
from federated.server.store import PersonalStore
from lite_runtime import bundle
from lite_runtime.bundle.processing import KEY
from lite_runtime.graph import Graph, Node, Value
from tests.edge.gateway.ensembles.parts import combined, document, put, scaled, step, wide
from tests.edge.gateway.grpc.serving import listening
from tests.edge.gateway.live import Live, live, simple_string
from tests.edge.gateway.personal.fleet import SHAPES, base, fill, made, params
from tests.edge.gateway.processing.files import png
from tests.waiting import until

http = pytest.importorskip("tritonclient.http")
grpc = pytest.importorskip("tritonclient.grpc")
utils = pytest.importorskip("tritonclient.utils")

Array = np.ndarray
X, Y = {"x": "A"}, {"y": "Z"}


@contextmanager
def asking(there: Live) -> Iterator[Any]:
    client = http.InferenceServerClient(there.address.removeprefix("http://"), concurrency=4, network_timeout=300)
    yield client
    client.close()


def given(arrays: Mapping[str, Array], module: Any = http) -> list[Any]:
    made_ = []
    for name, x in arrays.items():
        made_.append(module.InferInput(name, list(x.shape), utils.np_to_triton_dtype(x.dtype)))
        made_[-1].set_data_from_numpy(x)
    return made_


def ask(there: Live, model: str, body: Mapping[str, Any], fields: Mapping[str, str] | None = None) -> tuple[int, Any]:
    connection = HTTPConnection("127.0.0.1", there.port, timeout=300)
    try:
        connection.request("POST", f"/v2/models/{model}/infer", json.dumps(body), dict(fields or {}))
        reply = connection.getresponse()
        return reply.status, json.loads(reply.read())
    finally:
        connection.close()


def one(value: float = 1.0, rows: int = 1, name: str = "A", **parameters: Any) -> dict[str, Any]:
    """A request of ones, float32 [rows, 4]."""
    tensor = {"name": name, "shape": [rows, 4], "datatype": "FP32", "data": [value] * (4 * rows)}
    return {"inputs": [tensor], "parameters": parameters}


def first(reply: tuple[int, Any], name: str = "Z") -> float:
    status, found = reply
    assert status == 200, found
    (output,) = (output for output in found["outputs"] if output["name"] == name)
    return float(output["data"][0])


def chain(folder: Path, *factors: float, name: str = "e", **more: Any) -> Path:
    """A folder of models f0, f1, … and an ensemble that multiplies by all factors, one after the other."""
    tensors = ["A", *(f"t{i}" for i in range(len(factors) - 1)), "Z"]
    for i, factor in enumerate(factors):
        put(folder / f"f{i}.mslite", scaled(factor))
    steps = [step(f"f{i}", {"x": tensors[i]}, {"y": tensors[i + 1]}) for i in range(len(factors))]
    put(folder / name / "ensemble.json", document(["A"], ["Z"], *steps, **more))
    return folder


def inside(there: Live, what: Callable[[], Any]) -> Any:
    """Call something on the gateway's own thread."""

    async def run() -> Any:
        return what()

    return there.call(run())


# -- answers -----------------------------------------------------------------------------------------------------------

_OPS: Mapping[str, Callable[[Array, Array], Array]] = {"Add": np.add, "Sub": np.subtract, "Max": np.maximum}


def random_ensemble(rng: random.Random) -> tuple[dict[str, Any], Callable[[Mapping[str, Array]], dict[str, Array]]]:
    """A graph of Add, Sub and Max on random tensors, and the same in NumPy."""
    ends = [f"in{i}" for i in range(rng.randint(1, 3))]
    tensors, plan = list(ends), list[tuple[str, str, str, str]]()
    for i in range(rng.randint(1, 9)):
        op, a, b = rng.choice(sorted(_OPS)), rng.choice(tensors), rng.choice(tensors[-3:])
        plan.append((op, a, b, f"y{i}"))
        tensors += [f"y{i}", f"z{i}"]
    read = {name for _, a, b, _ in plan for name in (a, b)}
    ends = [name for name in ends if name in read]
    outputs = [
        name for _, _, _, y in plan for name in (y, y.replace("y", "z")) if name not in read or rng.random() < 0.2
    ]
    used = read.union(outputs)
    steps = []
    for op, a, b, y in plan:
        made_ = {"y": y, "z": y.replace("y", "z")}
        steps.append(step(op.lower(), {"a": a, "b": b}, {k: name for k, name in made_.items() if name in used}))
    rng.shuffle(steps)

    def compute(inputs: Mapping[str, Array]) -> dict[str, Array]:
        held = dict(inputs)
        for op, a, b, y in plan:
            held[y], held[y.replace("y", "z")] = _OPS[op](held[a], held[b]), -held[b]
        return {name: held[name] for name in outputs}

    return document(ends, outputs, *steps), compute


def test_random_graphs_over_every_protocol(tmp_path: Path) -> None:
    rng, numbers = random.Random(5), np.random.default_rng()
    for op in _OPS:
        put(tmp_path / f"{op.lower()}.mslite", combined(op))
    graphs = [random_ensemble(rng) for _ in range(12)]
    for i, (file, _) in enumerate(graphs):
        put(tmp_path / f"g{i}" / "ensemble.json", file)
    with live(tmp_path) as there, listening(there) as address, asking(there) as client, \
            grpc.InferenceServerClient(address) as remote:  # fmt: skip
        for i, (file, compute) in enumerate(graphs):
            rows = int(numbers.integers(1, 9))
            arrays = {end["name"]: numbers.standard_normal((rows, 4)).astype(np.float32) for end in file["input"]}
            expected = compute(arrays)
            for found in (client.infer(f"g{i}", given(arrays)), remote.infer(f"g{i}", given(arrays, grpc))):
                for name, array in expected.items():
                    np.testing.assert_array_equal(found.as_numpy(name), array)
            with Client(there.address) as ours:
                assert ours.infer(f"g{i}", arrays).keys() == expected.keys()
            connection = HTTPConnection("127.0.0.1", there.port, timeout=300)
            columns = {name: array.tolist() for name, array in arrays.items()}
            connection.request("POST", f"/v1/models/g{i}:predict", json.dumps({"inputs": columns}))
            outputs = json.loads(connection.getresponse().read())["outputs"]
            connection.close()
            for name, array in expected.items():
                own = outputs[name] if len(expected) > 1 else outputs
                np.testing.assert_array_equal(np.array(own, np.float32), array)
        assert not there.gateway.room.taken and not there.gateway.under_way


def test_what_it_says_about_itself(tmp_path: Path) -> None:
    chain(tmp_path, 2.0, 3.0)
    end = [{"name": "A", "data_type": "TYPE_FP32", "dims": [2, 2], "reshape": {"shape": [4]}}]
    steps = step("f0", X, {"y": "t"}), step("f1", {"x": "t"}, Y, model_label="now")
    put(tmp_path / "f1.toml", 'labels = {now = "latest"}')
    put(tmp_path / "shaped" / "ensemble.json", document(end, ["Z"], *steps, max_batch_size=8))
    with live(tmp_path) as there, listening(there) as address, asking(there) as client, \
            grpc.InferenceServerClient(address) as remote:  # fmt: skip
        about = client.get_model_metadata("e")
        tensors = [{"name": name, "datatype": "FP32", "shape": [-1, 4]} for name in "AZ"]
        assert about == {
            "name": "e", "versions": ["1"], "platform": "ensemble", "inputs": tensors[:1], "outputs": tensors[1:],
        }  # fmt: skip
        assert client.get_model_metadata("shaped")["inputs"][0]["shape"] == [-1, 2, 2]
        config = client.get_model_config("shaped")
        assert (config["platform"], config["max_batch_size"]) == ("ensemble", 8)
        assert config["input"] == [{**end[0], "data_type": "TYPE_FP32"}]
        assert config["ensemble_scheduling"]["step"][1]["model_label"] == "now"
        assert client.get_model_config("e")["ensemble_scheduling"]["step"][0] == {
            "model_name": "f0", "model_version": -1, "input_map": X, "output_map": {"y": "t0"},
        }  # fmt: skip
        told = remote.get_model_config("shaped").config
        assert told.platform == "ensemble" and list(told.input[0].reshape.shape) == [4]
        step_ = told.ensemble_scheduling.step[1]
        assert (step_.model_name, step_.model_version, dict(step_.input_map)) == ("f1", -1, {"x": "t"})
        assert json.loads(told.parameters["model_labels"].string_value) == ["", "now"]
        x = np.ones((3, 2, 2), np.float32)
        assert client.infer("shaped", given({"A": x})).as_numpy("Z").tolist() == [[6.0] * 4] * 3
        with pytest.raises(
            utils.InferenceServerException, match=r"at most 8 rows in one request \(max_batch_size\), got 9"
        ):
            client.infer("shaped", given({"A": np.ones((9, 2, 2), np.float32)}))
        (page,) = (row for row in there.gateway.status()["models"] if row["name"] == "shaped")
        assert page["state"] == "READY" and page["answered"] == 1 and page["failed"] == 1
        assert any(model == "e" for model in there.gateway.document()["paths"]["/v2/models/{name}/infer"]["post"][
            "requestBody"]["content"]["application/json"]["examples"])  # fmt: skip


def test_statistics_of_the_whole_and_of_its_models(tmp_path: Path) -> None:
    with live(chain(tmp_path, 2.0, 3.0)) as there, asking(there) as client:
        for rows in (1, 3):
            assert first(ask(there, "e", one(rows=rows))) == 6
        assert ask(there, "e", {"inputs": []})[0] == 400
        stats = {model["name"]: model for model in client.get_inference_statistics()["model_stats"]}
        for name in ("e", "f0", "f1"):
            found = stats[name]
            assert (found["inference_count"], found["execution_count"]) == (4, 2)
            assert found["inference_stats"]["success"]["count"] == 2
            assert found["inference_stats"]["fail"]["count"] == (name == "e")
        for part in ("queue", "compute_input", "compute_infer"):
            sums = [stats[name]["inference_stats"][part]["ns"] for name in ("e", "f0", "f1")]
            assert abs(sums[0] - sums[1] - sums[2]) <= 2  # rounded one by one
        text = there.gateway.metrics("")[0].decode()
        assert 'nv_inference_request_success{model="e",version="1"} 2' in text


def test_texts_and_labels_of_classes(tmp_path: Path) -> None:
    """BYTES from one model to the next, and class labels of the model that makes an output."""
    simple_string(tmp_path / "strings.mslite")
    put(tmp_path / "scores.mslite", scaled(1.0, metadata={"labels": ["a", "b", "c", "d"]}))
    twice = (step("strings", {"INPUT0": "A", "INPUT1": "B"}, {"OUTPUT0": "s"}),
             step("strings", {"INPUT0": "s", "INPUT1": "s"}, {"OUTPUT0": "S"}))  # fmt: skip
    put(tmp_path / "texts" / "ensemble.json", document(["A", "B"], ["S"], *twice))
    put(tmp_path / "classes" / "ensemble.json", document(["A"], ["Z"], step("scores", X, Y)))
    with live(tmp_path) as there, asking(there) as client:
        texts = np.array([[str(i).encode() for i in range(16)]], object)
        found = client.infer("texts", given({"A": texts, "B": texts})).as_numpy("S")
        assert [int(text) for text in found.ravel()] == [4 * i for i in range(16)]
        x = np.array([[0.5, 3, 1, 2]], np.float32)
        wanted = [http.InferRequestedOutput("Z", class_count=2)]
        found = client.infer("classes", given({"A": x}), outputs=wanted).as_numpy("Z")
        assert found.tolist() == [[b"3.000000:1:b", b"2.000000:3:d"]]
        status, reply = ask(there, "texts", {"inputs": [
            {"name": name, "shape": [1, 16], "datatype": "BYTES", "data": ["one"] * 16} for name in "AB"]})  # fmt: skip
        assert status == 400 and "step 1 (model 'strings')" in reply["error"]


def test_a_model_with_processing(tmp_path: Path) -> None:
    """Its steps run for requests of the ensemble, as they do for its own."""
    steps = [
        {"step": "tensor", "dtype": "uint8", "shape": [4]},
        {"step": "cast", "dtype": "float32"},
        {"step": "normalize", "scale": 0.5},
    ]
    processing = {
        "version": 1,
        "inputs": [{"name": "raw", "feeds": "x", "steps": steps}],
        "outputs": [{"names": ["best"], "of": ["y"], "steps": [{"step": "argmax"}]}],
    }
    put(tmp_path / "seen.mslite", scaled(2.0, metadata={KEY: processing}))
    put(tmp_path / "e" / "ensemble.json", document(["A"], ["B"], step("seen", {"raw": "A"}, {"best": "B"})))
    with live(tmp_path) as there, asking(there) as client:
        assert client.get_model_metadata("e")["inputs"][0]["datatype"] == "UINT8"
        x = np.array([[1, 9, 2, 3], [7, 1, 1, 1]], np.uint8)
        own = client.infer("seen", given({"raw": x})).as_numpy("best")
        np.testing.assert_array_equal(client.infer("e", given({"A": x})).as_numpy("B"), own)
        assert own.ravel().tolist() == [1, 0]


def test_pictures_in_labels_out(tmp_path: Path) -> None:
    """As Triton's example client asks: an axis of size 1 that the model does not have, the best classes as text."""
    steps = [{"step": "image", "mode": "gray"}, {"step": "resize", "size": 2, "method": "nearest"},
             {"step": "cast", "dtype": "float32"}]  # fmt: skip
    processing = {"version": 1, "inputs": [{"name": "image", "feeds": "x", "steps": steps}], "outputs": []}
    put(tmp_path / "prepare.mslite", scaled(1.0, ("n", 2, 2, 1), metadata={KEY: processing}))
    metadata = {"labels": ["upper left", "upper right", "lower left", "lower right"]}
    flat = Node("Reshape", ("x", "shape"), ("y",))
    ends = Value("x", "float32", ("n", 2, 2, 1)), Value("y", "float32", ("n", 4))
    graph = Graph((ends[0],), (ends[1],), (flat,), {"shape": np.array([-1, 4], np.int64)})
    put(tmp_path / "best.mslite", bundle.write(None, {"predict": graph}, metadata=metadata))
    end = {"name": "A", "data_type": "TYPE_STRING", "dims": [1], "reshape": {"shape": []}}
    both = step("prepare", {"image": "A"}, {"y": "p"}), step("best", {"x": "p"}, Y)
    put(tmp_path / "photo" / "ensemble.json", document([end], ["Z"], *both, max_batch_size=8))
    pixels = np.zeros((3, 4, 4, 3), np.uint8)
    pixels[0, :2, 2:], pixels[1, 2:, :2], pixels[2, 2:, 2:] = 200, 100, 50
    files = np.array([[png(picture)] for picture in pixels], object)
    with live(tmp_path) as there, listening(there) as address, asking(there) as over_http:
        assert over_http.get_model_metadata("photo")["inputs"] == [
            {"name": "A", "datatype": "BYTES", "shape": [-1, 1]}]  # fmt: skip
        with grpc.InferenceServerClient(address) as over_grpc:
            for module, client in ((http, over_http), (grpc, over_grpc)):
                wanted = [module.InferRequestedOutput("Z", class_count=1)]
                found = client.infer("photo", given({"A": files}, module), outputs=wanted).as_numpy("Z")
                assert [text.decode().split(":", 1) for text in found.ravel()] == [
                    ["200.000000", "1:upper right"], ["100.000000", "2:lower left"], ["50.000000", "3:lower right"],
                ]  # fmt: skip


# -- models that come, change and go -----------------------------------------------------------------------------------


def reason(there: Live, name: str) -> tuple[str, str]:
    (row,) = (row for row in inside(there, there.gateway.repository.index) if row["name"] == name)
    return row["state"], row["reason"]


def test_it_is_ready_when_its_models_are(tmp_path: Path) -> None:
    put(tmp_path / "e" / "ensemble.json", document(["A"], ["Z"], step("a", X, {"y": "t"}), step("b", {"x": "t"}, Y)))
    put(tmp_path / "a.mslite", scaled(2.0))
    with live(tmp_path, repository__poll=0.05) as there, asking(there) as client, listening(there) as address, \
            grpc.InferenceServerClient(address) as remote:  # fmt: skip
        missing = "ensemble 'e': step 2 (model 'b'): there is no model 'b'"
        assert client.is_server_ready() and not client.is_model_ready("e") and not remote.is_model_ready("e")
        assert reason(there, "e")[0] == "UNAVAILABLE" and reason(there, "e")[1].startswith(missing)
        status, reply = ask(there, "e", one())
        assert status == 503 and reply["error"].startswith(missing)
        for call in (client.get_model_metadata, client.get_model_config, client.get_inference_statistics):
            with pytest.raises(utils.InferenceServerException, match="step 2"):
                call("e")
        put(tmp_path / "b.mslite", scaled(3.0, ("n", 5)))
        until(lambda: "FP32 [-1, 4], input 'x' of step 2 (model 'b') has FP32 [-1, 5]" in reason(there, "e")[1])
        assert ask(there, "e", one())[0] == 503
        put(tmp_path / "b.mslite", scaled(3.0))
        until(lambda: client.is_model_ready("e"))
        assert first(ask(there, "e", one())) == 6 and remote.is_model_ready("e") and reason(there, "e")[0] == "READY"
        (tmp_path / "b.mslite").unlink()
        until(lambda: not client.is_model_ready("e"))
        put(tmp_path / "b.mslite", scaled(5.0))
        until(lambda: client.is_model_ready("e"))
        assert first(ask(there, "e", one())) == 10
        put(tmp_path / "e" / "ensemble.json", document(["A"], ["Z"], step("b", X, Y)))
        until(lambda: first(ask(there, "e", one())) == 5)
        put(tmp_path / "e" / "ensemble.json", document(["A"], ["Z"], step("b", X, {"y": "W"})))
        until(lambda: "output: tensor 'Z' is neither" in reason(there, "e")[1])
        assert first(ask(there, "e", one())) == 5  # the graph before it stays
        (tmp_path / "e" / "ensemble.json").unlink()
        until(lambda: ask(there, "e", one())[0] == 404)
        there.gateway.log.close()
        told = there.log.getvalue()
        assert "warning ensemble is not ready model=e version=1 reason=" in told and "info    ensemble is ready" in told


def test_every_answer_comes_from_one_version_of_a_model(tmp_path: Path) -> None:
    """A model that is used twice is replaced all the time: the factor of an answer is a square. Nothing fails."""
    put(tmp_path / "m.mslite", scaled(2.0))
    steps = step("m", X, {"y": "t"}), step("m", {"x": "t"}, Y)
    put(tmp_path / "e" / "ensemble.json", document(["A"], ["Z"], *steps))
    files = {factor: scaled(factor) for factor in (2.0, 3.0, 5.0)}
    found: set[float] = set()
    with live(tmp_path) as there, Client(there.address) as manager, ThreadPoolExecutor(4) as clients:
        inside(there, lambda: setattr(there.gateway.scheduler, "_inline", 0))  # so that others come between the steps
        stop = threading.Event()

        def keep_asking(_: int) -> set[float]:
            seen = set()
            with Client(there.address) as client:
                while not stop.is_set():
                    seen.add(float(client.infer("e", {"A": np.ones((1, 4), np.float32)})["Z"][0, 0]))
            return seen

        waiting = [clients.submit(keep_asking, i) for i in range(4)]
        for i in range(40):
            manager.load("m", files={"1/model.mslite": files[[2.0, 3.0, 5.0][i % 3]]})
        stop.set()
        for one_ in waiting:
            found |= one_.result()
    assert found <= {4.0, 9.0, 25.0} and len(found) > 1


def test_versions_labels_and_shares_of_its_models(tmp_path: Path) -> None:
    for version in (1, 2, 3):
        put(tmp_path / "m" / str(version) / "model.mslite", scaled(float(version)))
    put(tmp_path / "m" / "config.toml", 'versions = "all"\nlabels = {stable = 2}\nsplit = {1 = 0.5, 3 = 0.5}')
    for name, more in {"any": {}, "two": {"model_version": 2}, "stable": {"model_label": "stable"},
                       "none": {"model_version": 9}, "other": {"model_label": "other"}}.items():  # fmt: skip
        twice = step("m", X, {"y": "t"}, **more), step("m", {"x": "t"}, Y, **more)
        put(tmp_path / name / "ensemble.json", document(["A"], ["Z"], *twice))
    for version, factor in ((1, "two"), (2, "stable")):
        graph = f'''
            input = [{{name = "A"}}]
            output = [{{name = "Z"}}]
            [[ensemble_scheduling.step]]
            model_name = "{factor}"
            input_map = {{A = "A"}}
            output_map = {{Z = "Z"}}
            '''
        put(tmp_path / "many" / str(version) / "ensemble.toml", graph)
    put(tmp_path / "many" / "config.toml", 'versions = "all"\nlabels = {old = 1}')
    with live(tmp_path) as there:
        assert {first(ask(there, "any", one())) for _ in range(8)} == {1.0, 9.0}
        sides = {first(ask(there, "any", one(), {"X-Request-ID": "the-same"})) for _ in range(8)}
        assert len(sides) == 1  # as the model's own requests with this id
        assert first(ask(there, "two", one())) == 4 == first(ask(there, "stable", one()))
        assert ask(there, "none", one())[0] == 503 == ask(there, "other", one())[0]
        assert "no version '9'" in ask(there, "none", one())[1]["error"]
        for version in ("1", "2", "old"):
            assert first(ask(there, f"many/versions/{version}", one())) == 4
        assert ask(there, "many", one())[1]["model_version"] == "2"


def test_ensembles_of_ensembles(tmp_path: Path) -> None:
    put(tmp_path / "m.mslite", scaled(2.0))
    before = "m"
    for i in range(DEPTH + 1):
        inner = {"x": "A"} if before == "m" else {"A": "A"}
        outer = {"y": "Z"} if before == "m" else {"Z": "Z"}
        put(tmp_path / f"e{i}" / "ensemble.json", document(["A"], ["Z"], step(before, inner, outer)))
        before = f"e{i}"
    around = [step(f"r{1 - i}", {"A": "A"}, {"Z": "Z"}) for i in (0, 1)]
    for i, each in enumerate(around):
        put(tmp_path / f"r{i}" / "ensemble.json", document(["A"], ["Z"], each))
    wide_ = [step("m", {"x": "A"}, {"y": f"t{i}"}) for i in range(60)]
    names = [f"t{i}" for i in range(60)]
    put(tmp_path / "w" / "ensemble.json", document(["A"], names, *wide_))
    many = [step("w", {"A": "A"}, {"t0": f"u{i}"}) for i in range(5)]
    put(tmp_path / "ww" / "ensemble.json", document(["A"], [f"u{i}" for i in range(5)], *many))
    with live(tmp_path) as there:
        assert first(ask(there, f"e{DEPTH - 1}", one())) == 2
        assert f"at most {DEPTH} ensembles inside" in ask(there, f"e{DEPTH}", one())[1]["error"]
        assert "r0 → r1 → r0: an ensemble cannot be a part of itself" in ask(there, "r0", one())[1]["error"]
        assert len(ask(there, "w", one())[1]["outputs"]) == 60
        assert "expected at most 256 runs of models for one request, got 300" in ask(there, "ww", one())[1]["error"]
        stats = {s["name"]: s for s in there.gateway.statistics.triton()["model_stats"]}  # type: ignore[attr-defined]
        assert [stats[f"e{i}"]["inference_count"] for i in range(DEPTH)] == [1] * DEPTH


def test_models_that_keep_state_are_refused(tmp_path: Path) -> None:
    from tests.edge.gateway.models.conftest import counter

    put(tmp_path / "count.mslite", counter())
    put(tmp_path / "e" / "ensemble.json", document(["A"], ["Z"], step("count", {"by": "A"}, {"next": "Z"})))
    with live(chain(tmp_path, 2.0, name="f")) as there:
        assert "step 1 (model 'count') keeps state between requests" in ask(there, "e", one())[1]["error"]
        status, reply = ask(there, "f", one(sequence_id=5, sequence_start=True))
        assert status == 400 and "ensemble 'f' keeps no state" in reply["error"]


def test_loading_and_unloading_by_request(tmp_path: Path) -> None:
    with live(chain(tmp_path, 2.0, 3.0)) as there, asking(there) as client:
        file = json.dumps(document(["A"], ["Z"], step("f1", X, Y))).encode()
        client.load_model("sent", files={"file:1/ensemble.json": file})
        assert first(ask(there, "sent", one())) == 3
        config = client.get_model_config("e")
        client.load_model("e", config=json.dumps({**config, "max_batch_size": 2}))  # as it was read, one thing changed
        assert client.get_model_config("e")["max_batch_size"] == 2 and ask(there, "e", one(rows=3))[0] == 400
        config["ensemble_scheduling"]["step"][0]["model_name"] = "f1"
        with pytest.raises(utils.InferenceServerException, match="config: ensemble_scheduling: expected the bundle's"):
            client.load_model("e", config=json.dumps(config))
        for wrong, match in (
            (document(["A"], ["Z"], step("nobody", X, Y)), "there is no model 'nobody'"),
            (document(["A"], ["Z"], step("f1", X, {"z": "Z"})), "the model has no output 'z'"),
            (document(["A"], ["Z"]), "expected a list of 1 to 64 steps"),
        ):
            with pytest.raises(utils.InferenceServerException, match=match) as caught:
                client.load_model("sent", files={"file:1/ensemble.json": json.dumps(wrong).encode()})
            assert caught.value.status() == "400" and first(ask(there, "sent", one())) == 3
        for key in ('{"ladder": [1, 2]}', '{"pinned": true}', '{"labels": {"a": 1}, "shadow": {"version": "a"}}'):
            with pytest.raises(utils.InferenceServerException, match="set it for its models"):
                client.load_model("e", config=key)
        client.unload_model("f1")
        assert {name: reason(there, name)[0] for name in ("e", "f1", "sent")} == dict.fromkeys(
            ("e", "f1", "sent"), "UNAVAILABLE"
        )
        client.load_model("f1")
        assert first(ask(there, "e", one())) == 6 and first(ask(there, "sent", one())) == 3
        client.unload_model("f1", unload_dependents=True)
        client.load_model("f1")
        assert reason(there, "e") == ("UNAVAILABLE", "unloaded") and ask(there, "sent", one())[0] == 404
        assert first(ask(there, "f1", one(name="x")), "y") == 3


def test_a_token_for_the_ensemble_is_enough(tmp_path: Path) -> None:
    file = tmp_path / "tokens.json"
    only = tokens.add(file, "only", ["infer", "manage"], models=("e", "f0"))
    (tmp_path / "models").mkdir()
    with live(chain(tmp_path / "models", 2.0, 3.0), access__tokens=str(file), access__management="token") as there:
        told = {"Authorization": f"Bearer {only}"}
        assert first(ask(there, "e", one(), told)) == 6
        assert ask(there, "f1", one(name="x"), told)[0] == 403 and ask(there, "e", one())[0] == 401
        assert first(ask(there, "f0", one(name="x"), told), "y") == 2
        chained = tokens.add(file, "chained", ["manage"], models=("f0",))
        inside(there, there.gateway.refresh)
        connection = HTTPConnection("127.0.0.1", there.port, timeout=300)
        body = json.dumps({"parameters": {"unload_dependents": True}})
        connection.request("POST", "/v2/repository/models/f0/unload", body, {"Authorization": f"Bearer {chained}"})
        reply = connection.getresponse()
        assert reply.status == 403 and "may not use model 'e'" in json.loads(reply.read())["error"]
        connection.close()
        assert first(ask(there, "e", one(), told)) == 6


def test_named_alone_it_must_be_ready_at_the_start(tmp_path: Path) -> None:
    chain(tmp_path, 2.0)
    graph = put(tmp_path / "graph.json", document(["A"], ["Z"], step("f0", X, Y)))
    with live({"graph": graph, "f0": tmp_path / "f0.mslite"}) as there:
        inside(there, there.gateway.check_named)
        assert first(ask(there, "graph", one())) == 2
    with live({"graph": graph}) as there, pytest.raises(GatewayError, match="there is no model 'f0'"):
        inside(there, there.gateway.check_named)


# -- what is computed when ---------------------------------------------------------------------------------------------


class Gate:
    """Processing that all of several steps must be in at the same time."""

    def __init__(self, barrier: threading.Barrier, ports: Any) -> None:
        self.barrier, self.ports = barrier, ports

    def before(self, inputs: Any) -> Any:
        self.barrier.wait(60)
        return inputs

    def after(self, outputs: Any) -> Any:
        return outputs


def test_steps_that_do_not_need_one_another_run_at_the_same_time(tmp_path: Path) -> None:
    for name in ("a", "b"):
        put(tmp_path / f"{name}.mslite", scaled(2.0))
    put(tmp_path / "sum.mslite", combined("Add"))
    steps = (step("a", X, {"y": "p"}), step("b", X, {"y": "q"}), step("sum", {"a": "p", "b": "q"}, {"y": "Z"}))
    put(tmp_path / "e" / "ensemble.json", document(["A"], ["Z"], *steps))
    with live(tmp_path, threads=2) as there:
        barrier = threading.Barrier(2)
        for name in ("a", "b"):
            served = there.gateway.repository.route(name)
            inside(there, lambda served=served: setattr(served, "processing", Gate(barrier, served.outer["predict"])))
        assert first(ask(there, "e", one())) == 4


def test_rows_of_ensembles_and_of_their_models_clients_form_one_batch(tmp_path: Path) -> None:
    with live(chain(tmp_path, 2.0, 3.0)) as there:
        batches: list[int] = []
        runner = there.gateway.repository.route("f1").usual_runner("predict")  # type: ignore[attr-defined]
        run = runner.run
        runner.run = lambda jobs: (batches.append(len(jobs)), run(jobs))[0]
        replies: list[Answer] = []

        async def together() -> None:
            there.gateway.scheduler._inline = 0  # type: ignore[misc]
            for name in ("e", "e", "e"):
                there.gateway.infer(
                    Ask(name, "", {}, memoryview(json.dumps(one()).encode()), "127.0.0.1"), replies.append
                )
            while len(there.gateway.scheduler._waiting) < 3 and not batches:  # until the second step of all has come
                await asyncio.sleep(0)
            for _ in range(2):
                body = memoryview(json.dumps(one(name="x")).encode())
                there.gateway.infer(Ask("f1", "", {}, body, "127.0.0.1"), replies.append)
            while len(replies) < 5:
                await asyncio.sleep(0.001)

        there.call(together())
        assert [reply.status for reply in replies] == [200] * 5
        assert sum(batches) == 5 and max(batches) > 1


def test_a_deadline_holds_for_all_steps(tmp_path: Path) -> None:
    """What cannot be done in time is refused before anything is computed; what takes longer than predicted ends with
    504, and the steps that remain are not computed."""
    with live(chain(tmp_path, 2.0, 3.0, 5.0)) as there:
        assert first(ask(there, "e", one())) == 30
        for i in range(3):  # three runs of 20 ms, as far as anybody knows
            cost = there.gateway.repository.route(f"f{i}").usual_runner("predict").cost  # type: ignore[attr-defined]
            inside(there, lambda cost=cost: [cost.observe(1, 0.02) for _ in range(200)])
        stats = there.gateway.statistics
        status, reply = ask(there, "e", one(timeout=30_000))
        assert status == 429 and "would be done in" in reply["error"]
        assert [stats.of(f"f{i}", "1").rows for i in range(3)] == [1, 1, 1]
        put(tmp_path / "e" / "config.toml", "timeout = 0.03")
        there.call(there.gateway.load("e", {}))
        assert ask(there, "e", one())[0] == 429
        put(tmp_path / "e" / "config.toml", "timeout = 10")
        there.call(there.gateway.load("e", {}))
        run = there.gateway.repository.route("f0").usual_runner("predict")  # type: ignore[attr-defined]
        slow, computed = run.run, threading.Event()
        run.run = lambda jobs: (threading.Event().wait(0.6), slow(jobs), computed.set())
        status, reply = ask(there, "e", one(timeout=500_000))
        assert status == 504 and "step 2 (model 'f1')" in reply["error"] and computed.is_set()
        assert [stats.of(f"f{i}", "1").rows for i in range(3)] == [2, 1, 1]
        assert stats.of("f1", "1").failed["REJECTED"] == 1 == stats.of("f2", "1").failed.total() + 1


def test_limits_of_the_whole(tmp_path: Path) -> None:
    """Requests at once, and rows, of the ensemble and of its models."""
    chain(tmp_path, 2.0, 3.0)
    put(tmp_path / "e" / "config.toml", "concurrency = 2\nqueue_rows = 64")
    put(tmp_path / "f1.toml", "queue_rows = 16")
    with live(tmp_path) as there:
        status, reply = ask(there, "e", one(rows=17))
        assert status == 400 and "at most 16 rows in one request" in reply["error"]
        replies: list[Answer] = []

        async def many() -> None:
            there.gateway.scheduler._inline = 0  # type: ignore[misc]
            for _ in range(5):
                body = memoryview(json.dumps(one()).encode())
                there.gateway.infer(Ask("e", "", {}, body, "127.0.0.1"), replies.append)
            while len(replies) < 5:
                await asyncio.sleep(0.001)

        there.call(many())
        assert sorted(reply.status for reply in replies) == [200, 200, 429, 429, 429]
        assert first(ask(there, "e", one())) == 6
        share = there.gateway.scheduler.snapshot()["models"]["e"]
        assert (share["jobs"], share["rows"], share["flying"]) == (0, 0, 0)


class Slow:
    """A runner that computes nothing before it is told to."""

    def __init__(self, there: Live, model: str) -> None:
        self.entered, self.leave, self.computed = threading.Event(), threading.Event(), 0
        runner = there.gateway.repository.route(model).usual_runner("predict")  # type: ignore[attr-defined]
        self._run, runner.run = runner.run, self.run
        inside(there, lambda: setattr(there.gateway.scheduler, "_inline", 0))

    def run(self, jobs: Any) -> None:
        self.entered.set()
        assert self.leave.wait(60)
        self.computed += len(jobs)
        self._run(jobs)


def test_clients_that_leave_cancel_what_has_not_begun(tmp_path: Path) -> None:
    with live(chain(tmp_path, 2.0, 3.0)) as there:
        slow = Slow(there, "f0")
        clients = [HTTPConnection("127.0.0.1", there.port, timeout=300) for _ in range(2)]
        clients[0].request("POST", "/v2/models/e/infer", json.dumps(one()))
        assert slow.entered.wait(60)
        clients[1].request("POST", "/v2/models/e/infer", json.dumps(one()))
        until(lambda: there.gateway.under_way == 2)
        assert there.gateway.repository.route("f1").in_flight == 2  # it is kept for the whole request
        for client in clients:
            client.close()
        until(lambda: not there.gateway.under_way)
        slow.leave.set()
        until(lambda: not any(s["flying"] for s in there.gateway.scheduler.snapshot()["models"].values()))
        stats = there.gateway.statistics
        assert (
            slow.computed == 1 and stats.of("e", "1").failed["CANCELED"] == 2 == stats.of("f0", "1").failed["CANCELED"]
        )
        assert not stats.of("f1", "1").rows and not stats.of("f1", "1").failed
        assert [there.gateway.repository.route(name).in_flight for name in ("e", "f0", "f1")] == [0, 0, 0]
        assert not there.gateway.room.taken
        assert first(ask(there, "e", one())) == 6


def test_what_was_accepted_is_finished_at_shutdown(tmp_path: Path) -> None:
    """Steps that begin after the server has begun to stop are part of it."""
    with live(chain(tmp_path, 2.0, 3.0)) as there, ThreadPoolExecutor(1) as clients:
        slow = Slow(there, "f0")
        reply = clients.submit(ask, there, "e", one())
        assert slow.entered.wait(60)
        draining = asyncio.run_coroutine_threadsafe(there.gateway.drain(60), there.loop)
        until(lambda: there.gateway.leaving)
        assert ask(there, "e", one())[0] == 503
        slow.leave.set()
        assert draining.result(60) and first(reply.result(60)) == 6


def test_an_error_of_a_step_names_it(tmp_path: Path) -> None:
    with live(chain(tmp_path, 2.0, 3.0)) as there:
        runner = there.gateway.repository.route("f1").usual_runner("predict")  # type: ignore[attr-defined]

        def broken(jobs: Any) -> None:
            raise ZeroDivisionError("secret")

        runner.run = broken
        inside(there, lambda: setattr(there.gateway.scheduler, "_inline", 0))
        status, reply = ask(there, "e", one())
        assert status == 500 and reply["error"] == "internal server error; the gateway's log has the details"
        there.gateway.log.close()
        assert there.log.getvalue().count("ZeroDivisionError") >= 1
        assert there.gateway.statistics.of("f1", "1").failed["BACKEND"] == 1
        assert not there.gateway.under_way and not there.gateway.room.taken


# -- memory ------------------------------------------------------------------------------------------------------------


def test_tensors_between_steps_count_in_the_memory_budget(tmp_path: Path) -> None:
    put(tmp_path / "wide.mslite", wide(1000))
    put(tmp_path / "narrow.mslite", scaled(2.0, ("n", 4000)))
    steps = step("wide", X, {"y": "t"}), step("narrow", {"x": "t"}, Y)
    put(tmp_path / "e" / "ensemble.json", document(["A"], ["Z"], *steps))
    put(tmp_path / "less" / "ensemble.json", document(["A"], ["Z"], *steps))
    put(tmp_path / "less" / "config.toml", "memory = 20_000")
    with live(tmp_path, limits__bodies=100_000) as there:
        seen: list[int] = []
        reserve = there.gateway.room.reserve
        inside(
            there,
            lambda: setattr(there.gateway.room, "reserve", lambda held, size: (reserve(held, size), seen.append(size))),
        )
        assert first(ask(there, "e", one(rows=2))) == 2
        assert 32_000 in seen and 64_000 not in seen  # what was read last is dropped
        status, reply = ask(there, "e", one(rows=8))
        assert status == 413 and "step 1 (model 'wide')" in reply["error"] and "limits.bodies" in reply["error"]
        assert first(ask(there, "less", one())) == 2
        status, reply = ask(there, "less", one(rows=2))
        assert status == 413 and "more than the ensemble's memory = 20000" in reply["error"]
        assert not there.gateway.room.taken


def test_models_that_were_unloaded_to_save_memory_are_loaded_again(tmp_path: Path) -> None:
    chain(tmp_path, 2.0, 3.0)
    for i, factor in enumerate((2.0, 3.0, 7.0)):
        put(tmp_path / f"f{i}.mslite", scaled(factor, metadata={"notes": "x" * 500_000}))  # 1 MB in memory
    with live(tmp_path, repository__memory=1_600_000) as there, asking(there) as client:
        assert first(ask(there, "f0", one(name="x")), "y") == 2
        assert first(ask(there, "f1", one(name="x")), "y") == 3  # f0 is gone by now
        assert client.is_model_ready("e")
        status, reply = ask(there, "e", one())  # both are needed at once
        assert status == 503 and "raise --repository-memory" in reply["error"]
        assert [there.gateway.repository.served()[i].in_flight for i in range(2)] == [0, 0]
    with live(tmp_path, repository__memory=2_700_000) as there:
        assert first(ask(there, "f2", one(name="x")), "y") == 7  # in the place of another one
        assert len(there.gateway.repository.served()) == 3
        assert first(ask(there, "e", one())) == 6


def test_devices(tmp_path: Path) -> None:
    """A device's own version of a model answers in an ensemble as well, for who may ask as this device."""
    store = PersonalStore(tmp_path / "personal.sqlite")
    fill(store, "dense", 1)
    models = tmp_path / "models"
    put(models / "m.mslite", made("dense"))
    from lite_runtime import bundle

    held = bundle.read(made("dense"))
    (out,) = held.signatures["predict"].outputs
    put(models / "twice.mslite", scaled(2.0, ("n", *map(int, out.shape[1:]))))  # type: ignore[index,arg-type]
    steps = step("m", {"x": "A"}, {out.name: "t"}), step("twice", {"x": "t"}, Y)
    put(models / "e" / "ensemble.json", document(["A"], ["Z"], *steps))
    x = np.ones((1, *SHAPES["dense"]), np.float32)
    body = {"inputs": [{"name": "A", "shape": x.shape, "datatype": "FP32", "data": x.ravel().tolist()}]}
    import lite_runtime

    with live(models, personal__store=store.path) as there:
        for device, note in (("d0", "m: version 1"), ("d7", "global"), ("", None)):
            status, reply = ask(there, "e", {**body, "parameters": {"device": device}})
            assert status == 200 and reply.get("parameters", {}).get("personal") == note
            own = bundle.with_state(made("dense"), params(held, 0)) if device == "d0" else made("dense")
            (wanted,) = lite_runtime.load(own).run({"x": x}).values()
            np.testing.assert_allclose(np.array(reply["outputs"][0]["data"]), 2 * wanted.ravel(), rtol=1e-4, atol=1e-5)
    assert base(held).keys()
