"""Small models that are put together, and files that put them together."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from lite_runtime import bundle
from lite_runtime.graph import Graph, Node, Value

__all__ = ["combined", "document", "put", "scaled", "step", "wide"]


def scaled(factor: float, shape: Sequence[int | str] = ("n", 4), dtype: str = "float32", **given: Any) -> bytes:
    """y = factor * x."""
    ends = Value("x", dtype, tuple(shape)), Value("y", dtype, tuple(shape))
    factors = {"k": np.array([factor], dtype)}
    return bundle.write(None, {"predict": Graph((ends[0],), (ends[1],), (Node("Mul", ("x", "k"), ("y",)),), factors)},
                        **given)  # fmt: skip


def combined(op: str, width: int = 4) -> bytes:
    """y = a op b, and z = -b, of float32 [n, width]."""
    a, b, y, z = (Value(name, "float32", ("n", width)) for name in "abyz")
    nodes = Node(op, ("a", "b"), ("y",)), Node("Neg", ("b",), ("z",))
    return bundle.write(None, {"predict": Graph((a, b), (y, z), nodes, {})})


def wide(times: int, width: int = 4) -> bytes:
    """y is x, float32 [n, width], so many times beside itself."""
    x, y = Value("x", "float32", ("n", width)), Value("y", "float32", ("n", width * times))
    return bundle.write(
        None, {"predict": Graph((x,), (y,), (Node("Concat", ("x",) * times, ("y",), {"axis": 1}),), {})}
    )


def step(model: str, inputs: Mapping[str, str], outputs: Mapping[str, str], **more: Any) -> dict[str, Any]:
    """An entry of `ensemble_scheduling.step`."""
    return {"model_name": model, "input_map": dict(inputs), "output_map": dict(outputs), **more}


def document(inputs: Sequence[Any], outputs: Sequence[Any], *steps: Mapping[str, Any], **more: Any) -> dict[str, Any]:
    """An ensemble's file; inputs and outputs: names, or whole entries."""
    ends = [[{"name": end} if isinstance(end, str) else end for end in side] for side in (inputs, outputs)]
    return {"input": ends[0], "output": ends[1], "ensemble_scheduling": {"step": list(steps)}, **more}


def put(path: Path, content: bytes | Mapping[str, Any] | str) -> Path:
    """Write a file as a careful deployment does: to a temporary name, then rename."""
    path.parent.mkdir(parents=True, exist_ok=True)
    data = content if isinstance(content, bytes) else content if isinstance(content, str) else json.dumps(content)
    temporary = path.parent / f".{path.name}"
    temporary.write_bytes(data.encode() if isinstance(data, str) else data)
    return temporary.rename(path)
