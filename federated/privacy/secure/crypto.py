"""Key agreement, sealed boxes and key streams, out of the `cryptography` package, which Flower brings along."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from federated.errors import FederatedError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

__all__ = ["KEY", "TAG", "agree", "check", "derive", "key_stream", "public_key", "seal", "unseal"]

KEY, TAG = 32, 16
"""Bytes of a key, secret or public; bytes that a sealed message is longer."""

_NONCE = bytes(12)
"""Every key that is derived here seals one message: a number used once has nothing to tell apart."""


def derive(secret: bytes, purpose: bytes, size: int = KEY) -> bytes:
    """HKDF with SHA-256 (RFC 5869): bytes of their own for every purpose."""
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF

    return HKDF(SHA256(), size, salt=None, info=b"msedge secure sum " + purpose).derive(secret)


def public_key(secret: bytes) -> bytes:
    """X25519 (RFC 7748): what peers are told."""
    return _private(secret).public_key().public_bytes_raw()


def agree(secret: bytes, peer: bytes) -> bytes:
    """The secret that both ends come to. FederatedError for a public key that would give it away."""
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PublicKey

    try:
        return _private(secret).exchange(X25519PublicKey.from_public_bytes(peer))
    except ValueError as problem:
        raise FederatedError("secure sum: expected a public X25519 key, got a point of low order") from problem


@lru_cache(maxsize=2)
def _private(secret: bytes) -> X25519PrivateKey:
    """Made once for the many peers it is used with: that takes as long as an agreement."""
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

    return X25519PrivateKey.from_private_bytes(secret)


def check(peer: bytes) -> None:
    """FederatedError where `agree` would refuse this public key, whatever the secret."""
    agree(bytes(range(KEY)), peer)


def seal(key: bytes, message: bytes, context: bytes) -> bytes:
    """ChaCha20-Poly1305 (RFC 8439), once a key; TAG bytes longer than the message."""
    from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

    return ChaCha20Poly1305(key).encrypt(_NONCE, message, context)


def unseal(key: bytes, sealed: bytes, context: bytes) -> bytes:
    """The message. FederatedError where it, or its context, is not what was sealed with this key."""
    from cryptography.exceptions import InvalidTag
    from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

    try:
        return ChaCha20Poly1305(key).decrypt(_NONCE, sealed, context)
    except InvalidTag as problem:
        raise FederatedError("secure sum: a sealed share was changed on its way") from problem


def key_stream(key: bytes, size: int) -> bytes:
    """`size` bytes that look random to whoever lacks the key: AES-256 in counter mode, at a gigabyte a second."""
    from cryptography.hazmat.primitives.ciphers import Cipher
    from cryptography.hazmat.primitives.ciphers.algorithms import AES256
    from cryptography.hazmat.primitives.ciphers.modes import CTR

    return Cipher(AES256(key), CTR(bytes(16))).encryptor().update(bytes(size))
