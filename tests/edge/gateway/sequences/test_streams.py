"""Streaming models over HTTP: sequences, as NVIDIA's client asks for them, and their state as files."""

from __future__ import annotations

import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ai_edge_litert.interpreter import Interpreter as LiteRT

import lite_runtime
import msedge
from tests.converter.frontends.tflite.support import floats
from tests.converter.streams import FRAME, denoiser, ring_buffer, wake_word
from tests.edge.gateway.live import Live, live, simple

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
