"""Private set intersection: which identifiers two parties have in common, without showing each other the rest.

Every identifier is hashed to a point of the curve P-256 (FIPS 186-5), H(x). Each party has a secret number, a and b,
and multiplies points by it. Since a (b H(x)) = b (a H(x)), points that both have multiplied are equal where identifiers
are, while without b nobody can compute b H(x) for an x of its choice (Meadows, "A More Efficient Cryptographic
Matchmaking Protocol", S&P 1986; Huberman, Franklin & Hogg, EC 1999). The parties follow the protocol and are curious:
it assumes the decisional Diffie-Hellman problem on the curve, and that SHA-256 is a random function.

    A -> B   a H(x) for all x of A, in a random order
    B -> A   b a H(x) in the same order (shuffled, if A shall learn the number alone), and b H(y) in a random order
    A -> B   a b H(y) in the same order, if B shall learn it too

A point is its abscissa (32 bytes): P and -P count as one. H(x) is the first of SHA-256("msedge match 1", i, x), for i =
0, 1 and so on, that is the abscissa of a point. The order of the curve is prime, so that every other point generates
all of it, and bytes that are no abscissa are refused: a secret never meets a point of a small group.
"""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Iterable, Sequence
from hashlib import sha256
from typing import Any

import numpy as np

from federated.errors import FederatedError
from federated.tree import Array

__all__ = ["BYTES", "Matcher"]

BYTES = 32
DOMAIN = b"msedge match 1"
MOST_TRIES = 256
"""Half of all numbers are abscissas; that so many in succession are not has a probability of 2^-256."""


class Matcher:
    """One party's identifiers, and a secret for one run of the protocol."""

    def __init__(self, identifiers: Sequence[bytes]) -> None:
        """Raises FederatedError for an identifier that occurs twice: which of its rows would be matched?"""
        from cryptography.hazmat.primitives.asymmetric import ec

        if len(set(identifiers)) != len(identifiers):
            twice, times = Counter(identifiers).most_common(1)[0]
            shown = twice.decode(errors="replace")
            raise FederatedError(f"identifiers: expected each once, got {shown!r:.60} {times} times")
        self._identifiers = identifiers
        self._secret = ec.generate_private_key(ec.SECP256R1())
        self._order = _shuffled(len(identifiers))

    def hidden(self) -> Array:
        """This party's points times its secret (uint8 [n, 32]), in a random order."""
        return _packed(self._times(hashed(self._identifiers[at])) for at in self._order)

    def again(self, points: Array, *, shuffled: bool = False) -> Array:
        """The other party's points times this party's secret, in the same order or in a random one. Raises
        FederatedError for anything but points."""
        if not (points.dtype == np.uint8 and points.ndim == 2 and points.shape[1] == BYTES):
            got = f"{points.dtype} {list(points.shape)}"
            raise FederatedError(f"matching: expected points uint8 [n, {BYTES}], got {got}")
        made = _packed(self._times(_point(row.tobytes())) for row in points)
        return made[_shuffled(len(made))] if shuffled else made

    def matched(self, own: Array, other: Array) -> Array:
        """The numbers of this party's identifiers that the other one has too (int64, ascending), from the points of
        both that both have multiplied: `own` in the order of `hidden`."""
        if own.shape != (len(self._order), BYTES) or other.ndim != 2 or other.shape[1] != BYTES:
            got = f"{list(own.shape)} and {list(other.shape)}"
            raise FederatedError(f"matching: expected {len(self._order)} points and others, got {got}")
        both = {row.tobytes() for row in other}
        found = [at for at, row in zip(self._order, own, strict=True) if row.tobytes() in both]
        return np.sort(np.array(found, np.int64))

    def _times(self, point: Any) -> bytes:
        from cryptography.hazmat.primitives.asymmetric import ec

        abscissa: bytes = self._secret.exchange(ec.ECDH(), point)
        return abscissa


def hashed(identifier: bytes) -> Any:
    """H(x), as a public key of `cryptography`."""
    for tried in range(MOST_TRIES):
        digest = sha256(DOMAIN + bytes([tried]) + identifier).digest()
        try:
            return _point(digest)
        except FederatedError:
            continue
    raise FederatedError("matching: found no point")  # pragma: no cover


def _point(abscissa: bytes) -> Any:
    """Raises FederatedError if the curve has no such point."""
    from cryptography.hazmat.primitives.asymmetric import ec

    try:
        return ec.EllipticCurvePublicKey.from_encoded_point(ec.SECP256R1(), b"\x02" + abscissa)
    except ValueError:
        raise FederatedError("matching: expected points of P-256, got other bytes") from None


def _packed(points: Iterable[bytes]) -> Array:
    return np.frombuffer(b"".join(points), np.uint8).reshape(-1, BYTES)


def _shuffled(count: int) -> list[int]:
    """A random order from the operating system's generator."""
    order = list(range(count))
    secrets.SystemRandom().shuffle(order)
    return order
