"""Reading devices' replies: a reply is validated completely before any part of it is used.

An invalid reply is refused with one of `REASONS`, by which the report counts it.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from federated import tree
from federated.analytics.base import answer_dtype
from federated.client.device import VERSION
from federated.codec import Codec, Spec
from federated.config import Limits
from federated.errors import FederatedError
from federated.evaluation import LARGEST, Score, score
from federated.learner import Evaluation
from federated.messages.packed import unpack
from federated.messages.transforms import Transforms
from federated.server.store import CONSENTS
from federated.tree import Array, Tree

__all__ = [
    "REASONS", "Expected", "Failure", "Greeted", "Received", "Refused", "read_answer", "read_evaluation",
    "read_handed", "read_hello", "read_personal", "read_score", "read_secure", "read_share", "read_shares",
    "read_update",
]  # fmt: skip

REASONS: Mapping[str, str] = {
    "failed": "the device crashed or the transport reported an error",
    "refused": "the device declined, and said why",
    "behind": "it lost the model version that differences refer to, and sending the full model did not help",
    "unreadable": "bytes that are not a message: damaged or truncated",
    "version": "written by another version of msedge, or for another bundle",
    "replayed": "of another run, another round or another attempt at it",
    "duplicate": "the device had answered before",
    "unasked": "from a device that was not asked",
    "impostor": "it uses the name of another device, which joined the run from another node",
    "malformed": "fields that are missing or make no sense",
    "examples": "more examples than `limits.examples`, or none",
    "payload": "other names, shapes or dtypes than the model's, values or a loss that are not finite or make no sense",
    "norm": "an update larger than `limits.norm`",
    "outlier": "an update more than `limits.outlier` times as large as the median of its round and of earlier ones",
    "stale": "an update to a model version that is too old",
}

_LEVELS = ("a device", "an aggregator")

ROUNDING = 1e-3
"""How far a loss that cannot be negative may be below 0, because sums are rounded."""


class Failure(str):
    """The reason why there is no reply."""

    __slots__ = ()


class Refused(Exception):
    """A reply that is not used; `reason` is one of REASONS."""

    def __init__(self, reason: str, detail: str) -> None:
        # Parts of it come from the device, and are shown in reports and on terminals.
        super().__init__("".join(letter if letter.isprintable() else "?" for letter in detail[:500]))
        self.reason = reason


@dataclass(frozen=True)
class Expected:
    """What a reply must match."""

    kind: str
    device: str
    run: str
    round: int
    attempt: int


@dataclass(frozen=True)
class Greeted:
    """A device's name, how many examples it has, and the digest of its proof of identity ("" without one)."""

    device: str
    examples: int
    identity: str


@dataclass(frozen=True)
class Received:
    """A valid update."""

    device: str
    payload: Tree
    examples: int
    loss: float | None
    """None if devices do not report it."""
    norm: float
    bytes: int
    within: float
    """1.0 if the update was within the clipping bound, else 0.0."""


def read_hello(reply: bytes | Failure, run: str, bundle: str | None, limits: Limits, levels: int = 0) -> Greeted:
    """What a device says about itself. `bundle`: the one that it must have; None: any. `levels`: 0 for a device, how
    many levels of aggregators for one of those. Raises Refused."""
    meta, _ = _read(reply)
    got = meta.get("levels", 0)
    _fits(got == levels or meta.get("kind") == "refusal", "malformed", lambda: f"expected {_LEVELS[levels > 0]}, got "
          f"{_LEVELS[got != 0]}" + (f" of {_short(got)} levels, not {levels}" if got and levels else ""))  # fmt: skip
    _fits(meta.get("run") == run, "replayed", lambda: f"expected run {run!r}, got {meta.get('run')!r}")
    _answers(meta, "hello")
    if bundle is not None:
        got = meta.get("bundle")
        _fits(got == bundle, "version", lambda: f"expected bundle {bundle[:12]}, got {_short(got)}")
    name, proof = meta.get("device"), meta.get("proof", "")
    fits = isinstance(name, str) and 0 < len(name) <= 200 and name.isprintable()
    _fits(fits, "malformed", lambda: f"expected a name of 1 to 200 printable letters, got {_short(name)}")
    fits = isinstance(proof, str) and len(proof) in (0, 64) and proof.isalnum() | (not proof)
    _fits(fits, "malformed", lambda: f"expected a proof of 64 letters, got {_short(proof)}")
    identity = hashlib.sha256(proof.encode()).hexdigest() if proof else ""
    return Greeted(str(name), _examples(meta, limits), identity)


def read_update(
    reply: bytes | Failure,
    expected: Expected,
    transforms: Transforms,
    spec: Spec | None,
    limits: Limits,
    signed: bool = True,
) -> Received:
    """An update, decoded. `signed`: whether a loss may be below 0. Raises Refused."""
    meta, body = _expected(reply, expected)
    examples = _examples(meta, limits)
    within = meta.get("within", 0)
    told = None if transforms.quiet else _loss(meta.get("loss"), signed, "payload")
    payload = _decode(body, transforms.codec, spec)
    norm = math.sqrt(sum(float(np.vdot(leaf, leaf)) for _, leaf in tree.leaves(payload)))
    _fits(norm <= limits.norm, "norm", lambda: f"expected a norm of at most {limits.norm:g}, got {norm:g}")
    _fits(within in (0, 1), "malformed", lambda: f"expected within to be 0 or 1, got {_short(within)}")
    return Received(expected.device, payload, examples, told, norm, len(reply), float(within))


def read_answer(reply: bytes | Failure, expected: Expected, size: int, limit: int, signed: bool, norm: float) -> Array:
    """A contribution to a sum (`answer_dtype(limit)` [size]), none of its elements above `limit` in magnitude, none
    below 0 unless `signed`, of at most this Euclidean norm. Raises Refused."""
    _, body = _expected(reply, expected)
    data = body.get("data")
    kind = answer_dtype(limit)
    if not (isinstance(data, np.ndarray) and data.dtype == kind and data.shape == (size,) and len(body) == 1):
        raise Refused("payload", f"expected {kind.__name__} [{size}] named data and nothing else")
    least = -limit if signed else 0
    fits = bool(((data >= least) & (data <= limit)).all())
    _fits(fits, "payload", lambda: f"expected numbers from {least} to {limit}, got {data.min()} to {data.max()}")
    found = float(np.linalg.norm(data.astype(np.float64)))
    _fits(found <= norm, "norm", lambda: f"expected a norm of at most {norm:g}, got {found:g}")
    return data


def read_secure(reply: bytes | Failure, expected: Expected) -> bytes:
    """A message of the secure sum, whose protocol reads its contents. Raises Refused."""
    _, body = _expected(reply, expected)
    return _bytes(body)


def read_handed(reply: bytes | Failure, expected: Expected, kinds: Collection[str]) -> tuple[dict[str, Any], Tree]:
    """What an aggregator hands up, of one of these kinds, its contents unchecked. Raises Refused."""
    meta, body = _read(reply)
    kind = str(meta.get("kind"))
    return _expected(reply, replace(expected, kind=kind if kind in kinds else expected.kind), (meta, body))


def read_personal(reply: bytes | Failure, expected: Expected) -> tuple[str, dict[str, Any]]:
    """The owner's consent, and the parameters, unchecked: `PersonalStore.put` checks them. Raises Refused."""
    meta, body = _expected(reply, expected)
    consent = meta.get("consent")
    _fits(consent in CONSENTS, "malformed", lambda: f"expected one of {', '.join(CONSENTS)}, got {_short(consent)}")
    return str(consent), body


def read_shares(reply: bytes | Failure, expected: Expected, room: float) -> tuple[float, ...]:
    """A device's evaluation with noise: see `evaluation.shares`. room: how far noise may take a share out of [0, 1];
    what is beyond counts as the nearest that is not. Raises Refused."""
    meta, _ = _expected(reply, expected)
    return read_share(meta.get("shares"), room)


def read_share(words: Any, room: float) -> tuple[float, ...]:
    """The same from a part of a message."""
    match words:
        case [float(), float(), float(), float()] as found if all(math.isfinite(each) for each in found):
            return tuple(min(max(each, -room), 1 + room) for each in found)
    raise Refused("malformed", f"expected 4 shares, got {_short(words)}")


def read_score(words: Any, devices: Collection[str], limits: Limits) -> Score:
    """A score that another server computed, of one of these devices; None is an infinite loss. Raises Refused."""
    match words:
        case [str(device), int(examples), *figures] if (
            device in devices and 0 <= examples <= limits.examples and len(figures) == 4
        ):
            right, losses = figures[:2], [math.inf if each is None else each for each in figures[2:]]
            fits = all(isinstance(each, float) and 0 <= each <= 1 for each in right)
            if fits and all(isinstance(each, float) and (each == math.inf or abs(each) <= LARGEST) for each in losses):
                return Score(device, examples, *right, *losses)
    raise Refused("malformed", f"expected a device's score, got {_short(words)}")


def read_evaluation(reply: bytes | Failure, expected: Expected, limits: Limits, signed: bool = True) -> Score:
    """A device's score before and after adapting. `signed`: whether a loss may be below 0. Raises Refused."""
    meta, _ = _expected(reply, expected)
    before, after = (_sums(meta.get(key), limits, signed) for key in ("before", "after"))
    _fits(before.examples == after.examples, "malformed", lambda: "expected the same examples before and after")
    return score(expected.device, before, after)


def _read(reply: bytes | Failure) -> tuple[dict[str, Any], dict[str, Any]]:
    if isinstance(reply, Failure):
        raise Refused("failed", reply)
    try:
        meta, body = unpack(reply, "reply")
    except FederatedError as error:
        raise Refused("unreadable", str(error)) from None
    version = meta.get("version")
    _fits(version == VERSION, "version", lambda: f"expected messages of version {VERSION}, got {_short(version)}")
    return meta, body


def _expected(
    reply: bytes | Failure, expected: Expected, opened: tuple[dict[str, Any], dict[str, Any]] | None = None
) -> tuple[dict[str, Any], dict[str, Any]]:
    meta, body = opened or _read(reply)
    for key in ("run", "round", "attempt"):
        wanted, got = getattr(expected, key), meta.get(key)
        if got != wanted:
            raise Refused("replayed", f"expected {key} {wanted!r}, got {_short(got)}")
    device, name = meta.get("device"), expected.device
    _fits(device == name, "impostor", lambda: f"expected {name!r} to answer, got {_short(device)}")
    _answers(meta, expected.kind)
    return meta, body


def _answers(meta: Mapping[str, Any], kind: str) -> None:
    if meta.get("kind") == "refusal":
        raise Refused("behind" if meta.get("behind") is True else "refused", str(meta.get("why")))
    _fits(meta.get("kind") == kind, "malformed", lambda: f"expected {kind!r}, got {_short(meta.get('kind'))}")


def _examples(meta: Mapping[str, Any], limits: Limits) -> int:
    count = meta.get("examples")
    if type(count) is int and 0 < count <= limits.examples:
        return count
    raise Refused("examples", f"expected 1 to {limits.examples}, got {count!r}"[:200])


def _decode(body: Mapping[str, Any], codec: Codec, spec: Spec | None) -> dict[str, Any]:
    data = _bytes(body)
    if spec is None:
        _fits(not data, "payload", lambda: f"expected no parameters, got {len(data)} bytes")
        return {}
    try:
        return codec.decode(data, spec)
    except FederatedError as error:
        raise Refused("payload", str(error)) from None


def _bytes(body: Mapping[str, Any]) -> bytes:
    data = body.get("data")
    if not (isinstance(data, np.ndarray) and data.dtype == np.uint8 and data.ndim == 1 and len(body) == 1):
        raise Refused("payload", "expected bytes named data and nothing else")
    return data.tobytes()


def _sums(words: Any, limits: Limits, signed: bool) -> Evaluation:
    match words:
        case [int() | float() | None as loss, int(correct), int(examples)] if (
            0 <= correct <= examples <= limits.examples
        ):
            told = np.inf if loss is None else _loss(loss, signed, "malformed")
            return Evaluation(np.float64(told), np.int64(correct), np.int64(examples))
    raise Refused("malformed", f"expected [loss, correct, examples], got {_short(words)}")


def _loss(loss: Any, signed: bool, reason: str) -> float:
    """A loss that a device reports, checked. Raises Refused."""
    least = -LARGEST if signed else -ROUNDING
    fits = isinstance(loss, int | float) and not isinstance(loss, bool) and least <= loss <= LARGEST
    if fits:
        return float(loss)
    got = "none: it diverged" if loss is None else _short(loss)
    raise Refused(reason, f"expected a loss from {least:g} to {LARGEST:g}, got {got}")


def _short(value: object) -> str:
    """A device's text, shortened for a report."""
    return repr(value)[:80]


def _fits(truth: bool, reason: str, detail: Callable[[], str]) -> None:
    """Raises Refused unless it is true. `detail` is called only then: to write it takes longer than to check."""
    if not truth:
        raise Refused(reason, detail())
