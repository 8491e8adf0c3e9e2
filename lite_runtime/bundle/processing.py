"""The processing that a bundle declares: how files become the model's inputs, and its outputs become answers.

A declaration is plain JSON under `metadata["pipelines"]`, for the signature `predict`:

    {"version": 1,
     "inputs":  [{"name": "image", "feeds": "x", "steps": [{"step": "image"}, {"step": "resize", "size": [224, 224]}]}],
     "outputs": [{"names": ["scores", "labels"], "of": ["logits"], "steps": [{"step": "softmax"},
                 {"step": "top_k", "k": 5, "labels": ["cat", "dog"]}]}]}

`name` is what clients send, `feeds` the model's input; `names` is what clients get, `of` the model's outputs that it is
made of. Inputs and outputs that are not named go through as they are. This module knows the words: the steps, their
options, and which values those may have. It trusts nothing, so that it serves writers and readers alike; what the steps
do is `edge.gateway.processing`.
"""

from __future__ import annotations

import math
import os
import tomllib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final, NoReturn

from lite_runtime.errors import MsedgeError
from lite_runtime.frozen import NamedTuple

__all__ = ["AFTER", "BEFORE", "KEY", "SOURCES", "VERSION", "ProcessingError", "check", "check_names", "load"]

KEY = "pipelines"
"""The key of the declaration in a bundle's metadata. It is part of the file format, so existing files keep it."""
VERSION = 1
_WHERE = "processing"
_MOST_STEPS, _MOST_ENTRIES, _MOST_LABELS, _LONGEST = 32, 64, 100_000, 1000


class ProcessingError(MsedgeError):
    """A declaration is invalid: an unknown step, an option out of bounds, names that do not fit the model."""


class Option(NamedTuple):
    """One option of a step. `read` returns the value as it is kept, or raises ValueError or TypeError."""

    read: Callable[[Any], Any]
    expected: str
    default: Any = ...
    """`...`: it must be given."""


# what values options may have


def _whole(low: int, high: int, default: Any = ...) -> Option:
    def read(value: Any) -> int:
        _need(type(value) is int and low <= value <= high)
        return int(value)

    return Option(read, f"a whole number {low}..{high}", default)


def _real(low: float, high: float, default: Any = ...) -> Option:
    def read(value: Any) -> float:
        _need(type(value) in (int, float) and low <= value <= high)
        return float(value)

    return Option(read, f"a number {low:g}..{high:g}", default)


def _optional(option: Option) -> Option:
    return Option(lambda value: None if value is None else option.read(value), option.expected, None)


def _choice(*words: str, default: Any = ...) -> Option:
    def read(value: Any) -> str:
        _need(type(value) is str and value in words)
        return str(value)

    return Option(read, f"one of {', '.join(words)}", default)


def _flag(default: bool) -> Option:
    def read(value: Any) -> bool:
        _need(type(value) is bool)
        return bool(value)

    return Option(read, "true or false", default)


def _many(item: Option, least: int, most: int, default: Any = ...) -> Option:
    """A list; a single value where one is enough."""

    def read(value: Any) -> list[Any]:
        values = [value] if type(value) is not list and least == 1 else value
        _need(type(values) is list and least <= len(values) <= most)
        return [item.read(v) for v in values]

    return Option(read, f"{least}..{most} of: {item.expected}", default)


def _labels() -> Option:
    def read(value: Any) -> list[str] | None:
        if value is None:
            return None
        _need(type(value) is list and 0 < len(value) <= _MOST_LABELS)
        _need(all(type(word) is str and len(word) <= _LONGEST for word in value))
        return list(value)

    return Option(read, f"1..{_MOST_LABELS} texts of up to {_LONGEST} characters", None)


def _need(right: bool) -> None:
    if not right:
        raise ValueError


_BIG: Final = 1e30
_SIDE = _whole(1, 8192)
_TYPES = ("uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64", "float16", "float32", "float64")
_SCALE = _real(1e-30, _BIG)

Options = Mapping[str, Option]
SOURCES: Mapping[str, Options] = {
    "image": {
        "mode": _choice("rgb", "bgr", "gray", default="rgb"),
        "max_pixels": _whole(1, 1 << 26, 1 << 25),
        "orientation": _flag(True),
        "base64": _flag(False),
    },
    "audio": {"rate": _whole(4000, 192_000), "max_seconds": _real(0.001, 36_000, 600.0), "base64": _flag(False)},
    "tensor": {
        "dtype": _choice("bool", *_TYPES, default="float32"),
        "shape": _many(_whole(-1, 1 << 24), 0, 8),
    },
}
"""Each input begins with one of these: what clients send."""
BEFORE: Mapping[str, Options] = {
    "resize": {
        "size": _many(_SIDE, 1, 2),
        "fit": _choice("stretch", "cover", "contain", "shorter", default="stretch"),
        "method": _choice("nearest", "bilinear", "bicubic", default="bilinear"),
        "antialias": _flag(True),
        "pad": _whole(0, 255, 0),
    },
    "crop": {"size": _many(_SIDE, 1, 2)},
    "normalize": {
        "scale": _real(-_BIG, _BIG, 1.0),
        "mean": _many(_real(-_BIG, _BIG), 1, 4096, [0.0]),
        "std": _many(_SCALE, 1, 4096, [1.0]),
    },
    "channels_first": {},
    "transpose": {"axes": _many(_whole(0, 7), 1, 8)},
    "expand": {"axis": _whole(0, 7)},
    "cast": {"dtype": _choice(*_TYPES)},
    "quantize": {
        "scale": _SCALE,
        "zero_point": _whole(-32768, 65535, 0),
        "dtype": _choice("uint8", "int8", "int16", "uint16", default="int8"),
    },
    "length": {"samples": _whole(1, 1 << 24)},
    "frames": {"length": _whole(1, 1 << 16), "hop": _whole(1, 1 << 16)},
    "spectrogram": {
        "fft": _whole(2, 1 << 15),
        "window": _optional(_whole(1, 1 << 15)),
        "hop": _whole(1, 1 << 16),
        "pad": _choice("none", "zero", "reflect", default="reflect"),
        "align": _choice("center", "start", default="center"),
        "power": _whole(1, 2, 2),
    },
    "mel": {
        "rate": _whole(4000, 192_000),
        "bands": _whole(1, 1024),
        "low": _real(0, 96_000, 0.0),
        "high": _optional(_real(1, 96_000)),
        "scale": _choice("htk", "slaney", default="htk"),
        "norm": _choice("none", "slaney", default="none"),
        "triangles": _choice("hz", "mel", default="hz"),
    },
    "log": {
        "unit": _choice("ln", "log10", "db", default="ln"),
        "floor": _real(1e-30, 1.0, 1e-10),
        "offset": _real(0.0, _BIG, 0.0),
        "range": _optional(_real(0.0, _BIG)),
    },
    "dct": {"coefficients": _whole(1, 1024), "scaling": _choice("orthonormal", "htk", default="orthonormal")},
}
"""What follows in an input: steps from one row to one row."""
AFTER: Mapping[str, Options] = {
    "dequantize": {"scale": _SCALE, "zero_point": _whole(-32768, 65535, 0)},
    "softmax": {},
    "sigmoid": {},
    "top_k": {"k": _whole(1, 10_000), "labels": _labels()},
    "argmax": {"labels": _labels()},
    "threshold": {"value": _real(-_BIG, _BIG, 0.5)},
    "nms": {
        "boxes": _choice("xyxy", "yxyx", "cxcywh", default="xyxy"),
        "iou": _real(0.0, 1.0, 0.5),
        "score": _real(-_BIG, _BIG, 0.25),
        "detections": _whole(1, 10_000, 100),
        "candidates": _whole(1, 10_000, 1000),
        "background": _optional(_whole(0, _MOST_LABELS)),
        "classes_first": _flag(False),
        "labels": _labels(),
    },
}
"""Steps of an output: from arrays of rows to arrays of rows."""


def check(document: Any) -> dict[str, Any]:
    """A declaration whole: every option there, every value within bounds. Raises ProcessingError for all else."""
    doc = _object(document, _WHERE, required=("version",), optional=("inputs", "outputs"))
    if type(doc["version"]) is not int or doc["version"] != VERSION:
        _refuse(f"{_WHERE}.version", str(VERSION), doc["version"], "use a newer msedge, or convert the model again")
    inputs = [_input(entry, f"{_WHERE}.inputs[{i}]") for i, entry in enumerate(_list(doc.get("inputs", []), "inputs"))]
    outputs = [_output(e, f"{_WHERE}.outputs[{i}]") for i, e in enumerate(_list(doc.get("outputs", []), "outputs"))]
    _once((i["name"] for i in inputs), "names of inputs")
    _once((i["feeds"] for i in inputs), "inputs that are fed")
    _once((name for o in outputs for name in o["names"]), "names of outputs")
    return {"version": VERSION, "inputs": inputs, "outputs": outputs}


def check_names(document: Mapping[str, Any], inputs: Iterable[str], outputs: Iterable[str]) -> None:
    """Whether what a checked declaration feeds and takes is the model's, and nothing goes by two names. Raises
    ProcessingError."""
    _known((i["feeds"] for i in document["inputs"]), inputs, "input")
    _known((name for o in document["outputs"] for name in o["of"]), outputs, "output")
    fed, taken = {i["feeds"] for i in document["inputs"]}, {name for o in document["outputs"] for name in o["of"]}
    _once((*(i["name"] for i in document["inputs"]), *(n for n in inputs if n not in fed)), "names of inputs")
    seen = (*(n for o in document["outputs"] for n in o["names"]), *(n for n in outputs if n not in taken))
    _once(seen, "names of outputs")


def load(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The declaration a TOML file holds, checked. A step's `labels_file`, a path seen from the file's folder, is read
    into its `labels`, a line each. Raises ProcessingError."""
    try:
        document = tomllib.loads(Path(path).read_text("utf-8"))
    except OSError as error:
        raise ProcessingError(f"cannot read {os.fspath(path)!r}: {error.strerror or error}; check the path") from None
    except ValueError as error:
        raise ProcessingError(f"{os.fspath(path)!r}: expected TOML in UTF-8: {error}") from None
    document.setdefault("version", VERSION)
    for entry in _list(document.get("outputs", []), "outputs"):
        for step in entry.get("steps", []) if type(entry) is dict else []:
            if type(step) is dict and "labels_file" in step:
                step["labels"] = _lines(Path(path).parent, step.pop("labels_file"))
    return check(document)


def _lines(folder: Path, name: Any) -> list[str]:
    if type(name) is not str:
        _refuse("labels_file", "a path", name)
    try:
        return (folder / name).read_text("utf-8").splitlines()
    except (OSError, ValueError) as error:
        raise ProcessingError(f"labels_file {name!r}: cannot read it as UTF-8 text: {error}") from None


# the parts of a declaration


def _input(entry: Any, where: str) -> dict[str, Any]:
    doc = _object(entry, where, required=("name", "feeds", "steps"))
    steps = _list(doc["steps"], f"{where}.steps", _MOST_STEPS)
    if not steps:
        _refuse(f"{where}.steps", f"a first step of {', '.join(SOURCES)}", "none")
    read = [_step(step, SOURCES if not i else BEFORE, f"{where}.steps[{i}]") for i, step in enumerate(steps)]
    return {"name": _name(doc["name"], where), "feeds": _name(doc["feeds"], where), "steps": read}


def _output(entry: Any, where: str) -> dict[str, Any]:
    doc = _object(entry, where, required=("names", "of"), optional=("steps",))
    steps = _list(doc.get("steps", []), f"{where}.steps", _MOST_STEPS)
    read = [_step(step, AFTER, f"{where}.steps[{i}]") for i, step in enumerate(steps)]
    return {"names": _names(doc["names"], where), "of": _names(doc["of"], where), "steps": read}


def _step(step: Any, known: Mapping[str, Options], where: str) -> dict[str, Any]:
    if type(step) is not dict or type(step.get("step")) is not str or step["step"] not in known:
        _refuse(where, f"a step of {', '.join(known)}", step.get("step") if type(step) is dict else step)
    options, where = known[step["step"]], f"{where} ({step['step']})"
    required = [name for name, option in options.items() if option.default is ...]
    _object(step, where, ("step", *required), tuple(options))
    return {"step": step["step"]} | {name: _value(step, name, option, where) for name, option in options.items()}


def _value(step: Mapping[str, Any], name: str, option: Option, where: str) -> Any:
    given = step.get(name, option.default)
    try:
        return option.read(None if given is ... else given)
    except (ValueError, TypeError):
        _refuse(f"{where}.{name}", option.expected, given)


def _object(value: Any, where: str, required: tuple[str, ...], optional: tuple[str, ...] = ()) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        _refuse(where, "an object", value)
    for name in required:
        if name not in value:
            _refuse(where, f"{name!r} in it", ", ".join(map(str, value)) or "nothing")
    for name in value:
        if name not in required and name not in optional:
            _refuse(where, f"only {', '.join(dict.fromkeys((*required, *optional)))}", name)
    return value


def _list(value: Any, where: str, most: int = _MOST_ENTRIES) -> list[Any]:
    if type(value) is not list or len(value) > most:
        _refuse(where, f"a list of at most {most}", value)
    return value


def _names(value: Any, where: str) -> list[str]:
    names = [value] if type(value) is str else _list(value, where)
    if not names:
        _refuse(where, "at least one name", "none")
    return [_name(name, where) for name in names]


def _name(value: Any, where: str) -> str:
    if type(value) is not str or not 0 < len(value) <= _LONGEST:
        _refuse(where, f"a name of 1..{_LONGEST} characters", value)
    return value


def _once(names: Iterable[str], what: str) -> None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            _refuse(_WHERE, f"{what} once each", f"{name!r} twice")
        seen.add(name)


def _known(names: Iterable[str], there: Iterable[str], what: str) -> None:
    for name in names:
        if name not in there:
            _refuse(_WHERE, f"an {what} of the model ({', '.join(there)})", name)


def _refuse(where: str, expected: str, got: Any, fix: str = "") -> NoReturn:
    shown = got if isinstance(got, str) else repr(got)
    shown = "a number that is not finite" if isinstance(got, float) and not math.isfinite(got) else shown
    raise ProcessingError(f"{where}: expected {expected}, got {shown[:80]}{'; ' * bool(fix)}{fix}")
