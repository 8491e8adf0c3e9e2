"""Attention in plain operators, as torch.onnx exports it: what it computes is found by computing it.

Exporters write MatMul, Softmax and the operators around them in many ways: masks from shapes, halves of heads by Slice,
repeated heads by Expand. So the operators themselves decide nothing. The part of the graph between the products for
query, key and value and the product behind attention is run by the reference on small inputs:

    keys with known features   -> the present keys show the cosines and sines of each position
    values that say where      -> the shares of positions show the scale of the scores
    equal scores               -> the mean of positions shows the window

Then random inputs must give what attention with these numbers gives, to rounding: anything else is refused.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import onnx_ir as ir

from converter.errors import ConvertError
from converter.frontends.exported.matrices import constant_of
from converter.frontends.exported.patterns import PRODUCTS, unlike
from converter.frontends.exported.probing import Probe
from converter.ir.build import dims
from lite_runtime.errors import MsedgeError
from lite_runtime.graph import Array

__all__ = ["Plain", "Tables", "attention_of"]

Tables = tuple[Array, Array]
"""Cosines and sines, float32 (positions, size / 2)."""
_FLOATS = (ir.DataType.FLOAT, ir.DataType.FLOAT16)
_ROWS, _PAST = 5, 3
_CHUNK = 4096
"""Positions that are computed at a time, and of which a window is told from none."""
_CLOSE = {np.dtype(np.float32): 1e-4, np.dtype(np.float16): 1e-2}
"""Of the largest result, by its type: rounding. A mask or rotation that differs changes results by a tenth."""


class Plain(NamedTuple):
    """query, key, value: the results of their products."""

    query: ir.Value
    key: ir.Value
    value: ir.Value
    heads: int
    kv_heads: int
    size: int
    scale: float
    window: int
    tables: Tables


def attention_of(result: ir.Value, graph: ir.Graph, context: int, tables: Tables | None) -> Plain:
    """What is computed of three products to give `result`, the operand of the product behind attention. tables: those
    of another layer, which must be this one's too; None: they are found. Raises ConvertError if it is not attention
    over past and present keys and values with rotary positions."""
    try:
        return _Core(result, graph).found(context, tables)
    except ConvertError:
        raise
    except MsedgeError as error:
        raise ConvertError(f"attention in plain operators cannot be followed: {error}") from None


class _Core:
    """A layer's attention: its values, and how it is run."""

    def __init__(self, result: ir.Value, graph: ir.Graph) -> None:
        self.result, self.graph = result, graph
        products = list(_products(result))
        if len(products) != 3:
            raise unlike(result, f"attention of three products with constant matrices, not of {len(products)}")
        widths = [_width(value) for value in products]
        reached = [list(_presents(value, result)) for value in products]
        sides = [(value, width, found) for value, width, found in zip(products, widths, reached, strict=True) if found]
        queries = [value for value, found in zip(products, reached, strict=True) if not found]
        if len(queries) != 1 or len(sides) != 2 or any(len(found) != 1 for *_, found in sides):
            raise unlike(result, "attention whose keys and values are outputs of the graph")
        scored = [_is_scored(value, result) for value, *_ in sides]
        if scored[0] == scored[1]:
            raise unlike(result, "attention with Softmax of scores of keys")
        (self.key, self.width, (present_key,)), (self.value, other, (present_value,)) = sorted(
            sides, key=lambda side: not _is_scored(side[0], result)
        )
        self.query, self.presents = queries[0], [present_key, present_value]
        self.pasts = [self._past(value) for value in self.presents]
        sizes = [(dims(past) or (None,) * 4)[1::2] for past in self.pasts]
        kv, size = sizes[0]
        heads, left = divmod(_width(self.query), size) if isinstance(size, int) and size > 0 else (0, 1)
        if sizes[0] != sizes[1] or left or not isinstance(kv, int) or kv < 1 or not isinstance(size, int) or size % 2:
            raise unlike(result, "attention over past keys and values [batch, heads, past, size] of known sizes")
        if self.width != kv * size or other != kv * size or heads < 1 or heads % kv:
            raise unlike(result, f"products of {kv} heads of {size} for keys and values")
        self.heads, self.kv, self.size = heads, kv, size
        for product in products:  # graphs need not say the types of what they compute
            product.dtype = product.dtype or self.pasts[0].dtype or ir.DataType.FLOAT
        self.shapes = list(_shaped(self.result, self._given()))

    def _given(self) -> list[ir.Value]:
        return [self.query, self.key, self.value]

    def _past(self, present: ir.Value) -> ir.Value:
        """The input of the graph that continues in an output."""
        node = present.producer()
        found = [v for v in _before(present, self._given()) if v.is_graph_input() and len(dims(v) or ()) == 4]
        if node is None or len(found) != 1:
            raise unlike(present, "present keys or values: past ones, which are an input of the graph, and new ones")
        return found[0]

    def found(self, context: int, tables: Tables | None) -> Plain:
        """The numbers of this attention, checked."""
        given = [*self._given(), *self.shapes]
        whole = Probe(self.graph, [self.result, *self.presents], given)
        tables = tables or self._tables(Probe(self.graph, self.presents[:1], given), context)
        scale = self._scale(whole, tables)
        window = self._window(whole, min(context, _CHUNK))
        rng = np.random.default_rng(0)
        last = min(context, len(tables[0]))
        begins = {0, _PAST} | ({last - _ROWS} if self._places(whole) and last > _ROWS else set())
        for begin in sorted(begins):
            self._check(whole, tables, scale, begin, rng)
        return Plain(self.query, self.key, self.value, self.heads, self.kv, self.size, scale, window, tables)

    # -- runs ----------------------------------------------------------------------------------------------------------

    @staticmethod
    def _places(probe: Probe) -> bool:
        """Whether positions are an input."""
        return any(value.name == "position_ids" for value in probe.entries)

    def _run(
        self, probe: Probe, three: tuple[Array, Array, Array], pasts: tuple[Array, Array], begin: int
    ) -> list[Array]:
        """Results for rows (rows, width) of query, key and value behind past ones (kv, past, size); the first of them
        has position `begin`."""
        rows, past = len(three[0]), pasts[0].shape[1]
        values: dict[ir.Value, Array] = {v: x[None] for v, x in zip(self._given(), three, strict=True)}
        for value in self.shapes:
            width = (dims(value) or (1,))[-1]
            values[value] = np.zeros((1, rows, width if isinstance(width, int) else 1), np.float32)
        for value in probe.entries:
            if value in self.pasts:
                values[value] = pasts[self.pasts.index(value)][None]
            elif len(dims(value) or ()) == 4:  # another layer's, whose shape is looked at
                values[value] = np.zeros((1, self.kv, past, self.size), np.float32)
            else:
                values[value] = _integers(value, rows, past, begin)
        kinds = {value: value.dtype.numpy() for value in values if value.dtype is not None}
        return probe.run({value: np.ascontiguousarray(x, kinds.get(value, np.float32)) for value, x in values.items()})

    def _tables(self, probe: Probe, context: int) -> Tables:
        """Cosines and sines of positions: what becomes of keys that are 1 in their first half and 0 in the other."""
        half, ones = self.size // 2, np.zeros((self.kv, self.size), np.float32)
        ones[:, : self.size // 2] = 1
        step, parts = _CHUNK if self._places(probe) else context, list[Array]()
        empty = np.zeros((self.kv, 0, self.size), np.float32)
        for begin in range(0, context, step):
            rows = min(step, context - begin)
            keys = np.broadcast_to(ones.reshape(1, -1), (rows, ones.size))
            query, values = np.zeros((rows, self.heads * self.size), np.float32), np.zeros_like(keys)
            (present,) = self._run(probe, (query, keys, values), (empty, empty), begin)
            parts.append(present[0, 0])
        turned = np.concatenate(parts).astype(np.float32)
        return turned[:, :half], turned[:, half:]

    def _scale(self, probe: Probe, tables: Tables) -> float:
        """The factor of scores, by the shares of positions that they lead to."""
        rng, count = np.random.default_rng(1), min(self.size, 8)
        queries = rng.normal(size=(count, self.heads * self.size)).astype(np.float32)
        keys = rng.normal(size=(count, self.kv * self.size)).astype(np.float32)
        where = np.zeros((count, self.kv, self.size), np.float32)
        where[np.arange(count), :, np.arange(count)] = 1
        empty = np.zeros((self.kv, 0, self.size), np.float32)
        y = self._run(probe, (queries, keys, where.reshape(count, -1)), (empty, empty), 0)[0]
        shares = y.reshape(count, self.heads, self.size)[-1, :, :count].astype(np.float64)
        if not (np.isfinite(shares).all() and (shares > 0).all()):
            raise unlike(self.result, "attention of all positions so far")
        scores = self._scores(queries, _headed(keys, self.kv), tables, 0)[:, -1]
        logs = np.log(shares)
        logs -= logs.mean(axis=-1, keepdims=True)
        scores = scores - scores.mean(axis=-1, keepdims=True)
        scale = float((logs * scores).sum() / max((scores * scores).sum(), 1e-30))
        usual = float(self.size) ** -0.5
        if not np.isfinite(scale) or scale <= 0:
            raise unlike(self.result, "attention by products of queries and keys")
        return usual if abs(scale - usual) < _CLOSE.get(y.dtype, 0.0) * usual else scale

    def _window(self, probe: Probe, count: int) -> int:
        """How many positions a row attends to, 0 for all of `count`: the mean of positions with equal scores."""
        past = count - 1
        keys = np.zeros((self.kv, past, self.size), np.float32)
        places = keys.copy()
        places[..., 0] = np.arange(past, dtype=np.float32) / count
        one = np.zeros((1, self.kv, self.size), np.float32)
        one[..., 0] = past / count
        query, key = np.zeros((1, self.heads * self.size), np.float32), np.zeros((1, self.kv * self.size), np.float32)
        y = self._run(probe, (query, key, one.reshape(1, -1)), (keys, places), past)[0]
        mean = float(y.reshape(self.heads, self.size)[0, 0]) * count
        seen = round(2 * (past - mean) + 1)
        if not 1 <= seen <= count:
            raise unlike(self.result, "attention of the last positions")
        return 0 if seen == count else seen

    def _scores(self, queries: Array, keys: Array, tables: Tables, begin: int) -> Array:
        """Products of turned queries (rows, width) and keys (kv, all, size), the last ones of which are not turned yet:
        (heads, rows, all)."""
        rows = len(queries)
        turned = _turned(_headed(queries, self.heads), tables, begin)
        new = _turned(keys[:, -rows:], tables, begin)
        every = np.concatenate([keys[:, :-rows], new], axis=1)
        made: Array = np.einsum("hrd,hpd->hrp", turned, np.repeat(every, self.heads // self.kv, 0)).astype(np.float64)
        return made

    def _check(self, probe: Probe, tables: Tables, scale: float, begin: int, rng: np.random.Generator) -> None:
        """Raise ConvertError unless random rows from position `begin` on give what attention gives."""
        past = min(begin, _PAST)
        widths = (self.heads * self.size, self.kv * self.size, self.kv * self.size)
        three = tuple(rng.normal(size=(_ROWS, width)).astype(np.float32) for width in widths)
        pasts = tuple(rng.normal(size=(self.kv, past, self.size)).astype(np.float32) for _ in range(2))
        y, *presents = self._run(probe, three, pasts, begin)  # type: ignore[arg-type]
        keys, values = (np.concatenate([p, _headed(x, self.kv)], 1) for p, x in zip(pasts, three[1:], strict=True))
        scores = self._scores(three[0], keys, tables, begin) * scale
        later = np.arange(past + _ROWS) > past + np.arange(_ROWS)[:, None]
        shares = np.exp(np.where(later, -np.inf, scores - scores.max(-1, keepdims=True)))
        shares /= shares.sum(-1, keepdims=True)
        wanted = np.einsum("hrp,hpd->rhd", shares, np.repeat(values, self.heads // self.kv, 0)).reshape(_ROWS, -1)
        keys[:, past:] = _turned(keys[:, past:], tables, begin)
        for got, right in ((y[0], wanted), (presents[0][0], keys), (presents[1][0], values)):
            close = _CLOSE.get(got.dtype, 0.0) * np.abs(right).max()
            if got.shape != right.shape or not np.abs(got - right).max() < close:
                raise unlike(self.result, "causal attention with rotary positions in halves of heads")


# -- the graph --------------------------------------------------------------------------------------------------------


def _before(value: ir.Value, stop: list[ir.Value]) -> Iterator[ir.Value]:
    """The value and what its numbers are computed of; not what only its shape depends on."""
    seen, left = set(stop), [value]
    while left:
        value = left.pop()
        if value in seen:
            continue
        seen.add(value)
        yield value
        node = value.producer()
        if node is not None and node.op_type != "Shape":
            left += [v for v in node.inputs if v is not None]


def _products(result: ir.Value) -> Iterator[ir.Value]:
    """The products with constant matrices that a value is computed of, with their biases; none behind another."""
    seen, left = set[ir.Value](), [result]
    while left:
        value = left.pop()
        if value in seen:
            continue
        seen.add(value)
        node = value.producer()
        if node is None or node.op_type == "Shape":
            continue
        if _is_product(node):
            yield value
        else:
            left += [v for v in node.inputs if v is not None]


def _is_product(node: ir.Node | None) -> bool:
    if node is None:
        return False
    if node.op_type == "Add":
        for x, other in (node.inputs[:2], node.inputs[1::-1]):
            inner = None if x is None else x.producer()
            if (
                constant_of(other) is not None
                and inner is not None
                and inner.op_type in PRODUCTS
                and _is_product(inner)
            ):
                return True
        return False
    return node.op_type in PRODUCTS and constant_of(node.inputs[1]) is not None


def _width(value: ir.Value) -> int:
    """The number of features of a product."""
    node = value.producer()
    assert node is not None
    if node.op_type == "Add":
        return next(held.shape[-1] for side in node.inputs if (held := constant_of(side)) is not None)
    if node.op_type == "MatMulNBits":
        return int(node.attributes["N"].as_int())
    held = constant_of(node.inputs[1])
    assert held is not None
    turned = node.op_type == "Gemm" and "transB" in node.attributes and node.attributes["transB"].as_int()
    return held.shape[0 if turned else 1]


def _after(value: ir.Value, stop: ir.Value) -> Iterator[ir.Value]:
    """What is computed of a value, up to `stop`."""
    seen, left = {stop}, [value]
    while left:
        value = left.pop()
        if value in seen:
            continue
        seen.add(value)
        yield value
        left += [output for node, _ in value.uses() if node.op_type != "Shape" for output in node.outputs]


def _presents(value: ir.Value, stop: ir.Value) -> Iterator[ir.Value]:
    return (found for found in _after(value, stop) if found.is_graph_output())


def _is_scored(value: ir.Value, stop: ir.Value) -> bool:
    """Whether Softmax depends on it before `stop` does."""
    return any(node.op_type == "Softmax" for found in _after(value, stop) for node, _ in found.uses())


def _shaped(result: ir.Value, given: list[ir.Value]) -> Iterator[ir.Value]:
    """Values of which only the shape is looked at, and that no small part of the graph computes: states of tokens."""
    seen, left, stated = set(given), [result], set[ir.Value]()
    while left:
        value = left.pop()
        if value in seen:
            continue
        seen.add(value)
        node = value.producer()
        if node is None:
            continue
        for operand in node.inputs:
            if operand is None:
                continue
            shape = dims(operand) or ()
            if (
                node.op_type == "Shape"
                and operand.dtype in _FLOATS
                and len(shape) == 3
                and not operand.is_graph_input()
            ):
                if operand not in stated:
                    stated.add(operand)
                    seen.add(operand)
                    yield operand
            else:
                left.append(operand)


def _integers(value: ir.Value, rows: int, past: int, begin: int) -> Array:
    """What the graph's inputs of integers are for such rows."""
    made = {
        "input_ids": np.zeros((1, rows)), "attention_mask": np.ones((1, past + rows)),
        "position_ids": begin + np.arange(rows)[None],
    }.get(value.name or "")  # fmt: skip
    if made is None:
        raise ConvertError(
            f"expected inputs input_ids, attention_mask, position_ids, past keys and values, got {value.name!r}"
        )
    return made


def _headed(x: Array, heads: int) -> Array:
    """(rows, width) as (heads, rows, size)."""
    return x.reshape(len(x), heads, -1).swapaxes(0, 1)


def _turned(x: Array, tables: Tables, begin: int) -> Array:
    """x (heads, rows, size), turned by the angles of positions from `begin` on."""
    cos, sin = (table[begin : begin + x.shape[1]] for table in tables)
    a, b = np.split(x, 2, axis=-1)
    return np.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)
