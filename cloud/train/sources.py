"""What a configuration's [model] and [data] name, brought here: models, arrays, pipelines."""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from cloud import zoo
from cloud.errors import TrainError
from cloud.track.digests import digest_of_arrays, digest_of_file
from cloud.train.config import Config
from cloud.train.digits import load_digits_split
from cloud.train.sections import closest, need

__all__ = ["Examples", "examples_of", "model_of", "named_function"]

Arrays = dict[str, npt.NDArray[Any]]


@dataclass(frozen=True)
class Examples:
    """Training data and, where there is any, validation data, as `Trainer.fit` takes them; `count` examples are trained
    on (0: only reading tells); `digest` names the contents, "" where nothing does; `sample`: some inputs by name."""

    train: Any
    validation: Any
    count: int
    digest: str
    sample: Mapping[str, npt.NDArray[Any]] | None


def named_function(text: str, folder: Path, key: str) -> Callable[..., Any]:
    """The function that "module:function" names; modules are looked for in `folder` too. Raises TrainError."""
    module, colon, name = text.partition(":")
    need(bool(colon and module and name), key, '"module:function"', text)
    sys.path.insert(0, str(folder))
    try:
        found = getattr(importlib.import_module(module), name, None)
    except ModuleNotFoundError as error:
        if error.name is None or not (module == error.name or module.startswith(f"{error.name}.")):
            raise
        raise TrainError(f"{key}: there is no module {module!r} in {str(folder)!r} or where Python looks") from error
    finally:
        sys.path.remove(str(folder))
    if not callable(found):
        raise TrainError(f"{key}: expected a function {name!r} in module {module!r}, got {type(found).__name__}")
    made: Callable[..., Any] = found
    return made


def model_of(config: Config) -> tuple[Any, str]:
    """What [model] names, and its file's digest ("" where there is no file)."""
    said = config.model
    if said.onnx:
        path = config.path(said.onnx)
        try:
            return ir.load(path), digest_of_file(path)
        except Exception as error:  # ONNX's readers raise whatever comes
            raise TrainError(f"model.onnx: cannot read {str(path)!r}: {error}; check the path") from error
    if said.function:
        return _called(named_function(said.function, config.folder, "model.function"), said.options, "model"), ""
    builders = {name: getattr(zoo, name) for name in zoo.__all__ if name.islower()}
    if said.zoo not in builders:
        raise TrainError(f"model.zoo: no such model {said.zoo!r}{closest(said.zoo, builders)}")
    builder = builders[said.zoo]
    options = {"seed": config.train.seed, **said.options}
    return _called(builder, {name: _hashable(value) for name, value in options.items()}, "model"), ""


def _hashable(value: Any) -> Any:
    """TOML's lists as the tuples that builders take."""
    return tuple(map(_hashable, value)) if isinstance(value, list) else value


def _called(function: Callable[..., Any], options: Mapping[str, Any], where: str) -> Any:
    try:
        inspect.signature(function).bind(**options)
    except TypeError as error:
        known = ", ".join(inspect.signature(function).parameters) or "none"
        raise TrainError(f"{where}.options: {error}; {function.__name__} takes {known}") from error
    try:
        return function(**options)
    except (TypeError, ValueError, IndexError) as error:
        raise TrainError(f"{where}.options: {function.__name__} does not take these values: {error}") from error


def examples_of(config: Config, model: Any) -> Examples:
    """What [data] names, in the shapes and dtypes that `model` takes where it says so (an `onnx_ir.Model` does)."""
    said = config.data
    if said.function:
        given = _called(named_function(said.function, config.folder, "data.function"), said.options, "data")
        return _given(given, config)
    takes = _taken(model)
    if said.builtin:
        return _digits(config, takes)
    if said.text:
        return _text(config, takes)
    return _npz(config, takes)


def _taken(model: Any) -> dict[str, tuple[tuple[int | None, ...], np.dtype[Any]]]:
    """Shape behind the batch and dtype of a model's inputs, by name; {"x": anything} where it does not say."""
    if not isinstance(model, ir.Model):
        return {}
    weights = set(model.graph.initializers)
    return {
        value.name: (
            tuple(d if isinstance(d, int) else None for d in value.shape[1:]), value.dtype.numpy(),
        )
        for value in model.graph.inputs
        if value.name and value.name not in weights and value.shape is not None and value.dtype is not None
    }  # fmt: skip


Taken = Mapping[str, tuple[tuple[int | None, ...], np.dtype[Any]]]


def _given(given: Any, config: Config) -> Examples:
    """What a user's function gave: a pipeline, (inputs, labels), or two of these."""
    pair = isinstance(given, tuple | list) and len(given) == 2
    if pair and all(hasattr(part, "batches") or (isinstance(part, tuple | list) and len(part) == 2) for part in given):
        train, validation = given
        return Examples(train, validation, _count(train), _digest(train), _sample(train))
    if hasattr(given, "batches"):
        return Examples(given, None, 0, _digest(given), None)
    if not pair:
        raise TrainError(
            "data.function: expected (inputs, labels), a pipeline, or a pair of such for training and validation; got "
            f"{type(given).__name__}"
        )
    inputs = dict(given[0]) if isinstance(given[0], Mapping) else {"x": given[0]}
    arrays, labels = {name: np.asarray(array) for name, array in inputs.items()}, np.asarray(given[1])
    made = _split(arrays, labels, config, _digest(given))
    if isinstance(given[0], Mapping):
        return made
    held = None if made.validation is None else (made.validation[0]["x"], made.validation[1])
    return Examples((made.train[0]["x"], made.train[1]), held, made.count, made.digest, None)


def _count(data: Any) -> int:
    return 0 if hasattr(data, "batches") else len(data[1])


def _digest(data: Any) -> str:
    if hasattr(data, "batches"):
        said = getattr(data, "digest", "")
        return str(said() if callable(said) else said)
    inputs = dict(data[0]) if isinstance(data[0], Mapping) else {"x": data[0]}
    return digest_of_arrays({**inputs, "labels": data[1]})


def _sample(data: Any) -> Mapping[str, npt.NDArray[Any]] | None:
    return None if hasattr(data, "batches") or not isinstance(data[0], Mapping) else _some(data[0])


_SAMPLE = 200
"""Examples that ranges are measured on when a bundle is quantised."""


def _some(inputs: Mapping[str, Any]) -> dict[str, npt.NDArray[Any]]:
    return {name: np.asarray(array[:_SAMPLE]) for name, array in inputs.items()}


def _digits(config: Config, takes: Taken) -> Examples:
    name, (shape, _) = next(iter(takes.items()), ("x", ((1, 8, 8), None)))
    side = shape[-1] if len(shape) == 3 and isinstance(shape[-1], int) else 8
    split = load_digits_split(config.train.seed, side, config.data.validation or 0.1)
    whole = {"x": split.x, "held": split.held_out_x}
    train, held = ({name: _fitted(whole[key], takes.get(name), config, name)} for key in whole)
    labels, held_labels = split.y, split.held_out_y
    if not config.data.validation:
        train = {name: np.concatenate([train[name], held[name]])}
        labels = np.concatenate([labels, held_labels])
    train, labels = _limited(train, labels, config)
    validation = (held, held_labels) if config.data.validation else None
    digest = digest_of_arrays({name: np.concatenate([split.x, split.held_out_x])})
    return Examples((train, labels), validation, len(labels), digest, _some(train))


def _npz(config: Config, takes: Taken) -> Examples:
    said, path = config.data, config.path(config.data.npz)
    digest = digest_of_file(path)
    try:
        with np.load(path, allow_pickle=False) as file:
            held = {name: file[name] for name in file.files}
    except (ValueError, OSError, EOFError) as error:
        raise TrainError(f"data.npz: cannot read {str(path)!r} as .npz: {error}") from error

    def arrays(inputs: Mapping[str, Any], labels: str, keys: str) -> tuple[Arrays, npt.NDArray[Any]]:
        wanted = dict(inputs) or {name: name for name in list(takes) or ["x"]}
        for name in [*wanted.values(), labels]:
            if name not in held:
                raise TrainError(f"data.{keys}: the file {said.npz!r} has no array {name!r}{closest(name, held)}")
        return (
            {name: _fitted(held[key], takes.get(name), config, name) for name, key in wanted.items()},
            _whole(held[labels]),
        )

    inputs, labels = arrays(said.inputs, said.labels, "inputs and data.labels")
    if not said.validation_labels:
        return _split(inputs, labels, config, digest)
    inputs, labels = _limited(inputs, labels, config)
    validation = arrays(said.validation_inputs, said.validation_labels, "validation_inputs and validation_labels")
    return Examples((inputs, labels), validation, len(labels), digest, _some(inputs))


def _whole(labels: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Whole numbers as int32, which JAX computes with."""
    return labels.astype(np.int32) if labels.dtype.kind in "iu" else labels


def _fitted(array: npt.NDArray[Any], wanted: Any, config: Config, name: str) -> npt.NDArray[Any]:
    """`array` in the dtype and shape that the model takes: axes of 1 come and go, whole numbers become floats."""
    if wanted is None:
        return array
    shape, dtype = wanted
    if dtype.kind == "f" and array.dtype.kind in "iub":
        array = array.astype(dtype) * dtype.type(config.data.scale) + dtype.type(config.data.offset)
    elif array.dtype.kind == dtype.kind or (array.dtype.kind in "iu" and dtype.kind in "iu"):
        array = array.astype(dtype, copy=False)
    else:
        raise TrainError(f"data: the model takes {dtype} for {name!r}, got {array.dtype}")
    known = [d for d in shape if d != 1]
    found = [d for d in array.shape[1:] if d != 1]
    fits = len(known) == len(found) and all(k in (None, f) for k, f in zip(known, found, strict=True))
    if not fits:
        words = "×".join("?" if d is None else str(d) for d in shape)
        raise TrainError(f"data: the model takes examples of {words} for {name!r}, got {array.shape[1:]}")
    sizes = iter(found)
    return array.reshape(len(array), *(1 if d == 1 else next(sizes) for d in shape))


def _limited(inputs: Arrays, labels: npt.NDArray[Any], config: Config) -> tuple[Arrays, npt.NDArray[Any]]:
    most = config.data.limit or len(labels)
    return {name: array[:most] for name, array in inputs.items()}, labels[:most]


def _split(inputs: Arrays, labels: npt.NDArray[Any], config: Config, digest: str) -> Examples:
    """A share of the examples held out, drawn by the seed."""
    inputs, labels = _limited(inputs, labels, config)
    held = round(config.data.validation * len(labels))
    if not held:
        return Examples((inputs, labels), None, len(labels), digest, _some(inputs))
    order = np.random.default_rng((config.train.seed, 0x5EED)).permutation(len(labels))
    kept, out = np.sort(order[held:]), np.sort(order[:held])
    train, validation = ({name: array[rows] for name, array in inputs.items()} for rows in (kept, out))
    return Examples((train, labels[kept]), (validation, labels[out]), len(kept), digest, _some(train))


def _text(config: Config, takes: Taken) -> Examples:
    """Windows side by side; validation is the text's end."""
    path, length = config.path(config.data.text), config.data.length
    digest = digest_of_file(path)
    data = np.frombuffer(path.read_bytes(), np.uint8).astype(np.int32)
    count = (len(data) - 1) // length
    held = round(config.data.validation * count)
    if count - held < 1:
        raise TrainError(f"data.text: {config.data.text!r} has {len(data)} bytes: too few for windows of {length}")
    x, y = (data[at : at + count * length].reshape(count, length) for at in (0, 1))
    name = next(iter(takes), "x")
    x = _fitted(x, takes.get(name), config, name)
    train, labels = _limited({name: x[: count - held]}, y[: count - held], config)
    validation = ({name: x[count - held :]}, y[count - held :]) if held else None
    return Examples((train, labels), validation, len(labels), digest, _some(train))
