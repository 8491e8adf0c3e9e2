"""Plans as files: read back unchanged, refused if they are invalid; differences between two plans; pins."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloud.errors import PlanError
from cloud.parallel.explaining.difference import diff
from cloud.parallel.explaining.pins import meshes_for, read_pin
from cloud.parallel.explaining.planfile import Saved, from_dict, read, to_dict, write
from cloud.parallel.graph import Graph
from cloud.parallel.plan import Mesh, Plan
from cloud.parallel.searching.demands import Pin
from cloud.parallel.searching.search import search
from cloud.parallel.topology import Topology
from tests.cloud.parallel.two_layers import step_graph

CPU = Topology.named("cpu8")


@pytest.fixture(scope="module")
def graph() -> Graph:
    return step_graph()


@pytest.fixture(scope="module")
def plan(graph: Graph) -> Plan:
    return search(graph, CPU, expert="fsdp", backend="cpu", meshes=[Mesh((8,), (0,))])


@pytest.fixture(scope="module")
def written(graph: Graph, plan: Plan) -> dict[str, Any]:
    made: dict[str, Any] = json.loads(json.dumps(to_dict(plan, graph, CPU)))
    return made


def test_a_plan_comes_back_as_it_was_written(tmp_path: Path, graph: Graph, plan: Plan) -> None:
    write(tmp_path / "plan.json", plan, graph, CPU)
    saved = read(tmp_path / "plan.json")
    assert saved.plan == plan and saved.check(graph, CPU) == plan and saved.topology == "cpu8"
    assert [one.name for one in saved.arguments] == [graph.values[v].name for v in graph.entering]


def test_a_plan_for_something_else_says_what_differs(graph: Graph, written: dict[str, Any]) -> None:
    saved = from_dict(written)
    others = r"it has params\.w1 float32\[32, 64\].*here is params\.w1 float32\[32, 96\].*msedge plan"
    with pytest.raises(PlanError, match=others):
        saved.check(step_graph(96), CPU)
    other = step_graph()
    fewer = replace(other, ops=other.ops[:-1])
    count = rf"arguments are the same, its {len(graph.ops)} operators are not \({len(fewer.ops)} here\)"
    with pytest.raises(PlanError, match=count):
        saved.check(fewer, CPU)
    with pytest.raises(PlanError, match=r"for 8 devices \(8\); h100x2x8 has 16"):
        saved.check(graph, Topology.named("h100x2x8"))
    with pytest.raises(PlanError, match="'cpu8', whose links, memory or device differ from 'h100x8'"):
        saved.check(graph, Topology.named("h100x8"))
    assert saved.check(graph) == saved.plan  # any devices, if their number is the same


def changed(path: str, value: Any) -> Callable[[dict[str, Any]], None]:
    def change(data: dict[str, Any]) -> None:
        at: Any = data
        *before, last = path.split(".")
        for key in before:
            at = at[int(key) if isinstance(at, list) else key]
        at[int(last) if isinstance(at, list) else last] = value

    return change


@pytest.mark.parametrize(
    "path, value, expected",
    [
        ("msedge_plan", 2, "expected version 1, got 2"),
        ("surprise", 1, "surprise: no such key; expected one of msedge_plan, name"),
        ("mesh.sizes", [0], r"mesh\.sizes\[0\]: expected a whole number from 1"),
        ("mesh.sizes", [2, 4], "a level each"),
        ("mesh.sizes", [1 << 30], "at most 2\\^20 devices"),
        ("mesh.sizes", [True], "expected a whole number"),
        ("recompute", 1.5, "recompute: expected a share from 0 to 1, got 1.5"),
        ("regather", 0, "regather: expected true or false"),
        ("name", None, "name: expected a text"),
        ("ops.0", 10**6, r"ops\[0\]: expected a whole number from 0 to below"),
        ("ops", {}, "ops: expected a list"),
        ("choices.0.loops", [[1]], r"choices\[0\]\.loops: expected mesh axes from 0 to below 1"),
        ("choices.0.loops", [[0], [0]], "each at most once"),
        ("entering.0.split", [[0]] * 5, "each at most once"),
        ("entering.0.shape", [-1, 3], r"entering\[0\]\.shape\[0\]: expected a whole number"),
        ("estimate.compute_seconds", "soon", "estimate.compute_seconds: expected a number"),
        ("estimate.collectives.0.group", 0, "group: expected a whole number from 1"),
    ],
)
def test_hostile_files_are_refused(written: dict[str, Any], path: str, value: Any, expected: str) -> None:
    data = copy.deepcopy(written)
    changed(path, value)(data)
    with pytest.raises(PlanError, match=expected):
        from_dict(data, "x.json")


LEAVES = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4)


@given(st.recursive(LEAVES, lambda part: st.lists(part, max_size=3) | st.dictionaries(st.text(max_size=4), part)))
def test_nothing_but_a_plan_is_read(data: Any) -> None:
    with pytest.raises(PlanError):
        from_dict(data)


@given(at=st.integers(0, 10**6), junk=st.sampled_from([None, -1, 1 << 70, "x", [], {}, 1e400, [[[0, 0]]]]))
def test_any_field_may_be_junk(written: dict[str, Any], graph: Graph, at: int, junk: Any) -> None:
    """Whatever is put in place of whatever part of the file: it is read as a sound plan, or refused."""
    data = copy.deepcopy(written)
    places = list(walked(data))
    holder, key = places[at % len(places)]
    holder[key] = junk
    try:
        saved = from_dict(data)
        saved.check(graph, CPU)
    except PlanError:
        return
    assert isinstance(saved, Saved)


def walked(data: Any) -> Any:
    pairs = data.items() if isinstance(data, dict) else enumerate(data)
    for key, inner in pairs:
        yield data, key
        if isinstance(inner, dict | list):
            yield from walked(inner)


def test_choices_that_do_not_fit_the_step_are_refused(graph: Graph, written: dict[str, Any]) -> None:
    data = copy.deepcopy(written)
    data["ops"] = data["ops"][1:]
    with pytest.raises(PlanError, match="do not fit the step"):
        from_dict(data).check(graph, CPU)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match=r"cannot be read.*msedge plan -o"):
        read(tmp_path / "none.json")
    for n, text in enumerate(('{"msedge_plan": 1', "[" * 100000, '{"msedge_plan": NaN}', "\ud800")):
        (tmp_path / f"{n}.json").write_bytes(text.encode("utf-8", "surrogatepass"))
        with pytest.raises(PlanError, match="expected JSON"):
            read(tmp_path / f"{n}.json")


def test_two_plans_are_compared(graph: Graph, plan: Plan) -> None:
    other = search(graph, CPU, expert="dp", backend="cpu", meshes=[plan.mesh])
    made = diff(graph, plan, other, CPU)
    lies = {(one.name, one.before, one.after) for one in made.entering}
    assert lies == {("params.w*", "[32, 64/m0]", "[32, 64]"), ("params.w*", "[64/m0, 16]", "[64, 16]")}
    assert made.others == 4  # both moments of both weights
    moved = {(one.what, one.unit): (one.before, one.after) for one in made.moved}
    assert moved["all-gather over m0 (8)", "bytes"][1] == 0 < moved["all-gather over m0 (8)", "bytes"][0]
    totals = {one.what: one for one in made.totals}
    assert totals["step"].before == plan.estimate.step_seconds and totals["step"].after == other.estimate.step_seconds
    assert "FSDP" in made.text() and "data parallel" in made.text() and json.dumps(made.to_dict())
    same = diff(graph, plan, plan, CPU)
    assert not same.entering and not same.made and not same.moved and "inputs of the step: no difference" in same.text()


@pytest.mark.parametrize(
    "text, expected",
    [
        ("params.w1=1:m0", [Pin("params.w1", ((), (0,)))]),
        ("params.*=whole", [Pin("params.*", ((), ()))]),
        ("batch.x=0:m1+m0,1:any", [Pin("batch.x", ((0, 1), None))]),
        ("*.w1=0:whole", [Pin("*.w1", ((), ()))]),
    ],
)
def test_pins(graph: Graph, text: str, expected: list[Pin]) -> None:
    assert read_pin(text, graph) == expected


@pytest.mark.parametrize(
    "text, expected",
    [
        ("params.w1", "expected GLOB=DIM:AXIS"),
        ("=0:m0", "expected GLOB=DIM:AXIS"),
        ("params.w1=0:x", "got '0:x'"),
        ("params.w1=0:m0,1:m0", "splits only one dimension"),
        ("params.w1=2:m0", r"params.w1 has no dimension 2; its shape is \[32, 64\]"),
    ],
)
def test_pins_that_mean_nothing(graph: Graph, text: str, expected: str) -> None:
    with pytest.raises(PlanError, match=expected):
        read_pin(text, graph)


def test_pins_choose_meshes(graph: Graph) -> None:
    one, two, odd = Mesh((8,), (0,)), Mesh((2, 4), (0, 0)), Mesh((3,), (0,))
    pins = read_pin("params.w2=0:m0", graph)
    assert meshes_for([one, two, odd], pins, graph) == [one, two]
    assert meshes_for([one, two], read_pin("params.w2=1:m1", graph), graph) == [two]
    with pytest.raises(PlanError, match=r"no mesh of these devices \(3\) has the named axes"):
        meshes_for([odd], pins, graph)


def test_a_pin_is_kept(graph: Graph) -> None:
    pins = read_pin("params.w1=0:m0", graph)
    found = search(graph, CPU, pins=pins, backend="cpu", meshes=[Mesh((8,), (0,))])
    lies = {graph.values[v].name: split for v, split in zip(graph.entering, found.entering, strict=True)}
    assert lies["params.w1"] == ((0,), ())
