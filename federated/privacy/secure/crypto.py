"""Key agreement, sealed boxes and key streams, from the `cryptography` package, on which Flower depends."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from federated.errors import FederatedError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

__all__ = ["KEY", "TAG", "agree", "check", "derive", "key_stream", "public_key", "seal", "unseal"]

KEY, TAG = 32, 16
"""Bytes of a key, secret or public; the bytes that sealing adds to a message."""

_NONCE = bytes(12)
"""Every key derived here seals only one message, so a constant nonce is safe."""


def derive(secret: bytes, purpose: bytes, size: int = KEY) -> bytes:
    """HKDF with SHA-256 (RFC 5869): different bytes for every purpose."""
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF

    return HKDF(SHA256(), size, salt=None, info=b"msedge secure sum " + purpose).derive(secret)


def public_key(secret: bytes) -> bytes:
    """X25519 (RFC 7748): sent to peers."""
    return _private(secret).public_key().public_bytes_raw()


def agree(secret: bytes, peer: bytes) -> bytes:
    """The secret that both ends compute. Raises FederatedError for a public key that would reveal it."""
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PublicKey

    try:
        return _private(secret).exchange(X25519PublicKey.from_public_bytes(peer))
    except ValueError as problem:
        raise FederatedError("secure sum: expected a public X25519 key, got a point of low order") from problem


@lru_cache(maxsize=2)
def _private(secret: bytes) -> X25519PrivateKey:
    """Created once for many peers, because that takes as long as a key agreement."""
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

    return X25519PrivateKey.from_private_bytes(secret)


def check(peer: bytes) -> None:
    """Raises FederatedError if `agree` would refuse this public key for any secret."""
    agree(bytes(range(KEY)), peer)


def seal(key: bytes, message: bytes, context: bytes) -> bytes:
    """ChaCha20-Poly1305 (RFC 8439), only once per key; TAG bytes longer than the message."""
    from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

    return ChaCha20Poly1305(key).encrypt(_NONCE, message, context)


def unseal(key: bytes, sealed: bytes, context: bytes) -> bytes:
    """The message. Raises FederatedError if it, or its context, differs from what was sealed with this key."""
    from cryptography.exceptions import InvalidTag
    from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

    try:
        return ChaCha20Poly1305(key).decrypt(_NONCE, sealed, context)
    except InvalidTag as problem:
        raise FederatedError("secure sum: a sealed share was changed on its way") from problem


def key_stream(key: bytes, size: int) -> bytes:
    """`size` bytes that look random without the key: AES-256 in counter mode, about a gigabyte per second."""
    from cryptography.hazmat.primitives.ciphers import Cipher
    from cryptography.hazmat.primitives.ciphers.algorithms import AES256
    from cryptography.hazmat.primitives.ciphers.modes import CTR

    return Cipher(AES256(key), CTR(bytes(16))).encryptor().update(bytes(size))
