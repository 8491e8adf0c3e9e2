"""Models that are compared with shardings written by hand: planned and by hand they train as on one device."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest

from benchmarks.parallel.hand import HAND, TEXTS, by_hand, experts, meshes
from benchmarks.parallel.hand_page import page
from benchmarks.parallel.models import BY_HAND
from cloud.parallel.plan import Mesh
from cloud.parallel.running.prepare import prepare
from cloud.parallel.topology import PRESETS

LINE, GRID = Mesh((8,), (0,)), Mesh((2, 4), (0, 0))


@pytest.mark.parametrize(("name", "expert"), [("towers", "tables"), ("long", "megatron")])
def test_planned_and_by_hand_a_step_is_that_of_one_device(name: str, expert: str) -> None:
    model = BY_HAND[name](small=True)
    state, batch = model.make()
    alone, _ = jax.jit(model.step)(state, batch)
    made = prepare(model.step, state, batch, topology=PRESETS["cpu8"], devices=jax.devices()[:8], seconds=5,
                   meshes=[LINE], compiled=0)  # fmt: skip
    planned, told = made.step(made.place(state), made.place_batch(batch))
    step, *places = by_hand(model, experts(name)[expert], GRID, jax.devices()[:8])
    hand, said = step(*map(jax.device_put, (state, batch), places))
    assert float(told["loss"]) == pytest.approx(float(said["loss"]), rel=1e-5)
    for one, *others in zip(*map(jax.tree.leaves, (alone, planned, hand)), strict=True):
        for other in others:
            np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-4)


def spec(sharding: Any, count: int) -> tuple[Any, ...]:
    found = tuple(sharding.spec)
    return found + (None,) * (count - len(found))


def test_what_experts_split() -> None:
    t5 = BY_HAND["t5"](small=True)
    _, tensor, rows = by_hand(t5, TEXTS["tp"], GRID, jax.devices()[:8])
    block = tensor["params"]["decoder_blocks"]["blocks"]
    assert spec(block["cross"]["k"], 4) == (None, None, "m1", None)  # heads
    assert spec(block["down"], 3) == (None, "m1", None) and spec(block["cross"]["norm"], 2) == (None, None)
    assert spec(rows["x"], 2) == ("m0", None)
    _, slots, _ = by_hand(t5, TEXTS["zero1"], LINE, jax.devices()[:8])
    assert spec(slots["params"]["words"], 2) == (None, None)
    assert spec(jax.tree.leaves(slots["slots"][0].mu["encoder_blocks"]["blocks"]["up"])[0], 3) == (None, None, "m0")
    _, _, text = by_hand(BY_HAND["long"](small=True), HAND["long"]["context"], LINE, jax.devices()[:8])
    assert spec(text["x"], 2) == (None, "m0")


def test_experts_are_tried_on_the_meshes_that_differ_for_them() -> None:
    assert [each.sizes for each in meshes(TEXTS["dp"], PRESETS["h100x8"])] == [(8,)]
    assert [each.sizes for each in meshes(TEXTS["tp"], PRESETS["h100x8"])] == [(2, 4)]
    assert [each.sizes for each in meshes(TEXTS["dp"], PRESETS["h100x2x8"])] == [(2, 8)]


def row(expert: float, ours: float, peak: float, fits: bool = True) -> dict[str, Any]:
    """A row whose plan was predicted to need 1 GiB."""
    one = {"mesh": [8], "step": ours, "peak": peak * 2**30, "moved": 100, "fits": fits, "name": "searched", "parts": 1,
           "said_step": ours, "said_peak": 2**30, "said_moved": 100}  # fmt: skip
    hand = {"dp 8": {"step": expert, "peak": 2**30, "fits": True}, "tp 2x4": {"error": "refused"}}
    return {"hand": hand, "ours": {"plans": [one], "said": "compiled the 1 best plans in 2 s"}}


def test_the_page_counts_what_is_ahead_behind_and_misjudged() -> None:
    text = page({"a:h100x8": row(2e-3, 1e-3, 1.05), "b:h100x8": row(1e-3, 1.01e-3, 1.25),
                 "c:4-small": row(1e-3, 0.999e-3, 0.95), "d:4-small": {"hand": {}}})  # fmt: skip
    assert "3 pairs: ours is ahead in 2, by more than 0.5% in 1; behind by more than 0.5% in 1." in text
    assert "compiled: 3. Peak within 10%: 2 (66.7%). Said to fit and does not: 0." in text
    assert "| b | h100x8 | searched | 8 | 1.00 GiB | 1.25 GiB | -20% |" in text
    assert "| a | h100x8 | dp 8: 2.00 ms, 1.00 GiB | 1.00 ms, 1.05 GiB | searched | 2.000 |" in text
    none = page({"a:h100x8": row(1.0, 1.0, 2.0, fits=False)})
    assert "Said to fit and does not: 1" in none and "behind by more than 0.5% in 1" in none
