"""The explanation of a plan adds up to its estimate, and uses the field's names."""

from __future__ import annotations

import json
from dataclasses import replace
from html.parser import HTMLParser
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from cloud._jax import shaped
from cloud.errors import PlanError
from cloud.parallel.explaining.drawing.picture import picture
from cloud.parallel.explaining.explain import explain
from cloud.parallel.explaining.inquiry import Wanted, inquire, rivals
from cloud.parallel.explaining.ledger import Ledger
from cloud.parallel.explaining.pins import read_pin
from cloud.parallel.explaining.strategy import strategy
from cloud.parallel.explaining.telling import told
from cloud.parallel.graph import Graph
from cloud.parallel.plan import Mesh, Plan
from cloud.parallel.searching.predict import predict
from cloud.parallel.searching.search import search
from cloud.parallel.solving.solve import Infeasible
from cloud.parallel.staged.schedule import schedule
from cloud.parallel.topology import Topology
from cloud.parallel.tracing.trace import trace
from tests.cloud.parallel.two_layers import step_graph

CPU = Topology.named("cpu8")
ONE, TWO = Mesh((8,), (0,)), Mesh((2, 4), (0, 0))


@pytest.fixture(scope="module")
def graph() -> Graph:
    return step_graph()


@pytest.fixture(scope="module")
def fsdp(graph: Graph) -> Plan:
    return search(graph, CPU, expert="fsdp", meshes=[ONE])


def planned(graph: Graph, mesh: Mesh, *pins: str, expert: str = "") -> str:
    read = [pin for text in pins for pin in read_pin(text, graph)]
    return strategy(graph, search(graph, CPU, expert=expert, pins=read, meshes=[mesh]))


@pytest.mark.parametrize(
    "mesh, expert, pins, name",
    [
        (ONE, "dp", (), "data parallel over m0 (8)"),
        (TWO, "dp", (), "data parallel over m0+m1 (2×4)"),
        (ONE, "fsdp", (), "FSDP (ZeRO-3) over m0 (8)"),
        (TWO, "megatron", (), "tensor parallel over m0+m1 (2×4)"),
        (TWO, "dp_tp", (), "data parallel over m0 (2) × tensor parallel over m1 (4)"),
        (ONE, "dp", ("slots*w1=1:m0", "slots*w2=0:m0"), "ZeRO-1 over m0 (8)"),
        (Mesh((1,), (0,)), "", (), "one device"),
    ],
)
def test_names_of_plans(graph: Graph, mesh: Mesh, expert: str, pins: tuple[str, ...], name: str) -> None:
    assert planned(graph, mesh, *pins, expert=expert) == name


def test_a_plan_that_splits_nothing(graph: Graph, fsdp: Plan) -> None:
    ops = tuple(
        replace(one, loops=((),) * len(one.loops), results=tuple(((),) * len(split) for split in one.results))
        for one in fsdp.ops
    )
    whole = replace(fsdp, entering=tuple(((),) * len(split) for split in fsdp.entering), ops=ops)
    assert strategy(graph, whole) == "copies: every device does the same"
    made = explain(graph, replace(whole, estimate=predict(graph, whole, CPU)), CPU)
    assert not made.moves and all(one.idle == pytest.approx(7 / 8) for one in made.workers)
    assert "no collectives" in told(made)


def test_experts_and_positions_have_names() -> None:
    def experts(state: Any, batch: jax.Array) -> Any:
        def loss(params: Any) -> jax.Array:
            sent = jax.nn.one_hot((batch @ params["gate"]).argmax(-1), 8)
            given = jnp.einsum("bse,bsd->ebd", sent, batch)
            hidden = jnp.einsum("ebd,edf->ebf", given, params["up"])
            return jnp.square(jnp.einsum("ebf,efd->ebd", hidden, params["down"])).mean()

        value, slope = jax.value_and_grad(loss)(state)
        return jax.tree.map(lambda p, g: p - g, state, slope), value

    sizes = {"gate": (64, 8), "up": (8, 64, 512), "down": (8, 512, 64)}
    state = {name: shaped(shape, jnp.float32) for name, shape in sizes.items()}
    graph = trace(experts, state, shaped((8, 16, 64), jnp.float32))
    assert planned(graph, ONE, "up=0:m0", "down=0:m0", "batch=0:m0").startswith("expert parallel over m0 (8)")

    def along(state: Any, batch: jax.Array) -> Any:
        return state, jnp.tanh(batch @ state).sum((1, 2))

    graph = trace(along, shaped((32, 32), jnp.float32), shaped((3, 64, 32), jnp.float32))
    assert planned(graph, ONE, "batch=1:m0", "state=whole") == "sequence parallel over m0 (8)"


def test_an_explanation_adds_up(graph: Graph, fsdp: Plan) -> None:
    hiding = replace(CPU, overlap=0.5)
    plan = replace(fsdp, estimate=predict(graph, fsdp, hiding), topology=hiding.digest)
    made, cost = explain(graph, plan, hiding), plan.estimate
    assert sum(one.seconds for one in made.moves) == pytest.approx(cost.collective_seconds)
    assert sum(one.seconds - one.hidden for one in made.moves) == pytest.approx(cost.exposed_seconds)
    assert sum(one.bytes for one in made.moves) == sum(one.bytes * one.times for one in cost.collectives)
    assert any(one.hidden > 0 for one in made.moves)
    assert sum(made.memory.values()) == pytest.approx(cost.peak_bytes, abs=8)
    assert made.memory["parameters"] == (32 * 64 + 64 * 16) * 4 // 8
    assert sum(one.local_bytes for one in made.tensors if one.kind != "batch") == cost.state_bytes
    assert 0.8 < sum(one.share for one in made.workers) <= 1
    assert all(one.idle == pytest.approx(0) for one in made.workers)


def test_an_explanation_names_what_moves(graph: Graph, fsdp: Plan) -> None:
    made = explain(graph, fsdp, CPU)
    why = {(one.kind, one.why) for one in made.moves}
    assert ("reduce-scatter", "partial sums of gradient of params.w*") in why
    assert any(kind == "all-gather" and reason.startswith("params.w* for dot_general at") for kind, reason in why)
    lies = {one.name: one for one in made.tensors}
    assert {one.split for one in made.tensors if one.name == "params.w*"} == {"[32, 64/m0]", "[64/m0, 16]"}
    assert lies["batch.x"].split == "[128/m0, 32]" and lies["batch.x"].kind == "batch"
    text = told(made)
    assert text.startswith("FSDP (ZeRO-3) over m0 (8)\nmesh     m0 = 8 at 2 GB/s") and "params.w*" in text
    assert json.loads(json.dumps(made.to_dict()))["strategy"] == made.strategy


def test_gradients_are_found_through_the_optimiser(graph: Graph, fsdp: Plan) -> None:
    ledger = Ledger(graph, fsdp, CPU)
    assert {graph.values[v].name for v in ledger.parameters} == {"params.w1", "params.w2"}
    found = {graph.values[goal].name: graph.values[v].shape for v, goal in ledger.gradients.items()}
    assert set(found) == {"params.w1", "params.w2"}


def test_alternatives_are_listed(graph: Graph, fsdp: Plan) -> None:
    slow = replace(fsdp, estimate=replace(fsdp.estimate, compute_seconds=2.0 + fsdp.estimate.compute_seconds))
    made = explain(graph, fsdp, CPU, {"slow": slow, "ep": PlanError("no stacks of experts")})
    other, none = made.rivals
    assert other.strategy.startswith("FSDP") and other.step_seconds == slow.estimate.step_seconds
    assert other.loses == "2 s more of computing"
    (faster,) = explain(graph, slow, CPU, {"fsdp": fsdp}).rivals
    assert "it costs less" in faster.loses
    assert none.step_seconds is None and none.loses == "no stacks of experts"
    assert "no stacks of experts" in told(made)


def test_if_nothing_fits_the_explanation_says_what_to_change(graph: Graph) -> None:
    """On two devices: to prove of every mesh of eight that nothing fits takes many seconds."""
    pair, mesh = replace(CPU, levels=(replace(CPU.levels[0], size=2),)), Mesh((2,), (0,))
    whole = ("params.*=whole", "slots*w*=whole")
    split = [pin for text in (whole[0], "slots*w1=1:m0", "slots*w2=0:m0") for pin in read_pin(text, graph)]
    least = search(graph, pair, meshes=[mesh], expert="dp", pins=split).estimate.peak_bytes / 0.95
    with pytest.raises(Infeasible, match=r"without --pin slots\*w\*=whole \(.*per device\)") as told:
        inquire(graph, pair, Wanted(memory=1.01 * least, pins=whole, seconds=10))
    assert told.value.least > 1.01 * least
    with pytest.raises(Infeasible, match="no plan fits without --expert dp or with a smaller batch either"):
        inquire(graph, pair, Wanted(memory=1000, expert="dp", seconds=10), {"a smaller batch": lambda: graph})


def test_rivals_are_other_meshes_and_experts(graph: Graph) -> None:
    answer = inquire(graph, CPU, Wanted(expert="dp", seconds=10))
    found = rivals(answer)
    assert {"fsdp", "megatron", "tp_sp", "dp_tp", "ep"} <= set(found) and "dp" not in found
    assert isinstance(found["ep"], PlanError) and isinstance(found["fsdp"], Plan)


class Balanced(HTMLParser):
    """Fails where tags do not close in order; counts classes."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.classes: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_startendtag(tag, attrs)
        if tag != "meta":
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.classes += (dict(attrs).get("class") or "").split()

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_picture(graph: Graph, fsdp: Plan) -> None:
    dp = search(graph, CPU, expert="dp", meshes=[ONE])
    limit = 1.2 * fsdp.estimate.peak_bytes
    others = {"dp": dp, "<ep>": PlanError("a < b")}
    page = picture(graph, fsdp, CPU, others, memory=limit, schedule=schedule("1f1b", 4, 6))
    read = Balanced()
    read.feed(page)
    assert not read.open
    assert "<ep>" not in page and "&lt;ep&gt;" in page and "a &lt; b" in page
    assert not any(word in page for word in ("<script", "src=", "@import", "url("))
    assert "limit" in read.classes and "stage 3" in page
    assert read.classes.count("f") == read.classes.count("b") == 4 * 6
    assert read.classes.count("tensor") >= 4
    assert "limit" not in picture(graph, fsdp, CPU, memory=100 * limit).split("</style>")[-1]
