"""Streaming models over HTTP: sequences, as NVIDIA's client asks for them, and their state as files."""

from __future__ import annotations

import json
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ai_edge_litert.interpreter import Interpreter as LiteRT

import lite_runtime
import msedge
from benchmarks.serving.client import serving
from edge.gateway.access import tokens
from tests.converter.frontends.tflite.support import floats
from tests.converter.streams import FRAME, denoiser, ring_buffer, wake_word
from tests.edge.gateway.grpc.serving import channel, listening
from tests.edge.gateway.http.raw import Got, Raw, request
from tests.edge.gateway.live import Live, live, simple
from tests.waiting import until

http = pytest.importorskip("tritonclient.http")
utils = pytest.importorskip("tritonclient.utils")

MODELS = {"denoiser": denoiser, "ring_buffer": ring_buffer, "wake_word": wake_word}
STEPS = 1000


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    folder = tmp_path_factory.mktemp("streams")
    for name, make in MODELS.items():
        msedge.convert(make(), output=folder / f"{name}.mslite")
    simple(folder / "simple.mslite")
    with live(folder, sequences__most=32) as made:
        yield made


@pytest.fixture
def client(gateway: Live) -> Iterator[Any]:
    made = http.InferenceServerClient(gateway.address.removeprefix("http://"), concurrency=8)
    yield made
    made.close()


def expected(name: str, inputs: np.ndarray) -> np.ndarray:
    it = LiteRT(model_content=MODELS[name](), num_threads=1)
    it.allocate_tensors()
    (entry,), (result,) = it.get_input_details(), it.get_output_details()
    outputs = []
    for x in inputs:
        it.set_tensor(entry["index"], x)
        it.invoke()
        outputs.append(it.get_tensor(result["index"]))
    return np.stack(outputs)


def ask(client: Any, name: str, x: np.ndarray, identity: Any, **how: bool) -> np.ndarray:
    (port,) = client.get_model_metadata(name)["inputs"]
    one = http.InferInput(port["name"], list(x.shape), port["datatype"])
    one.set_data_from_numpy(x)
    found = client.infer(name, [one], sequence_id=identity, **{f"sequence_{k}": v for k, v in how.items()})
    result: np.ndarray = found.as_numpy(client.get_model_metadata(name)["outputs"][0]["name"])
    return result


def inputs_of(client: Any, name: str, count: int, seed: int = 5) -> np.ndarray:
    (port,) = client.get_model_metadata(name)["inputs"]
    return floats(count, *port["shape"], seed=seed)


@pytest.mark.parametrize("name", MODELS)
def test_a_thousand_steps(gateway: Live, client: Any, name: str) -> None:
    """As LiteRT; in the middle the state is fetched, the sequence ends, and another one continues from the file."""
    x = inputs_of(client, name, STEPS)
    want = expected(name, x)
    half = STEPS // 2
    got = [ask(client, name, x[i], 7, start=i == 0) for i in range(half)]
    address = f"{gateway.address}/v2/models/{name}/sequences"
    with urllib.request.urlopen(f"{address}/7") as reply:
        state = reply.read()
    ask(client, name, x[0], 7, end=True)
    put = urllib.request.Request(f"{address}/moved", state, method="PUT")
    with urllib.request.urlopen(put) as reply:
        assert reply.status == 200
    got += [ask(client, name, x[i], "moved", end=i == STEPS - 1) for i in range(half, STEPS)]
    assert np.abs(np.stack(got) - want).max() <= 1e-5 * np.abs(want).max()
    device = lite_runtime.load(msedge.convert(MODELS[name]()).bundle)
    (Path(gateway.gateway.settings.models[0]) / "s.msstate").write_bytes(state)
    device.load_state(Path(gateway.gateway.settings.models[0]) / "s.msstate")
    entry = device.inputs()[0].name
    np.testing.assert_array_equal(next(iter(device.run({entry: x[half]}).values())), got[half])


def test_clients_at_once(client: Any, gateway: Live) -> None:
    """Every client has a sequence of its own, and none gets another's state."""
    name, found = "denoiser", {}

    def run(k: int) -> None:
        own = http.InferenceServerClient(gateway.address.removeprefix("http://"))
        x = inputs_of(own, name, 40, seed=k)
        got = [ask(own, name, frame, f"client {k}", start=i == 0, end=i == 39) for i, frame in enumerate(x)]
        found[k] = np.abs(np.stack(got) - expected(name, x)).max()
        own.close()

    threads = [threading.Thread(target=run, args=(k,)) for k in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 6 and max(found.values()) < 1e-5
    assert len(gateway.gateway.sequences) == 0


def test_metadata_shows_no_state(client: Any) -> None:
    found = client.get_model_metadata("denoiser")
    assert [v["name"] for v in found["inputs"]] == ["magnitudes"] and len(found["outputs"]) == 1
    assert "sequence_batching" in client.get_model_config("denoiser")
    assert "sequence_batching" not in client.get_model_config("simple")
    assert "sequence" in client.get_server_metadata()["extensions"]


def test_wrong_requests(client: Any, gateway: Live) -> None:
    frame = np.zeros((1, 1, FRAME), np.float32)
    for how, text in (
        ((0, {}), "expected a number or text that names the sequence"),
        ((12345, {}), "has no such sequence"),
    ):
        with pytest.raises(utils.InferenceServerException, match=text):
            ask(client, "denoiser", frame, how[0], **how[1])
    a = http.InferInput("INPUT0", [1, 16], "INT32")
    b = http.InferInput("INPUT1", [1, 16], "INT32")
    for one in (a, b):
        one.set_data_from_numpy(np.zeros((1, 16), np.int32))
    with pytest.raises(utils.InferenceServerException, match="keeps no state between requests; omit it"):
        client.infer("simple", [a, b], sequence_id=3)
    assert len(gateway.gateway.sequences) == 0


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("GET", "denoiser/sequences/none", None, 404),
        ("GET", "simple/sequences/1", None, 400),
        ("PUT", "simple/sequences/1", b"", 400),
        ("PUT", "denoiser/sequences/1", b"not a state file", 400),
        ("PUT", "denoiser/sequences/1", b"", 400),
        ("GET", "nothing/sequences/1", None, 404),
        ("GET", "denoiser/sequences/" + "x" * 129, None, 400),
    ],
)
def test_wrong_states(gateway: Live, method: str, path: str, body: bytes | None, status: int) -> None:
    asked = urllib.request.Request(f"{gateway.address}/v2/models/{path}", body, method=method)
    with pytest.raises(urllib.error.HTTPError) as caught:
        urllib.request.urlopen(asked)
    assert caught.value.code == status and b'"error"' in caught.value.read()


def test_the_state_of_another_model_is_refused(gateway: Live, client: Any) -> None:
    x = inputs_of(client, "wake_word", 1)[0]
    ask(client, "wake_word", x, 1, start=True)
    address = f"{gateway.address}/v2/models"
    state = urllib.request.urlopen(f"{address}/wake_word/sequences/1").read()
    asked = urllib.request.Request(f"{address}/denoiser/sequences/1", state, method="PUT")
    with pytest.raises(urllib.error.HTTPError) as caught:
        urllib.request.urlopen(asked)
    assert caught.value.code == 400 and b"expected all 4" in caught.value.read()
    ask(client, "wake_word", x, 1, end=True)


def test_metrics(gateway: Live, client: Any) -> None:
    x = inputs_of(client, "ring_buffer", 1)[0]
    ask(client, "ring_buffer", x, 1, start=True)
    text = urllib.request.urlopen(f"{gateway.address}/metrics").read().decode()
    assert 'msedge_sequences{model="ring_buffer",version="1"} 1' in text
    assert f"msedge_sequence_bytes {4 * 4 * FRAME}" in text
    ask(client, "ring_buffer", x, 1, end=True)


# -- many streams, and those of others --------------------------------------------------------------------------------


def step_of(name: str, port: str, x: np.ndarray, identity: Any, token: str = "", **how: bool) -> bytes:
    """A request of a sequence as bytes."""
    told = {"sequence_id": identity, "binary_data_output": True}
    told |= {f"sequence_{key}": value for key, value in how.items()}
    tensor = {"name": port, "shape": list(x.shape), "datatype": "FP32", "parameters": {"binary_data_size": x.nbytes}}
    head = json.dumps({"inputs": [tensor], "parameters": told}).encode()
    fields = {"Inference-Header-Content-Length": str(len(head))}
    fields |= {"Authorization": f"Bearer {token}"} if token else {}
    return request(f"/v2/models/{name}/infer", head + x.tobytes(), fields)


def array_in(got: Got, shape: tuple[int, ...]) -> np.ndarray:
    assert got.status == 200, got
    return np.frombuffer(got.body[int(got.fields["inference-header-content-length"]):], np.float32).reshape(shape)


@pytest.mark.parametrize("over", ["http", "grpc"])
def test_a_thousand_streams_at_once(tmp_path: Path, over: str) -> None:
    """All of them are open together; each gives the bits of its own bundle, run alone. Unused ones are forgotten."""
    count, steps = 1000, 5
    made = msedge.convert(denoiser(), output=tmp_path / "denoiser.mslite").bundle
    alone = lite_runtime.load(made)
    port, result = alone.inputs()[0].name, alone.outputs()[0].name
    x = floats(count, steps, 1, 1, FRAME, seed=3)
    order = np.random.default_rng(1)
    with live(tmp_path, sequences__most=count, sequences__idle=3600.0) as there, ExitStack() as stack:
        if over == "http":
            got = _by_http([stack.enter_context(Raw(there.port)) for _ in range(50)], port, x, order)
        else:
            got = _by_grpc(stack.enter_context(listening(there)), port, x, order)
        assert len(there.gateway.sequences) == count
        for k in range(count):
            alone.reset_state()
            for step in range(steps):
                np.testing.assert_array_equal(got[k, step], alone.run({port: x[k, step]})[result])
        with Raw(there.port) as raw:
            assert raw.ask(step_of("denoiser", port, x[0, 0], "one more", start=True)).status == 429
        there.gateway.sequences._limits = there.gateway.sequences._limits._replace(idle=0.0)
        until(lambda: len(there.gateway.sequences) == 0)
        assert there.gateway.sequences.expired == count
        with Raw(there.port) as raw:
            told = raw.ask(step_of("denoiser", port, x[0, 0], "s0"))
        assert told.status == 400 and "s0" in told.error


def _by_http(connections: list[Raw], port: str, x: np.ndarray, order: np.random.Generator) -> np.ndarray:
    """In every step, requests of all streams in an order of its own, spread over the connections."""
    got = np.empty_like(x)
    for step in range(x.shape[1]):
        chosen = order.permutation(len(x)).reshape(-1, len(connections))
        for row in chosen:
            for raw, k in zip(connections, row, strict=True):
                raw.send(step_of("denoiser", port, x[k, step], f"s{k}", start=step == 0))
            for raw, k in zip(connections, row, strict=True):
                got[k, step] = array_in(raw.read(), x.shape[2:])
    return got


def _by_grpc(address: str, port: str, x: np.ndarray, order: np.random.Generator) -> np.ndarray:
    """All of them in one ModelStreamInfer call, steps of different streams mixed."""
    from edge.gateway.grpc.messages import INFERENCE, message

    turns = [(k, step) for step in range(x.shape[1]) for k in order.permutation(len(x)).tolist()]

    def asked() -> Iterator[bytes]:
        for k, step in turns:
            made = message("ModelInferRequest")(model_name="denoiser", id=f"{k} {step}")
            made.raw_input_contents.append(x[k, step].tobytes())
            made.inputs.add(name=port, datatype="FP32", shape=x.shape[2:])
            made.parameters["sequence_id"].string_param = f"s{k}"
            made.parameters["sequence_start"].bool_param = step == 0
            yield made.SerializeToString()

    got = np.empty_like(x)
    with channel(address) as opened:
        for data in opened.stream_stream(f"/{INFERENCE}/ModelStreamInfer")(asked(), timeout=300):
            reply = message("ModelStreamInferResponse").FromString(data)
            assert not reply.error_message, reply.error_message
            k, step = map(int, reply.infer_response.id.split())
            got[k, step] = np.frombuffer(reply.infer_response.raw_output_contents[0], np.float32).reshape(x.shape[2:])
    return got


def test_a_sequence_belongs_to_who_began_it(tmp_path: Path) -> None:
    """Another token with the same id gets a sequence of its own, and neither state nor its place."""
    (tmp_path / "models").mkdir()
    msedge.convert(denoiser(), output=tmp_path / "models" / "denoiser.mslite")
    file = tmp_path / "tokens.json"
    mine, theirs = tokens.add(file, "mine", ["infer"]), tokens.add(file, "theirs", ["infer"])
    x = floats(3, 1, 1, FRAME, seed=9)
    with live(tmp_path / "models", access__tokens=str(file)) as there, Raw(there.port) as raw:
        port = there.gateway.repository.route("denoiser").outer["predict"].inputs
        (name,) = port
        first = array_in(raw.ask(step_of("denoiser", name, x[0], "s", mine, start=True)), x[0].shape)
        assert raw.ask(step_of("denoiser", name, x[1], "s", theirs)).status == 400  # not begun
        fetch = "/v2/models/denoiser/sequences/s"
        assert raw.ask(request(fetch, fields={"Authorization": f"Bearer {theirs}"}, method="GET")).status == 404
        again = array_in(raw.ask(step_of("denoiser", name, x[0], "s", theirs, start=True)), x[0].shape)
        np.testing.assert_array_equal(first, again)
        second = array_in(raw.ask(step_of("denoiser", name, x[1], "s", mine)), x[0].shape)
        other = array_in(raw.ask(step_of("denoiser", name, x[2], "s", theirs)), x[0].shape)
        assert len(there.gateway.sequences) == 2
        alone = lite_runtime.load(tmp_path / "models" / "denoiser.mslite")
        result = alone.outputs()[0].name
        for frames, got in (((0, 1), second), ((0, 2), other)):
            alone.reset_state()
            np.testing.assert_array_equal([alone.run({name: x[k]})[result] for k in frames][-1], got)


def test_after_a_server_was_killed_sequences_are_unknown(tmp_path: Path) -> None:
    """No client goes on from a blank state, or from another's, without being told."""
    msedge.convert(denoiser(), output=tmp_path / "denoiser.mslite")
    port = lite_runtime.load(tmp_path / "denoiser.mslite").inputs()[0].name
    x = floats(2, 1, 1, FRAME, seed=4)
    for life in range(2):
        with serving([str(tmp_path / "denoiser.mslite")]) as server, Raw(server.port) as raw:
            if life:
                told = [raw.ask(step_of("denoiser", port, x[1], f"s{k}")) for k in range(20)]
                assert {got.status for got in told} == {400}
                assert all(f"s{k}" in got.error for k, got in enumerate(told))
            for k in range(20):
                assert raw.ask(step_of("denoiser", port, x[0], f"s{k}", start=True)).status == 200
                assert raw.ask(step_of("denoiser", port, x[1], f"s{k}")).status == 200
            server.process.kill()
