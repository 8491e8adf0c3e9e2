"""The optional section `calibration` of a bundle, as JSON:

    {"version": 1, "of": HEX, "signature": "predict", "output": "logits", "kind": "logits", "temperature": 1.4,
     "energy": {"threshold": -3.2, "false_alarms": 0.05},
     "mahalanobis": {"output": "features", "threshold": 31.5, "false_alarms": 0.05, "means": ARRAY, "whitener": ARRAY}}

`energy` and `mahalanobis` are optional. ARRAY is {"shape": [rows, columns], "data": float32 in row-major order, little
endian, in Base64}. `of` is the digest of the bundle without this section and without signatures: whoever changes the
weights, or anything else, invalidates the calibration, which was measured on what the bundle was.

The section is not flagged as required: an msedge that does not know it skips it. It is part of the contents, so the
bundle's digest changes with it, and signatures of the bundle without it do not hold.
"""

from __future__ import annotations

import base64
import binascii
import json
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from lite_runtime.bundle.layout import BUNDLE, SIGNATURE, Row, cut, digest_of, rows_of, table_digest, table_of
from lite_runtime.bundle.opening import Source, opened
from lite_runtime.bundle.reading import read
from lite_runtime.bundle.refusal import mapping_of, object_of, refuse, show, string_of
from lite_runtime.bundle.strict import parsed
from lite_runtime.bundle.writing import laid_out
from lite_runtime.errors import BundleError
from lite_runtime.frozen import NamedTuple
from lite_runtime.graph import Array, Graph

__all__ = ["MOST_BYTES", "SECTION", "Calibration", "Mahalanobis", "Threshold", "calibration_of", "check_outputs",
           "with_calibration"]  # fmt: skip

SECTION, VERSION = "calibration", 1
MOST_BYTES, MOST_CLASSES, MOST_FEATURES = 1 << 24, 1 << 14, 2048
COLDEST, HOTTEST = 1e-3, 1e3
"""Bounds of a temperature."""
_WHERE = f"section {SECTION!r}"
_KINDS = ("logits", "probabilities")
_FLOATS = ("float16", "bfloat16", "float32", "float64")
_AGAIN = "fit the calibration again"


class Threshold(NamedTuple):
    """A score above `threshold` is out of distribution; inputs like those of the fit are above it in the share
    `false_alarms`."""

    threshold: float
    false_alarms: float


class Mahalanobis(NamedTuple):
    """Distances in an output (n, size) of the signature. means: (classes, size) float32; whitener: (size, size)
    float32, see `scores.mahalanobis`."""

    output: str
    means: Array
    whitener: Array
    above: Threshold


class Calibration(NamedTuple):
    """How confidence follows from the outputs of a signature. output: the one that holds the classes' scores, (n,
    classes) or (classes,). kind: whether these are logits or probabilities."""

    output: str
    temperature: float
    kind: str = "logits"
    signature: str = "predict"
    energy: Threshold | None = None
    mahalanobis: Mahalanobis | None = None


def with_calibration(source: Source, calibration: Calibration | None) -> bytes:
    """The bytes of a bundle with this calibration instead of the one it may have; None: without any.

    All other sections stay byte for byte, except for signatures of the file, which are dropped, because they are
    signatures of other contents: sign the result. Raises BundleError for a damaged bundle, and for a calibration that
    is invalid or does not fit the bundle's outputs.
    """
    file = opened(source)
    rows, needs = rows_of(file.data)
    kept = [row for row in rows if row.name not in (SECTION, SIGNATURE)]
    contents: list[bytes | bytearray | memoryview] = [cut(file.data, file.sections[row.name]) for row in kept]
    if calibration is not None:
        raw = _encoded(calibration, _identity(file.data))
        check_outputs(_decoded(raw)[0], read(file).signatures)
        first = next(i for i, row in enumerate(kept) if _follows(row.name))
        kept.insert(first, Row(SECTION, len(raw), 0, needs, digest_of(raw)))
        contents.insert(first, raw)
    return laid_out(kept, contents, needs, BUNDLE)


def _follows(name: str) -> bool:
    """Whether a section comes after this one where `bundle.write` adds it."""
    return name == "weights" or (name not in ("manifest", "golden") and name > SECTION)


def calibration_of(data: memoryview) -> Calibration | None:
    """The calibration in a checked bundle's bytes; None if it has none. Raises BundleError for a section that is
    malformed, of a newer version, or of other contents than the bundle's."""
    if all(row.name != SECTION for row in rows_of(data)[0]):
        return None
    file = opened(data)
    found, of = _decoded(bytes(cut(file.data, file.sections[SECTION])))
    if of != _identity(file.data):
        refuse(_WHERE, "the calibration of these contents", "that of a bundle that was changed since", _AGAIN)
    return found


def check_outputs(calibration: Calibration, signatures: Mapping[str, Graph]) -> None:
    """Raise BundleError if a calibration names another signature than these, or outputs that it cannot be for."""
    if calibration.signature not in signatures:
        expected = f"a signature of {', '.join(signatures)}"
        refuse(_WHERE, expected, show(calibration.signature), "name a signature of the bundle")
    known = {value.name: value for value in signatures[calibration.signature].outputs}
    features = calibration.mahalanobis
    for name in (calibration.output, *([features.output] if features is not None else [])):
        if name not in known:
            refuse(_WHERE, f"an output of {', '.join(known)}", show(name), "name an output of the signature")
        value = known[name]
        if value.dtype not in _FLOATS or (value.shape is not None and len(value.shape) not in (1, 2)):
            got = f"{value.dtype} of {len(value.shape or ())} dimensions"
            refuse(f"{_WHERE}, output {name!r}", "floats of 1 or 2 dimensions", got, "use a float output")
    if features is not None and (shape := known[features.output].shape) is not None:
        size = features.means.shape[1]
        if isinstance(shape[-1], int) and shape[-1] != size:
            refuse(f"{_WHERE}, output {features.output!r}", f"{shape[-1]} features", str(size), _AGAIN)


def _identity(data: memoryview) -> str:
    """The digest of a bundle without calibration and signatures, in hex."""
    rows, needs = rows_of(data)
    kept = [row for row in rows if row.name not in (SECTION, SIGNATURE)]
    return table_digest(memoryview(table_of(kept, needs, BUNDLE)[0]))


# the section's bytes


def _encoded(given: Calibration, of: str) -> bytes:
    doc: dict[str, Any] = {
        "version": VERSION, "of": of, "signature": given.signature, "output": given.output, "kind": given.kind,
        "temperature": float(given.temperature),
    }  # fmt: skip
    if given.energy is not None:
        doc["energy"] = _threshold(given.energy)
    if given.mahalanobis is not None:
        output, means, whitener, above = given.mahalanobis
        arrays = {"means": _array(means), "whitener": _array(whitener)}
        doc["mahalanobis"] = {"output": output, **arrays, **_threshold(above)}
    try:
        return json.dumps(doc, allow_nan=False, sort_keys=True, separators=(",", ":")).encode("ascii")
    except ValueError:
        raise BundleError("calibration: expected finite numbers, got one that is not; check the scores") from None


def _threshold(given: Threshold) -> dict[str, float]:
    return {"threshold": float(given.threshold), "false_alarms": float(given.false_alarms)}


def _array(given: Array) -> dict[str, Any]:
    array = np.ascontiguousarray(given, "<f4")
    return {"shape": list(array.shape), "data": base64.b64encode(array.tobytes()).decode("ascii")}


def _decoded(raw: bytes) -> tuple[Calibration, str]:
    """The calibration, and the digest of the bundle that it was fitted to."""
    if len(raw) > MOST_BYTES:
        refuse(_WHERE, f"at most {MOST_BYTES} bytes", str(len(raw)), "use fewer features")
    doc = mapping_of(parsed(raw, _WHERE), _WHERE)
    version = doc.get("version")
    if type(version) is not int or version != VERSION:
        refuse(f"{_WHERE}, version", str(VERSION), show(version), f"use a newer msedge, or {_AGAIN}")
    optional = [name for name in ("energy", "mahalanobis") if name in doc]
    object_of(doc, _WHERE, ["version", "of", "signature", "output", "kind", "temperature", *optional])
    kind = string_of(doc["kind"], f"{_WHERE}, kind")
    if kind not in _KINDS:
        refuse(f"{_WHERE}, kind", f"one of {', '.join(_KINDS)}", show(kind))
    if kind == "probabilities" and "energy" in doc:
        refuse(f"{_WHERE}, energy", "none, as probabilities have lost it", "one", "make the logits an output")
    energy = _read_threshold(doc["energy"], f"{_WHERE}, energy") if "energy" in doc else None
    found = Calibration(
        output=string_of(doc["output"], f"{_WHERE}, output"),
        temperature=_number(doc["temperature"], f"{_WHERE}, temperature", COLDEST, HOTTEST),
        kind=kind,
        signature=string_of(doc["signature"], f"{_WHERE}, signature"),
        energy=energy,
        mahalanobis=_read_mahalanobis(doc["mahalanobis"]) if "mahalanobis" in doc else None,
    )
    return found, string_of(doc["of"], f"{_WHERE}, of")


def _read_mahalanobis(given: Any) -> Mahalanobis:
    where = f"{_WHERE}, mahalanobis"
    doc = object_of(given, where, ("output", "means", "whitener", "threshold", "false_alarms"))
    means = _read_array(doc["means"], f"{where}, means", MOST_CLASSES)
    whitener = _read_array(doc["whitener"], f"{where}, whitener", MOST_FEATURES)
    size = means.shape[1]
    if whitener.shape != (size, size):
        refuse(f"{where}, whitener", f"the shape ({size}, {size})", str(whitener.shape))
    rest = {name: doc[name] for name in ("threshold", "false_alarms")}
    return Mahalanobis(string_of(doc["output"], where), means, whitener, _read_threshold(rest, where))


def _read_threshold(given: Any, where: str) -> Threshold:
    doc = object_of(given, where, ("threshold", "false_alarms"))
    share = _number(doc["false_alarms"], f"{where}, false_alarms", 0.0, 1.0)
    return Threshold(_number(doc["threshold"], f"{where}, threshold", -1e30, 1e30), share)


def _number(given: Any, where: str, low: float, high: float) -> float:
    if type(given) not in (int, float) or not low <= given <= high:
        refuse(where, f"a number {low:g}..{high:g}", show(given) if type(given) is not int else "another integer")
    return float(given)


def _read_array(given: Any, where: str, most: int) -> Array:
    doc = object_of(given, where, ("shape", "data"))
    shape, text = doc["shape"], string_of(doc["data"], where)
    if type(shape) is not list or len(shape) != 2 or not all(type(d) is int for d in shape):
        refuse(where, "a shape of two whole numbers", show(shape))
    if not (1 <= shape[0] <= most and 1 <= shape[1] <= MOST_FEATURES):
        refuse(where, f"a shape of at most ({most}, {MOST_FEATURES})", "another shape", "use fewer features")
    try:
        content = base64.b64decode(text, validate=True)
    except (ValueError, binascii.Error):
        refuse(where, "Base64", "other text")
    if len(content) != 4 * math.prod(shape):
        refuse(where, f"{4 * math.prod(shape)} bytes of float32", str(len(content)))
    array = np.frombuffer(content, "<f4").reshape(shape)
    if not np.isfinite(array).all():
        refuse(where, "finite numbers", "one that is not", _AGAIN)
    return array
