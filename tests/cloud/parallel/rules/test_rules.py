"""What rules promise, asked of the compiler: each case is compiled for virtual devices with its loops split, and there
is no collective but the one that puts partial results together; values are those of one device."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.extend import core
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from cloud.parallel.graph import Op
from cloud.parallel.plan import Assignment
from cloud.parallel.plan import Mesh as Plane
from cloud.parallel.running.sliding import slid
from cloud.parallel.tracing.inline import flat
from cloud.parallel.tracing.rules import RULES, Nest, describe
from tests.cloud.parallel.rules.cases import CASES

AXES = "abc"
HASTE = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}
COLLECTIVE = re.compile(r" (all-reduce|all-gather|all-to-all|collective-permute|reduce-scatter)(?:-start)?\(")


FIRST = {name.split()[0]: name for name in reversed(CASES)}.values()
"""One case a primitive; all are tried by the slow test."""


class Shown:
    """The last equation of a case's primitive, with the operands it has there and the results they give."""

    def __init__(self, name: str) -> None:
        function, args = CASES[name]
        closed = flat(jax.make_jaxpr(function)(*args))
        self.eqn = [eqn for eqn in closed.jaxpr.eqns if eqn.primitive.name == name.split()[0]][-1]
        self.nest: Nest = describe(self.eqn)

        def walk(*args: Any) -> tuple[list[Any], list[Any]]:
            known: dict[Any, Any] = dict(zip(closed.jaxpr.constvars, closed.consts, strict=True))
            known.update(zip(closed.jaxpr.invars, args, strict=True))
            for eqn in closed.jaxpr.eqns:
                operands = [atom.val if isinstance(atom, core.Literal) else known[atom] for atom in eqn.invars]
                results = bound(eqn)(*operands)
                known.update(zip(eqn.outvars, results, strict=True))
                if eqn is self.eqn:
                    break
            return operands, results

        self.operands, self.results = jax.jit(walk, compiler_options=HASTE)(*args)


def bound(eqn: Any) -> Callable[..., list[Any]]:
    def run(*operands: Any) -> list[Any]:
        made = eqn.primitive.bind(*operands, **eqn.params)
        return list(made) if eqn.primitive.multiple_results else [made]

    return run


def split_into(loop_axes: Mapping[int, str], shown: Shown, ways: int) -> tuple[list[str], list[Any]]:
    """The collectives of the case with these loops split, and its results."""
    grid = np.array(jax.devices()[: ways ** len(loop_axes)]).reshape((ways,) * len(loop_axes))
    mesh = Mesh(grid, tuple(loop_axes.values()), axis_types=(AxisType.Auto,) * len(loop_axes))

    def lies(labels: Sequence[int | None]) -> NamedSharding:
        return NamedSharding(mesh, PartitionSpec(*(loop_axes.get(label, None) for label in labels)))  # type: ignore[arg-type]

    nest = shown.nest
    reads, writes = [lies(labels) for labels in nest.reads], [lies(labels) for labels in nest.writes]
    run = bound(shown.eqn)
    if nest.slides in loop_axes:
        loops = tuple((list(loop_axes).index(k),) if k in loop_axes else () for k in range(len(nest.loops)))
        op = Op("", tuple(range(len(reads))), (0,), nest.loops, nest.reads, nest.writes, slides=nest.slides)
        sizes = Plane((ways,) * len(loop_axes), (0,) * len(loop_axes))
        run = slid(shown.eqn, op, Assignment(loops, ()), sizes, mesh)
    step = jax.jit(run, in_shardings=reads, out_shardings=writes, compiler_options=HASTE)
    compiled = step.lower(*shown.operands).compile()
    operands = [jax.device_put(value, where) for value, where in zip(shown.operands, reads, strict=True)]
    return COLLECTIVE.findall(compiled.as_text()), compiled(*operands)


def without_edges(shown: Shown, chosen: Sequence[int], found: list[str]) -> list[str]:
    """The other collectives, if there is one for each edge that these loops need."""
    edges = sum(wide > 0 for wide in shown.nest.edges) if shown.nest.slides in chosen else 0
    assert found.count("collective-permute") == edges
    return [kind for kind in found if kind != "collective-permute"]


def same(results: Sequence[Any], expected: Sequence[Any]) -> None:
    for got, want in zip(results, expected, strict=True):
        tolerance = 2e-2 if want.dtype == "bfloat16" else 1e-5
        np.testing.assert_allclose(np.asarray(got, np.float64), np.asarray(want, np.float64), tolerance, tolerance)


@pytest.mark.parametrize("name", FIRST)
def test_no_collective_but_the_sum(name: str) -> None:
    """Up to three loops at once; partial results are put together once, or once along each axis."""
    shown = Shown(name)
    able = [k for k, loop in enumerate(shown.nest.loops) if loop.size % 2 == 0][-3:]
    assert able or "grouped" in name, "a case that shows nothing"
    collectives, results = split_into(dict(zip(able, AXES, strict=False)), shown, 2)
    partial = sum(bool(shown.nest.loops[k].reduces) for k in able)
    collectives = without_edges(shown, able, collectives)
    assert set(collectives) <= {"all-reduce"}
    assert min(partial, 1) <= len(collectives) <= partial
    same(results, shown.results)


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_every_loop_alone_and_every_pair(name: str) -> None:
    """Alone four ways where that divides, else two; in pairs two ways each."""
    shown = Shown(name)
    by_four, by_two = ([k for k, loop in enumerate(shown.nest.loops) if loop.size % n == 0] for n in (4, 2))
    alone = [((k,), 4 if k in by_four else 2) for k in by_two]
    for chosen, ways in [*alone, *((pair, 2) for pair in itertools.combinations(by_two, 2))]:
        collectives, results = split_into(dict(zip(chosen, AXES, strict=False)), shown, ways)
        partial = sum(bool(shown.nest.loops[k].reduces) for k in chosen)
        collectives = without_edges(shown, chosen, collectives)
        assert set(collectives) <= {"all-reduce"}, (chosen, ways)
        assert min(partial, 1) <= len(collectives) <= partial, (chosen, ways)
        same(results, shown.results)


def test_every_family_is_shown() -> None:
    """Each rule except the whole one has its own case; those that tie loops are shown by `test_bodies.py`."""
    shown = {RULES[name.split()[0]].__name__ for name in CASES}
    assert {rule.__name__ for rule in RULES.values()} - shown == {
        "reduce_by_function", "whole", "sliced", "stacked", "tied"
    }  # fmt: skip


@given(st.data(), st.lists(st.sampled_from([1, 2, 3, 4, 6]), min_size=1, max_size=4))
@settings(max_examples=100)
def test_parts_of_a_reshape(data: st.DataObject, own: list[int]) -> None:
    """A part of the operand along a loop, reshaped alone, is that part of the result."""
    factors = [factor for size in own for factor in {4: (2, 2), 6: (2, 3)}.get(size, (size,))]
    order = data.draw(st.permutations(factors))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(order)), max_size=3)))
    shape = [math.prod(order[i:j]) for i, j in zip([0, *cuts], [*cuts, len(order)], strict=True)]
    jaxpr = jax.make_jaxpr(lambda x: jax.lax.reshape(x, shape))(jax.ShapeDtypeStruct(own, np.int32)).jaxpr
    before = np.arange(math.prod(own)).reshape(own)
    for eqn in jaxpr.eqns:
        nest = describe(eqn)
        for number, loop in enumerate(nest.loops):
            left, right = nest.reads[0].index(number), nest.writes[0].index(number)
            for ways in [n for n in range(2, loop.size + 1) if loop.size % n == 0]:
                parts = zip(np.split(before, ways, left), np.split(before.reshape(shape), ways, right), strict=True)
                assert all(np.array_equal(one.reshape(other.shape), other) for one, other in parts)
