"""Calling the functions of maps and filters: on one element, one value of it or columns; errors say where."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from cloud.data import ir
from cloud.data.columns import length, one, tree_map
from cloud.data.draws import Draws, States, folded, state_of
from cloud.errors import DataError

__all__ = ["Streams", "apply_blend", "apply_many", "apply_rows", "apply_step", "keeps", "keeps_rows", "keyed"]

_SALTED = 2**31

Streams: TypeAlias = Callable[[States], States]
"""The state of a seed, an epoch and a salt -> that of each row, which depends on its element's key too."""


def apply_step(step: ir.Step, element: Any, key: tuple[int, ...], path: tuple[int, ...]) -> Any:
    """A step's result for the element from `key` in epoch `path`."""
    if step.rows:
        return one(apply_rows((step,), _column(element), path, lambda state: keyed(state, key)), 0)
    extra = (np.random.default_rng((*path, _SALTED + step.salt, *key)),) if step.seeded else ()
    value = _value(step.function.shown, element, step.on)
    result = _called(step.function.shown, f"element {_shown(key)}", lambda: step.function.call(value, *extra))
    return {**element, step.on: result} if step.on else result


def apply_many(steps: tuple[ir.Step, ...], elements: list[Any]) -> list[Any]:
    """The results of steps that are not seeded. What their functions raise is raised as it is."""
    for step in steps:
        call, on = step.function.call, step.on
        if step.rows:
            elements = [one(apply_rows((step,), _column(element), (), _no_streams), 0) for element in elements]
        elif on:
            elements = [{**element, on: call(element[on])} for element in elements]
        else:
            elements = [call(element) for element in elements]
    return elements


def apply_rows(steps: tuple[ir.Step, ...], columns: Any, path: tuple[int, ...], streams: Streams) -> Any:
    """Steps of rows, one after the other, on columns of elements in epoch `path`."""
    for step in steps:
        value = _value(step.function.shown, columns, step.on)
        extra = (_draws(step.salt, path, streams),) if step.seeded else ()
        call = partial(step.function.call, value, *extra)
        result = _called(step.function.shown, f"{length(columns)} rows", call)
        if length(result) != length(columns):
            raise DataError(
                f"{step.function.shown} works on rows: expected {length(columns)} rows back, got {length(result)}"
            )
        columns = {**columns, step.on: result} if step.on else result
    return columns


def apply_blend(node: ir.Blend, columns: Any, others: Callable[[Draws], Any], path: tuple[int, ...],
                streams: Streams) -> Any:  # fmt: skip
    """What a node makes of columns and of the elements that `others` draws for them."""
    draws, count = _draws(node.salt, path, streams), length(columns)
    call = partial(node.function.call, columns, others(draws.part(1)), draws.part(2))
    result = _called(node.function.shown, f"{count} rows", call)
    if length(result) != count:
        raise DataError(f"{node.function.shown} works on rows: expected {count} rows back, got {length(result)}")
    return result


def _draws(salt: int, path: tuple[int, ...], streams: Streams) -> Draws:
    return Draws(streams(state_of((*path, _SALTED + salt))))


def keyed(state: States, key: tuple[int, ...]) -> States:
    """The state [1] of an element: `View.fold` of one."""
    for part in key:
        state = folded(state, part)
    return state


def _no_streams(state: States) -> States:
    raise AssertionError("no step is seeded")


def keeps(node: ir.Filter, element: Any, key: tuple[int, ...]) -> bool:
    """Whether a filter keeps an element."""
    if node.rows:
        return bool(keeps_rows(node, _column(element))[0])
    value = _value(node.function.shown, element, node.on)
    return bool(_called(node.function.shown, f"element {_shown(key)}", lambda: node.function.call(value)))


def keeps_rows(node: ir.Filter, columns: Any) -> npt.NDArray[np.bool_]:
    """The rows that a filter of rows keeps."""
    value, count = _value(node.function.shown, columns, node.on), length(columns)
    found = np.asarray(_called(node.function.shown, f"{count} rows", lambda: node.function.call(value)))
    if found.shape != (count,):
        raise DataError(f"{node.function.shown} filters rows: expected {count} truth values, got shape {found.shape}")
    return found.astype(bool)


def _column(element: Any) -> Any:
    return tree_map(lambda leaf: np.asarray(leaf)[None], element)


def _value(function: str, element: Any, on: str) -> Any:
    if not on:
        return element
    if not isinstance(element, dict) or on not in element:
        there = sorted(element) if isinstance(element, dict) else type(element).__name__
        raise DataError(f"{function} works on {on!r}: expected elements with that name, got {there}")
    return element[on]


def _called(function: str, where: str, call: Callable[[], Any]) -> Any:
    try:
        return call()
    except Exception as problem:  # user code: a function of the pipeline
        fix = "; elements must not be changed in place: copy() it first" if "read-only" in str(problem) else ""
        raise DataError(f"{function} failed at {where}: {type(problem).__name__}: {problem}{fix}") from problem


def _shown(key: tuple[int, ...]) -> str:
    return str(key[0]) if len(key) == 1 else str(key)
