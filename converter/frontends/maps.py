"""Maps of ONNX models: ZipMap, with which scikit-learn's exporters end classifiers, becomes an array of scores.

A bundle has arrays only. ONNX Runtime answers ZipMap with one dictionary {class: score} per row; here the result is an
array (rows, classes), its columns in the order of the sorted classes.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx

from converter.errors import ConvertError

__all__ = ["unzip"]

_ML = "ai.onnx.ml"


def unzip(proto: onnx.ModelProto) -> onnx.ModelProto:
    """A copy without ZipMap and map types, or `proto` itself if it has none.

    Raises ConvertError for other values that are maps.
    """
    graph = proto.graph
    zips = [node for node in graph.node if node.op_type == "ZipMap" and node.domain == _ML]
    if not zips and not any(_is_map(v.type) for v in _values(graph)):
        return proto
    made = onnx.ModelProto()
    made.CopyFrom(proto)
    results = {name for node in zips for name in node.output}
    read = {name for node in graph.node for name in node.input} & results
    odd = [v.name for v in _values(graph) if _is_map(v.type) and v.name not in results] or sorted(read)
    if odd:
        raise ConvertError(
            f"value {odd[0]!r} is a map, and only ZipMap may make one, as an output of the graph; export the model "
            "with arrays instead"
        )
    for value in made.graph.output:
        if value.name in results:
            value.type.Clear()
            value.type.tensor_type.elem_type = onnx.TensorProto.FLOAT
    for at, value in reversed(list(enumerate(graph.value_info))):
        if value.name in results:
            del made.graph.value_info[at]
    taken = {name for node in graph.node for name in node.output} | {v.name for v in (*graph.input, *graph.initializer)}
    nodes = [new for node in made.graph.node for new in (_scores(node, taken) if node in zips else [node])]
    del made.graph.node[:]
    made.graph.node.extend(nodes)
    return made


def _values(graph: onnx.GraphProto) -> Iterator[onnx.ValueInfoProto]:
    yield from (*graph.input, *graph.output, *graph.value_info)


def _is_map(kind: onnx.TypeProto) -> bool:
    chosen = kind.WhichOneof("value")
    if chosen in ("sequence_type", "optional_type"):
        return _is_map(getattr(kind, chosen).elem_type)
    return bool(chosen == "map_type")


def _scores(node: onnx.NodeProto, taken: set[str]) -> list[onnx.NodeProto]:
    """ZipMap as a Reshape to (rows, classes), and a Gather where the classes are not sorted."""
    attrs = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
    labels = list(attrs.get("classlabels_int64s") or attrs.get("classlabels_strings") or ())
    if not labels or len(node.input) != 1 or len(node.output) != 1:
        raise ConvertError(f"ZipMap {node.name!r}: expected one operand, one result and class labels; export it again")
    out, order = node.output[0], np.argsort(np.array(labels), kind="stable")
    shape = _fresh(f"{out}_shape", taken)
    made = [
        _constant(shape, np.array([-1, len(labels)])),
        onnx.helper.make_node("Reshape", [node.input[0], shape], [out], name=node.name),
    ]
    if np.any(order != np.arange(len(order))):
        scores, columns = _fresh(f"{out}_unsorted", taken), _fresh(f"{out}_columns", taken)
        made[-1].output[0] = scores
        made += [_constant(columns, order), onnx.helper.make_node("Gather", [scores, columns], [out], axis=1)]
    return made


def _fresh(name: str, taken: set[str]) -> str:
    while name in taken:
        name += "_"
    taken.add(name)
    return name


def _constant(name: str, values: np.ndarray) -> onnx.NodeProto:
    return onnx.helper.make_node("Constant", [], [name], value=onnx.numpy_helper.from_array(values, name))
