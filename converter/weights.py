"""Weights in safetensors files: into a model whose initialisers have their names, and back.

model = load_weights(from_torch(net, …), "model.safetensors")    a file, or a folder of the Hugging Face hub
save_weights(trainer.export(), "trained.safetensors", like="model.safetensors")
"""

from __future__ import annotations

import fnmatch
import json
import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx_ir as ir

from converter.errors import ConvertError
from converter.frontends.decoders.families import listed
from converter.frontends.safetensors.folder import tensors_of
from converter.frontends.safetensors.reader import Tensor, read
from converter.frontends.safetensors.writer import write

__all__ = ["load_weights", "save_weights", "saved"]

_KEY = "msedge.weights"
"""A graph's metadata: the names that a file of its weights has, and other names of tied ones."""
_UNUSED = ("*num_batches_tracked", "*rotary_emb.inv_freq", "*position_ids")
"""What files hold beside weights, and graphs compute or do not need."""


def saved(graph: ir.Graph, names: Sequence[str], tied: Mapping[str, str]) -> None:
    """Note in the graph which values a file of its weights has, and `tied`: other name -> the graph's name."""
    graph.metadata_props[_KEY] = json.dumps({"names": list(names), "tied": dict(tied)})


def load_weights(model: ir.Model, source: str | os.PathLike[str], *, keep: Sequence[str] = ()) -> ir.Model:
    """A copy of `model` with the weights of a safetensors file, or of a folder with one or with several and their
    index, converted to the model's dtypes.

    Names are equal, or differ by one prefix that the model's or the file's all have ("model.", "backbone."). `keep`:
    globs of weights that stay the model's own, such as a new head. Raises ConvertError for weights that the file lacks
    or the model has not, and for other shapes: nothing is loaded in part.
    """
    path = Path(source)
    held, copy = _read(path), model.clone()
    weights = _Weights(copy.graph)
    wanted = [name for name in weights.values if not any(fnmatch.fnmatchcase(name, glob) for glob in keep)]
    there = weights.names_in(held, wanted, path.name)
    known = {there.rule(name) for name in (*weights.values, *weights.tied)} | set(there.names.values())
    left = [n for n in held if n not in known and not any(fnmatch.fnmatchcase(n, glob) for glob in _UNUSED)]
    if left:
        raise ConvertError(
            f"{path.name}: expected weights of this model alone, got {listed(left)} too; it belongs to another model"
        )
    fitted = {name: _fitted(name, weights.tensor(name), held[t], path.name) for name, t in there.names.items()}
    for name, tensor in fitted.items():
        weights.put(name, tensor)
    return copy


def save_weights(
    model: ir.Model, path: str | os.PathLike[str], *, like: str | os.PathLike[str] | None = None
) -> list[str]:
    """Write a model's weights to a safetensors file, under their names; returns these.

    Of a model from PyTorch they are those of `state_dict`, except counts of batches, so that `load_state_dict` takes
    them. `like`: the file or folder from which weights were loaded: the new file has its names and dtypes, and its
    tensors that the model has not. Raises ConvertError.
    """
    weights = _Weights(model.graph)
    found = {name: weights.tensor(name).numpy() for name in weights.values}
    found |= {alias: found[name] for alias, name in weights.tied.items() if name in found}
    if like is None:
        tensors = {name: found[name] for name in weights.order if name in found}
    else:
        held = _read(Path(like))
        there = weights.names_in(held, list(weights.values), Path(like).name)
        ours = {there.rule(name): name for name in found} | {theirs: name for name, theirs in there.names.items()}
        tensors = {
            name: found[ours[name]].astype(tensor.array.dtype) if name in ours else tensor.array
            for name, tensor in held.items()
        }
    write(path, tensors)
    return list(tensors)


def _read(path: Path) -> Mapping[str, Tensor]:
    return tensors_of(path) if path.is_dir() else read(path)


class _There(NamedTuple):
    """`names`: a model's names -> a file's; `rule`: what makes one of the other."""

    names: dict[str, str]
    rule: Callable[[str], str]


class _Weights:
    """A graph's weights by name: initialisers, and results of Constant nodes that `saved` noted."""

    def __init__(self, graph: ir.Graph) -> None:
        noted: Mapping[str, Any] = json.loads(graph.metadata_props.get(_KEY, "{}"))
        held = {str(v.name): v for node in graph if node.op_type == "Constant" for v in node.outputs}
        held |= graph.initializers
        floats = [name for name, value in graph.initializers.items() if value.dtype and value.dtype.is_floating_point()]
        self.order: list[str] = noted.get("names", floats)
        self.tied: dict[str, str] = noted.get("tied", {})
        self.values = {name: held[name] for name in self.order if name in held and name not in self.tied}

    def tensor(self, name: str) -> ir.TensorProtocol:
        """The weight's data. Raises ConvertError without any."""
        value = self.values[name]
        node = value.producer()
        found = value.const_value if node is None else node.attributes["value"].as_tensor()
        if found is None:
            raise ConvertError(f"weight {name!r} has no data; load the model together with its external data file")
        return found

    def put(self, name: str, tensor: ir.TensorProtocol) -> None:
        """Replace the weight's data."""
        value = self.values[name]
        node = value.producer()
        if node is None:
            value.const_value = tensor
        else:
            node.attributes["value"] = ir.AttrTensor("value", tensor)

    def names_in(self, held: Mapping[str, Tensor], wanted: Sequence[str], where: str) -> _There:
        """The names of these weights in a file. Raises ConvertError for weights that it lacks."""
        others: dict[str, list[str]] = {}
        for alias, name in self.tied.items():
            others.setdefault(name, []).append(alias)
        best: _There | None = None
        for rule in _rules(wanted, held):
            tries = {name: [rule(n) for n in (name, *others.get(name, ()))] for name in wanted}
            names = {name: next((n for n in found if n in held), "") for name, found in tries.items()}
            found = _There({name: there for name, there in names.items() if there}, rule)
            if best is None or len(found.names) > len(best.names):
                best = found
        assert best is not None
        if missing := [name for name in wanted if name not in best.names]:
            raise ConvertError(
                f"{where}: expected a tensor {missing[0]!r}, got none; of {len(wanted)} weights it lacks "
                f"{len(missing)}: {listed(missing)}. Is it of this model? Weights that stay as they are: keep=[…]"
            )
        return best


def _rules(wanted: Sequence[str], held: Collection[str]) -> Iterator[Callable[[str], str]]:
    """Equal names, and one prefix more or less."""
    yield lambda name: name
    prefixes = {there[: -len(name)] for name in wanted[:8] for there in held if there.endswith(f".{name}")}
    for prefix in sorted(prefixes):
        yield lambda name, prefix=prefix: prefix + name  # type: ignore[misc]
    parts = [name.split(".") for name in wanted[:8]]
    for prefix in sorted({".".join(p[:k]) + "." for p in parts for k in range(1, len(p)) if ".".join(p[k:]) in held}):
        yield lambda name, prefix=prefix: name.removeprefix(prefix)  # type: ignore[misc]


def _fitted(name: str, old: ir.TensorProtocol, new: Tensor, where: str) -> ir.TensorProtocol:
    """The file's tensor in the model's dtype. Raises ConvertError for another shape or kind."""
    shape, dtype = tuple(old.shape.numpy()), old.dtype.numpy()
    if new.array.shape != shape:
        raise ConvertError(
            f"{where}, tensor {name!r}: expected shape {list(shape)}, as in the model, got {list(new.array.shape)}; "
            f"to leave it as it is: keep=[{name!r}]"
        )
    if (dtype.kind in "biu") != (new.array.dtype.kind in "biu"):
        raise ConvertError(f"{where}, tensor {name!r}: expected {dtype}, got {new.stored}")
    return ir.Tensor(np.array(new.array, dtype, order="C"), name=name)
