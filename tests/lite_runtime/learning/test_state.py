"""State: signatures read the state of earlier runs; a failed run or a killed process leaves the old state."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import lite_runtime
from lite_runtime import BundleError, InputError, MsedgeError, bundle
from lite_runtime.graph import Array, Graph, Node, StateUse, Value
from lite_runtime.learning import checkpoint
from lite_runtime.native import build
from lite_runtime.running.session import Model
from tests.fuzz.mutate import pack, unpack
from tests.lite_runtime.learners import USES, B, W, bundle_of, initial, learner, signatures

ROOT = Path(__file__).resolve().parents[3]
LEARNER = learner()
RNG = np.random.default_rng(0)
X = RNG.standard_normal((7, 5)).astype(np.float32)
T = RNG.standard_normal((7, 3)).astype(np.float32)
native = pytest.mark.skipif(not build.available(), reason="no native kernels on this machine")


@pytest.fixture(params=["reference", pytest.param("native", marks=native), pytest.param("guard", marks=native)])
def model(request: pytest.FixtureRequest) -> Model:
    return lite_runtime.load(LEARNER, backend=request.param)


def count(model: Model, by: int = 1) -> int:
    return int(model.run({"by": np.array(by, np.int64)}, "count")["seen"])


def train(model: Model) -> float:
    return float(model.run({"x": X, "t": T}, "train_step")["loss"])


class Line:
    """The learner in float64."""

    def __init__(self) -> None:
        self.w, self.b = W.astype(np.float64), B.astype(np.float64)

    def predict(self) -> Array:
        return np.asarray(X @ self.w + self.b)

    def train(self) -> float:
        d = self.predict() - T
        self.w, self.b = self.w - 0.03125 * X.T @ d, self.b - 0.03125 * d.sum(0)
        return float((d * d).sum())


# -- running -----------------------------------------------------------------------------------------------------------


def test_callers_do_not_pass_state(model: Model) -> None:
    assert [v.name for v in model.inputs("train_step")] == ["x", "t"]
    assert [v.name for v in model.outputs("train_step")] == ["loss"]
    assert model.run({"x": X, "t": T}, "train_step").keys() == {"loss"}
    with pytest.raises(InputError, match="unknown w"):
        model.run({"x": X, "w": W}, "predict")


def test_runs_read_the_state_of_earlier_runs(model: Model) -> None:
    assert [count(model, by) for by in (2, 3, 4)] == [0, 6, 20]
    assert model.state_dict()["n"] == 9 and model.state_version == 3


def test_learning(model: Model) -> None:
    line = Line()
    for i in range(12):
        for _ in range(i % 5):
            np.testing.assert_allclose(model.run({"x": X})["y"], line.predict(), rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(train(model), line.train(), rtol=1e-4)
    state = model.state_dict()
    np.testing.assert_allclose(state["w"], line.w, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(state["b"], line.b, rtol=1e-4, atol=1e-5)


def test_other_sizes_of_inputs(model: Model) -> None:
    """Every size has a separate plan over the same state; a step's batch may be empty."""
    line = Line()
    for rows in (7, 3, 0, 7, 1):
        x, t = X[:rows], T[:rows]
        d = x @ line.w + line.b - t
        loss = model.run({"x": x, "t": t}, "train_step")["loss"]
        np.testing.assert_allclose(loss, (d * d).sum(), rtol=1e-4, atol=1e-6)
        line.w, line.b = line.w - 0.03125 * x.T @ d, line.b - 0.03125 * d.sum(0)
    np.testing.assert_allclose(model.state_dict()["w"], line.w, rtol=1e-4, atol=1e-5)


def test_results_do_not_depend_on_workers() -> None:
    states = []
    for threads in (1, 2):
        model = lite_runtime.load(LEARNER, threads=threads)
        for _ in range(5):
            train(model)
        states.append(model.state_dict())
    assert all(states[0][name].tobytes() == states[1][name].tobytes() for name in states[0])


STEPS = st.lists(st.sampled_from(["count", "shift", "train_step", "predict", "load", "reset"]), max_size=24)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(STEPS)
def test_any_order_of_signatures(steps: list[str]) -> None:
    """Signatures that write different states, in any order, against arrays that are simply replaced."""
    model, line, n = lite_runtime.load(LEARNER), Line(), 0
    for step in steps:
        if step == "count":
            assert count(model) == n
            n += 1
        elif step == "shift":
            model.run({"by": np.ones(3, np.float32)}, "shift")
            line.b = line.b + 1
        elif step == "train_step":
            np.testing.assert_allclose(train(model), line.train(), rtol=1e-3)
        elif step == "predict":
            np.testing.assert_allclose(model.run({"x": X})["y"], line.predict(), rtol=1e-3, atol=1e-3)
        elif step == "load":
            model.load_state_dict({"w": 2 * W}, strict=False)
            line.w = 2 * W.astype(np.float64)
        else:
            model.reset_state()
            line, n = Line(), 0
    assert model.state_dict()["n"] == n
    np.testing.assert_allclose(model.state_dict()["b"], line.b, rtol=1e-3, atol=1e-3)


def test_threads_take_turns() -> None:
    model = lite_runtime.load(LEARNER)
    workers = [threading.Thread(target=lambda: [count(model) for _ in range(200)]) for _ in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert model.state_dict()["n"] == 800


def test_a_run_that_fails_changes_nothing() -> None:
    data = bundle_of(Node("Gather", ("s", "x"), ("picked",)), np.arange(4.0, dtype=np.float32), "s", "picked", (4,))
    model = lite_runtime.load(data)
    model.run({"x": np.array([3, 2, 1, 0])}, "run")
    for _ in range(2):
        with pytest.raises(MsedgeError, match="Gather"):
            model.run({"x": np.array([0, 99, 0, 0])}, "run")
    assert model.state_dict()["s"].tolist() == [3, 2, 1, 0] and model.state_version == 1


@pytest.mark.parametrize("backend", ["reference", pytest.param("native", marks=native)])
def test_what_does_not_fit_state_is_refused_before_it_is_written(backend: str) -> None:
    """The graph says its result is float32[4]; with an `x` of 1000 it is not."""
    data = bundle_of(Node("Add", ("s", "x"), ("sum",)), np.ones(1, np.float32), "s", "sum", (1000,))
    model = lite_runtime.load(data, backend=backend)
    with pytest.raises(MsedgeError, match=r"state 's'"):
        model.run({"x": np.ones(1000, np.float32)}, "run")
    assert model.state_dict()["s"].tolist() == [1]


def test_state_may_pass_through_and_be_shown(model: Model) -> None:
    """An output that is the state itself: replaced by what it was, and the caller's copy is his."""
    kept = Value("k", "float32", (2,))
    graph = Graph((Value("x", "float32", (2,)), kept), (kept, Value("y", "float32", (2,))), (_add("k", "x", "y"),), {})
    reads = {"k": "s"}
    uses = {"show": StateUse(reads, {}), "keep": StateUse(reads, {"k": "s"}), "move": StateUse(reads, {"y": "s"})}
    data = bundle.write(None, dict.fromkeys(uses, graph), state={"s": np.ones(2, np.float32)}, uses=uses)
    model = lite_runtime.load(data)
    x = {"x": np.ones(2, np.float32)}
    shown = model.run(x, "move")["k"]
    shown[...] = 99
    assert model.run(x, "show")["k"].tolist() == [2, 2] and model.run(x, "keep")["y"].tolist() == [3, 3]
    assert model.state_dict()["s"].tolist() == [2, 2]


def _add(a: str, b: str, c: str) -> Node:
    return Node("Add", (a, b), (c,))


def test_the_limit_counts_state() -> None:
    data = bundle_of(_add("s", "x", "sum"), np.zeros(5000, np.float32), "s", "sum", (5000,))
    x = {"x": np.ones(5000, np.float32)}
    with pytest.raises(MsedgeError, match="state of this model takes 40000 bytes"):
        lite_runtime.load(data, limit=30000).run(x, "run")
    lite_runtime.load(data, limit=50000).run(x, "run")


def test_bindings_step(model: Model) -> None:
    bound = model.bind(signature="count")
    bound.inputs["by"][...] = 4
    seen = []
    for _ in range(3):
        bound()
        seen.append(int(bound.outputs["seen"]))
    assert seen == [0, 16, 32] and not bound.fixed


def test_the_interpreter_steps_and_resets(tmp_path: Path) -> None:
    (tmp_path / "m.mslite").write_bytes(LEARNER)
    interpreter = lite_runtime.Interpreter(str(tmp_path / "m.mslite"))
    step = interpreter.get_signature_runner("count")
    assert [int(step(by=np.array(2, np.int64))["seen"]) for _ in range(3)] == [0, 4, 8]
    interpreter.reset_all_variables()
    assert int(step(by=np.array(2, np.int64))["seen"]) == 0
    interpreter.allocate_tensors()
    interpreter.invoke()
    assert np.array_equal(interpreter.get_tensor(1), np.array([B]))


def test_cost_waits_for_the_lock(model: Model) -> None:
    """It runs the plan, whose memory another thread's run may be in."""
    inputs = {"x": X, "t": T}
    model.run(inputs, "train_step")
    asked = threading.Thread(target=model.cost, args=(inputs, "train_step"))
    with model._lock:
        asked.start()
        asked.join(0.2)
        assert asked.is_alive()
    asked.join(300)
    assert not asked.is_alive()


def test_profiles_and_costs_leave_state_alone(model: Model) -> None:
    inputs = {"x": X, "t": T}
    assert model.profile(inputs, "train_step", repeats=2)
    assert model.cost(inputs, "train_step").steps or model.cost(inputs, "train_step").reference
    model.trace({"x": X}, "predict")
    assert model.state_version == 0 and np.array_equal(model.state_dict()["w"], W)
    np.testing.assert_allclose(train(model), Line().train(), rtol=1e-4)


def test_state_cannot_change_inside_a_run(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """From a signal handler, say. Reading is allowed."""
    count(model)
    store, seen = model._store, []
    real = type(store).prepare

    def interrupted(self: Any, rows: Any) -> None:
        real(self, rows)
        monkeypatch.setattr(type(store), "prepare", real)
        for change in (lambda: count(model), model.reset_state):
            with pytest.raises(InputError, match="inside a run"):
                change()
        seen.append(model.run({"x": X})["y"])

    monkeypatch.setattr(type(store), "prepare", interrupted)
    assert count(model) == 1
    np.testing.assert_allclose(seen[0], Line().predict(), rtol=1e-4, atol=1e-5)
    assert model.state_dict()["n"] == 2


# -- state as constants ------------------------------------------------------------------------------------------------


def folded(model: Model) -> bool:
    """Whether `predict` runs with its weights as constants."""
    return "predict" in model._seen


@native
def test_weights_are_constants_until_they_change() -> None:
    model = lite_runtime.load(LEARNER)
    model.run({"x": X})
    assert folded(model)  # as loaded, nothing has changed
    train(model)
    assert not folded(model)
    patience = 2
    for _ in range(3):
        for _ in range(patience):
            model.run({"x": X})
            assert not folded(model)
        before = model.run({"x": X})["y"]
        assert folded(model)
        np.testing.assert_array_equal(model.run({"x": X})["y"], before)
        train(model)
        assert not folded(model) and not np.array_equal(model.run({"x": X})["y"], before)
        train(model)
        patience *= 2


@native
@pytest.mark.parametrize("learned", [False, True])
def test_a_personal_program_is_an_ordinary_one(learned: bool) -> None:
    """Word for word what it would be had the weights never been anything but constants."""
    model = lite_runtime.load(LEARNER)
    for _ in range(10 if learned else 1):
        if learned and model.state_version == 0:
            train(model)
        model.run({"x": X})
    graph = bundle.read(bundle.with_state(LEARNER, model.state_dict())).at_first("predict")
    ordinary = lite_runtime.load(bundle.write(None, {"predict": graph}))
    assert model.run({"x": X})["y"].tobytes() == ordinary.run({"x": X})["y"].tobytes()
    ours, theirs = (m._seen["predict"][0].plan for m in (model, ordinary))
    assert ours.program.tobytes() == theirs.program.tobytes() and ours.kernels == theirs.kernels
    assert all(array.tobytes() == theirs.constants[base].tobytes() for base, array in ours.constants.items())


@native
def test_packed_weights_go_with_the_state_they_were_packed_of() -> None:
    model = lite_runtime.load(LEARNER)
    for _ in range(4):
        train(model)
        for _ in range(80):
            model.run({"x": X})
    assert folded(model) and not any(np.array_equal(a, W) for a, _ in model._settings._packed.values())


def test_any_change_is_seen() -> None:
    model = lite_runtime.load(LEARNER)
    changes: list[Callable[[], object]] = [
        lambda: train(model),
        lambda: model.load_state_dict({"b": B + 1}, strict=False),
        lambda: model.run({"by": np.ones(3, np.float32)}, "shift"),
        model.reset_state,
    ]
    for change in changes:
        for _ in range(70):
            model.run({"x": X})
        before = model.run({"x": X})["y"]
        change()
        state = model.state_dict()
        after = model.run({"x": X})["y"]
        assert not np.array_equal(before, after)
        np.testing.assert_allclose(after, X @ state["w"] + state["b"], rtol=1e-4, atol=1e-5)


# -- state in and out --------------------------------------------------------------------------------------------------


def test_what_state_dict_gives_is_a_copy(model: Model) -> None:
    train(model)
    state = model.state_dict()
    assert state.keys() == initial().keys()
    before = state["w"].copy()
    train(model)
    assert np.array_equal(state["w"], before)
    state["w"][...] = 0
    assert model.state_dict()["w"].any()
    model.load_state_dict(state)
    state["w"][...] = 1
    assert not model.state_dict()["w"].any()


BAD: list[tuple[Callable[[dict[str, Any]], Any], bool, str]] = [
    (lambda s: s.pop("w"), True, "expected all 4, got none for w"),
    (lambda s: s.update(v=W), False, "no state 'v'; this model has b, hyper/learning_rate, n, w"),
    (lambda s: s.update(w=W.T), False, r"state 'w': expected float32\[5, 3\], got float32\[3, 5\]"),
    (lambda s: s.update(w=W.astype(np.float64)), False, r"got float64\[5, 3\]"),
    (lambda s: s.update(b=[1.0, 2.0]), False, "state 'b': .*got list"),
    (lambda s: s.update(n=None), False, "state 'n': .*got NoneType"),
]


@pytest.mark.parametrize(("spoil", "strict", "text"), BAD)
def test_state_that_does_not_fit_is_refused_whole(
    model: Model, spoil: Callable[[dict[str, Any]], Any], strict: bool, text: str
) -> None:
    state: dict[str, Any] = initial() | {"n": np.array(7, np.int64)}
    spoil(state)
    with pytest.raises(InputError, match=text):
        model.load_state_dict(state, strict)
    assert model.state_version == 0 and model.state_dict()["n"] == 0


def test_a_model_without_state(tmp_path: Path) -> None:
    model = lite_runtime.load(bundle.write(None, {"double": signatures()["double"]}))
    assert model.state_dict() == {} and model.state_version == 0
    model.load_state_dict({})
    model.save_state(tmp_path / "s.msstate")
    assert model.load_state(tmp_path / "s.msstate") == {}
    with pytest.raises(InputError, match="no state 'w'; this model has none"):
        model.load_state_dict({"w": W})


# -- files -------------------------------------------------------------------------------------------------------------


def test_save_and_load(model: Model, tmp_path: Path) -> None:
    path = tmp_path / "mine.msstate"
    for _ in range(3):
        train(model)
        count(model)
    model.save_state(path, {"round": 3})
    loss, state = train(model), model.state_dict()
    for again in (lite_runtime.load(LEARNER), lite_runtime.load(LEARNER, state=path)):
        if again.state_dict()["n"] == 0:
            assert again.load_state(path) == {"round": 3} and again.state_version == 1
        else:
            assert again.state_version == 0
        np.testing.assert_allclose(train(again), loss, rtol=1e-5)
        np.testing.assert_allclose(again.state_dict()["w"], state["w"], rtol=1e-4, atol=1e-5)
        assert again.state_dict()["n"] == 3


def test_load_with_arrays_or_a_file() -> None:
    state = initial() | {"w": 2 * W}
    model = lite_runtime.load(LEARNER, state=state)
    state["w"][...] = 0
    np.testing.assert_allclose(model.run({"x": X})["y"], 2 * X @ W + B, rtol=1e-4, atol=1e-5)
    train(model)
    model.reset_state()
    assert np.array_equal(model.state_dict()["w"], 2 * W)
    with pytest.raises(InputError, match="expected all 4"):
        lite_runtime.load(LEARNER, state={"w": W})


def test_state_files_are_the_same_bytes_for_the_same_state() -> None:
    state = initial()
    data = checkpoint.write(None, state, "m", {"a": 1})
    assert data == checkpoint.write(None, dict(reversed(state.items())), "m", {"a": 1})
    found = checkpoint.read(data)
    assert (found.model, found.metadata) == ("m", {"a": 1}) and found.state.keys() == state.keys()
    assert all((found.state[n].dtype, found.state[n].tobytes()) == (a.dtype, a.tobytes()) for n, a in state.items())


def test_a_file_of_another_model(tmp_path: Path) -> None:
    """Taken where it fits, names, types and shapes; else refused, and the refusal says whose it is."""
    path = tmp_path / "s.msstate"
    checkpoint.write(path, initial() | {"n": np.array(5, np.int64)}, "f" * 64)
    model = lite_runtime.load(LEARNER)
    model.load_state(path)
    assert model.state_dict()["n"] == 5
    checkpoint.write(path, initial() | {"w": W.T}, "f" * 64)
    for load in (lambda: model.load_state(path), lambda: lite_runtime.load(LEARNER, state=path)):
        with pytest.raises(InputError, match=r"saved from another model \(ffff.*state 'w': expected float32\[5, 3\]"):
            load()


def test_files_that_are_none(tmp_path: Path) -> None:
    path = tmp_path / "x"
    with pytest.raises(BundleError, match=r"got no file of that name; check the path, or to make one: Model.save"):
        checkpoint.read(path)
    path.write_bytes(LEARNER)
    with pytest.raises(BundleError, match="not a state file; to make one"):
        checkpoint.read(path)
    with pytest.raises(BundleError, match="not a bundle; to make one: msedge convert"):
        bundle.read(checkpoint.write(None, initial(), ""))
    with pytest.raises(BundleError, match="cannot write"):
        lite_runtime.load(LEARNER).save_state(tmp_path / "no" / "folder")


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_damaged_files_are_refused(data: st.DataObject) -> None:
    raw = bytearray(checkpoint.write(None, initial(), "m"))
    if data.draw(st.booleans()):
        at = data.draw(st.integers(0, len(raw) - 1))
        raw[at] ^= 1 << data.draw(st.integers(0, 7))
    else:
        raw = raw[: data.draw(st.integers(0, len(raw) - 1))]
    with pytest.raises(BundleError):
        checkpoint.read(bytes(raw))


def test_killed_while_saving(tmp_path: Path) -> None:
    """kill -9 at any moment leaves a whole file: the old one or a newer one."""
    (tmp_path / "m.mslite").write_bytes(LEARNER)
    path = tmp_path / "s.msstate"
    program = (
        "import sys, numpy as np, lite_runtime\n"
        "model = lite_runtime.load(sys.argv[1], backend='reference')\n"
        "while True:\n"
        "    model.run({'by': np.array(1, np.int64)}, 'count')\n"
        "    model.save_state(sys.argv[2])\n"
        "    print(int(model.state_dict()['n']), flush=True)\n"
    )
    command = [sys.executable, "-c", program, str(tmp_path / "m.mslite"), str(path)]
    for wanted in (1, 5, 12):
        with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            said = [int(process.stdout.readline()) for _ in range(wanted)]
            process.send_signal(signal.SIGKILL)
        assert lite_runtime.load(LEARNER, state=path).state_dict()["n"] >= said[-1] == wanted


def test_a_model_without_state_does_not_load_state() -> None:
    """Starts of bundles without state take none of the modules for it."""
    program = (
        "import sys, numpy as np, lite_runtime\n"
        "from lite_runtime import bundle\n"
        "from tests.lite_runtime.learners import signatures\n"
        "model = lite_runtime.load(bundle.write(None, {'double': signatures()['double']}))\n"
        "model.run({'x': np.ones((1, 5), np.float32)}, 'double')\n"
        "for name in ('state', 'checkpoint', 'bundle.personal'):\n"
        "    assert f'lite_runtime.{name}' not in sys.modules, name\n"
    )
    subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=True)


# -- bundles -----------------------------------------------------------------------------------------------------------


def test_bundles_keep_state() -> None:
    held = bundle.read(LEARNER, thorough=True)
    assert held.state.keys() == initial().keys() and held.uses == {name: use for name, use in USES.items()}
    assert all(held.state[name].tobytes() == array.tobytes() for name, array in initial().items())
    again = bundle.write(None, held.signatures, state=held.state, uses=held.uses)
    assert again == LEARNER


def test_equal_state_is_stored_once() -> None:
    zeros = {f"s{i}": np.zeros((100, 100), np.float32) for i in range(50)}
    assert len(bundle.write(None, {"double": signatures()["double"]}, state=zeros)) < 60_000


def _use(name: str, reads: dict[str, str], writes: dict[str, str]) -> Callable[[dict[str, Any]], Any]:
    return lambda given: given["uses"].update({name: StateUse(reads, writes)})


HOSTILE: list[tuple[Callable[[dict[str, Any]], Any], str]] = [
    (lambda given: given["state"].pop("w"), "state 'w': expected state that the bundle contains"),
    (lambda given: given["state"].update(w=W.T), r"input 'w': expected float32\[3, 5\], got float32\[5, 3\]"),
    (lambda given: given["state"].update(n=np.array(0, np.int32)), r"expected int32\[\], got int64\[\]"),
    (lambda given: given["state"].update(t=np.array(["a"], object)), "state 't': expected numbers, got strings"),
    (lambda given: given["state"].update({"": W}), "expected names of 1 to"),
    (_use("nobody", {}, {}), "expected uses by signatures of"),
    (_use("double", {"x": "w"}, {}), r"expected float32\[5, 3\], got float32\[n, 5\]"),
    (_use("predict", {"y": "w"}, {}), "expected an input of the graph, got 'y'"),
    (_use("predict", {}, {"w": "w"}), "expected an output of the graph, got 'w'"),
    (_use("train_step", {}, {"new_w": "b"}), r"output 'new_w': expected float32\[3\]"),
]


@pytest.mark.parametrize(("spoil", "text"), HOSTILE)
def test_state_that_does_not_fit_its_graphs(spoil: Callable[[dict[str, Any]], Any], text: str) -> None:
    given: dict[str, Any] = {"signatures": signatures(), "state": initial(), "uses": dict(USES)}
    spoil(given)
    with pytest.raises(BundleError, match=text):
        bundle.write(None, **given)


MANIFESTS: list[tuple[Callable[[dict[str, Any]], Any], str]] = [
    (lambda doc: doc.update(requires={}), "expected the keys signatures"),
    (lambda doc: doc["requires"].update(more="9.9.9"), "'more', which it does not know; install msedge 9.9.9"),
    (lambda doc: doc.pop("uses"), "expected the keys signatures"),
    (lambda doc: doc.update(state=[]), "manifest, state: expected an object, got a list of 0"),
    (lambda doc: doc["state"].update(w=99), "state 'w': expected a row below 5 of the tensors"),
    (lambda doc: doc["uses"].update(predict={}), r"uses of 'predict': expected \[reads, writes\]"),
    (lambda doc: doc["uses"]["predict"][0].update(w=3), "uses of 'predict': expected names of state"),
    (lambda doc: doc["uses"]["predict"][0].update(w="b"), r"input 'w': expected float32\[3\], got float32\[5, 3\]"),
    (lambda doc: doc["state"].pop("b"), "signature 'predict', state 'b': expected state that the bundle contains"),
]


@pytest.mark.parametrize(("spoil", "text"), MANIFESTS)
def test_manifests_with_wrong_state(spoil: Callable[[dict[str, Any]], Any], text: str) -> None:
    """With every digest right."""
    parts = unpack(LEARNER)
    doc = json.loads(dict((name, content) for name, content, _ in parts)["manifest"])
    spoil(doc)
    made = pack([(n, json.dumps(doc).encode() if n == "manifest" else c, flags) for n, c, flags in parts])
    with pytest.raises(BundleError, match=text):
        bundle.read(made)


def test_state_written_twice() -> None:
    outputs = (Value("a", "float32", ()), Value("b", "float32", ()))
    graph = Graph((Value("x", "float32", ()),), outputs, (_add("x", "x", "a"), _add("x", "x", "b")), {})
    uses = {"run": StateUse({}, {"a": "s", "b": "s"})}
    with pytest.raises(BundleError, match="every state written once"):
        bundle.write(None, {"run": graph}, state={"s": np.zeros((), np.float32)}, uses=uses)


def test_a_personal_bundle() -> None:
    """It starts from the device's state, names its parent, and keeps everything that does not depend on changed
    values."""
    y = {"y": X @ W + B}
    golden = {"predict": ({"x": X}, y), "double": ({"x": X}, {"y": 2 * X})}
    extra = {"notes": b"keep me"}
    data = bundle.write(
        None, signatures(), state=initial(), uses=USES, golden=golden, extra=extra, provenance={"source": "m.onnx"}
    )
    model = lite_runtime.load(data)
    train(model)
    own = bundle.with_state(data, model.state_dict(), {"device": "seven"})
    held, parent = bundle.read(own, thorough=True), bundle.read(data)
    assert held.provenance == {"source": "m.onnx", "device": "seven", "parent": parent.digest}
    assert list(held.golden) == ["double"] and bytes(held.section("notes")) == b"keep me"
    again = lite_runtime.load(own)
    np.testing.assert_allclose(again.run({"x": X})["y"], model.run({"x": X})["y"], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(train(again), train(model), rtol=1e-5)
    assert list(bundle.read(bundle.with_state(data, {"n": np.array(3, np.int64)})).golden) == ["double", "predict"]


@pytest.mark.parametrize("state", [{"v": W}, {"w": W.T}, {"w": W.astype(np.float64)}])
def test_a_personal_bundle_of_other_state(state: dict[str, Array]) -> None:
    with pytest.raises(BundleError):
        bundle.with_state(LEARNER, state)


def relu(*shape: int) -> Graph:
    return Graph((Value("w", "float32", shape),), (Value("y", "float32", shape),), (Node("Relu", ("w",), ("y",)),), {})


def test_zeros_take_no_place_in_a_file() -> None:
    weights = np.random.default_rng(0).normal(size=(100, 100)).astype(np.float32)
    slots = {f"slot/{i}": np.zeros((100, 100), np.float32) for i in range(4)}
    graph = relu(100, 100)
    plain = bundle.write(None, {"f": graph}, state={"w": weights}, uses={"f": StateUse({"w": "w"}, {})})
    whole = bundle.write(None, {"f": graph}, state={"w": weights, **slots}, uses={"f": StateUse({"w": "w"}, {})})
    assert len(whole) - len(plain) < 400
    held = bundle.read(whole).state
    for name, slot in slots.items():
        assert held[name].dtype == slot.dtype and not held[name].flags.writeable
        np.testing.assert_array_equal(held[name], slot)


def test_zeros_that_a_reader_would_refuse_are_stored() -> None:
    slots = {f"slot/{i:02}": np.zeros(1000, np.float32) for i in range(30)}
    weights = {"w": np.ones(500, np.float32)}
    graph = relu(500)
    data = bundle.write(None, {"f": graph}, state=weights | slots, uses={"f": StateUse({"w": "w"}, {})})
    held = bundle.read(data).state
    assert set(held) == {"w", *slots}
    assert not any(held[name].any() for name in slots)


@pytest.mark.parametrize(
    ("row", "says"),
    [
        (["float32", [1 << 40]], "bytes of zeros"),
        (["float32", [-1]], "state 'w'"),
        (["float32", [True]], "whole numbers"),
        (["float32"], "a row of its section"),
        (["string", [1]], "a row of its section"),
        (["nonsense", [1]], "a row of its section"),
    ],
)
def test_zeros_with_a_wrong_declaration_are_refused(row: list[Any], says: str) -> None:
    from lite_runtime.bundle.decoding import Tensors, decode_state

    with pytest.raises(BundleError, match=says):
        decode_state({"w": row}, Tensors([], memoryview(bytes(4096)), "weights", False))
