"""ONNX's Attention as the steps that it stands for, so that rules of products and of softmax apply to it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from cloud.engine.lowering import Step
from cloud.engine.lowering.attention import score_bias, split_heads
from cloud.engine.lowering.registry import Lowering

__all__ = ["expanded"]

_PAST = slice(4, 7)
"""The operands of keys and values of earlier calls, and of how many keys are valid."""

_VALUES = ("q", "k", "v", "raw", "capped", "biased", "weights", "heads", "rank")


def expanded(steps: Iterable[Step]) -> tuple[Step, ...]:
    """The steps, with each Attention that has no keys of earlier calls and gives its first result alone as two
    products, a softmax, and what lies between them."""
    return tuple(new for step in steps for new in (_parts(step) if _is_plain(step) else (step,)))


def _is_plain(step: Step) -> bool:
    return step.op == "Attention" and not any(step.inputs[_PAST]) and not any(step.outputs[1:])


def _parts(step: Step) -> Iterator[Step]:
    given = step.attributes
    factor, cap, causal = given.get("scale"), given.get("softcap", 0.0), given.get("is_causal", 0)
    names = {key: f"{step.outputs[0]}#{key}" for key in _VALUES}

    def made(op: str, function: Callable[..., Any], inputs: tuple[str, ...], output: str, **attributes: Any) -> Step:
        return Step(op, Lowering(function, False), inputs, (output,), attributes, step.where, step.index)

    for key, name, count in zip("qkv", step.inputs, ("q_num_heads", *2 * ("kv_num_heads",)), strict=False):
        yield made("Reshape", _split(given.get(count), key), (name,), names[key])
    yield made("MatMul", lambda q, k: _scores(q, k, factor), (names["q"], names["k"]), names["raw"])
    raw = names["raw"]
    if cap:
        yield made("Tanh", lambda x: cap * jnp.tanh(x / cap), (raw,), names["capped"])
        raw = names["capped"]
    mask = step.inputs[3:4] if any(step.inputs[3:4]) else ()
    if mask or causal:
        yield made("Add", lambda x, mask=None: _masked(x, mask, causal), (raw, *mask), names["biased"])
        raw = names["biased"]
    yield made("Softmax", _weights, (raw,), names["weights"], axis=-1)
    yield made("MatMul", _mixed, (names["weights"], names["v"]), names["heads"])
    yield made("Shape", np.ndim, step.inputs[:1], names["rank"])
    yield made("Reshape", lambda y, rank: _joined(y) if rank == 3 else y, (names["heads"], names["rank"]),
               step.outputs[0])  # fmt: skip


def _split(count: int | None, key: str) -> Callable[[Any], Any]:
    return lambda x: split_heads(x, count, key.upper())


def _repeated(x: Any, heads: int) -> Any:
    """Keys or values of groups of heads, for each head."""
    return x if x.shape[1] == heads else jnp.repeat(x, heads // x.shape[1], axis=1)


def _scores(q: Any, k: Any, factor: float | None) -> Any:
    scale = float(q.shape[-1]) ** -0.5 if factor is None else factor
    return jnp.einsum("bhqd,bhkd->bhqk", q, _repeated(k, q.shape[1])) * scale


def _masked(x: Any, mask: Any, causal: int) -> Any:
    return x + score_bias(mask, causal, 0, None, x.shape[2], x.shape[3], x.dtype)


def _weights(x: Any, *, axis: int) -> Any:
    """A query that may attend to no key gives zeros."""
    return jnp.where(jnp.all(x == -jnp.inf, axis=axis, keepdims=True), 0, jax.nn.softmax(x, axis=axis))


def _mixed(weights: Any, v: Any) -> Any:
    return jnp.einsum("bhqk,bhkd->bhqd", weights, _repeated(v, weights.shape[1]))


def _joined(y: Any) -> Any:
    return jnp.swapaxes(y, 1, 2).reshape(y.shape[0], y.shape[2], -1)
