from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import lite_runtime
from edge.gateway.batching.queue import IDLE
from edge.gateway.errors import GatewayError
from edge.gateway.job import Job
from edge.gateway.models.config import ModelConfig, Policy
from edge.gateway.models.describe import configuration, metadata
from edge.gateway.models.loading import Loader
from edge.gateway.models.served import RUNNERS, Served
from edge.gateway.models.shadow import MOST, Shadow, compared
from edge.gateway.sources.listing import Candidate, Folder
from lite_runtime import bundle
from lite_runtime.graph import Graph, Node, Value
from lite_runtime.running.golden import SelfTestError, self_test


class Runner:
    def __init__(self, served: Served, signature: str, shapes: Any, personal: bool) -> None:
        self.signature, self.shapes, self.personal, self.nbytes = signature, dict(shapes), personal, 100


def served(data: bytes, config: ModelConfig | None = None, **more: Any) -> Served:
    return Served("m", 3, lite_runtime.load(data), config or ModelConfig(), Runner, **more)  # type: ignore[arg-type]


def job(x: Any, device: str = "", outputs: Any = None) -> Job:
    made = Job({"x": x}, len(x), lambda job: None, arrived=0.0, device=device)
    made.outputs = outputs
    return made


def test_requests_of_a_kind_share_a_runner(make: Any) -> None:
    fixed, wide = served(make()), served(make(width="w"))
    small, large = np.zeros((1, 4), np.float32), np.zeros((2, 9), np.float32)
    assert fixed.runner_for(job(small)) is fixed.runner_for(job(np.zeros((7, 4), np.float32)))
    assert fixed.runner_for(job(small, "phone")) is not fixed.runner_for(job(small))
    assert fixed.runner_for(job(small, "phone")) is fixed.runner_for(job(small, "watch"))
    assert wide.runner_for(job(small)) is not wide.runner_for(job(large))
    assert wide.runner_for(job(large)).shapes == {"x": (9,)}  # type: ignore[attr-defined]
    assert fixed.fixed_shapes("predict") == {"x": (4,)} and wide.fixed_shapes("predict") is None
    assert fixed.nbytes == fixed.resident + 200


def test_the_number_of_kept_kinds_is_limited(make: Any) -> None:
    wide = served(make(width="w"))
    first = wide.runner("predict", {"x": (1,)})
    for size in range(2, RUNNERS + 1):
        wide.runner("predict", {"x": (size,)})
        assert wide.runner("predict", {"x": (1,)}) is first
    wide.runner("predict", {"x": (99,)})
    assert len(wide.runners) == RUNNERS
    assert wide.runner("predict", {"x": (1,)}) is first
    assert {r.shapes["x"] for r in wide.runners}.isdisjoint({(2,)})  # type: ignore[attr-defined]


def test_the_last_request_frees_what_was_retired(make: Any) -> None:
    gone: list[str] = []
    one = served(make(), forget=lambda served: gone.append(served.version))
    one.acquire(1.0)
    one.acquire(2.0)
    one.retire()
    one.release()
    assert not gone and not one.closed and one.used == 2.0
    one.release()
    assert gone == ["3"] and one.closed
    idle = served(make(), forget=lambda served: gone.append("idle"))
    idle.retire()
    assert gone == ["3", "idle"]


def test_a_model_that_only_learns_is_not_served(stateful: bytes) -> None:
    held = bundle.read(stateful)
    learns = bundle.write(
        None, {"train_step": held.signatures["count"]}, state=held.state, uses={"train_step": held.uses["count"]}
    )
    with pytest.raises(GatewayError, match="a signature that does not change the model, got train_step") as caught:
        served(learns)
    assert caught.value.status == 501


def test_a_signature_that_keeps_state_shows_none(stateful: bytes) -> None:
    """Its state is an input and an output of the runner, but not of clients."""
    one = served(stateful)
    use = one.streams["count"].use
    assert one.first == "count" and set(use.reads) <= set(one.ports["count"].inputs)
    assert not set(use.reads) & set(one.outer["count"].inputs) and not set(use.writes) & set(one.outer["count"].outputs)
    assert set(metadata(one, ["3"])) >= {"inputs", "outputs"}


def test_metadata_and_configuration(make: Any) -> None:
    one = served(make(), ModelConfig(Policy("latest", 2), labels={"stable": 3}, max_batch=8, timeout=0.5))
    tensors = [[{"name": name, "datatype": "FP32", "shape": [-1, 4]}] for name in "xy"]
    assert metadata(one, ["1", "3"]) == {
        "name": "m", "versions": ["1", "3"], "platform": "msedge", "inputs": tensors[0], "outputs": tensors[1],
    }  # fmt: skip
    got = configuration(one, 64)
    assert (got["max_batch_size"], got["version_policy"]) == (8, {"latest": {"num_versions": 2}})
    assert got["input"] == [{"name": "x", "data_type": "TYPE_FP32", "dims": [4]}]
    assert got["labels"] == {"stable": 3} and got["timeout"] == 0.5
    assert configuration(served(make()), 64)["max_batch_size"] == 64


def test_several_signatures_and_labels() -> None:
    x, y = Value("x", "float32", (3,)), Value("y", "float32", (3,))
    graph = Graph((x,), (y,), (Node("Neg", ("x",), ("y",)),), {})
    data = bundle.write(None, {"a": graph, "b": graph}, metadata={"labels": ["cat", "dog", "eel"]})
    one = served(data)
    assert one.labels == {"": ("cat", "dog", "eel")} and one.first == "a"
    assert sorted(metadata(one, ["3"])["signatures"]) == ["a", "b"]
    assert configuration(one, 64)["max_batch_size"] == 0 and configuration(one, 64)["input"][0]["dims"] == [3]
    assert one.runner("a", {"x": (3,)}) is one.runner_for(Job({"x": np.zeros(3)}, 1, print, arrived=0.0, signature="a"))
    assert one.ports_for("predict") is one.ports["a"]  # what requests say that name none
    with pytest.raises(GatewayError, match=r"expected a signature of a, b, got 'c'"):
        one.ports_for("c")


@pytest.mark.parametrize("labels", [None, 5, "cat", ["cat", 5], {"y": 5}])
def test_invalid_labels_are_omitted(labels: Any, make: Any) -> None:
    assert served(make(metadata={"labels": labels})).labels == {}


# -- self-test ---------------------------------------------------------------------------------------------------------


def test_a_model_whose_results_match_its_golden_sample(make: Any) -> None:
    assert self_test(lite_runtime.load(make(2.0)), ["predict"]) == 1
    assert self_test(lite_runtime.load(make(2.0)), []) == 0


def test_a_model_whose_results_do_not_match(make: Any) -> None:
    with pytest.raises(SelfTestError, match=r"self-test: output 'y' of 'predict'.*3 off where 0\.009 is allowed"):
        self_test(lite_runtime.load(make(2.0, golden=3.0)), ["predict"])


def test_the_tolerance_follows_the_rounding(make: Any) -> None:
    off = make(2.0, golden=2.1)
    with pytest.raises(SelfTestError, match="self-test"):
        self_test(lite_runtime.load(off), ["predict"])
    data = make(2.0, golden=2.1, provenance={"options": {"mode": "int8"}})
    assert self_test(lite_runtime.load(data), ["predict"]) == 1


@pytest.mark.parametrize("wrong", [np.nan, np.inf])
def test_unexpected_nan(wrong: float, make: Any) -> None:
    with pytest.raises(SelfTestError, match="NaN or infinities"), np.errstate(all="ignore"):
        self_test(lite_runtime.load(make(2.0, golden=wrong)), ["predict"])


def test_integers_must_be_equal() -> None:
    x = Value("x", "int64", (2,))
    graph = Graph((x,), (Value("y", "int64", (2,)),), (Node("Neg", ("x",), ("y",)),), {})
    given = np.array([1, 2])
    for golden, right in (([-1, -2], True), ([-1, -3], False)):
        data = bundle.write(None, {"predict": graph}, golden={"predict": ({"x": given}, {"y": np.array(golden)})})
        if right:
            assert self_test(lite_runtime.load(data), ["predict"]) == 1
        else:
            with pytest.raises(SelfTestError, match="1 of 2 elements differ"):
                self_test(lite_runtime.load(data), ["predict"])


# -- loading -----------------------------------------------------------------------------------------------------------


def found(place: Any) -> Candidate:
    candidate: Candidate = Folder(place.root).scan()["m"].versions[1]
    return candidate


def test_a_served_file_may_be_overwritten_or_cut_short(place: Any, make: Any) -> None:
    path = place.put("m.mslite", make(2.0, metadata={"padding": "x" * 10_000}))
    one = Loader(Runner).load("m", 1, found(place), ModelConfig(), None)  # type: ignore[arg-type]
    with open(path, "r+b") as file:
        file.truncate(10)
    x = np.ones((1, 4), np.float32)
    assert one.model.run({"x": x})["y"][0, 0] == 2.0
    assert bytes(one.model.bundle.data[-1:]) is not None


def test_a_file_that_changed_since_it_was_seen_is_being_written(place: Any, make: Any) -> None:
    place.put("m.mslite", make())
    before = found(place)
    place.put("m.mslite", make(2.0))
    with pytest.raises(GatewayError, match=r"'m\.mslite' is being written") as caught:
        Loader(Runner).load("m", 1, before, ModelConfig(), None)  # type: ignore[arg-type]
    assert str(place.root) not in str(caught.value)  # clients read it


def test_the_size_of_a_bundle_is_limited(place: Any, make: Any) -> None:
    place.put("m.mslite", make())
    with pytest.raises(GatewayError, match="at most 100 bytes"):
        Loader(Runner, most=100).load("m", 1, found(place), ModelConfig(), None)  # type: ignore[arg-type]


def test_an_error_while_preparing_is_reported_as_a_bug(place: Any, make: Any) -> None:
    def prepare(served: Served) -> None:
        raise ZeroDivisionError("oh")

    place.put("m.mslite", make())
    with pytest.raises(GatewayError, match="a bug in msedge: ZeroDivisionError: oh") as caught:
        Loader(Runner, prepare).load("m", 1, found(place), ModelConfig(), None)  # type: ignore[arg-type]
    assert caught.value.status == 500


def test_the_same_contents_are_not_loaded_twice(place: Any, make: Any) -> None:
    place.put("m.mslite", make())
    loader = Loader(Runner)  # type: ignore[arg-type]
    one = loader.load("m", 1, found(place), ModelConfig(), None)
    place.put("m.mslite", make())
    assert loader.load("m", 1, found(place), ModelConfig(), one) is one
    assert loader.load("m", 1, found(place), ModelConfig(max_batch=2), one) is not one
    assert one.resident >= 2 * len(make())


@given(data=st.data())
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_damaged_files_are_refused_and_nothing_else(place: Any, make: Any, data: st.DataObject) -> None:
    damaged = bytearray(make())
    for _ in range(data.draw(st.integers(1, 4))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    place.put("m.mslite", bytes(damaged[: data.draw(st.integers(1, len(damaged)))]))
    try:
        one = Loader(Runner).load("m", 1, found(place), ModelConfig(), None)  # type: ignore[arg-type]
    except GatewayError as error:
        assert error.status == 400 and "model 'm', version 1" in str(error)
    else:
        assert one.digest == bundle.opened(make()).digest


# -- shadows -----------------------------------------------------------------------------------------------------------


def shadow_of(data: bytes, fraction: float = 1.0) -> tuple[Shadow, list[Job]]:
    return Shadow(served(data), fraction), []


def answered(copy: Job, factor: float) -> None:
    copy.outputs = {"y": copy.inputs["x"] * np.float32(factor)}
    copy.finish(copy)


def test_a_shadow_s_answers_are_compared_with_the_client_s(make: Any) -> None:
    shadow, copies = shadow_of(make())
    x = np.array([[1, 2, 3, 4], [4, 3, 2, 1]], np.float32)
    shadow.after(job(x, outputs={"y": x}), lambda job, runner: copies.append(job))
    assert copies[0].priority == IDLE and copies[0].deadline > copies[0].arrived and shadow.target.in_flight == 1
    answered(copies[0], 1.5)
    shadow.after(job(x, outputs={"y": x}), lambda job, runner: copies.append(job))
    answered(copies[1], -1)
    got = shadow.as_dict()
    assert got == {
        "version": "3", "fraction": 1.0, "compared": 2, "dropped": 0, "failed": 0, "rows": 4, "agreed": 2,
        "largest": 8.0,
    }  # fmt: skip
    assert shadow.target.in_flight == 0


def test_a_shadow_is_skipped_before_it_delays_clients(make: Any) -> None:
    shadow, copies = shadow_of(make())
    x = np.zeros((1, 4), np.float32)
    for _ in range(MOST + 3):
        shadow.after(job(x, outputs={"y": x}), lambda job, runner: copies.append(job))
    assert len(copies) == MOST and shadow.figures.dropped == 3

    def full(job: Job, runner: Any) -> None:
        raise GatewayError(429, "full")

    answered(copies[0], 1)
    shadow.after(job(x, outputs={"y": x}), full)
    copies[1].error = GatewayError(504, "late")
    copies[1].finish(copies[1])
    copies[2].error = ValueError("broken")
    copies[2].finish(copies[2])
    assert (shadow.figures.dropped, shadow.figures.failed, shadow.target.in_flight) == (5, 1, MOST - 3)


def test_a_shadow_gets_its_share_of_answers_from_shared_models(make: Any) -> None:
    shadow, copies = shadow_of(make(), 0.25)
    x = np.zeros((1, 4), np.float32)
    for _ in range(8):
        shadow.after(job(x, outputs={"y": x}), lambda job, runner: copies.append(job))
    assert len(copies) == 2
    for _ in range(8):
        shadow.after(job(x, "phone", outputs={"y": x}), lambda job, runner: copies.append(job))
        shadow.after(job(x), lambda job, runner: copies.append(job))
    assert len(copies) == 2


def test_comparing() -> None:
    a, b = np.array([[1.0, 2.0], [np.nan, 1.0]]), np.array([[1.0, 2.5], [np.nan, 1.0]])
    assert compared({"y": a}, {"y": b}, 2) == (2, 0.5)
    assert compared({"y": a}, {"y": np.array([[1.0, np.inf], [np.nan, 1.0]])}, 2) == (2, np.inf)
    assert compared({"y": np.array([1, 2])}, {"y": np.array([1, 3])}, 2) == (1, 0.0)
    assert compared({"y": np.zeros((2, 0))}, {"y": np.zeros((2, 0))}, 2) == (2, 0.0)
    assert compared({"y": np.float32(1)}, {"y": np.float32(1)}, 1) == (1, 0.0)
    assert compared({"y": a}, {"z": a}, 2) is None
    assert compared({"y": a}, {"y": a.astype(np.float32)}, 2) is None
    assert compared({"y": a}, {"y": a[:1]}, 2) is None


