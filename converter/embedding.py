"""Embedding models: an encoder and its tokenizer as one bundle, which says how a text becomes a vector.

    convert("model.onnx", embedding=Embedding("tokenizer.json"), output="model.mslite")

`frontends.embedding` has the options, `lite_runtime.language.embedding.recipe` defines what the bundle says.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import fields, replace
from typing import Any

import onnx_ir as ir

from converter.errors import ConvertError
from converter.frontends.embedding import Embedding, Pooling
from converter.frontends.language import from_tokenizer_json
from converter.frontends.loaded import Loaded, read
from converter.ir import build
from converter.quantize import Options
from lite_runtime.language.embedding.recipe import KEY, MOST, NEEDED, Recipe
from lite_runtime.language.tokenizers import SECTION, Description, pack

__all__ = ["declared", "embedded"]

_INPUTS = {"input_ids": "ids", "attention_mask": "mask", "token_type_ids": "types", "position_ids": "positions"}
"""What inputs are for, by the names that exporters give them."""
_STATES, _VECTORS = ("last_hidden_state", "token_embeddings"), ("sentence_embedding",)
"""Names of the outputs that are meant, where a graph has several: states of tokens, vectors of texts."""


def declared(loaded: Loaded, wanted: Embedding | None, context: int | None) -> Loaded:
    """The source with what the caller says of its embedding, which comes before what the source says. context: the
    option of a conversion, the most tokens of a text. Raises ConvertError for a language model."""
    if wanted is None and loaded.embedding is None:
        return loaded
    if loaded.language:
        raise ConvertError(f"embedding: expected an encoder in ONNX, got a language model ({loaded.format}); omit it")
    own = wanted or Embedding()
    if context is not None and own.tokens not in (None, context):
        raise ConvertError(f"context: expected the embedding's {own.tokens} tokens, got {context}; give one of them")
    given = {f.name: value for f in fields(own) if (value := getattr(own, f.name)) is not None}
    tokens = {} if context is None else {"tokens": context}
    return replace(loaded, embedding=replace(loaded.embedding or Embedding(), **{**given, **tokens}))


def embedded(loaded: Loaded, models: Mapping[str, ir.Model], quantize: Options, given: Mapping[str, Any]) -> Loaded:
    """A source that is `declared` with a tokenizer and what makes vectors, checked against its graph, of which only the
    output that is needed stays; any other source as it is. given: other options of the conversion, by name. Raises
    ConvertError for what does not fit."""
    options = loaded.embedding
    if options is None:
        return loaded
    _need_plain(given, quantize)
    if len(models) != 1:
        raise ConvertError(f"embedding: expected a source of one signature, got {', '.join(models)}; omit it")
    ((signature, model),) = models.items()
    if signature != "predict":
        raise ConvertError(f"embedding: expected the signature predict, got {signature}; export the model to ONNX")
    description, held = _tokenizer(options.tokenizer)
    inputs = _inputs(model.graph)
    output, pooling = _output(model.graph, options.pooling)
    recipe = Recipe(
        pooling=pooling,
        normalize=options.normalize is not False,
        tokens=options.tokens or _limit(held),
        dimensions=_dimensions(output),
        inputs=inputs,
        output=output.name or "",
        prompt=options.prompt or "",
    )
    _check_room(model.graph, recipe, description)
    model.graph.outputs[:] = [output]
    return replace(
        loaded,
        metadata={**loaded.metadata, KEY: recipe._asdict()},
        sections={**loaded.sections, SECTION: pack(description)},
    )


def _need_plain(given: Mapping[str, Any], quantize: Options) -> None:
    """Refuse options of a conversion that do not go together with an embedding."""
    used = [name for name in ("to", "trainable", "processing", "state") if given.get(name)]
    if quantize.io != "float32":
        used.append("io")
    if used:
        raise ConvertError(f"{', '.join(used)}: expected none for an embedding model; omit it")


def _tokenizer(source: str | os.PathLike[str] | bytes | None) -> tuple[Description, Mapping[str, Any]]:
    """The description, and the JSON that it was made from."""
    if source is None:
        raise ConvertError("tokenizer: an embedding model needs one; give its tokenizer.json")
    data = source if isinstance(source, bytes) else read(source)
    description = from_tokenizer_json(data)
    return description, json.loads(data)


def _limit(held: Mapping[str, Any]) -> int:
    cut = held.get("truncation")
    found = cut.get("max_length") if isinstance(cut, Mapping) else None
    if type(found) is not int or not 0 < found <= MOST:
        raise ConvertError("tokens: tokenizer.json does not say how many tokens a text may have; give it (--context N)")
    return found


def _inputs(graph: ir.Graph) -> dict[str, str]:
    """The graph's inputs by role."""
    names = [value.name or "" for value in graph.inputs]
    roles = {_INPUTS[name]: name for name in names if name in _INPUTS}
    if len(roles) < len(names) or not roles.keys() >= set(NEEDED):
        raise ConvertError(
            f"embedding: expected the inputs input_ids and attention_mask, and none but {', '.join(list(_INPUTS)[2:])}"
            f" beside them, got {', '.join(names)}; export the encoder with these"
        )
    for value in graph.inputs:
        if value.dtype not in (ir.DataType.INT64, ir.DataType.INT32) or build.rank(value) != 2:
            got = f"{value.dtype} {build.dims(value)}"
            raise ConvertError(f"input {value.name!r}: expected int64 or int32 [texts, tokens], got {got}")
    return roles


def _output(graph: ir.Graph, pooling: Pooling | None) -> tuple[ir.Value, Pooling]:
    """The output that vectors are made of, and how."""
    states, vectors = ([v for v in graph.outputs if _is_float(v) and build.rank(v) == rank] for rank in (3, 2))
    if pooling is None:
        pooling = "none" if vectors and not states else "mean"
    found, names = (vectors, _VECTORS) if pooling == "none" else (states, _STATES)
    named = [value for name in names for value in found if value.name == name]
    if not named and len(found) != 1:
        axes = "[texts, dimensions]" if pooling == "none" else "[texts, tokens, dimensions]"
        got = ", ".join(f"{v.name} {v.dtype} {build.dims(v)}" for v in graph.outputs)
        raise ConvertError(
            f"embedding: pooling {pooling} needs one output of float32 {axes}, or one named {' or '.join(names)}, got"
            f" {got}; choose another pooling, or export the model with such an output"
        )
    return (named or found)[0], pooling


def _is_float(value: ir.Value) -> bool:
    return value.dtype == ir.DataType.FLOAT


def _dimensions(output: ir.Value) -> int:
    size = (build.dims(output) or (None,))[-1]
    if not isinstance(size, int) or not 0 < size <= MOST:
        raise ConvertError(f"output {output.name!r}: expected vectors of a known size up to {MOST}, got {size}")
    return size


def _check_room(graph: ir.Graph, recipe: Recipe, description: Description) -> None:
    """Refuse a tokenizer with more ids than the model's table, a graph of fixed sizes for shorter texts, and a limit
    without room for a text."""
    ids = next(value for value in graph.inputs if value.name == recipe.inputs["ids"])
    rows, known = list(_tables(ids)), len(description.tokens)
    if rows and min(rows) < known:
        raise ConvertError(
            f"tokenizer: expected at most the {min(rows)} tokens that the model has, got {known}; give this"
            " model's tokenizer.json"
        )
    fixed = (build.dims(ids) or (None, None))[1]
    if isinstance(fixed, int) and fixed < recipe.tokens:
        raise ConvertError(
            f"input {ids.name!r}: expected room for {recipe.tokens} tokens, got {fixed}; give fewer (--context {fixed})"
        )
    around = len(description.template["single"]) - 1
    if recipe.tokens <= around:
        raise ConvertError(f"tokens: expected more than the {around} that the tokenizer adds, got {recipe.tokens}")


def _tables(ids: ir.Value) -> Iterator[int]:
    """The known numbers of rows of the tables that token ids look up."""
    for node, operand in ids.uses():
        table = build.dims(node.inputs[0]) if build.is_op(node, "Gather") and operand == 1 else None
        if table and isinstance(table[0], int):
            yield table[0]
