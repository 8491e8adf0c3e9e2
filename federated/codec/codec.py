"""Codecs composed of named parts, and their wire format.

    ["difference", "feedback", "topk:0.05", "int8"]

A codec has at most one part of each kind, in this order: `difference` to a tree that both ends know, `feedback` of what
the last payload lost, a selection (`mask`, `topk`, `signds`), a number format (`float16`, `int8`, `int4`; without one,
float32). `name:value` sets a part's first parameter, `name:value,other=value` more of them.

A payload is, in little-endian order: "mf", version, flags (1: a difference; 2: whole), 8 bytes of a digest, the body's
length and its CRC-32; then the body: the reference's CRC-32 if it is a difference, the selection's header, the values.
The digest is the beginning of the SHA-256 of the codec as JSON, [[name, {parameter: value}], ...], and `Spec.digest`.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cached_property, lru_cache
from hashlib import sha256
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from federated.codec.base import Choice, Part, Reader, Selection, Values
from federated.codec.floats import Float16, Float32
from federated.codec.integers import Int4, Int8
from federated.codec.mask import Mask
from federated.codec.signds import SignDS
from federated.codec.spec import LIMIT, Spec, in_range
from federated.codec.topk import TopK
from federated.errors import FederatedError
from federated.tree import Array, Tree

__all__ = ["Codec", "Difference", "Encoded", "Feedback"]

_HEADER = struct.Struct("<2sBB8sII")
_MAGIC, _VERSION = b"mf", 2
_IS_DIFFERENCE, _IS_WHOLE = 1, 2
_NOWHERE = np.zeros(0, np.int64)


@dataclass(frozen=True)
class Difference(Part):
    """Sends the change since a tree that both ends have, if the caller names one. What algorithms send up is a
    difference already; down, a device that has no tree yet is sent the `whole` tree."""

    name = "difference"


@dataclass(frozen=True)
class Feedback(Part):
    """Error feedback: adds what the last payload lost to the next: Seide et al., "1-Bit Stochastic Gradient Descent",
    Interspeech 2014; Karimireddy et al., "Error Feedback Fixes SignSGD", ICML 2019."""

    name = "feedback"


PARTS: dict[str, type[Part]] = {
    part.name: part for part in (Difference, Feedback, Mask, TopK, SignDS, Float32, Float16, Int8, Int4)
}
_ORDER = (Difference, Feedback, Selection, Values)


class Encoded(NamedTuple):
    """A payload, and its residual, an argument of the next `encode` ({} without "feedback")."""

    data: bytes
    residual: Tree


@dataclass(frozen=True)
class Codec:
    """Trees to bytes and back; `Codec.parse` makes one from names."""

    parts: tuple[Part, ...] = ()

    @classmethod
    def parse(cls, names: Sequence[str]) -> Codec:
        """Raises FederatedError for an unknown part or parameter, or parts in a wrong order."""
        return cls(tuple(_parse(name) for name in names))

    def __post_init__(self) -> None:
        kinds = [_kind(part) for part in self.parts]
        if self.find(SignDS):
            kinds.append(_ORDER.index(Values))
        if any(a >= b for a, b in pairwise(kinds)):
            raise FederatedError(
                f"codec {[part.name for part in self.parts]}: expected at most one part of each kind, in this order: "
                "difference, feedback, one of mask | topk | signds, one of float32 | float16 | int8 | int4 "
                "(none after signds)"
            )

    def find(self, kind: type[Part]) -> Part | None:
        """The part of this class, if there is one."""
        return next((part for part in self.parts if isinstance(part, kind)), None)

    @cached_property
    def selection(self) -> Selection | None:
        """The part that selects the elements to send; None: all are sent."""
        part = self.find(Selection)
        return part if isinstance(part, Selection) else None

    @cached_property
    def values(self) -> Values:
        """The part that writes their values."""
        if isinstance(self.selection, SignDS):
            return self.selection.values
        part = self.find(Values)
        return part if isinstance(part, Values) else Float32()

    @cached_property
    def feedback(self) -> bool:
        """Whether a device keeps a residual."""
        return self.find(Feedback) is not None

    @property
    def unbiased(self) -> bool:
        """Whether what arrives is, in expectation, what was sent."""
        return (self.selection is None or self.selection.unbiased) and not self.feedback

    def encode(
        self,
        tree: Tree,
        rng: np.random.Generator,
        *,
        reference: Tree | None = None,
        residual: Tree | None = None,
        whole: bool = False,
    ) -> Encoded:
        """The tree in bytes.

        `reference`: the receiver's tree, exactly (what it decoded, not what was sent); only for "difference".
        `residual`: of the last payload; None or {}: none yet; only for "feedback". `whole`: send every element of the
        tree itself, for a receiver without a tree: only the number format is applied.
        Raises FederatedError if an element is not finite or too large, or if a tree has another form.
        """
        spec = Spec.of(tree)
        vector = spec.flatten(tree)
        if whole:
            packed = self._form(True).values.pack(vector, spec.counts, rng)
            return Encoded(self._sealed(packed, _IS_WHOLE, spec), {})
        known = spec.flatten(reference) if reference is not None and self.find(Difference) else None
        if known is not None:
            vector -= known
        if self.feedback and residual:
            vector += spec.flatten(residual)
        choice = Choice(b"", _NOWHERE, vector)
        if self.selection is not None:
            with np.errstate(over="ignore"):
                choice = self.selection.choose(vector, rng, self.feedback or known is not None)
            _check(choice.values)
        _check(vector)
        packed = self.values.pack(choice.values, _counts(self, choice.positions, spec), rng)
        body = choice.header + packed
        data = self._sealed(body, 0, spec) if known is None else self._sealed(_crc(known) + body, _IS_DIFFERENCE, spec)
        if not self.feedback:
            return Encoded(data, {})
        return Encoded(data, spec.unflatten(vector - self._vector(Reader(body), spec)))

    def decode(self, data: bytes, spec: Spec, *, reference: Tree | None = None) -> dict[str, Any]:
        """The tree, of `spec`. Memory is bounded by the spec's size for any bytes.

        Raises FederatedError, with the reason, for every payload that `encode` did not make with the same codec, spec
        and reference: damaged, truncated, too long, of another version, out of range, not finite.
        """
        reader = Reader(data)
        magic, version, flags, digest, length, crc = _HEADER.unpack(reader.take(_HEADER.size, "header"))
        if magic != _MAGIC:
            raise FederatedError(f"expected a payload beginning with {_MAGIC!r}, got {magic!r}")
        if version != _VERSION or flags not in (0, _IS_DIFFERENCE, _IS_WHOLE):
            raise FederatedError(
                f"expected a payload of version {_VERSION}, got version {version}, flags {flags}; "
                "both ends need the same release"
            )
        if digest != _digest(self, spec):
            raise FederatedError(
                "the payload belongs to another model or codec; both ends need the same bundle and [codec]"
            )
        body = reader.take(length, "body")
        reader.done()
        if zlib.crc32(body) != crc:
            raise FederatedError("payload damaged: its checksum differs; send it again")
        reader = Reader(body)
        known = self._known(reader, spec, reference) if flags == _IS_DIFFERENCE else None
        vector = self._form(flags == _IS_WHOLE)._vector(reader, spec)
        reader.done()
        if known is not None:
            vector = vector + known
            _check(vector)
        return spec.unflatten(vector)

    def _form(self, whole: bool) -> Codec:
        """This codec, or only its number format."""
        return Codec(tuple(part for part in self.parts if isinstance(part, Values))) if whole else self

    def _sealed(self, body: bytes, flags: int, spec: Spec) -> bytes:
        return _HEADER.pack(_MAGIC, _VERSION, flags, _digest(self, spec), len(body), zlib.crc32(body)) + body

    def _known(self, reader: Reader, spec: Spec, reference: Tree | None) -> Array:
        """The reference of a difference, after checking that it is the same here."""
        crc = bytes(reader.take(4, "the reference's checksum"))
        if not self.find(Difference) or reference is None:
            raise FederatedError("the payload is a difference, and no tree here to add it to; send the full tree")
        known = spec.flatten(reference)
        if crc != _crc(known):
            raise FederatedError("the payload is a difference to a tree that is not the one here; send the full tree")
        return known

    def _vector(self, reader: Reader, spec: Spec) -> Array:
        """The flat vector in a body, without the reference."""
        if self.selection is None:
            return self.values.unpack(reader, spec.counts)
        positions = self.selection.positions(reader, spec.size)
        vector = np.zeros(spec.size, np.float32)
        vector[positions] = self.values.unpack(reader, _counts(self, positions, spec))
        return vector


def _counts(codec: Codec, positions: Array, spec: Spec) -> Array:
    """How many of the values sent belong to each array."""
    return spec.counts if codec.selection is None else np.diff(np.searchsorted(positions, spec.bounds))


def _check(vector: Array) -> None:
    if not in_range(vector):
        raise FederatedError(f"expected values up to {LIMIT:g}; the update is too large: lower the learning rate")


def _kind(part: Part) -> int:
    return next(at for at, kind in enumerate(_ORDER) if isinstance(part, kind))


def _crc(vector: Array) -> bytes:
    return zlib.crc32(vector.astype("<f4", copy=False)).to_bytes(4, "little")


@lru_cache(maxsize=64)
def _digest(codec: Codec, spec: Spec) -> bytes:
    names = [[part.name, vars(part)] for part in codec.parts]
    return sha256(json.dumps(names, separators=(",", ":")).encode() + spec.digest).digest()[:8]


def _parse(text: object) -> Part:
    """One part of a codec's configuration, which may come from a message."""
    if not isinstance(text, str):
        raise FederatedError(f"codec: expected the names of parts, got {text!r}")
    name, _, arguments = text.partition(":")
    if name not in PARTS:
        raise FederatedError(f"codec: unknown part {name!r}; expected one of {', '.join(PARTS)}")
    known = {field.name: field.type for field in fields(PARTS[name])}  # type: ignore[arg-type]
    given: dict[str, float | int] = {}
    for at, argument in enumerate(arguments.split(",") if arguments else ()):
        key, _, value = argument.rpartition("=")
        key = key or (next(iter(known), "") if at == 0 else "")
        if key not in known or key in given:
            wanted = ", ".join(known) or "none"
            raise FederatedError(f"codec {text!r}: unknown parameter {argument!r}; expected {wanted}")
        try:
            given[key] = int(value) if known[key] == "int" else float(value)
        except ValueError as problem:
            raise FederatedError(f"codec {text!r}: expected a number for {key!r}, got {value!r}") from problem
    return PARTS[name](**given)
