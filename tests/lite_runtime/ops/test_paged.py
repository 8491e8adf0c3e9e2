"""Attention over caches in pages natively equals the reference, and equals attention over whole sequences."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import lite_runtime
from lite_runtime import bundle, reference
from lite_runtime.errors import InputError
from lite_runtime.graph import Array, Graph, Node, Value, dtype_name
from lite_runtime.running.session import Model
from tests.lite_runtime.ops.targets import on_other_targets, run_on

NAMES = ("query", "key", "value", "key_cache", "value_cache", "cumulative", "past", "table", "cos", "sin")


def in_pages(x: Array, dtype: str) -> Array:
    """Features (..., size) as a cache of this type has them."""
    if dtype != "int8":
        return x.astype(dtype)
    scale = (np.abs(x).max(-1, keepdims=True) / 127).astype(np.float16)
    return np.concatenate(
        [np.rint(x / scale.astype(np.float32)).clip(-127, 127).astype(np.int8), scale.view(np.int8)], -1
    )


def out_of_pages(held: Array) -> tuple[Array, Array | float]:
    """Numbers (..., size) of a cache, and the step between two of them."""
    if held.dtype != np.int8:
        return held.astype(np.float32), 0.0
    scale = held[..., -2:].copy().view(np.float16).astype(np.float32)
    return held[..., :-2] * scale, scale


class Case:
    """Sequences of given lengths, new tokens of each, and caches with pages in random order."""

    def __init__(
        self, past: list[int], new: list[int], *, heads: int = 6, kv: int = 2, size: int = 32, deep: int | None = None,
        dtype: str = "float16", pages: int = 40, angles: bool = True, seed: int = 0,
    ) -> None:  # fmt: skip
        rng = np.random.default_rng(seed)
        deep, rows = deep or size, sum(new)
        self.attrs: dict[str, Any] = {"num_heads": heads, "kv_num_heads": kv}
        slots = max(-(-(p + n) // 16) for p, n in zip(past, new, strict=True))
        order, at = rng.permutation(pages), 0
        table = np.full((len(past), slots), pages + 7, np.int32)
        for s, (p, n) in enumerate(zip(past, new, strict=True)):
            count = -(-(p + n) // 16)
            table[s, :count] = order[at : at + count]
            at += count
        turn = rng.uniform(0, 6, (slots * 16, size // 2 if angles else 1)).astype(np.float32)

        def normal(*shape: int) -> Array:
            return rng.normal(size=shape).astype(np.float32)

        given = [normal(rows, heads * size), normal(rows, kv * size), normal(rows, kv * deep)]
        given += [in_pages(normal(pages, kv, size, 16).swapaxes(2, 3), dtype).swapaxes(2, 3).copy()]
        given += [in_pages(normal(pages, kv, 16, deep), dtype)]
        given += [np.cumsum([0, *new]).astype(np.int32), np.array(past, np.int32), table]
        given += [np.cos(turn), np.sin(turn)] if angles else []
        self.inputs = dict(zip(NAMES, given, strict=False))

    def reference(self) -> tuple[Array, Array, Array]:
        node = Node("PagedAttention", tuple(self.inputs), ("y", "k", "v"), self.attrs, "it")
        y, k, v = reference.evaluate(node, [x.copy() for x in self.inputs.values()])
        return y, k, v

    def model(self, outputs: tuple[str, ...] = ("y",), **settings: Any) -> Model:
        wanted = dict(zip(("y", "k", "v"), self.reference(), strict=True))
        values = tuple(Value(n, dtype_name(x.dtype), x.shape) for n, x in self.inputs.items())
        results = tuple(Value(n, dtype_name(wanted[n].dtype), wanted[n].shape) for n in outputs)
        node = Node("PagedAttention", tuple(self.inputs), outputs, self.attrs, "it")
        return lite_runtime.load(bundle.write(None, {"predict": Graph(values, results, (node,), {})}), **settings)

    def check(self) -> None:
        y, k, v = self.reference()
        got = []
        for settings in ({}, {"threads": 3}, {"backend": "guard"}):
            caches = {name: self.inputs[name].copy() for name in ("key_cache", "value_cache")}
            model = self.model(("y", "k", "v"), **settings)
            found = model.run({**self.inputs, **caches})
            assert not model.cost(self.inputs | caches).reference
            got.append(found["y"].tobytes())
            np.testing.assert_allclose(found["y"], y, rtol=2e-4, atol=2e-5)
            for name, want in (("k", k), ("v", v)):
                made, wanted = (x.swapaxes(2, 3) if name == "k" else x for x in (found[name], want))
                (a, step), (b, _) = out_of_pages(made), out_of_pages(wanted)
                assert (np.abs(a - b) <= 1e-3 + 2e-3 * np.abs(b) + 1.01 * step).all(), name
                assert ((np.abs(a - b) > 1e-3 + 2e-3 * np.abs(b)).mean()) < 1e-3, name
            if "backend" not in settings:
                np.testing.assert_array_equal(caches["key_cache"], found["k"])
                np.testing.assert_array_equal(caches["value_cache"], found["v"])
        assert len(set(got)) == 1


@pytest.mark.parametrize("dtype", ["float16", "float32", "int8"])
@pytest.mark.parametrize(
    ("past", "new"),
    [([0], [1]), ([0], [37]), ([130], [1]), ([127], [2]), ([0, 5, 140], [3, 1, 30]), ([31, 0], [1, 0]), ([300], [50])],
)
def test_lengths(past: list[int], new: list[int], dtype: str) -> None:
    Case(past, new, dtype=dtype, pages=60).check()


@pytest.mark.parametrize("window", [1, 7, 130, 1000])
def test_windows(window: int) -> None:
    case = Case([0, 290], [40, 1])
    case.attrs["local_window_size"] = window
    case.check()


@pytest.mark.parametrize("change", [{"rotary_interleaved": 1}, {"scale": 0.3}, {"softcap": 2.0}])
def test_attributes(change: dict[str, Any]) -> None:
    case = Case([20], [5], heads=4, kv=4, size=24)
    case.attrs.update(change)
    case.check()


@pytest.mark.parametrize("dtype", ["float16", "int8"])
def test_sizes(dtype: str) -> None:
    Case([3], [9], heads=5, kv=1, size=12, deep=20, dtype=dtype).check()
    Case([3], [9], heads=2, kv=2, size=256, angles=False, dtype=dtype).check()
    Case([3], [1], heads=16, kv=1, size=64, dtype=dtype).check()


@pytest.mark.parametrize("size", [0.0, 1e-7, 1e7, float("inf")])
def test_scales_of_integers(size: float) -> None:
    """Zeros, numbers below the least scale, above the largest, and no numbers: the same bytes as the reference's."""
    case = Case([5], [1], heads=2, kv=2, size=16, dtype="int8", angles=False)
    for name in ("key", "value"):
        with np.errstate(invalid="ignore"):
            case.inputs[name] = np.clip(case.inputs[name] * np.float32(size), -1e38, 1e38)
    with np.errstate(invalid="ignore"):
        _, k, v = case.reference()
    caches = {name: case.inputs[name].copy() for name in ("key_cache", "value_cache")}
    found = case.model(("y", "k", "v"), backend="guard").run({**case.inputs, **caches})
    for name, want in (("k", k), ("v", v)):
        np.testing.assert_array_equal(found[name], want)


def test_caches_of_integers_are_close(seed: int = 0) -> None:
    """Of texts written and read in int8, against float32."""
    made = {}
    for dtype in ("float32", "int8"):
        case = Case([0], [200], heads=4, kv=2, size=64, dtype=dtype, seed=seed)
        made[dtype] = case.model().run(case.inputs)["y"]
    assert np.sqrt(((made["int8"] - made["float32"]) ** 2).mean()) < 0.02 * made["float32"].std()


def all_lengths() -> None:
    test_lengths([0, 5, 140], [3, 1, 30], "float16")
    test_lengths([0, 5, 140], [3, 1, 30], "int8")
    test_windows(130)
    test_sizes("float16")
    test_sizes("int8")


@on_other_targets
def test_other_targets(target: str) -> None:
    run_on(target, all_lengths)


@pytest.mark.parametrize("threads", [1, 2])
def test_tokens_one_by_one_are_as_good_as_all_at_once(threads: int) -> None:
    whole = Case([0], [50], dtype="float32")
    want, k, v = whole.reference()
    caches = {name: whole.inputs[name].copy() for name in ("key_cache", "value_cache")}
    rows = []
    for i in range(50):
        part = {name: whole.inputs[name][i : i + 1] for name in ("query", "key", "value")}
        case = Case([i], [1], dtype="float32")
        case.inputs = {**whole.inputs, **part, **caches}
        case.inputs["cumulative"], case.inputs["past"] = np.array([0, 1], np.int32), np.array([i], np.int32)
        rows.append(case.model(threads=threads).run(case.inputs)["y"])
    np.testing.assert_allclose(np.concatenate(rows), want, rtol=1e-4, atol=1e-5)
    used = whole.inputs["table"][0]
    np.testing.assert_allclose(caches["key_cache"][used], k[used], rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(caches["value_cache"][used], v[used])


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("table", [[-1, 3]]),
        ("table", [[0, 2**31 - 1]]),
        ("past", [-1]),
        ("past", [2**31 - 1]),
        ("past", [31]),
        ("cumulative", [0, 9]),
        ("cumulative", [-1, 2]),
        ("cumulative", [2, 0]),
    ],
)
def test_positions_without_a_page_are_errors(name: str, value: Any) -> None:
    case = Case([20], [2])
    model = case.model(backend="guard")
    case.inputs[name] = np.array(value, np.int32)
    with pytest.raises(InputError):
        model.run(case.inputs)
    with pytest.raises(InputError):
        case.reference()
