"""A small program for every rule, by the primitive it shows; cases of one primitive differ in a remark."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

__all__ = ["CASES", "Case"]

Case = tuple[Callable[..., Any], tuple[Any, ...]]


def real(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed + sum(shape)).normal(size=shape).astype(np.float32)


def positive(*shape: int) -> Any:
    return np.abs(real(*shape)) + 0.5


def whole(high: int, *shape: int) -> Any:
    return np.random.default_rng(high).integers(0, high, shape).astype(np.int32)


def truth(*shape: int) -> Any:
    return real(*shape) > 0


def conv(*, numbers: Any = ("NCHW", "OIHW", "NCHW"), **options: Any) -> Callable[..., Any]:
    settings = {"window_strides": (1, 1), "padding": "SAME", "dimension_numbers": numbers} | options
    return partial(lax.conv_general_dilated, **settings)


def grad(function: Callable[..., Any], which: int) -> Callable[..., Any]:
    """The cotangent of one operand, as gradients compute it."""
    return lambda *args: jax.vjp(function, *args)[1](jnp.cos(jax.eval_shape(function, *args).size * jnp.ones(
        jax.eval_shape(function, *args).shape)))[which]  # fmt: skip


def pool(x: Any) -> Any:
    return lax.reduce_window(x, -np.inf, lax.max, (1, 1, 2, 2), (1, 1, 2, 2), "VALID")


def overlapping(first: Any, kind: Any) -> Callable[..., Any]:
    return lambda x: lax.reduce_window(x, np.asarray(first, x.dtype), kind, (1, 1, 3, 3), (1, 1, 2, 1), "SAME")


def mean_pool(x: Any) -> Any:
    return lax.reduce_window(x, 0.0, lax.add, (1, 1, 3, 3), (1, 1, 1, 1), "SAME")


def embed(table: Any, words: Any) -> Any:
    return table[words]


def take(mode: str) -> Callable[..., Any]:
    return lambda x, i: jnp.take_along_axis(x, i, axis=1, mode=mode)


def at(how: str, mode: str | None = None) -> Callable[..., Any]:
    return lambda x, i, u: getattr(x.at[i], how)(u, mode=mode)


def recurrent(w: Any, h: Any, xs: Any) -> Any:
    def step(h: Any, x: Any) -> Any:
        h = jnp.tanh(h @ w + x)
        return h, h

    return lax.scan(step, h, xs)


def layers(ws: Any, h: Any) -> Any:
    return lax.scan(lambda h, w: (jax.nn.relu(h @ w), None), h, ws)[0]


def newton(x: Any) -> Any:
    return lax.while_loop(lambda c: c[0] < 5, lambda c: (c[0] + 1, c[1] - jnp.sin(c[1])), (0, x))


def choose(p: Any, x: Any) -> Any:
    return lax.cond(p, lambda v: v * 2.0, lambda v: jnp.cumsum(v, axis=1), x)


def definite(count: int, size: int) -> Any:
    x = real(count, size, size)
    return x @ x.transpose(0, 2, 1) + size * np.eye(size, dtype=np.float32)


def unary(name: str, x: Any = None) -> Case:
    return getattr(lax, name), (real(4, 8) if x is None else x,)


CASES: dict[str, Case] = {
    **{name: unary(name) for name in ("exp", "tanh", "neg", "erf")},
    **{name: unary(name, positive(4, 8)) for name in ("log", "lgamma")},
    "integer_pow": (lambda x: x**3, (real(4, 8),)),
    "convert_element_type": (lambda x: x.astype(jnp.bfloat16), (real(4, 8),)),
    "bitcast_convert_type": (lambda x: lax.bitcast_convert_type(x, jnp.uint32), (real(4, 8),)),
    "bitcast_convert_type narrower": (lambda x: lax.bitcast_convert_type(x, jnp.uint16), (real(4, 8),)),
    "add": (lax.add, (real(4, 8), real(4, 8, seed=1))),
    "mul one row": (lambda x, y: x * y, (real(4, 8), real(4, 1))),
    "mul scalar": (lambda x: x * 2.0, (real(4, 8),)),
    "pow": (lax.pow, (positive(4, 8), real(4, 8))),
    "max": (lax.max, (real(4, 8), real(4, 8, seed=1))),
    "gt": (lax.gt, (real(4, 8), real(4, 8, seed=1))),
    "select_n": (jnp.where, (truth(4, 8), real(4, 8), real(4, 8, seed=1))),
    "clamp": (lambda x: lax.clamp(-1.0, x, 1.0), (real(4, 8),)),
    "optimization_barrier": (lax.optimization_barrier, (real(4, 8),)),
    "iota": (lambda: lax.broadcasted_iota(np.int32, (4, 8), 1), ()),
    "random_bits": (lambda k: jax.random.uniform(k, (4, 8)), (np.array([1, 2], np.uint32),)),
    "dot_general": (lambda a, b: a @ b, (real(4, 8), real(8, 16))),
    "dot_general transposed": (lambda a, b: jnp.einsum("bsd,fd->bsf", a, b), (real(2, 4, 8), real(16, 8))),
    "dot_general weight gradient": (lambda a, g: jnp.einsum("bsd,bsf->df", a, g), (real(2, 4, 8), real(2, 4, 16))),
    "dot_general attention": (lambda q, k: jnp.einsum("bqhd,bkhd->bhqk", q, k), (real(2, 4, 2, 8), real(2, 6, 2, 8))),
    "dot_general experts": (lambda x, w: jnp.einsum("ecd,edf->ecf", x, w), (real(4, 2, 8), real(4, 8, 6))),
    "dot_general outer": (lambda a, b: jnp.einsum("i,j->ij", a, b), (real(4), real(6))),
    "dot_general inner": (lambda a, b: jnp.vdot(a, b), (real(8), real(8))),
    "dot_general bfloat16": (lambda a, b: a.astype(jnp.bfloat16) @ b.astype(jnp.bfloat16), (real(4, 8), real(8, 16))),
    "conv_general_dilated": (conv(), (real(4, 8, 6, 6), real(16, 8, 3, 3))),
    "conv_general_dilated strided": (conv(window_strides=(2, 2)), (real(4, 8, 6, 6), real(16, 8, 3, 3))),
    "conv_general_dilated point": (conv(), (real(4, 8, 6, 6), real(16, 8, 1, 1))),
    "conv_general_dilated images last": (conv(numbers=("NHWC", "HWIO", "NHWC")), (real(4, 6, 6, 8), real(3, 3, 8, 16))),
    "conv_general_dilated depthwise": (conv(feature_group_count=8), (real(4, 8, 6, 6), real(8, 1, 3, 3))),
    "conv_general_dilated depthwise doubled": (conv(feature_group_count=8), (real(4, 8, 6, 6), real(16, 1, 3, 3))),
    "conv_general_dilated depthwise doubled gradient": (
        grad(conv(feature_group_count=8), 1), (real(4, 8, 6, 6), real(16, 1, 3, 3))),
    "conv_general_dilated grouped image gradient": (
        grad(conv(feature_group_count=8), 0), (real(4, 8, 6, 6), real(16, 1, 3, 3))),
    "conv_general_dilated grouped": (conv(feature_group_count=4), (real(4, 8, 6, 6), real(16, 2, 3, 3))),
    "conv_general_dilated image gradient": (grad(conv(), 0), (real(4, 8, 6, 6), real(16, 8, 3, 3))),
    "conv_general_dilated kernel gradient": (grad(conv(), 1), (real(4, 8, 6, 6), real(16, 8, 3, 3))),
    "conv_general_dilated spread": (conv(rhs_dilation=(2, 2)), (real(2, 4, 16, 12), real(4, 4, 3, 3))),
    "conv_general_dilated wide": (conv(window_strides=(2, 1)), (real(2, 4, 16, 8), real(4, 4, 7, 3))),
    "conv_general_dilated wide image gradient": (
        grad(conv(window_strides=(2, 1)), 0), (real(2, 4, 16, 8), real(4, 4, 7, 3))),
    "conv_general_dilated wide kernel gradient": (
        grad(conv(window_strides=(2, 1)), 1), (real(2, 4, 16, 8), real(4, 4, 7, 3))),
    "conv_general_dilated strided image gradient": (
        grad(conv(window_strides=(2, 2)), 0), (real(4, 8, 6, 6), real(16, 8, 3, 3))),
    "conv_general_dilated strided kernel gradient": (
        grad(conv(window_strides=(2, 2)), 1), (real(4, 8, 6, 6), real(16, 8, 3, 3))),
    "conv_general_dilated depthwise image gradient": (
        grad(conv(feature_group_count=8), 0), (real(4, 8, 6, 6), real(8, 1, 3, 3))),
    "conv_general_dilated depthwise kernel gradient": (
        grad(conv(feature_group_count=8), 1), (real(4, 8, 6, 6), real(8, 1, 3, 3))),
    "conv_general_dilated grouped kernel gradient": (
        grad(conv(feature_group_count=4), 1), (real(4, 8, 6, 6), real(16, 2, 3, 3))),
    "reduce_sum": (lambda x: x.sum(1), (real(4, 8, 6),)),
    "reduce_sum all": (lambda x: x.sum(), (real(4, 8),)),
    "reduce_max": (lambda x: x.max(0), (real(4, 8),)),
    "reduce_min": (lambda x: x.min(1), (real(4, 8),)),
    "reduce_prod": (lambda x: x.prod(1), (real(4, 8),)),
    "reduce_and": (lambda x: x.all(1), (truth(4, 8),)),
    "reduce_or": (lambda x: x.any(0), (truth(4, 8),)),
    "argmax": (lambda x: jnp.argmax(x, 1), (real(4, 8),)),
    "cumsum": (lambda x: jnp.cumsum(x, 1), (real(4, 8),)),
    "cummax": (lambda x: lax.cummax(x, 0), (real(4, 8),)),
    "sort": (lambda x: jnp.sort(x, 1), (real(4, 8),)),
    "sort two": (lambda x: jnp.argsort(x, 0), (real(4, 8),)),
    "sort top_k": (lambda x: lax.top_k(x, 2), (real(4, 8),)),
    "cholesky": (jnp.linalg.cholesky, (definite(4, 3),)),
    "eigh": (lambda x: jnp.linalg.eigh(x)[0], (definite(4, 3),)),
    "triangular_solve": (
        lambda a, b: lax.linalg.triangular_solve(a, b, lower=True, left_side=True), (definite(4, 3), real(4, 3, 2))),
    "reduce_window_max": (pool, (real(4, 8, 6, 6),)),
    "reduce_window_max overlapping": (overlapping(-np.inf, lax.max), (real(4, 8, 16, 6) - 9,)),
    "reduce_window_min": (overlapping(np.inf, lax.min), (real(4, 8, 16, 6) + 9,)),
    "reduce_window_max of integers": (overlapping(-128, lax.max), (np.int8(real(4, 8, 16, 6) * 9 - 99),)),
    "reduce_window_sum": (mean_pool, (real(4, 8, 6, 6),)),
    "select_and_scatter_add": (grad(pool, 0), (real(4, 8, 6, 6),)),
    "transpose": (lambda x: x.transpose(2, 0, 1), (real(2, 4, 8),)),
    "reshape merge": (lambda x: x.reshape(8, 6), (real(2, 4, 6),)),
    "reshape divide": (lambda x: x.reshape(4, 2, 4), (real(4, 8),)),
    "reshape regroup": (lambda x: x.reshape(6, 4, 2), (real(4, 6, 2),)),
    "reshape flat": (lambda x: x.reshape(-1), (real(4, 2, 6),)),
    "broadcast_in_dim": (lambda x: jnp.broadcast_to(x[:, None], (4, 6, 8)), (real(4, 8),)),
    "broadcast_in_dim scalar": (lambda x: jnp.broadcast_to(x, (4, 8)), (real(),)),
    "squeeze": (lambda x: lax.squeeze(x, (1,)), (real(4, 1, 8),)),
    "rev": (lambda x: lax.rev(x, (1,)), (real(4, 8),)),
    "slice": (lambda x: x[:, 2:6], (real(4, 8),)),
    "pad": (lambda x: jnp.pad(x, ((0, 0), (1, 1))), (real(4, 8),)),
    "concatenate": (lambda x, y: jnp.concatenate([x, y], 1), (real(4, 8), real(4, 4))),
    "stack": (lambda x, y: jnp.stack([x, y], 1), (real(4, 8), real(4, 8))),
    "unstack": (lambda x: jnp.unstack(x, axis=1), (real(4, 3, 6),)),
    "tile": (lambda x: jnp.tile(x, (1, 2)), (real(4, 8),)),
    "split": (lambda x: jnp.split(x, 2, axis=1), (real(4, 8),)),
    "dynamic_slice": (lambda x, i: lax.dynamic_slice(x, (0, i), (4, 2)), (real(4, 8), np.int32(3))),
    "dynamic_update_slice": (
        lambda x, u, i: lax.dynamic_update_slice(x, u, (0, i)), (real(4, 8), real(4, 2), np.int32(3))),
    "gather embedding": (embed, (real(16, 8), whole(16, 4, 6))),
    "gather clip": (lambda t, i: t.at[i].get(mode="clip"), (real(16, 8), whole(16, 4, 6))),
    "gather promised": (lambda t, i: t.at[i].get(mode="promise_in_bounds"), (real(16, 8), whole(16, 4, 6))),
    "gather label": (take("fill"), (real(4, 8), whole(8, 4, 1))),
    "gather label clip": (take("clip"), (real(4, 8), whole(8, 4, 1))),
    "gather pairs": (lambda x, i, j: x[i, j], (real(4, 8), whole(4, 6), whole(8, 6))),
    "gather truth": (embed, (truth(16, 8), whole(16, 4))),
    "gather column": (lambda x, i: x[:, i], (real(4, 8), whole(8, 6))),
    "scatter-add embedding gradient": (at("add"), (real(16, 8), whole(16, 4, 6), real(4, 6, 8))),
    "scatter-add label gradient": (grad(lambda x, i: take("fill")(x, i), 0), (real(4, 8), whole(8, 4, 1))),
    "scatter-add clip": (at("add", "clip"), (real(16, 8), whole(16, 4, 6), real(4, 6, 8))),
    "scatter": (at("set"), (real(16, 8), np.array([3, 1, 8, 15], np.int32), real(4, 8))),
    "scatter-max": (at("max"), (real(16, 8), whole(16, 4), real(4, 8))),
    "scatter-mul": (at("multiply"), (real(16, 8), whole(16, 4), real(4, 8))),
    "scan recurrent": (recurrent, (real(8, 8), real(4, 8), real(6, 4, 8))),
    "scan recurrent gradient": (
        grad(lambda w, h, xs: recurrent(w, h, xs)[1], 1), (real(8, 8), real(4, 8), real(6, 4, 8))),
    "scan layers": (layers, (real(3, 8, 8), real(4, 8))),
    "while": (newton, (real(4, 8),)),
    "cond": (choose, (np.bool_(True), real(4, 8))),
}  # fmt: skip
"""By what is shown: the primitive's name and, after a space, which of its forms."""
