"""Optimisation of a pipeline into one with the same elements and less work: named rewrites until none applies.

Every rewrite is one function node -> node, or None if it does not apply; its docstring is the proof.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TypeAlias

from cloud.data import ir

__all__ = ["PASSES", "optimised"]

Rewrite: TypeAlias = Callable[[ir.Node], ir.Node | None]


def _drop_nothing(node: ir.Node) -> ir.Node | None:
    """slice(0, all, 1)(x) = x; a prefetch changes no element."""
    match node:
        case ir.Slice(of, 0, None, 1):
            return of
        case ir.Prefetch(of):
            return of
    return None


def _merge_slices(node: ir.Node) -> ir.Node | None:
    """slice(s2, e2, k2)(slice(s1, e1, k1)(x)) = slice(s1 + k1·s2, min(e1, s1 + k1·e2), k1·k2)(x)."""
    match node:
        case ir.Slice(ir.Slice(of, s1, e1, k1), s2, e2, k2):
            stops = [stop for stop in (e1, None if e2 is None else s1 + k1 * e2) if stop is not None]
            return ir.Slice(of, s1 + k1 * s2, min(stops, default=None), k1 * k2)
    return None


def _orders_first(node: ir.Node) -> ir.Node | None:
    """shuffle(map(x)) = map(shuffle(x)), the same for slices: a map depends only on the element and its key."""
    match node:
        case ir.Shuffle(ir.Map(of, _)) | ir.Slice(ir.Map(of, _)):
            return replace(node.of, of=replace(node, of=of))  # type: ignore[arg-type]
    return None


def _filters_first(node: ir.Node) -> ir.Node | None:
    """filter_a(map_b(x)) = map_b(filter_a(x)) if the map changes one value and the filter reads another."""
    match node:
        case ir.Filter(ir.Map(of, steps), _, on) if on and all(step.on not in ("", on) for step in steps):
            return ir.Map(replace(node, of=of), steps)
    return None


def _fuse_maps(node: ir.Node) -> ir.Node | None:
    """map_g(map_f(x)) = map_(f, g)(x), if both work on rows or neither does."""
    match node:
        case ir.Map(ir.Map(of, first), second) if len({step.rows for step in first + second}) == 1:
            return ir.Map(of, first + second)
    return None


def _rows_after_batch(node: ir.Node) -> ir.Node | None:
    """batch(map_f(x)) = batch(x) then f, if f works on rows, so that it is called once per batch."""
    match node:
        case ir.Batch(ir.Map(of, steps), then=then) if all(step.rows for step in steps):
            return replace(node, of=of, then=steps + then)
    return None


PASSES: dict[str, Rewrite] = {
    "drop what does nothing": _drop_nothing,
    "merge slices": _merge_slices,
    "orders before maps": _orders_first,
    "filters before maps of other values": _filters_first,
    "fuse maps": _fuse_maps,
    "maps of rows after the batch": _rows_after_batch,
}


def optimised(node: ir.Node, passes: dict[str, Rewrite] = PASSES) -> ir.Node:
    """The node rewritten from its sources up; every rewrite moves a node down or removes one, so this terminates."""
    node = ir.with_parents(node, tuple(optimised(parent, passes) for parent in ir.parents(node)))
    for rewrite in passes.values():
        found = rewrite(node)
        if found is not None:
            return optimised(found, passes)
    return node
