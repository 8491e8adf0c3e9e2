"""Convolutions and pools whose images are split exchange edges as predicted and compute what one device does."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cloud.parallel.checking.hlo import read_program
from cloud.parallel.explaining.strategy import strategy
from cloud.parallel.plan import Collective
from cloud.parallel.running.prepare import prepare
from cloud.parallel.searching.predict import moved
from cloud.parallel.topology import PRESETS
from cloud.parallel.tracing.rules.sliding import Slide

CPU = PRESETS["cpu8"]
SLOW = replace(
    CPU, device=replace(CPU.device, flops={"float32": 1e7}, launch=1e-9),
    levels=tuple(replace(level, latency=1e-8, bandwidth=1e12) for level in CPU.levels),
)  # fmt: skip
"""Computing is dear and links cost little: whatever can be split is. Numbers of features are odd: only space can be."""


def volumes(rank: int, size: int, pooled: bool) -> tuple[Any, Any, Any]:
    """A step that classifies one image (`rank` 2) or volume (3), with its state and batch."""
    space, draw = "DHW"[-rank:], np.random.default_rng(rank)
    numbers = f"N{space}C", f"{space}IO", f"N{space}C"
    kernels = [jnp.float32(0.2 * draw.normal(size=(3,) * rank + both)) for both in ((3, 5), (5, 7), (7, 7))]
    params = {"kernels": kernels, "out": jnp.float32(0.2 * draw.normal(size=(7, 8)))}
    over = (1, *(2,) * rank, 1)

    def loss(params: Any, batch: Any) -> Any:
        x = batch["x"]
        for i, kernel in enumerate(params["kernels"]):
            x = jax.lax.conv_general_dilated(x, kernel, (1 + (i == 1),) * rank, "SAME", dimension_numbers=numbers)
            x = jax.nn.relu(x)
            if i == 0 and pooled:
                x = jax.lax.reduce_window(x, -np.inf, jax.lax.max, over, over, "VALID")
        found = x.mean(range(1, rank + 1)) @ params["out"]
        return (jax.nn.logsumexp(found, -1) - (found * batch["y"]).sum(-1)).mean()

    def step(state: Any, batch: Any) -> Any:
        lost, gradient = jax.value_and_grad(loss)(state, batch)
        return jax.tree.map(lambda p, g: p - 0.1 * g, state, gradient), {"loss": lost}

    batch = {"x": jnp.float32(draw.normal(size=(1, *(size,) * rank, 3))), "y": jax.nn.one_hot(jnp.arange(1), 8)}
    return step, params, batch


@pytest.mark.parametrize(("rank", "size", "pooled"), [(2, 32, False), (3, 16, True)])
def test_space_is_split(rank: int, size: int, pooled: bool) -> None:
    """The last volumes are too small for eight parts: one mesh axis is idle for them."""
    step, state, batch = volumes(rank, size, pooled)
    applied = prepare(step, state, batch, topology=SLOW, compiled=0)
    assert strategy(applied.graph, applied.plan).startswith("spatial parallel over m0")
    slid = [k for k, op in enumerate(applied.graph.ops) if op.slides >= 0 and applied.plan.ops[k].loops[op.slides]]
    assert len(slid) >= 8  # three convolutions with the gradients of their kernels, and of two of their images
    program = applied.lower().compile()
    moves = moved(applied.graph, applied.plan, SLOW, reduce_scatter=False)
    assert sum(one.edges for one in moves) >= 8
    found = read_program(program.as_text(), applied.plan.mesh).collectives
    assert permuted(found) == permuted([one.collective for one in moves])
    alone, there, rows = state, applied.place(state), applied.place_batch(batch)
    one_device = jax.jit(step)
    for _ in range(3):
        (alone, wanted), (there, got) = one_device(alone, batch), program(there, rows)
        assert float(got["loss"]) == pytest.approx(float(wanted["loss"]), rel=1e-5)
    for one, other in zip(jax.tree.leaves(alone), jax.tree.leaves(there), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-6)


def permuted(found: Sequence[Collective]) -> list[int]:
    return sorted(one.bytes for one in found if one.kind == "collective-permute")


@given(st.data())
@settings(max_examples=200)
def test_parts_of_a_slide(data: st.DataObject) -> None:
    """A window over each part with its edges gives that part of the results; so does each part of a window, summed."""
    draw = lambda low, high: data.draw(st.integers(low, high))  # noqa: E731
    window, stride, gaps, apart, low = draw(1, 5), draw(1, 3), draw(1, 3), draw(1, 2), draw(0, 4)
    size = draw(1, 4) * 6
    made = data.draw(st.sampled_from([size * gaps // stride, draw(1, 8)]))
    if data.draw(st.booleans()):  # the gradient of a kernel
        gaps, window, made = 1, max(1, size // apart), draw(1, 5)
    high = (made - 1) * stride + (window - 1) * apart + 1 - low - ((size - 1) * gaps + 1)
    slide = Slide(size, window, made, stride, gaps, apart, low, high)
    rng = np.random.default_rng(0)
    x, w = rng.normal(size=size), rng.normal(size=window)
    whole = slid(x, w, slide, low, made)
    for cut in slide.cuts():
        low, each = slide.padding(cut, cut.parts)[0], [joined(x, i, cut.parts, cut.edges) for i in range(cut.parts)]
        if cut.within:
            found = np.concatenate([slid(part, w, slide, low, made // cut.parts) for part in each])
        else:
            windows = np.split(w, cut.parts)
            found = sum(slid(part, own, slide, low, made) for part, own in zip(each, windows, strict=True))
        np.testing.assert_allclose(found, whole)


def joined(x: Any, i: int, parts: int, halo: tuple[int, int]) -> Any:
    """Part i with its edges; zeros beyond the ends."""
    own = len(x) // parts
    assert max(halo) <= own
    wide = np.concatenate([np.zeros(halo[0]), x, np.zeros(halo[1])])
    return wide[i * own : (i + 1) * own + sum(halo)]


def slid(x: Any, w: Any, slide: Slide, low: int, made: int) -> Any:
    """The convolution by its definition."""
    wide = {i * slide.gaps: value for i, value in enumerate(x)}
    at = [[j * slide.stride + k * slide.apart - low for k in range(len(w))] for j in range(made)]
    return np.array([sum(wide.get(place, 0.0) * w[k] for k, place in enumerate(row)) for row in at])
