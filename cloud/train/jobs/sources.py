"""Loading what a configuration's [model] and [data] name: models, arrays, data pipelines."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from cloud import zoo
from cloud.data.reading.sources import npz_arrays
from cloud.errors import TrainError
from cloud.track.digests import digest_of_arrays, digest_of_file
from cloud.train.inputs.digits import load_digits_split
from cloud.train.inputs.weights import with_weights
from cloud.train.jobs import streamed
from cloud.train.jobs.config import Config
from cloud.train.jobs.examples import (
    Arrays,
    Examples,
    Labels,
    Taken,
    count_of,
    fitted,
    limited,
    some,
    split,
    taken,
    whole,
)
from cloud.train.jobs.graphs import graph_of
from cloud.train.jobs.named import called, named_function
from federated.tables import closest

__all__ = ["Examples", "examples_of", "model_of"]


def model_of(config: Config) -> tuple[Any, str]:
    """The model of [model], and its file's digest ("" without a file)."""
    said = config.model
    if said.onnx:
        path = config.path(said.onnx)
        return graph_of(path, config.train.batch), digest_of_file(path)
    if said.function:
        return called(named_function(said.function, config.folder, "model.function"), said.options, "model"), ""
    builders = {name: getattr(zoo, name) for name in zoo.__all__ if name.islower()}
    if said.zoo not in builders:
        raise TrainError(f"model.zoo: no such model {said.zoo!r}{closest(said.zoo, builders)}")
    builder = builders[said.zoo]
    options = {"seed": config.train.seed, **said.options}
    return called(builder, {name: _hashable(value) for name, value in options.items()}, "model"), ""


def _hashable(value: Any) -> Any:
    """TOML's lists as the tuples that builders take."""
    return tuple(map(_hashable, value)) if isinstance(value, list) else value


def examples_of(config: Config, model: Any) -> Examples:
    """The data of [data], in the shapes and dtypes that `model` specifies, if it does (an `onnx_ir.Model` does).

    Raises TrainError or DataError.
    """
    takes = taken(model)
    return next(read(config, takes) for name, read in _READERS.items() if getattr(config.data, name))


def _function(config: Config, takes: Taken) -> Examples:
    """The result of a user's function: a pipeline, (inputs, labels), or two of these."""
    said = config.data
    given = called(named_function(said.function, config.folder, "data.function"), said.options, "data")
    if _is_pipeline(given):
        return Examples(given, None, 0, _digest(given), None)
    if not _is_part(given):
        raise TrainError(
            "data.function: expected (inputs, labels), (inputs, labels, weights), a pipeline, or a pair of such for "
            f"training and validation; got {type(given).__name__}"
        )
    if not _is_pair(given) or not all(_is_part(part) for part in given):
        inputs, labels = _arrays(given, config, takes)
        return split(inputs, labels, config, _digest((inputs, labels)))
    train, held = (part if _is_pipeline(part) else _arrays(part, config, takes) for part in given)
    if _is_pipeline(train):
        return Examples(train, held, 0, _digest(train), None)
    return Examples(train, held, count_of(train[1]), _digest(train), some(train[0]))


def _is_pipeline(data: Any) -> bool:
    return hasattr(data, "batches")


def _is_pair(data: Any) -> bool:
    return isinstance(data, tuple | list) and len(data) == 2


def _is_part(data: Any) -> bool:
    """A pipeline, (inputs, labels) or (inputs, labels, weights)."""
    return _is_pipeline(data) or (isinstance(data, tuple | list) and len(data) in (2, 3))


def _arrays(given: Any, config: Config, takes: Taken) -> tuple[Arrays, Labels]:
    """(inputs, labels) as the model takes them; weights are among the labels."""
    inputs = given[0] if isinstance(given[0], Mapping) else {next(iter(takes)): given[0]}
    found = {name: fitted(np.asarray(a), takes.get(name), config.data, name) for name, a in inputs.items()}
    said = given[1]
    labels = {n: np.asarray(a) for n, a in said.items()} if isinstance(said, Mapping) else np.asarray(said)
    return found, whole(labels if len(given) == 2 else with_weights(labels, given[2]))


def _digest(data: Any) -> str:
    if not _is_pipeline(data):
        return digest_of_arrays({**data[0], **_flat(data[1])})
    said = getattr(data, "digest", "")
    return str(said() if callable(said) else said)


def _flat(labels: Labels) -> Arrays:
    return {f"labels.{n}": array for n, array in labels.items()} if isinstance(labels, dict) else {"labels": labels}


def _digits(config: Config, takes: Taken) -> Examples:
    name, wanted = next(iter(takes.items()))
    shape = wanted[0] if wanted is not None else (1, 8, 8)
    side = shape[-1] if len(shape) == 3 and isinstance(shape[-1], int) else 8
    found = load_digits_split(config.train.seed, side, config.data.validation or 0.1)
    train, held = ({name: fitted(x, takes.get(name), config.data, name)} for x in (found.x, found.held_out_x))
    labels: Labels = found.y
    if not config.data.validation:
        train = {name: np.concatenate([train[name], held[name]])}
        labels = np.concatenate([found.y, found.held_out_y])
    train, labels = limited(train, labels, config)
    validation = (held, found.held_out_y) if config.data.validation else None
    digest = digest_of_arrays({name: np.concatenate([found.x, found.held_out_x])})
    return Examples((train, labels), validation, count_of(labels), digest, some(train))


def _npz(config: Config, takes: Taken) -> Examples:
    said, path = config.data, config.path(config.data.npz)
    digest, held = digest_of_file(path), npz_arrays(path)

    def arrays(
        inputs: Mapping[str, Any], labels: str | Mapping[str, str], weights: str, keys: str
    ) -> tuple[Arrays, Labels]:
        wanted = dict(inputs) or {name: name for name in list(takes)}
        named = dict(labels) if isinstance(labels, Mapping) else {"": labels}
        for name in [*wanted.values(), *named.values(), *([weights] if weights else [])]:
            if name not in held:
                raise TrainError(f"data.{keys}: the file {said.npz!r} has no array {name!r}{closest(name, held)}")
        several = {name: held[key] for name, key in named.items()}
        found: Labels = several.get("", several)
        return (
            {name: fitted(held[key], takes.get(name), config.data, name) for name, key in wanted.items()},
            whole(with_weights(found, held[weights]) if weights else found),
        )

    inputs, labels = arrays(said.inputs, said.labels, said.weights, "inputs, labels and weights")
    if not said.validation_labels:
        return split(inputs, labels, config, digest)
    inputs, labels = limited(inputs, labels, config)
    validation = arrays(said.validation_inputs, said.validation_labels, "", "validation_inputs and validation_labels")
    return Examples((inputs, labels), validation, count_of(labels), digest, some(inputs))


def _text(config: Config, takes: Taken) -> Examples:
    """Adjacent windows; validation uses the end of the text."""
    path, length = config.path(config.data.text), config.data.length
    digest = digest_of_file(path)
    data = np.frombuffer(path.read_bytes(), np.uint8).astype(np.int32)
    count = (len(data) - 1) // length
    held = round(config.data.validation * count)
    if count - held < 1:
        raise TrainError(f"data.text: {config.data.text!r} has {len(data)} bytes: too few for windows of {length}")
    x, y = (data[at : at + count * length].reshape(count, length) for at in (0, 1))
    name = next(iter(takes))
    x = fitted(x, takes.get(name), config.data, name)
    train, labels = limited({name: x[: count - held]}, y[: count - held], config)
    validation = ({name: x[count - held :]}, y[count - held :]) if held else None
    return Examples((train, labels), validation, len(labels), digest, some(train))


_READERS: Mapping[str, Callable[[Config, Taken], Examples]] = {
    "builtin": _digits, "npz": _npz, "text": _text, "folder": streamed.folder, "records": streamed.records,
    "function": _function,
}  # fmt: skip
"""One row per source."""
