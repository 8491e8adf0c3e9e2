"""A small language model with random weights, written as a lite graph, and the same model in plain NumPy."""

from __future__ import annotations

from copy import copy
from typing import Any, NamedTuple

import numpy as np

from lite_runtime import bundle
from lite_runtime.bundle import read
from lite_runtime.graph import Array, Graph, Node, Value
from lite_runtime.language.adapters import Adapter
from lite_runtime.operators.language import SCALE
from lite_runtime.reference.blocked import Blocks, to_panels, weights


class Sizes(NamedTuple):
    """Of a model of the llama family."""

    layers: int = 2
    width: int = 64
    heads: int = 4
    kv_heads: int = 2
    size: int = 16
    hidden: int = 96
    vocabulary: int = 300
    context: int = 512


class Target(NamedTuple):
    """A product with adapters: its name in the bundle's metadata, its weight, and its sizes."""

    name: str
    weight: str
    inputs: int
    outputs: int


RANK, FACTOR = 3, 0.5
"""Of adapters."""


class Tiny:
    """Random weights in blocks: `bundle` for the runtime, `logits` by NumPy."""

    def __init__(self, sizes: Sizes = Sizes(), *, integers: bool = True, seed: int = 0, cache: str = "float16") -> None:  # noqa: B008
        self.sizes, self.integers, self.cache = sizes, integers, cache
        self._rng = np.random.default_rng(seed)
        self.constants: dict[str, Array] = {}
        self.dense: dict[str, Array] = {}
        self.nodes: list[Node] = []
        angles = np.arange(sizes.context)[:, None] * 10000.0 ** (-np.arange(sizes.size // 2) / (sizes.size // 2))
        self.constants["cos"], self.constants["sin"] = (f(angles).astype(np.float32) for f in (np.cos, np.sin))
        self._build()

    def matrix(self, name: str, depth: int, columns: int, bits: int) -> dict[str, Any]:
        """Random weights of about unit gain as constants; the attributes of operators that read them."""
        rng, point = self._rng, 2 ** (bits - 1)
        q = rng.integers(0, 256, (columns, depth // 32, 32 * bits // 8)).astype(np.uint8)
        scales = (rng.uniform(0.5, 1.5, (columns, depth // 32)) * 1.7 / point / depth**0.5).astype(np.float16)
        blocks = Blocks(q, scales)
        self.dense[name] = weights(blocks, columns, bits, point, "")
        panels = to_panels(blocks, bits)
        self.constants |= {f"{name}.q": panels.q, f"{name}.s": panels.scales}
        return {"K": depth, "N": columns, "bits": bits, "block_size": 32, "zero_point": point, "layout": "panels"}

    def _node(self, op: str, inputs: tuple[str, ...], output: str | tuple[str, ...], **attrs: Any) -> None:
        outputs = (output,) if isinstance(output, str) else output
        self.nodes.append(Node(op, inputs, outputs, attrs, outputs[0]))

    def _ready(self, x: str) -> None:
        """Quantised activations of x, for all products that read it."""
        if self.integers:
            self._node("DynamicQuantizeBlocks", (x,), (f"{x}.q", f"{x}.s", f"{x}.t"))

    def _product(self, name: str, x: str, output: str, depth: int, columns: int, residual: str = "") -> None:
        attrs = self.matrix(name, depth, columns, 4)
        a = (
            (f"{x}.q", f"{name}.q", f"{name}.s", "", f"{x}.s", f"{x}.t")
            if self.integers
            else (x, f"{name}.q", f"{name}.s")
        )
        if residual:
            a = (*a, *[""] * (7 - len(a)), residual)
        self._node("MatMulNBits", a, output, **attrs)

    def _norm(self, x: str, output: str) -> None:
        self.constants[f"{output}.w"] = self._rng.uniform(0.5, 1.5, self.sizes.width).astype(np.float32)
        self._node("RMSNormalization", (x, f"{output}.w"), output, epsilon=1e-5)

    def _build(self) -> None:
        s = self.sizes
        table = self.matrix("table", s.width, s.vocabulary, 8)
        self._node("GatherBlockQuantized", ("table.q", "input_ids", "table.s"), "x0", **table)
        for i in range(s.layers):
            p = f"l{i}."
            self._norm(f"x{i}", f"{p}n")
            self._ready(f"{p}n")
            for name, heads in (("q", s.heads), ("k", s.kv_heads), ("v", s.kv_heads)):
                self._product(p + name, f"{p}n", f"{p}{name}y", s.width, heads * s.size)
            ports = (f"{p}qy", f"{p}ky", f"{p}vy", f"key_cache.{i}", f"value_cache.{i}")
            ports += ("cumulative_sequence_length", "past_seqlens", "block_table", "cos", "sin")
            self._node("PagedAttention", ports, f"{p}a", num_heads=s.heads, kv_num_heads=s.kv_heads)
            self._ready(f"{p}a")
            self._product(f"{p}o", f"{p}a", f"{p}x", s.heads * s.size, s.width, f"x{i}")
            self._norm(f"{p}x", f"{p}m")
            self._ready(f"{p}m")
            self._product(f"{p}g", f"{p}m", f"{p}gy", s.width, s.hidden)
            self._product(f"{p}u", f"{p}m", f"{p}uy", s.width, s.hidden)
            self._node("Silu", (f"{p}gy",), f"{p}gs")
            self._node("Mul", (f"{p}gs", f"{p}uy"), f"{p}h")
            self._ready(f"{p}h")
            self._product(f"{p}d", f"{p}h", f"x{i + 1}", s.hidden, s.width, f"{p}x")
        self._node("Gather", (f"x{s.layers}", "logits_rows"), "last", axis=0)
        self._norm("last", "final")
        self._ready("final")
        ready = (
            ("final.q", "table.q", "table.s", "", "final.s", "final.t")
            if self.integers
            else ("final", "table.q", "table.s")
        )
        self._node("MatMulNBits", ready, "logits", **table)

    @property
    def graph(self) -> Graph:
        """The graph of signature `predict`."""
        s = self.sizes
        inputs = [
            Value("input_ids", "int32", ("rows",)),
            Value("cumulative_sequence_length", "int32", ("ends",)),
            Value("past_seqlens", "int32", ("sequences",)),
            Value("block_table", "int32", ("sequences", "pages")),
            Value("logits_rows", "int32", ("wanted",)),
        ]
        held = s.size + (SCALE if self.cache == "int8" else 0)
        for i in range(s.layers):
            inputs.append(Value(f"key_cache.{i}", self.cache, ("blocks", s.kv_heads, held, 16)))
            inputs.append(Value(f"value_cache.{i}", self.cache, ("blocks", s.kv_heads, 16, held)))
        return Graph(
            tuple(inputs), (Value("logits", "float32", ("wanted", s.vocabulary)),), tuple(self.nodes), self.constants
        )

    def adapted(self) -> Graph:
        """The graph of signature `adapted`: every product of `targets` also adds the adapter of its rows."""
        graph, nodes, at = self.graph, list[Node](), 0
        targets = {f"{target.weight}.q": target for target in self.targets}
        for node in graph.nodes:
            target = targets.get(node.inputs[1]) if node.op == "MatMulNBits" else None
            if target is None:
                nodes.append(node)
                continue
            (y,), x = node.outputs, node.inputs[0].removesuffix(".q")
            attrs = {"K": target.inputs, "N": target.outputs, "rank": RANK, "offset": at}
            nodes.append(node.replace(outputs=(f"{y}.base",)))
            nodes.append(Node("LoraMatMul", (x, f"{y}.base", "adapters", "adapter_rows"), (y,), attrs, y))
            at += RANK * (target.inputs + target.outputs)
        more = (Value("adapters", "float32", ("slots", at)), Value("adapter_rows", "int32", ("rows",)))
        return graph.replace(inputs=(*graph.inputs, *more), nodes=tuple(nodes))

    @property
    def targets(self) -> list[Target]:
        """Queries and results of attention, and the last product of a layer."""
        s = self.sizes
        kinds = (("query", "q", s.width, s.heads * s.size), ("result", "o", s.heads * s.size, s.width),
                 ("down", "d", s.hidden, s.width))  # fmt: skip
        return [Target(f"layer.{i}.{name}", f"l{i}.{w}", k, n) for i in range(s.layers) for name, w, k, n in kinds]

    def adapter(self, seed: int, rank: int = RANK, *, scale: float = 1.0) -> Adapter:
        """Random numbers that change the model's answers."""
        rng, arrays = np.random.default_rng(seed), {}
        for target in self.targets:
            a, b = rng.normal(size=(target.inputs, rank)), rng.normal(size=(rank, target.outputs))
            arrays[f"{target.name}.lora_a"] = (a / target.inputs**0.5).astype(np.float32)
            arrays[f"{target.name}.lora_b"] = (b * scale / rank**0.5).astype(np.float32)
        return Adapter(arrays, read(self.bundle()).digest)

    def merged(self, adapter: Adapter) -> Tiny:
        """The same model whose dense weights, which `logits` reads, contain an adapter."""
        made = copy(self)
        made.dense = dict(self.dense)
        for target in self.targets:
            a, b = (adapter.arrays[f"{target.name}.lora_{part}"] for part in "ab")
            made.dense[target.weight] = self.dense[target.weight] + np.float32(FACTOR) * (a @ b).T
        return made

    @property
    def about(self) -> dict[str, Any]:
        """The metadata of the bundle."""
        s = self.sizes
        return {
            "architecture": "llama", "name": "tiny", "context": s.context, "vocabulary": s.vocabulary,
            "width": s.width, "layers": s.layers, "heads": s.heads, "kv_heads": s.kv_heads, "head_size": s.size,
            "cache": self.cache, "window": 0, "activations": "int8" if self.integers else "float32",
            "stop": [2], "bos": 1, "template": None,
            "adapters": {
                "rank": RANK, "factor": FACTOR,
                "targets": [{"name": t.name, "inputs": t.inputs, "outputs": t.outputs} for t in self.targets],
            },
        }  # fmt: skip

    def bundle(self, **changes: Any) -> bytes:
        """The file."""
        return bundle.write(None, self.graphs(), metadata={"language": {**self.about, **changes}})

    def graphs(self) -> dict[str, Graph]:
        """By signature."""
        return {"predict": self.graph, "adapted": self.adapted()}

    def logits(self, tokens: list[int]) -> Array:
        """Logits of every token of one text, with float activations: (tokens, vocabulary)."""
        s, c, w = self.sizes, self.constants, self.dense
        x = w["table"][tokens]
        cos, sin = c["cos"][: len(tokens), None], c["sin"][: len(tokens), None]
        hidden = np.triu(np.full((len(tokens),) * 2, -np.inf), 1)

        def norm(x: Array, name: str) -> Array:
            return x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-5) * c[f"{name}.w"]

        def turned(x: Array) -> Array:
            a, b = x[..., : s.size // 2], x[..., s.size // 2 :]
            return np.concatenate([a * cos - b * sin, a * sin + b * cos], -1)

        for i in range(s.layers):
            p = f"l{i}."
            n = norm(x, f"{p}n")
            q, k, v = ((n @ w[p + name].T).reshape(len(x), -1, s.size) for name in "qkv")
            q, k = turned(q), turned(k)
            k, v = (np.repeat(t, s.heads // s.kv_heads, 1) for t in (k, v))
            scores = np.einsum("qhd,khd->hqk", q, k) / s.size**0.5 + hidden
            shares = np.exp(scores - scores.max(-1, keepdims=True))
            a = np.einsum("hqk,khd->qhd", shares / shares.sum(-1, keepdims=True), v).reshape(len(x), -1)
            x = x + a @ w[f"{p}o"].T
            m = norm(x, f"{p}m")
            g = m @ w[f"{p}g"].T
            x = x + (g / (1 + np.exp(-g)) * (m @ w[f"{p}u"].T)) @ w[f"{p}d"].T
        return np.asarray(norm(x, "final") @ w["table"].T, np.float32)
