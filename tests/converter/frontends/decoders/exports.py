"""Small language models as ONNX, as two exporters write them, from tensors by the names of safetensors files.

`builder`: onnxruntime-genai's: norms with the sum before them, rotation in GroupQueryAttention, blocks of integers.
`optimum`: norms as single operators, sums as Add, matrices transposed, RotaryEmbedding by position_ids.
`plain`: like optimum, attention in ONNX's own operators, as torch.onnx writes it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from converter.frontends.decoders import CONFIG_NAMES, family_of, roles
from lite_runtime.graph import Array

__all__ = ["Export", "logits_by_runtime"]

MICROSOFT = "com.microsoft"
PLAINER = ("optimum", "plain")


class Export:
    """A graph in the making. `settings` as in config.json."""

    def __init__(self, settings: Mapping[str, Any], held: Mapping[str, Array], style: str = "builder", *, bits: int = 0,
                 block: int = 32, zeros: bool = False, half: bool = False, packed: bool = False) -> None:  # fmt: skip
        self.c, self.held, self.style = settings, held, style
        self.bits, self.block, self.zeros, self.half, self.packed = bits, block, zeros, half, packed
        self.family = family_of(settings["model_type"], "config", "test")
        self.names = roles(CONFIG_NAMES, self.family)
        self.nodes: list[onnx.NodeProto] = []
        self.constants: dict[str, onnx.TensorProto] = {}
        self.size = settings.get("head_dim", settings["hidden_size"] // settings["num_attention_heads"])
        self.float = TensorProto.FLOAT16 if half else TensorProto.FLOAT

    # -- parts ---------------------------------------------------------------------------------------------------------

    def op(self, kind: str, inputs: list[str], outputs: int = 1, domain: str = "", **attrs: Any) -> Any:
        """A node; the names of its outputs."""
        made = [f"v{len(self.nodes)}_{i}" for i in range(outputs)]
        self.nodes.append(helper.make_node(kind, inputs, made, name=f"n{len(self.nodes)}", domain=domain, **attrs))
        return made[0] if outputs == 1 else made

    def constant(self, array: Array, name: str = "") -> str:
        name = name or f"c{len(self.constants)}"
        self.constants[name] = numpy_helper.from_array(np.ascontiguousarray(array), name)
        return name

    def floats(self, array: Array) -> str:
        return self.constant(array.astype(np.float16 if self.half else np.float32))

    def weight(self, role: str, i: int, kind: str = "weight") -> Array | None:
        return self.held.get(f"{self.names[role].format(i=i)}.{kind}")

    def product(self, x: str, w: Array, bias: Array | None) -> str:
        if self.bits:
            y = self.blocks(x, w)
        elif self.style in PLAINER:
            y = self.op("MatMul", [x, self.op("Transpose", [self.floats(w)], perm=[1, 0])])
        else:
            y = self.op("MatMul", [x, self.floats(w.T)])
        return (
            y
            if bias is None
            else self.op("Add", [self.floats(bias), y] if self.style in PLAINER else [y, self.floats(bias)])
        )

    def blocks(self, x: str, w: Array) -> str:
        """MatMulNBits of random integers near the weights."""
        n, k = w.shape
        groups = w.reshape(n, -1, self.block)
        low, high = (f(groups, axis=-1) for f in (np.min, np.max))
        low, high = np.minimum(low, 0), np.maximum(high, 0)
        top = 2**self.bits - 1
        if self.zeros:
            scales = ((high - low) / top).astype(np.float16 if self.half else np.float32)
            points = np.clip(np.rint(-low / scales), 0, top).astype(np.uint8)
        else:
            scales = (np.maximum(high, -low) / (top // 2)).astype(np.float16 if self.half else np.float32)
            points = np.full(scales.shape, 2 ** (self.bits - 1), np.uint8)
        q = np.clip(np.rint(groups / scales[..., None].astype(np.float32)) + points[..., None], 0, top).astype(np.uint8)
        stored = q if self.bits == 8 else q[..., ::2] | q[..., 1::2] << 4
        inputs = [x, self.constant(stored), self.constant(scales.reshape(-1))]
        if self.zeros:
            padded = np.pad(points, ((0, 0), (0, points.shape[1] % 2)))
            inputs.append(
                self.constant((points if self.bits == 8 else padded[:, ::2] | padded[:, 1::2] << 4).reshape(-1))
            )
        return str(self.op("MatMulNBits", inputs, domain=MICROSOFT, K=k, N=n, bits=self.bits, block_size=self.block))

    def norm(self, x: str, weights: Array) -> str:
        weights = weights + np.float32(self.family.norm_offset)
        if self.style == "builder":
            return str(
                self.op("SimplifiedLayerNormalization", [x, self.floats(weights)], epsilon=self.epsilon, axis=-1)
            )
        square = self.op("Pow", [x, self.floats(np.array(2))])
        mean = self.op("ReduceMean", [square, self.constant(np.array([-1], np.int64))], keepdims=1)
        root = self.op("Sqrt", [self.op("Add", [mean, self.floats(np.array(self.epsilon))])])
        normed = self.op("Div", [x, root]) if self.size % 32 else self.op("Mul", [x, self.op("Reciprocal", [root])])
        return str(self.op("Mul", [self.floats(weights), normed]))

    @property
    def epsilon(self) -> float:
        return float(self.c["rms_norm_eps"])

    def summed(self, h: str, y: str, weights: Array) -> tuple[str, str]:
        """(norm of h + y, h + y)"""
        if self.style == "builder":
            inputs = [h, y, self.floats(weights + np.float32(self.family.norm_offset))]
            normed, _, _, total = self.op(
                "SkipSimplifiedLayerNormalization", inputs, 4, MICROSOFT, epsilon=self.epsilon
            )
            return normed, total
        total = self.op("Add", [h, y])
        return self.norm(total, weights), total

    def headed(self, y: str, heads: int, weights: Array | None) -> str:
        if weights is None:
            return y
        apart = self.op("Reshape", [y, self.constant(np.array([0, -1, heads, self.size], np.int64))])
        normed = self.norm(apart, weights)
        return str(self.op("Reshape", [normed, self.constant(np.array([0, -1, heads * self.size], np.int64))]))

    def attention(self, i: int, x: str) -> str:
        heads, kv = self.c["num_attention_heads"], self.c["num_key_value_heads"]
        three = [self.weight(role, i) for role in ("query", "key", "value")]
        biases = [self.weight(role, i, "bias") for role in ("query", "key", "value")]
        past = [f"past_key_values.{i}.{kind}" for kind in ("key", "value")]
        if self.packed:
            bias = None if biases[0] is None else np.concatenate(biases)
            q, k, v = self.product(x, np.concatenate(three), bias), "", ""
            if self.family.head_norms:  # norms are of parts, which the builder then splits
                sizes = self.constant(np.array([heads * self.size, kv * self.size, kv * self.size], np.int64))
                q, k, v = self.op("Split", [q, sizes], 3, axis=-1)
        else:
            q, k, v = (self.product(x, w, b) for w, b in zip(three, biases, strict=True))
        if self.family.head_norms:
            q, k = (
                self.headed(q, heads, self.weight("query_norm", i)),
                self.headed(k, kv, self.weight("key_norm", i)),
            )
        if self.style == "plain":
            y = self.plain_attention(i, q, k, v)
            return self.product(y, self.weight("result", i), self.weight("result", i, "bias"))  # type: ignore[arg-type]
        tables = ["cos", "sin"]
        inside = self.style == "builder"
        if not inside:
            q, k = (self.op("RotaryEmbedding", [y, "position_ids", *tables], domain=MICROSOFT) for y in (q, k))
        self.nodes.append(helper.make_node(
            "GroupQueryAttention", [q, k, v, *past, "lengths", "total", *(tables if inside else [])],
            [f"attention.{i}", f"present.{i}.key", f"present.{i}.value"], name=f"attention.{i}", domain=MICROSOFT,
            num_heads=heads, kv_num_heads=kv, do_rotary=int(inside), local_window_size=self.window(i),
            scale=float(self.c.get("query_pre_attn_scalar", self.size)) ** -0.5,
            softcap=self.c.get("attn_logit_softcapping", 0.0),
        ))  # fmt: skip
        return self.product(f"attention.{i}", self.weight("result", i), self.weight("result", i, "bias"))  # type: ignore[arg-type]

    interleaved, future, factor = False, False, 1.0
    """Of `plain`, what a decoder does not do: features of a pair are neighbours; later positions are seen; and what
    scores are multiplied by besides."""

    def plain_attention(self, i: int, q: str, k: str, v: str) -> str:
        """Attention over past and new positions, in operators of ONNX."""
        heads, kv, size = self.c["num_attention_heads"], self.c["num_key_value_heads"], self.size
        ints = lambda *values: self.constant(np.array(values, np.int64))  # noqa: E731
        turns = self.c.get("rope_theta", 10_000.0) ** (-np.arange(0, size, 2) / size)
        places = self.op("Cast", [self.op("Unsqueeze", ["position_ids", ints(2)])], to=TensorProto.FLOAT)
        angles = self.op("Mul", [places, self.constant(turns.astype(np.float32))])
        angles = self.op("Unsqueeze", [self.op("Concat", [angles, angles], axis=-1), ints(1)])
        cos, sin = (self.op("Cast", [self.op(f, [angles])], to=self.float) for f in ("Cos", "Sin"))

        def apart(y: str, count: int) -> str:
            return str(self.op("Transpose", [self.op("Reshape", [y, ints(0, 0, count, size)])], perm=[0, 2, 1, 3]))

        def turned(y: str) -> str:
            begins, ends, steps = (
                ((0, 1), (9999, 9999), 2) if self.interleaved else ((0, size // 2), (size // 2, 9999), 1)
            )
            a, b = (
                self.op("Slice", [y, ints(begin), ints(end), ints(3), ints(steps)])
                for begin, end in zip(begins, ends, strict=True)
            )
            half = self.op("Concat", [self.op("Neg", [b]), a], axis=-1)
            return str(self.op("Add", [self.op("Mul", [y, cos]), self.op("Mul", [half, sin])]))

        q, k, v = turned(apart(q, heads)), turned(apart(k, kv)), apart(v, kv)
        every = []
        for kind, new in (("key", k), ("value", v)):
            held = [f"past_key_values.{i}.{kind}", new]
            self.nodes.append(helper.make_node("Concat", held, [f"present.{i}.{kind}"], name=f"{kind}.{i}", axis=2))
            wide = self.op("Unsqueeze", [f"present.{i}.{kind}", ints(2)])
            wide = self.op("Expand", [wide, ints(1, 1, heads // kv, 1, 1)])
            every.append(self.op("Reshape", [wide, ints(0, heads, -1, size)]))
        scores = self.op("MatMul", [q, self.op("Transpose", [every[0]], perm=[0, 1, 3, 2])])
        scores = self.op("Mul", [scores, self.floats(np.array(self.factor * size**-0.5))])
        shares = self.op("Softmax", [self.op("Add", [scores, self.mask(i)])], axis=-1)
        y = self.op("Transpose", [self.op("MatMul", [shares, every[1]])], perm=[0, 2, 1, 3])
        return str(self.op("Reshape", [y, ints(0, 0, heads * size)]))

    def mask(self, i: int) -> str:
        """(rows, positions): 0 for what a row sees, from the shapes of the inputs."""
        zero, one = (self.constant(np.array(n, np.int64)) for n in (0, 1))
        past = self.op("Gather", [self.op("Shape", ["past_key_values.0.key"]), self.constant(np.array(2, np.int64))])
        rows = self.op("Gather", [self.op("Shape", ["input_ids"]), one])
        total = self.op("Add", [past, rows])
        own = self.op("Unsqueeze", [self.op("Range", [past, total, one]), self.constant(np.array([1], np.int64))])
        other = self.op("Range", [zero, total, one])
        seen = self.op("LessOrEqual", [other, self.op("Add", [own, total]) if self.future else own])
        if self.window(i) > 0:
            first = self.op("Sub", [own, self.constant(np.array(self.window(i), np.int64))])
            seen = self.op("And", [seen, self.op("Greater", [other, first])])
        return str(self.op("Where", [seen, self.floats(np.array(0)), self.floats(np.array(-1e4))]))

    def window(self, i: int) -> int:
        window = self.c.get("sliding_window") or -1
        return -1 if self.family.global_every and (i + 1) % self.family.global_every == 0 else window

    def feed_forward(self, i: int, x: str) -> str:
        gate, up = (self.product(x, self.weight(role, i), self.weight(role, i, "bias")) for role in ("gate", "up"))  # type: ignore[arg-type]
        if self.family.activation == "Silu":
            active = self.op("Mul", [gate, self.op("Sigmoid", [gate])])
        else:
            active = self.op("FastGelu", [gate], domain=MICROSOFT)
        gated = self.op("Mul", [up, active] if self.style in PLAINER else [active, up])
        return self.product(gated, self.weight("down", i), self.weight("down", i, "bias"))  # type: ignore[arg-type]

    # -- the whole -----------------------------------------------------------------------------------------------------

    def model(self) -> onnx.ModelProto:
        c, layers = self.c, self.c["num_hidden_layers"]
        positions = np.arange(c["max_position_embeddings"])[:, None]
        angles = positions * c.get("rope_theta", 10_000.0) ** (-np.arange(0, self.size, 2) / self.size)
        for name, f in (("cos", np.cos), ("sin", np.sin)):
            self.constant(f(angles).astype(np.float16 if self.half else np.float32), name)
        count = self.op("ReduceSum", ["attention_mask", self.constant(np.array([1], np.int64))], keepdims=0)
        self.nodes.append(
            helper.make_node(
                "Cast",
                [self.op("Sub", [count, self.constant(np.array(1, np.int64))])],
                ["lengths"],
                to=TensorProto.INT32,
            )
        )
        width = self.op("Gather", [self.op("Shape", ["attention_mask"]), self.constant(np.array(1, np.int64))], axis=0)
        self.nodes.append(helper.make_node("Cast", [width], ["total"], to=TensorProto.INT32))
        table = self.weight("embedding", 0)
        assert table is not None
        h = self.op("Gather", [self.floats(table), "input_ids"])
        if self.family.scaled_embedding:
            h = self.op("Mul", [h, self.floats(np.array(c["hidden_size"] ** 0.5))])
        x = self.norm(h, self.weight("attention_norm", 0))  # type: ignore[arg-type]
        for i in range(layers):
            y = self.attention(i, x)
            y = self.norm(y, self.weight("attention_post_norm", i)) if self.family.post_norms else y  # type: ignore[arg-type]
            x, h = self.summed(h, y, self.weight("ffn_norm", i))  # type: ignore[arg-type]
            y = self.feed_forward(i, x)
            y = self.norm(y, self.weight("ffn_post_norm", i)) if self.family.post_norms else y  # type: ignore[arg-type]
            following = self.weight("norm", 0) if i + 1 == layers else self.weight("attention_norm", i + 1)
            x, h = self.summed(h, y, following)  # type: ignore[arg-type]
        last = self.weight("logits", 0)
        y = self.product(x, table if last is None else last, None)
        cap = c.get("final_logit_softcapping")
        if cap:
            number = self.floats(np.array(cap))
            y = self.op("Mul", [self.op("Tanh", [self.op("Div", [y, number])]), number])
        self.nodes.append(helper.make_node("Cast", [y], ["logits"], to=TensorProto.FLOAT))
        return self._model(layers)

    def _model(self, layers: int) -> onnx.ModelProto:
        kv, ids = self.c["num_key_value_heads"], TensorProto.INT64

        def cache(name: str, length: str) -> onnx.ValueInfoProto:
            return helper.make_tensor_value_info(name, self.float, ["batch", kv, length, self.size])

        names = (("input_ids", "new"), ("attention_mask", "all"), ("position_ids", "new"))
        inputs = [helper.make_tensor_value_info(name, ids, ["batch", length]) for name, length in names]
        outputs = [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", "new", self.c["vocab_size"]])]
        for i in range(layers):
            inputs += [cache(f"past_key_values.{i}.{kind}", "past") for kind in ("key", "value")]
            outputs += [cache(f"present.{i}.{kind}", "all") for kind in ("key", "value")]
        graph = helper.make_graph(self.nodes, "decoder", inputs, outputs, list(self.constants.values()))
        imports = [helper.make_opsetid("", 21), helper.make_opsetid(MICROSOFT, 1)]
        return helper.make_model(graph, opset_imports=imports, ir_version=10)

    def folder(self, path: Path, model: onnx.ModelProto | None = None) -> Path:
        """model.onnx, its data beside it, and settings."""
        path.mkdir(parents=True, exist_ok=True)
        made = self.model() if model is None else model
        copy = onnx.ModelProto()
        copy.CopyFrom(made)
        onnx.save_model(
            copy, path / "model.onnx", save_as_external_data=True, location="model.onnx.data", size_threshold=1024
        )
        if self.style in PLAINER:
            (path / "config.json").write_text(json.dumps(self.c))
        else:
            decoder = {"filename": "model.onnx", "head_size": self.size, "hidden_size": self.c["hidden_size"]}
            said = {"bos_token_id": 1, "eos_token_id": [2], "context_length": 200, "decoder": decoder}
            (path / "genai_config.json").write_text(json.dumps({"model": said}))
        return path


def logits_by_runtime(folder: Path, tokens: list[int], settings: Mapping[str, Any], half: bool = False) -> Array:
    """By ONNX Runtime, (tokens, vocabulary)."""
    import onnxruntime

    session = onnxruntime.InferenceSession(folder / "model.onnx", providers=["CPUExecutionProvider"])
    size = settings.get("head_dim", settings["hidden_size"] // settings["num_attention_heads"])
    empty = np.zeros((1, settings["num_key_value_heads"], 0, size), np.float16 if half else np.float32)
    ids = np.array([tokens])
    feeds = {"input_ids": ids, "attention_mask": np.ones_like(ids), "position_ids": np.arange(len(tokens))[None]}
    wanted = {node.name for node in session.get_inputs()}
    feeds |= {name: empty for name in wanted if name.startswith("past")}
    found: Array = session.run(["logits"], {name: feeds[name] for name in wanted})[0][0]
    return found
