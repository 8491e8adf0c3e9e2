"""Secret sharing: any `threshold` shares give back the secret, and fewer reveal nothing: Shamir, "How to Share a
Secret", CACM 1979."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from federated.errors import FederatedError

__all__ = ["SECRET", "SHARE", "Combiner", "split"]

_PRIME = 2**256 + 297
"""The smallest prime above every secret of 32 bytes."""

SECRET, SHARE = 32, 33
"""Bytes of a secret and of a share."""


def split(secret: bytes, threshold: int, holders: Iterable[int], randomness: bytes) -> dict[int, bytes]:
    """A share of a 32-byte secret for each holder, a number from 1 below 2^32. `randomness`: 64 bytes for each required
    share but one; reduced to the field they are uniform to within 2^-255."""
    numbers = [int.from_bytes(randomness[at * 64 : (at + 1) * 64], "little") % _PRIME for at in range(threshold - 1)]
    polynomial = [*reversed(numbers), int.from_bytes(secret, "little")]
    shares = {}
    for holder in holders:
        value = 0
        for coefficient in polynomial:
            value = (value * holder + coefficient) % _PRIME
        shares[holder] = value.to_bytes(SHARE, "little")
    return shares


class Combiner:
    """Combines secrets from the shares of these holders: exactly as many as the threshold, each once."""

    def __init__(self, holders: Sequence[int]) -> None:
        self.holders = tuple(holders)
        self._factors = []
        for one in holders:
            over, under = 1, 1
            for other in holders:
                if other != one:
                    over, under = over * other % _PRIME, under * (other - one) % _PRIME
            self._factors.append(over * pow(under, -1, _PRIME) % _PRIME)

    def combine(self, shares: Sequence[bytes]) -> bytes:
        """The secret from shares in the holders' order.

        Raises FederatedError if they give none; wrong shares may also give another secret: verify the result.
        """
        values = (int.from_bytes(share, "little") for share in shares)
        secret = sum(factor * value for factor, value in zip(self._factors, values, strict=True)) % _PRIME
        if secret >> (8 * SECRET):
            raise FederatedError("secure sum: the shares do not belong together; some are wrong")
        return secret.to_bytes(SECRET, "little")
