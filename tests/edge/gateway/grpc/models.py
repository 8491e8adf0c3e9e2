"""Models that Triton's gRPC examples ask, beside those of `tests.edge.gateway.live`."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from onnx import TensorProto, helper

from lite_runtime import bundle
from lite_runtime.graph import StateUse
from tests.edge.gateway.live import bundle_of, simple, simple_string

__all__ = ["triton_examples"]


def triton_examples(folder: Path) -> Path:
    """NVIDIA's `simple`, `simple_int8`, `simple_string`, `simple_identity` and `simple_sequence`."""
    simple(folder / "simple.mslite")
    simple_string(folder / "simple_string.mslite")
    _simple_int8(folder / "simple_int8.mslite")
    _simple_identity(folder / "simple_identity.mslite")
    _simple_sequence(folder / "simple_sequence.mslite")
    return folder


def _simple_int8(path: Path) -> None:
    """The sum and the difference of two INT8 [batch, 16]."""
    ends = [helper.make_tensor_value_info(n, TensorProto.INT8, ["batch", 16]) for n in
            ("INPUT0", "INPUT1", "OUTPUT0", "OUTPUT1")]  # fmt: skip
    nodes = [helper.make_node("Add", ["INPUT0", "INPUT1"], ["OUTPUT0"]),
             helper.make_node("Sub", ["INPUT0", "INPUT1"], ["OUTPUT1"])]  # fmt: skip
    bundle_of(path, helper.make_graph(nodes, "simple_int8", ends[:2], ends[2:]))


def _simple_identity(path: Path) -> None:
    """The given BYTES [batch, n]."""
    ends = [helper.make_tensor_value_info(n, TensorProto.STRING, ["batch", "n"]) for n in ("INPUT0", "OUTPUT0")]
    bundle_of(path, helper.make_graph([helper.make_node("Identity", ["INPUT0"], ["OUTPUT0"])], "identity",
                                      ends[:1], ends[1:]))  # fmt: skip


def _simple_sequence(path: Path) -> None:
    """The given INT32 [1, 1], and one more for the first request of a sequence."""
    ends = [helper.make_tensor_value_info(n, TensorProto.INT32, [1, 1]) for n in ("INPUT", "first", "OUTPUT", "next")]
    nodes = [helper.make_node("Add", ["INPUT", "first"], ["OUTPUT"]),
             helper.make_node("Sub", ["first", "first"], ["next"])]  # fmt: skip
    bundle_of(path, helper.make_graph(nodes, "simple_sequence", ends[:2], ends[2:]))
    graph = bundle.read(path).signatures["predict"]
    uses = {"predict": StateUse({"first": "first"}, {"next": "first"})}
    bundle.write(path, {"predict": graph}, state={"first": np.ones((1, 1), np.int32)}, uses=uses)
