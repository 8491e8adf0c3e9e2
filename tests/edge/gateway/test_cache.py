"""Answers that are kept: the digest of a request, the cache's own rules, and what clients get."""

from __future__ import annotations

import json
import random
from collections import OrderedDict
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays_of

from edge.gateway.cache import ENTRY, OUTPUT, ResponseCache, key_of
from edge.gateway.errors import GatewayError
from edge.gateway.running import LARGE
from federated.server.store import PersonalStore
from lite_runtime.bundle.processing import KEY
from tests.edge.gateway.ensembles.parts import document, put, scaled, step, wide
from tests.edge.gateway.grpc.serving import listening
from tests.edge.gateway.live import Live, live, simple_string
from tests.edge.gateway.models.conftest import counter
from tests.edge.gateway.personal.fleet import SHAPES, fill, made
from tests.waiting import until

http = pytest.importorskip("tritonclient.http")
grpc = pytest.importorskip("tritonclient.grpc")
Array = np.ndarray

# -- the digest --------------------------------------------------------------------------------------------------------

_ARRAYS = st.sampled_from([np.int8, np.uint8, np.int64, np.float32, np.bool_]).flatmap(
    lambda dtype: arrays_of.arrays(dtype, arrays_of.array_shapes(max_dims=3, max_side=3, min_side=0, min_dims=0))
)
_TEXTS = st.lists(st.text(max_size=3) | st.binary(max_size=3), min_size=1, max_size=3)
_BYTES = _TEXTS.map(lambda x: np.array([*x, None], object)[:-1])
_REQUESTS = st.tuples(
    st.lists(st.integers(0, 3), min_size=1, max_size=2).map(tuple),
    st.sampled_from(["", "predict", "a"]),
    st.dictionaries(st.sampled_from(["", "a", "b", "ab"]), _ARRAYS | _BYTES, max_size=2),
)


def exactly(request: tuple[tuple[int, ...], str, dict[str, Array]]) -> Any:
    """What tells one request from another."""
    serials, signature, inputs = request
    told = []
    for name, x in sorted(inputs.items()):
        flat = [v if isinstance(v, bytes) else str(v).encode() for v in x.flat] if x.dtype.hasobject else x.tobytes()
        told.append((name, x.dtype.str, x.shape, flat))
    return serials, signature, told


@given(_REQUESTS, _REQUESTS)
def test_digests_are_equal_for_equal_requests_only(one: Any, other: Any) -> None:
    assert (key_of(*one) == key_of(*other)) == (exactly(one) == exactly(other))


def test_digests_do_not_depend_on_the_order_of_inputs_or_of_memory() -> None:
    rng = np.random.default_rng()
    a, b = rng.random((3, 4)), rng.integers(0, 9, (2, 5))
    key = key_of((1,), "predict", {"a": a, "b": b})
    assert key == key_of((1,), "predict", {"b": b, "a": np.asfortranarray(a)})
    assert key == key_of((1,), "predict", {"a": np.tile(a, 2)[:, :4], "b": b})
    texts = [np.array(words, object) for words in (["ab", "c"], ["a", "bc"], ["abc", ""], [b"ab", b"c"])]
    assert len({key_of((1,), "", {"x": words}) for words in texts}) == 3  # bytes and text are the same element
    x = rng.random(4).astype(ml_dtypes.bfloat16)
    assert key_of((1,), "", {"x": x}) != key_of((1,), "", {"x": x.view(np.uint16)})


# -- the cache ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(20))
def test_as_a_dictionary_with_the_oldest_dropped(seed: int) -> None:
    rng, most = random.Random(seed), 20_000
    cache, model = ResponseCache(most), OrderedDict[bytes, tuple[Array, tuple[int, ...]]]()
    size = {}
    for _ in range(300):
        key, act = bytes([rng.randrange(25)]), rng.random()
        if act < 0.5:
            array, serials = np.full(rng.randrange(700), rng.random()), tuple({rng.randrange(6), rng.randrange(6)})
            cache.put(key, serials, {"y": array})
            if key not in model:
                model[key], size[key] = (array, serials), array.nbytes + ENTRY + OUTPUT
            while sum(size[k] for k in model) > most:
                model.popitem(last=False)
        elif act < 0.95:
            found = cache.get(key)
            assert (found is None) == (key not in model)
            if found is not None:
                assert found["y"] is model[key][0]
                model.move_to_end(key)
        elif act < 0.99:
            gone = rng.randrange(6)
            cache.forget(gone)
            for k in [k for k, (_, of) in model.items() if gone in of]:
                del model[k]
        else:
            cache.shrink()
            for k in list(model)[: (len(model) + 1) // 2]:
                del model[k]
        figures = cache.figures
        assert (figures.entries, figures.nbytes) == (len(model), sum(size[k] for k in model))
    for serial in range(6):
        cache.forget(serial)
    assert cache.figures[:3] == (0, most, 0) and not cache._of


def test_an_answer_larger_than_the_cache_is_not_kept() -> None:
    cache = ResponseCache(1000)
    cache.put(b"a", (1,), {"y": np.zeros(50)})
    cache.put(b"b", (1,), {"y": np.array(["x" * 10_000], object)})
    assert cache.get(b"a") is not None and cache.get(b"b") is None and not cache.figures.evicted


def test_kept_arrays_cannot_be_changed() -> None:
    cache = ResponseCache(10_000)
    cache.put(b"a", (1,), {"y": np.zeros(5)})
    found = cache.get(b"a")
    assert found is not None
    with pytest.raises(ValueError, match="read-only"):
        found["y"][0] = 1


# -- clients -----------------------------------------------------------------------------------------------------------

ON = "response_cache = {enable = true}"


def ask(there: Live, model: str, x: Array, name: str = "x", fields: Any = None, **parameters: Any) -> tuple[int, Any]:
    kind = {"f": "FP32", "u": "UINT8"}[x.dtype.kind]
    body = {"inputs": [{"name": name, "shape": x.shape, "datatype": kind, "data": x.ravel().tolist()}],
            "parameters": parameters}  # fmt: skip
    connection = HTTPConnection("127.0.0.1", there.port, timeout=300)
    try:
        connection.request("POST", f"/v2/models/{model}/infer", json.dumps(body), fields or {})
        reply = connection.getresponse()
        return reply.status, json.loads(reply.read())
    finally:
        connection.close()


def counts(there: Live, model: str, version: str = "1") -> tuple[int, int]:
    """Hits and misses."""
    found = there.gateway.statistics.of(model, version)
    return found.hits, found.misses


def tensor(x: Array, module: Any = http) -> Any:
    made_ = module.InferInput("x", list(x.shape), "FP32")
    made_.set_data_from_numpy(x)
    return [made_]


def test_the_same_answer_in_every_form(tmp_path: Path) -> None:
    """The first request is computed, whatever form it has; the others are found, whichever outputs they want."""
    put(tmp_path / "m.mslite", scaled(2.0))
    put(tmp_path / "m.toml", ON)
    x = np.random.default_rng().random((2, 4), np.float32)
    with live(tmp_path, cache__bytes="1MiB") as there, listening(there) as address, \
            grpc.InferenceServerClient(address) as remote:  # fmt: skip
        client = http.InferenceServerClient(there.address.removeprefix("http://"))
        in_json = [http.InferRequestedOutput("y", binary_data=False)]
        answers = [
            lambda: client.infer("m", tensor(x)).as_numpy("y"),
            lambda: client.infer("m", tensor(x), request_id="a", priority=3, timeout=9_000_000).as_numpy("y"),
            lambda: client.infer("m", tensor(x), outputs=in_json).as_numpy("y"),
            lambda: remote.infer("m", tensor(x, grpc)).as_numpy("y"),
            lambda: np.array(ask(there, "m", x)[1]["outputs"][0]["data"], np.float32).reshape(2, 4),
        ]  # fmt: skip
        for i, answer in enumerate(answers):
            np.testing.assert_array_equal(answer(), 2 * x)
            assert counts(there, "m") == (i, 1)
        classes = client.infer("m", tensor(x), outputs=[http.InferRequestedOutput("y", class_count=1)]).as_numpy("y")
        assert [int(text.split(b":")[1]) for text in classes.ravel()] == x.argmax(1).tolist()
        connection = HTTPConnection("127.0.0.1", there.port, timeout=300)
        connection.request("POST", "/v1/models/m:predict", json.dumps({"instances": x.tolist()}))
        found = json.loads(connection.getresponse().read())["predictions"]
        np.testing.assert_array_equal(np.array(found, np.float32), 2 * x)
        connection.close()
        assert counts(there, "m") == (6, 1)
        client.infer("m", tensor(x + 1))
        assert counts(there, "m") == (6, 2)
        assert client.get_model_config("m")["response_cache"] == {"enable": True}
        assert remote.get_model_config("m").config.response_cache.enable
        client.close()


def test_statistics_and_metrics_have_tritons_names(tmp_path: Path) -> None:
    put(tmp_path / "m.mslite", scaled(2.0))
    put(tmp_path / "m.toml", ON)
    with live(tmp_path, cache__bytes="1MiB") as there:
        x = np.ones((3, 4), np.float32)
        for _ in range(5):
            assert ask(there, "m", x)[0] == 200
        (found,) = there.gateway.model_statistics("m", "")["model_stats"]
        stats = found["inference_stats"]
        assert (found["inference_count"], found["execution_count"]) == (3, 1)  # rows that were computed
        assert {key: value["count"] for key, value in stats.items()} == {
            "success": 5, "fail": 0, "queue": 5, "compute_input": 1, "compute_infer": 1, "compute_output": 1,
            "cache_hit": 4, "cache_miss": 1,
        }  # fmt: skip
        assert stats["cache_hit"]["ns"] > 0 < stats["cache_miss"]["ns"]
        text = there.gateway.metrics("")[0].decode()
        for line in (
            'nv_cache_num_hits_per_model{model="m",version="1"} 4',
            'nv_cache_num_misses_per_model{model="m",version="1"} 1',
            "nv_cache_num_entries 1",
            "nv_cache_num_evictions 0",
            'nv_inference_request_success{model="m",version="1"} 5',
            'nv_inference_count{model="m",version="1"} 3',
        ):
            assert f"\n{line}\n" in text
        values = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
        for name in ("hit", "miss"):
            assert int(values[f'nv_cache_{name}_duration_per_model{{model="m",version="1"}}']) > 0
        assert 0 < float(values["nv_cache_util"]) < 0.01


def test_off_by_default(tmp_path: Path) -> None:
    """For a server without `cache.bytes`, which says so, and for a model that does not ask for it."""
    put(tmp_path / "m.mslite", scaled(2.0))
    put(tmp_path / "m.toml", ON)
    put(tmp_path / "other.mslite", scaled(2.0))
    x = np.ones((1, 4), np.float32)
    with live(tmp_path) as there:
        assert [ask(there, "m", x)[0] for _ in range(2)] == [200, 200] and counts(there, "m") == (0, 0)
        assert "nv_cache" not in there.gateway.metrics("")[0].decode()
        there.gateway.log.close()
        assert "warning response_cache has no effect, as cache.bytes is 0 model=m" in there.log.getvalue()
    with live(tmp_path, cache__bytes="1MiB") as there:
        assert [ask(there, "other", x)[0] for _ in range(2)] == [200, 200] and counts(there, "other") == (0, 0)


def test_a_version_that_was_replaced_answers_no_more(tmp_path: Path) -> None:
    put(tmp_path / "m" / "1" / "model.mslite", scaled(2.0))
    put(tmp_path / "m" / "config.toml", f'{ON}\nversions = "all"')
    x = np.ones((1, 4), np.float32)

    def first(version: str = "") -> float:
        status, reply = ask(there, f"m/versions/{version}" if version else "m", x)
        assert status == 200, reply
        return float(reply["outputs"][0]["data"][0])

    with live(tmp_path, cache__bytes="1MiB") as there:
        cache = there.gateway.cache
        assert cache is not None
        assert [first(), first()] == [2, 2]
        put(tmp_path / "m" / "1" / "model.mslite", scaled(3.0))
        there.call(there.gateway.load("m", {}))
        assert not cache.figures.entries and [first(), first()] == [3, 3]
        put(tmp_path / "m" / "2" / "model.mslite", scaled(5.0))
        there.call(there.gateway.load("m", {}))
        assert [first(), first("1"), first("2"), first("1")] == [5, 3, 5, 3]
        there.call(there.gateway.load("m", {}))  # the same files: the answers stay
        assert cache.figures.entries == 2
        there.call(there.gateway.unload("m", {}))
        assert not cache.figures.entries


def test_a_model_that_begins_to_run_natively_is_asked_again(tmp_path: Path) -> None:
    put(tmp_path / "m.mslite", scaled(2.0))
    put(tmp_path / "m.toml", ON)
    x = np.ones((1, 4), np.float32)
    with live(tmp_path, cache__bytes="1MiB") as there:
        served: Any = there.gateway.repository.route("m")
        assert [ask(there, "m", x)[0] for _ in range(2)] == [200, 200] and counts(there, "m") == (1, 1)
        there.call(there.gateway.repository._exchange(served))
        assert ask(there, "m", x)[0] == 200 and counts(there, "m") == (1, 2)


def test_devices_and_sequences_are_never_found(tmp_path: Path) -> None:
    store = PersonalStore(tmp_path / "personal.sqlite")
    fill(store, "dense", 1)
    models = tmp_path / "models"
    put(models / "m.mslite", made("dense"))
    put(models / "m.toml", ON)
    put(models / "count.mslite", counter())
    put(models / "count.toml", ON)
    x = np.ones((1, *SHAPES["dense"]), np.float32)
    with live(models, personal__store=store.path, cache__bytes="1MiB") as there:
        common = ask(there, "m", x)[1]["outputs"][0]["data"]
        own = [ask(there, "m", x, device="d0")[1] for _ in range(2)]
        assert all(reply["outputs"][0]["data"] != common and reply["parameters"] for reply in own)
        assert ask(there, "m", x, device="d9")[1]["parameters"]["personal"] == "global"
        assert ask(there, "m", x)[1]["outputs"][0]["data"] == common and counts(there, "m") == (1, 1)
        assert ask(there, "m", x, sequence_id=7)[0] == 400 and counts(there, "m") == (1, 1)
        (row,) = (row for row in there.gateway.repository.index() if row["name"] == "count")
        assert row["state"] == "UNAVAILABLE" and "response_cache: this model keeps state" in row["reason"]
        (models / "count.toml").unlink()
        there.call(there.gateway.load("count", {}))
        put(models / "count.toml", ON)
        for _ in range(2):
            there.call(there.gateway.repository.poll())
        by = {"inputs": [{"name": "by", "shape": [], "datatype": "INT64", "data": [2]}],
              "parameters": {"sequence_id": 1, "sequence_start": True}}  # fmt: skip
        connection = HTTPConnection("127.0.0.1", there.port, timeout=300)
        for _ in range(3):  # another configuration does not make it cached
            connection.request("POST", "/v2/models/count/infer", json.dumps(by))
            reply = connection.getresponse()
            assert reply.status in (200, 503) and reply.read()
        connection.close()
        assert counts(there, "count") == (0, 0)


def test_errors_are_not_kept(tmp_path: Path) -> None:
    simple_string(tmp_path / "m.mslite")
    put(tmp_path / "m.toml", ON)
    body = {
        "inputs": [{"name": f"INPUT{i}", "shape": [1, 16], "datatype": "BYTES", "data": ["no"] * 16} for i in (0, 1)]
    }
    with live(tmp_path, cache__bytes="1MiB") as there:
        connection = HTTPConnection("127.0.0.1", there.port, timeout=300)
        for _ in range(2):
            connection.request("POST", "/v2/models/m/infer", json.dumps(body))
            reply = connection.getresponse()
            assert reply.status == 400 and reply.read()
        connection.close()
        cache = there.gateway.cache
        assert cache is not None and not cache.figures.entries and counts(there, "m") == (0, 0)


def test_nothing_is_decoded_for_what_is_found(tmp_path: Path) -> None:
    """Declared processing is part of the answer."""
    processing = {"version": 1, "inputs": [{"name": "raw", "feeds": "x", "steps": [
        {"step": "tensor", "dtype": "uint8", "shape": [4]}, {"step": "cast", "dtype": "float32"}]}]}  # fmt: skip
    processing["outputs"] = [{"names": ["best"], "of": ["y"], "steps": [{"step": "argmax"}]}]
    put(tmp_path / "m.mslite", scaled(2.0, metadata={KEY: processing}))
    put(tmp_path / "m.toml", ON)
    x = np.array([[1, 9, 2, 3]], np.uint8)
    with live(tmp_path, cache__bytes="1MiB") as there:
        served: Any = there.gateway.repository.route("m")
        assert ask(there, "m", x, "raw")[1]["outputs"][0]["data"] == [1]

        def never(given: Any) -> Any:
            raise AssertionError("decoded again")

        served.processing = type("Never", (), {"before": staticmethod(never), "after": staticmethod(never)})()
        assert ask(there, "m", x, "raw")[1]["outputs"][0]["data"] == [1] and counts(there, "m") == (1, 1)


def test_ensembles_and_their_models_keep_answers_of_their_own(tmp_path: Path) -> None:
    for name, factor in (("a", 2.0), ("b", 3.0)):
        put(tmp_path / f"{name}.mslite", scaled(factor))
    put(tmp_path / "a.toml", ON)
    steps = step("a", {"x": "A"}, {"y": "t"}), step("b", {"x": "t"}, {"y": "Z"})
    put(tmp_path / "e" / "ensemble.json", document(["A"], ["Z"], *steps))
    put(tmp_path / "e" / "config.toml", ON)
    x = np.ones((1, 4), np.float32)

    def first() -> float:
        return float(ask(there, "e", x, "A")[1]["outputs"][0]["data"][0])

    def found() -> list[tuple[int, int]]:
        return [counts(there, name) for name in "eab"]

    with live(tmp_path, cache__bytes="1MiB") as there:
        assert [first(), first()] == [6, 6] and found() == [(1, 1), (0, 1), (0, 0)]
        assert there.gateway.statistics.of("e", "1").rows == 1 == there.gateway.statistics.of("b", "1").rows
        put(tmp_path / "b.mslite", scaled(5.0))
        there.call(there.gateway.load("b", {}))
        assert [first(), first()] == [10, 10] and found() == [(2, 2), (1, 1), (0, 0)]
        cache = there.gateway.cache
        assert cache is not None and cache.figures.entries == 2
        assert not there.gateway.room.taken and not there.gateway.under_way


def test_large_inputs_and_a_full_cache(tmp_path: Path) -> None:
    """Digested on another thread; the least recently used answers make room; a client that leaves meanwhile is gone."""
    put(tmp_path / "m.mslite", wide(2, 40_000))
    put(tmp_path / "m.toml", ON)
    rng = np.random.default_rng()
    xs = [rng.random((1, 40_000), np.float32) for _ in range(3)]
    assert xs[0].nbytes > LARGE
    with live(tmp_path, cache__bytes="800KB") as there:  # two answers of 320 KB
        client = http.InferenceServerClient(there.address.removeprefix("http://"))
        for which, hit in ((0, 0), (1, 0), (0, 1), (2, 0), (0, 1), (1, 0)):
            before = counts(there, "m")[0]
            got = client.infer("m", tensor(xs[which])).as_numpy("y")
            np.testing.assert_array_equal(got, np.tile(xs[which], 2))
            assert counts(there, "m")[0] - before == hit, which
        cache = there.gateway.cache
        assert cache is not None and cache.figures.entries == 2 and cache.figures.evicted == 2
        client.close()


def test_its_memory_is_part_of_what_the_process_may_use(tmp_path: Path) -> None:
    put(tmp_path / "m.mslite", scaled(2.0))
    put(tmp_path / "m.toml", ON)
    too_much = pytest.raises(GatewayError, match=r"cache\.bytes: expected at most half of the \d+ bytes")
    with too_much, live(tmp_path, cache__bytes="900TiB"):
        pass
    with live(tmp_path, cache__bytes="1MiB") as there:
        gateway = there.gateway
        gateway._limit = 4 * (gateway.cache.figures.most + 10**9)  # type: ignore[union-attr]
        gateway._set_budget()
        room = gateway.room.most
        gateway.cache._most += 40_000_000  # type: ignore[union-attr] # memory that it may yet take is not for bodies
        gateway._set_budget()
        assert 5_000_000 < room - gateway.room.most < 15_000_000
        for i in range(4):
            ask(there, "m", np.full((1, 4), i, np.float32))
        gateway.short_of_memory = lambda: True  # type: ignore[method-assign]
        until(lambda: gateway.cache.figures.entries < 4)  # type: ignore[union-attr]
