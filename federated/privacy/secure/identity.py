"""Who the devices of a sum are: Ed25519 keys (RFC 8032) that sign, fixed at first contact or pinned by the operator.

`federated.client.identity` keeps them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from hashlib import sha256

from federated.errors import FederatedError

__all__ = ["SIGNATURE", "WHO", "Identity", "signs", "who"]

WHO, SIGNATURE = 16, 64
"""Bytes of the digest of a name, and of a signature."""

Meet = Callable[[Mapping[bytes, bytes]], Mapping[bytes, bytes]]


def who(device: str) -> bytes:
    """A digest of a device's name."""
    return sha256(b"device " + device.encode()).digest()[:WHO]


def signs(public: bytes, signature: bytes, message: bytes) -> bool:
    """Whether the signature is of this key's owner for this message."""
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    try:
        Ed25519PublicKey.from_public_bytes(public).verify(signature, message)
    except (InvalidSignature, ValueError):
        return False
    return True


def _strangers(found: Mapping[bytes, bytes]) -> Mapping[bytes, bytes]:
    return found


@dataclass(frozen=True)
class Identity:
    """A device's own key, and what it knows about others'.

    `meet`: stores public keys by name's digest unless there are some already, and returns the stored ones. `pinned`:
    the public keys that may take part; None: any, but for each name only the one of the first contact.
    """

    secret: bytes = field(repr=False)
    who: bytes
    meet: Meet = _strangers
    pinned: frozenset[bytes] | None = None

    @property
    def public(self) -> bytes:
        """The public key, 32 bytes."""
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

        return Ed25519PrivateKey.from_private_bytes(self.secret).public_key().public_bytes_raw()

    def sign(self, message: bytes) -> bytes:
        """A signature of 64 bytes."""
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

        return Ed25519PrivateKey.from_private_bytes(self.secret).sign(message)

    def check(self, peers: Mapping[bytes, bytes]) -> None:
        """Raises FederatedError if one of these public keys, by name's digest, is not pinned or has changed."""
        if self.pinned is not None:
            if strange := set(peers.values()) - self.pinned:
                raise FederatedError(
                    f"secure sum: expected devices with pinned keys only, got one with {min(strange).hex()}; the "
                    "operator may add it to the file of pinned keys"
                )
            return
        known = self.meet(peers)
        for name, public in peers.items():
            if known.get(name, public) != public:
                raise FederatedError(
                    f"secure sum: expected key {known[name].hex()} of a device known before, got {public.hex()}; its "
                    "state was lost, or the server distributes keys of its own"
                )
