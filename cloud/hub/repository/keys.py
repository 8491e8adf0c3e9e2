"""Keys that sign a repository: Ed25519, in folders, as the files that `msedge keygen` writes.

NAME.key is the private key (PKCS 8, mode 0600, encrypted if there is a passphrase), NAME.pub the public one. Each
holder of keys has a folder; who may sign what stands in the repository alone.
"""

from __future__ import annotations

import itertools
import os
import stat
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from securesystemslib.signer import CryptoSigner, SSlibKey

from cloud.hub.errors import HubError
from lite_runtime._files import write_atomically
from lite_runtime.bundle.keys import content, public_key
from lite_runtime.updates.release import may_name

__all__ = ["Keys", "public_of"]


class Keys:
    """The private keys in some folders and their subfolders. passphrase: asked once, with the path of the first key for
    which it matters; it returns None for none."""

    def __init__(
        self, folders: Iterable[str | os.PathLike[str]] = (), passphrase: Callable[[str], bytes | None] = lambda _: None
    ) -> None:
        self.folders = tuple(Path(folder) for folder in folders)
        self._passphrase = passphrase
        self._said: list[bytes | None] = []
        self._signers: dict[str, CryptoSigner] = {}

    def make(self, name: str, subfolder: str = "") -> tuple[str, SSlibKey]:
        """A new key in (a subfolder of) the first folder, encrypted if there is a passphrase; its name too. Raises
        HubError if the name is taken."""
        if not may_name(name):
            raise HubError(f"expected a key's name of a-z 0-9 . _ -, got {name!r}")
        if not self.folders:
            raise HubError("expected a folder for the new key; --keys FOLDER")
        folder = self.folders[0] / subfolder
        private, public = folder / f"{name}.key", folder / f"{name}.pub"
        for path in (private, public):
            if os.path.lexists(path):
                raise HubError(f"{str(path)!r} exists; keys are never overwritten: give the new key another name")
        key = Ed25519PrivateKey.generate()
        word = self._word(str(private))
        sealed = serialization.BestAvailableEncryption(word) if word else serialization.NoEncryption()
        pem, pkcs8 = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError as error:
            raise HubError(f"cannot make the folder {str(folder)!r}: {error.strerror}") from None
        write_atomically(private, key.private_bytes(pem, pkcs8, sealed), HubError, mode=0o600)
        spki = serialization.PublicFormat.SubjectPublicKeyInfo
        text = f"name: {name}\n".encode() + key.public_key().public_bytes(pem, spki)
        write_atomically(public, text, HubError, mode=0o644)
        return public_of(public)

    def free(self, role: str, taken: Iterable[str] = ()) -> str:
        """A name for a further key of a role, such as root-2."""
        used = {path.stem for path in self._public()} | set(taken)
        return next(name for number in itertools.count(1) if (name := f"{role}-{number}") not in used)

    def signer(self, keyid: str) -> CryptoSigner | None:
        """What signs with a key, if its private part is in one of the folders. Raises HubError if it cannot be used."""
        if keyid not in self._signers:
            for public in self._public():
                if public_of(public)[1].keyid == keyid and public.with_suffix(".key").is_file():
                    self._signers[keyid] = CryptoSigner(self._private(public.with_suffix(".key")), public_of(public)[1])
        return self._signers.get(keyid)

    def _public(self) -> Iterator[Path]:
        for folder in self.folders:
            yield from sorted([*folder.glob("*.pub"), *folder.glob("*/*.pub")])

    def _private(self, path: Path) -> Ed25519PrivateKey:
        if os.name == "posix" and stat.S_IMODE(path.stat().st_mode) & 0o077:
            raise HubError(f"{str(path)!r} can be read by others; chmod 600, and rotate the key if somebody did")
        raw = content(path)
        found: Any = None
        try:
            word = self._word(str(path)) if b"ENCRYPTED" in raw else None
            found = serialization.load_pem_private_key(raw, word)
        except TypeError:
            raise HubError(f"{str(path)!r} is encrypted; --passphrase FILE") from None
        except ValueError:
            what = "the passphrase is wrong" if b"ENCRYPTED" in raw else "expected a private key in PEM"
            raise HubError(f"{str(path)!r}: {what}") from None
        if not isinstance(found, Ed25519PrivateKey):
            raise HubError(f"{str(path)!r}: expected an Ed25519 key; msedge keygen makes one")
        return found

    def _word(self, path: str) -> bytes | None:
        if not self._said:
            self._said.append(self._passphrase(path))
        return self._said[0]


def public_of(path: str | os.PathLike[str]) -> tuple[str, SSlibKey]:
    """A public key from its file, with its name. Raises TrustError."""
    found = public_key(path)
    return found.name, SSlibKey.from_crypto(Ed25519PublicKey.from_public_bytes(bytes.fromhex(found.key)))
