"""The structure of a decoder in an exported graph: from logits back to input_ids, and what each weight is.

    logits <- product <- norm of h
    h      <- h' + product(activation(gate) * up), both products of a norm of h'
    h'     <- h'' + product(GroupQueryAttention(q, k, v)), products of a norm of h'', or attention in plain operators
    h      <- rows of the embedding, before the first layer

Norms are operators of ONNX Runtime, with or without the sum, or the operators that they were fused from. Rotation is in
GroupQueryAttention or before it. Names decide nothing, and every node between input_ids and logits must be one of
these: anything else is refused with what was expected there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import onnx_ir as ir

from converter.errors import ConvertError
from converter.frontends.decoders import Decoder, Dense, Matrix, Rope
from converter.frontends.decoders.decoder import MOST_LAYERS
from converter.frontends.exported.attention import attention_of
from converter.frontends.exported.matrices import blocks_of, constant_of, dense_of, part_of, vector_of
from converter.frontends.exported.patterns import (
    PRODUCTS,
    SKIP,
    activation,
    alike,
    before,
    decomposed,
    is_input,
    is_product,
    made,
    plain,
    same,
    stream,
    unlike,
)
from converter.ir.build import attr, scalar, title
from lite_runtime.graph import Array

__all__ = ["Angles", "Found", "read"]

_LAYERED = (
    "attention_norm", "query", "key", "value", "query_norm", "key_norm", "result", "attention_post_norm", "ffn_norm",
    "gate", "up", "down", "ffn_post_norm",
)  # fmt: skip
_NAMES = {name: name for name in ("embedding", "norm", "logits")} | {name: f"layer.{{i}}.{name}" for name in _LAYERED}
_ATTENTION = "GroupQueryAttention"
_NORMS = ("SimplifiedLayerNormalization", "RMSNormalization")
_REFUSED = {"smooth_softmax": (0, -1), "qk_output": (0,), "k_quant_type": ("NONE",), "v_quant_type": ("NONE",)}
"""Attributes of GroupQueryAttention and the values that mean what is computed here."""


@dataclass(frozen=True, eq=False)
class Angles(Rope):
    """A file's own tables of cosines and sines."""

    tables: tuple[Array, Array] = field(default=(np.zeros((0, 0)), np.zeros((0, 0))))

    def angles(self, positions: int) -> tuple[Array, Array]:
        """Their first rows."""
        cos, sin = self.tables
        return cos[:positions].astype(np.float32), sin[:positions].astype(np.float32)


class Found(NamedTuple):
    """A decoder, its tensors, and their names by role."""

    decoder: Decoder
    tensors: Mapping[str, Matrix]
    names: Mapping[str, str]


class _Norm(NamedTuple):
    weights: Array
    epsilon: float
    stream: ir.Value | ir.Node
    """What is normalised: a sum as the node that adds, or a value."""


class _Product(NamedTuple):
    matrix: Matrix
    bias: Array | None
    x: ir.Value


class _Attention(NamedTuple):
    """What all layers share, and a layer's rotation and window."""

    heads: int
    kv_heads: int
    size: int
    scale: float
    softcap: float
    interleaved: bool
    head_norms: bool
    rope: Angles | None
    window: int


def read(model: ir.Model, context: int) -> Found:
    """The decoder of a graph, for texts of up to `context` tokens or as many as its tables of angles have. Raises
    ConvertError for another structure."""
    try:
        return _Reading(model.graph).whole(context)
    except (ArithmeticError, AssertionError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise ConvertError(
            f"expected a decoder's graph, got other operands or attributes ({type(error).__name__}: {error}); export "
            "it again"
        ) from error


class _Reading:
    def __init__(self, graph: ir.Graph) -> None:
        self.graph = graph
        self.tensors: dict[str, Matrix] = {}
        self.ropes: dict[tuple[str, str], Angles] = {}
        self.epsilons: set[float] = set()
        self.context = 0
        self.angles: Angles | None = None
        """Of attention in plain operators."""

    def whole(self, context: int) -> Found:
        """Everything, from the end to the beginning: layers are numbered when all are known."""
        self.context = context
        logits = next((v for v in self.graph.outputs if v.name == "logits"), None)
        if logits is None:
            raise ConvertError(
                "expected an output 'logits' of a decoder, got none; export with a head for text generation"
            )
        logits, cap = self._capped(logits)
        head = self._product(logits, "logits")
        norm = self._norm(head.x, "the last norm")
        layers, h = list[tuple[_Attention, str, bool]](), norm.stream
        while isinstance(h, ir.Node):
            if len(layers) == MOST_LAYERS:
                raise ConvertError(f"expected at most {MOST_LAYERS} layers, got more")
            place = f"~{len(layers)}."
            activation, middle, ffn_post = self._feed_forward(h, place)
            found, h, post = self._attention(middle, place)
            if post != ffn_post:
                raise ConvertError("expected norms behind attention and feed-forward layers, or none; got one of both")
            layers.append((found, activation, post))
        table, scale = self._embedding(h)
        if not layers:
            raise ConvertError("expected layers with attention, got none; export a decoder")
        self._numbered(len(layers))
        self.tensors |= {"embedding.weight": table, "norm.weight": _held("norm", norm.weights)}
        if not same(head.matrix, table):
            self.tensors["logits.weight"] = head.matrix
        if head.bias is not None:
            raise ConvertError("expected logits without a bias, got one")
        layers.reverse()
        shared = {(a._replace(rope=None, window=0), act, post) for a, act, post in layers}
        if len(shared) > 1 or len(self.epsilons) > 1:
            raise ConvertError("expected layers of the same sizes and settings, got different ones")
        first, activation, post = layers[0]
        ropes = tuple(a.rope for a, *_ in layers)
        context = min([context, *(len(rope.tables[0]) for rope in ropes if rope is not None)])
        decoder = Decoder(
            architecture="onnx", name=self.graph.name or "", context=context, vocabulary=table.shape[0],
            width=table.shape[1], layers=len(layers), heads=first.heads, kv_heads=first.kv_heads, head_size=first.size,
            hidden=self.tensors["layer.0.gate.weight"].shape[0], epsilon=self.epsilons.pop(), ropes=ropes,
            windows=tuple(a.window for a, *_ in layers), interleaved=first.interleaved, scale=first.scale,
            softcap=first.softcap, logit_softcap=cap, embedding_scale=scale, activation=activation,
            head_norms=first.head_norms, post_norms=post,
        )  # fmt: skip
        return Found(decoder, self.tensors, _NAMES)

    def _numbered(self, layers: int) -> None:
        """Give tensors their layers' numbers: layers were found from the last to the first."""
        for name in list(self.tensors):
            i, rest = name[1:].split(".", 1)
            self.tensors[f"layer.{layers - 1 - int(i)}.{rest}"] = self.tensors.pop(name)

    # -- layers --------------------------------------------------------------------------------------------------------

    def _feed_forward(self, h: ir.Node, place: str) -> tuple[str, ir.Node, bool]:
        """The feed-forward part of the sum h; its activation, the sum before it, and whether a norm is behind it."""
        down, before, post = self._branch(h, f"{place}ffn_post_norm", f"{place}down")
        gated = made(down.x)
        if gated is None or gated.op_type != "Mul":
            raise unlike(down.x, "Mul, of an activated gate")
        activation, gate, up = self._gated(gated, place)
        if not alike(gate.x, up.x):
            raise unlike(up.x, "the input of the gate")
        norm = self._norm(gate.x, "the norm of a feed-forward layer")
        if not isinstance(norm.stream, ir.Node) or norm.stream is not before:
            raise unlike(gate.x, "a norm of what the feed-forward layer's result is added to")
        self._hold(f"{place}ffn_norm", norm.weights)
        return activation, norm.stream, post

    def _gated(self, gated: ir.Node, place: str) -> tuple[str, _Product, _Product]:
        for active, other in (gated.inputs[:2], gated.inputs[1::-1]):
            found = activation(active)
            if found is not None:
                name, x = found
                return name, self._kept(x, f"{place}gate"), self._kept(other, f"{place}up")
        raise unlike(gated.outputs[0], "Sigmoid times its input, Gelu by tanh or FastGelu of the gate")

    def _attention(self, h: ir.Node, place: str) -> tuple[_Attention, ir.Value | ir.Node, bool]:
        """The attention part of the sum h; what it computes, and what comes before it."""
        result, before, post = self._branch(h, f"{place}attention_post_norm", f"{place}result")
        node = made(result.x)
        if node is None or node.op_type != _ATTENTION:
            return (*self._plain_attention(result.x, before, place), post)
        for name, allowed in _REFUSED.items():
            if attr(node, name, allowed[0]) not in allowed:
                raise ConvertError(f"node {title(node)}: expected {name} {allowed[0]}, got {attr(node, name, None)}")
        inputs = [*node.inputs, *[None] * (12 - len(node.inputs))]
        if any(inputs[i] is not None for i in (10, 11)):
            raise ConvertError(f"node {title(node)}: expected no attention_bias and no head_sink, got one")
        self._check_caches(node)
        heads, kv = attr(node, "num_heads", 0), attr(node, "kv_num_heads", 0)
        if heads < 1 or kv < 1:
            raise ConvertError(f"node {title(node)}: expected num_heads and kv_num_heads, got {heads} and {kv}")
        rotary, ropes, interleaved = bool(attr(node, "do_rotary", 0)), list[Angles | None](), set[bool]()
        if rotary:
            ropes, interleaved = (
                [self._angles(inputs[7], inputs[8], node)] * 2,
                {bool(attr(node, "rotary_interleaved", 0))},
            )
        if inputs[1] is None:
            x, size = self._packed(inputs[0], place, heads, kv)
            normed = [False, False]
            ropes = ropes or [None, None]
        else:
            sides = inputs[:2]
            if not rotary:
                turned = [self._turned(side) for side in sides]
                sides = [side for side, *_ in turned]
                ropes = [rope for _, rope, _ in turned]
                interleaved = {flag for _, rope, flag in turned if rope is not None}
            query, key = (
                self._headed(side, f"{place}{role}") for side, role in zip(sides, ("query", "key"), strict=True)
            )
            value = self._kept(inputs[2], f"{place}value")
            normed, x = [query[1], key[1]], query[0].x
            size = query[0].matrix.shape[0] // heads
            for other in (key[0], value):
                if not alike(other.x, x):
                    raise unlike(other.x, "the input of the query")
        if ropes[0] is not ropes[1] or normed[0] != normed[1] or len(interleaved) > 1:
            raise ConvertError(f"node {title(node)}: expected query and key with the same rotation and norms")
        norm = self._norm(x, "the norm of an attention layer")
        if norm.stream is not before:
            raise unlike(x, "a norm of what attention's result is added to")
        self._hold(f"{place}attention_norm", norm.weights)
        scale, window = float(attr(node, "scale", 0.0)) or size**-0.5, attr(node, "local_window_size", -1)
        found = _Attention(
            heads, kv, size, scale, float(attr(node, "softcap", 0.0)), any(interleaved), normed[0], ropes[0],
            window if window > 0 else 0,
        )  # fmt: skip
        return found, norm.stream, post

    def _plain_attention(
        self, result: ir.Value, before: ir.Value | ir.Node, place: str
    ) -> tuple[_Attention, ir.Value | ir.Node]:
        """The same of attention in plain operators."""
        found = attention_of(
            plain(result) or result, self.graph, self.context, None if self.angles is None else self.angles.tables
        )
        self.angles = self.angles or Angles(1.0, found.size, tables=found.tables)
        query, key, value = (self._kept(getattr(found, role), f"{place}{role}") for role in ("query", "key", "value"))
        for other in (key, value):
            if not alike(other.x, query.x):
                raise unlike(other.x, "the input of the query")
        norm = self._norm(query.x, "the norm of an attention layer")
        if norm.stream is not before:
            raise unlike(query.x, "a norm of what attention's result is added to")
        self._hold(f"{place}attention_norm", norm.weights)
        made = _Attention(
            found.heads, found.kv_heads, found.size, found.scale, 0.0, False, False, self.angles, found.window
        )
        return made, norm.stream

    def _check_caches(self, node: ir.Node) -> None:
        """Raise ConvertError unless past keys and values come from outside and go there, and lengths are the mask's."""
        for i in (3, 4):
            past, present = node.inputs[i], node.outputs[i - 2] if len(node.outputs) > i - 2 else None
            if past is None or not past.is_graph_input() or present is None or not present.is_graph_output():
                raise ConvertError(
                    f"node {title(node)}: expected past keys and values as inputs of the graph, and present ones as "
                    "its outputs; export with past (optimum: text-generation-with-past)"
                )
        for value in node.inputs[5:7]:
            if value is None or not any(v.is_graph_input() for v in before(value)):
                raise ConvertError(f"node {title(node)}: expected lengths that are computed from an input of the graph")

    def _packed(self, value: ir.Value | None, place: str, heads: int, kv: int) -> tuple[ir.Value, int]:
        """Query, key and value of one product; its input, and the size of a head."""
        found = self._product(value, f"{place}query")
        rows = found.matrix.shape[0]
        if rows % (heads + 2 * kv):
            raise unlike(value, f"a product with rows of {heads} heads and twice {kv}, got {rows}")
        size = rows // (heads + 2 * kv)
        ends = [0, heads * size, (heads + kv) * size, rows]
        for role, begin, end in zip(("query", "key", "value"), ends, ends[1:], strict=False):
            name = f"{place}{role}"
            self.tensors[f"{name}.weight"] = part_of(found.matrix, begin, end, name)
            if found.bias is not None:
                self._hold(name, found.bias[begin:end], "bias")
        return found.x, size

    def _headed(self, value: ir.Value | None, name: str) -> tuple[_Product, bool]:
        """A product, and whether each head is normalised, between two Reshapes."""
        node = made(value)
        if node is None or node.op_type != "Reshape":
            return self._kept(value, name), False
        norm = self._norm(node.inputs[0], "a norm of heads")
        if isinstance(norm.stream, ir.Node):
            raise unlike(node.inputs[0], "a norm of heads")
        apart = made(norm.stream)
        if apart is None or apart.op_type != "Reshape":
            raise unlike(norm.stream, "Reshape, to heads")
        self._hold(f"{name}_norm", norm.weights)
        return self._kept(apart.inputs[0], name), True

    def _turned(self, value: ir.Value | None) -> tuple[ir.Value | None, Angles | None, bool]:
        """A value before its rotation, and how it is rotated."""
        node = made(value)
        if node is None or node.op_type != "RotaryEmbedding":
            return value, None, False
        x, positions, cos, sin = node.inputs[:4]
        if node.domain != "com.microsoft" or attr(node, "scale", 1.0) != 1.0 or attr(node, "is_packed_batching", 0):
            raise ConvertError(f"node {title(node)}: expected com.microsoft's RotaryEmbedding, not scaled or packed")
        if positions is None or not any(v.is_graph_input() for v in before(positions)):
            raise ConvertError(f"node {title(node)}: expected positions that are computed from an input of the graph")
        return x, self._angles(cos, sin, node), bool(attr(node, "interleaved", 0))

    def _angles(self, cos: ir.Value | None, sin: ir.Value | None, node: ir.Node) -> Angles:
        """Tables of cosines and sines; the same object for the same tables."""
        held = constant_of(cos), constant_of(sin)
        if held[0] is None or held[1] is None or held[0].shape != held[1].shape or len(held[0].shape) != 2:
            raise ConvertError(f"node {title(node)}: expected tables of cosines and sines that are constants")
        key = (held[0].value.name or "", held[1].value.name or "")
        if key not in self.ropes:
            features = 2 * held[0].shape[1]
            self.ropes[key] = Angles(1.0, features, tables=(held[0].array(), held[1].array()))
        return self.ropes[key]

    # -- parts ---------------------------------------------------------------------------------------------------------

    def _branch(self, h: ir.Node, post: str, name: str) -> tuple[_Product, ir.Value | ir.Node, bool]:
        """The product that the sum h adds, perhaps normalised, and what it is added to."""
        a, b = (plain(v) for v in h.inputs[:2])
        for branch, rest in ((b, a), (a, b)):
            if is_product(branch):
                return self._kept(branch, name), stream(rest), False
        for branch, rest in ((b, a), (a, b)):
            node = made(branch)
            if node is not None and node.op_type in _NORMS and is_product(node.inputs[0]):
                norm = self._norm(branch, "a norm behind a product")
                self._hold(post, norm.weights)
                return self._kept(node.inputs[0], name), stream(rest), True
        raise unlike(h.outputs[0], "a sum of a product and what comes before")

    def _kept(self, value: ir.Value | None, name: str) -> _Product:
        """A product whose matrix and bias are the model's tensors of this name."""
        found = self._product(value, name)
        self.tensors[f"{name}.weight"] = found.matrix
        if found.bias is not None:
            self._hold(name, found.bias, "bias")
        return found

    def _product(self, value: ir.Value | None, name: str) -> _Product:
        value = plain(value)
        split = made(value)
        if split is not None and split.op_type == "Split":
            return self._part(value, split, name)
        node, bias = made(value), None
        if node is not None and node.op_type == "Add":
            for x, other in (node.inputs[:2], node.inputs[1::-1]):
                held = constant_of(other)
                if held is not None:
                    bias, value = vector_of(held), plain(x)
            node = made(value)
        if node is None or node.op_type not in PRODUCTS:
            raise unlike(value, "a product with a constant matrix")
        x = node.inputs[0]
        assert x is not None
        if node.op_type == "MatMulNBits":
            own = node.inputs[5] if len(node.inputs) > 5 else None
            if len(node.inputs) > 4 and node.inputs[4] is not None:
                raise ConvertError(f"node {title(node)}: expected no g_idx, got one; quantise without act-order")
            matrix: Matrix = blocks_of(node, f"{name}.weight", table=False)
        else:
            weights = constant_of(node.inputs[1])
            if weights is None:
                raise unlike(node.inputs[1], "a constant matrix")
            flipped, own = True, None
            if node.op_type == "Gemm":
                if attr(node, "alpha", 1.0) != 1 or attr(node, "beta", 1.0) != 1 or attr(node, "transA", 0):
                    raise ConvertError(f"node {title(node)}: expected a Gemm of x, weights and bias alone")
                flipped, own = not attr(node, "transB", 0), node.inputs[2] if len(node.inputs) > 2 else None
            matrix = dense_of(weights, f"{name}.weight", flipped)
        if own is not None:
            held = constant_of(own)
            if held is None or bias is not None:
                raise unlike(own, "one constant bias")
            bias = vector_of(held)
        return _Product(matrix, bias, x)

    def _part(self, value: ir.Value | None, split: ir.Node, name: str) -> _Product:
        """Some columns of a product."""
        sizes = constant_of(split.inputs[1]) if len(split.inputs) > 1 else None
        if sizes is None or attr(split, "axis", 0) not in (-1, 2):
            raise unlike(value, "a Split of a product's columns, into constant sizes")
        whole = self._product(split.inputs[0], name)
        ends = [0, *np.cumsum(sizes.array()).tolist()]
        i = next(i for i, output in enumerate(split.outputs) if output is value)
        if ends != sorted(ends) or ends[-1] != whole.matrix.shape[0]:
            raise unlike(value, f"parts of {whole.matrix.shape[0]} columns, got {ends[1:]}")
        begin, end = ends[i : i + 2]
        bias = None if whole.bias is None else whole.bias[begin:end]
        return _Product(part_of(whole.matrix, begin, end, f"{name}.weight"), bias, whole.x)

    def _norm(self, value: ir.Value | None, what: str) -> _Norm:
        """Division by the root mean square, times weights."""
        node = made(value)
        if node is not None and node.op_type in _NORMS:
            x, weights = node.inputs[:2]
            if attr(node, "axis", -1) not in (-1, 1, 2):
                raise ConvertError(
                    f"node {title(node)}: expected a norm over the last axis, got {attr(node, 'axis', -1)}"
                )
            return self._normed(weights, float(attr(node, "epsilon", 1e-5)), stream(plain(x)), node)
        if node is not None and node.op_type == SKIP and plain(value) is node.outputs[0]:
            if len(node.inputs) > 3 and node.inputs[3] is not None:
                raise ConvertError(f"node {title(node)}: expected no bias, got one")
            return self._normed(node.inputs[2], float(attr(node, "epsilon", 1e-5)), node, node)
        apart = None if node is None else decomposed(node)
        if apart is None:
            raise unlike(value, f"{what}: SimplifiedLayerNormalization, {SKIP}, or the operators of one")
        weights, x, epsilon = apart
        assert node is not None
        return self._normed(weights, epsilon, stream(plain(x)), node)

    def _normed(
        self, weights: ir.Value | None, epsilon: float, stream: ir.Value | ir.Node | None, node: ir.Node
    ) -> _Norm:
        held = constant_of(weights)
        if held is None or stream is None:
            raise ConvertError(f"node {title(node)}: expected constant weights of a norm")
        self.epsilons.add(round(epsilon, 12))
        return _Norm(vector_of(held), epsilon, stream)

    def _embedding(self, h: ir.Value) -> tuple[Matrix, float]:
        """The table of the embedding, and what its rows are multiplied by."""
        node, factor = made(h), 1.0
        if node is not None and node.op_type == "Mul":
            for x, other in (node.inputs[:2], node.inputs[1::-1]):
                number = scalar(other)
                if number is not None:
                    h, factor = plain(x) or h, float(number)
            node = made(h)
        if node is not None and node.op_type == "GatherBlockQuantized" and is_input(node.inputs[1]):
            if attr(node, "gather_axis", 0) or attr(node, "quantize_axis", 1) not in (1, -1):
                raise ConvertError(f"node {title(node)}: expected rows of a table, quantised along the rows")
            return blocks_of(node, "embedding.weight", table=True), factor
        held = constant_of(node.inputs[0]) if node is not None and node.op_type == "Gather" else None
        if node is None or held is None or not is_input(node.inputs[1]) or attr(node, "axis", 0):
            raise unlike(h, "Gather, of a constant table's rows by input_ids")
        return dense_of(held, "embedding.weight", flipped=False), factor

    def _capped(self, logits: ir.Value) -> tuple[ir.Value, float]:
        """What is bounded by a * tanh(x / a), and a; 0 if nothing is."""
        node = made(logits)
        if node is None or node.op_type != "Mul":
            return logits, 0.0
        for x, other in (node.inputs[:2], node.inputs[1::-1]):
            tanh, cap = made(x), scalar(plain(other))
            div = made(tanh.inputs[0]) if tanh is not None and tanh.op_type == "Tanh" else None
            if cap and div is not None and div.op_type == "Div" and scalar(plain(div.inputs[1])) == cap:
                assert div.inputs[0] is not None
                return div.inputs[0], float(cap)
        raise unlike(logits, "a product, or a bound by tanh")

    def _hold(self, name: str, contents: Array, kind: str = "weight") -> None:
        self.tensors[f"{name}.{kind}"] = _held(name, contents)


def _held(name: str, contents: Array) -> Dense:
    return Dense(name, contents.shape, lambda begin, end: contents[begin:end], "F32")
