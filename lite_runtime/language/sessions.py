"""Sessions: texts whose caches are kept, saved to a file and restored, so that a long text is not computed again.

A file (`.mssession`) is a container as bundles are, with a section for each cache, whose digests several threads check.
It belongs to one bundle, and to the adapter of its text if it has one, by digest. Files are written atomically.
"""

from __future__ import annotations

import os
from collections.abc import Generator, Mapping
from collections.abc import Sequence as Items
from math import prod
from types import MappingProxyType
from typing import Any, Protocol

import numpy as np

from lite_runtime._files import write_atomically
from lite_runtime.bundle.encoding import plain
from lite_runtime.bundle.layout import REQUIRED, SESSION, File
from lite_runtime.bundle.opening import opened
from lite_runtime.bundle.reading import manifest_of, section_of
from lite_runtime.bundle.refusal import mapping_of, named, object_of, refuse, show, string_of
from lite_runtime.bundle.writing import assemble, dump
from lite_runtime.errors import BundleError, InputError
from lite_runtime.graph import Array
from lite_runtime.language.adapters import Adapter
from lite_runtime.language.answer import Piece
from lite_runtime.language.engine import KEYS, Engine, Sequence
from lite_runtime.language.pages import PAGE, needed

__all__ = ["Session", "restore"]


class Generating(Protocol):
    """What sessions need of a `LanguageModel`."""

    digest: str
    about: Mapping[str, Any]
    engine: Engine

    def generate(
        self, prompt: str | None = None, *, session: Session | None = None, **options: Any
    ) -> Generator[Piece]:
        """The answer to a text."""

    def fork(self, sequence: Sequence) -> Sequence:
        """A second sequence that begins like this one."""

    def end(self, sequence: Sequence, adapter: Adapter | None = None) -> None:
        """A text has ended."""

    def copied(self, sequence: Sequence) -> tuple[list[int], dict[str, Array]]:
        """The tokens of a sequence, and its pages."""

    def restored(self, tokens: Items[int], pages: Mapping[str, Array]) -> Sequence:
        """A sequence with the pages that `copied` gave."""


class Session:
    """A text that stays in the caches between answers. `metadata` are plain values that are saved with it."""

    def __init__(
        self,
        model: Generating,
        sequence: Sequence | None = None,
        metadata: Mapping[str, Any] = MappingProxyType({}),
        adapter: Adapter | None = None,
    ) -> None:
        self.model, self.metadata, self.adapter = model, dict(metadata), adapter
        self.sequence = sequence if sequence is not None else Sequence()
        self.answering = False
        """Whether an answer is being written, which nobody has read to its end or closed."""

    def __len__(self) -> int:
        """The number of tokens in the caches."""
        return len(self.sequence)

    def generate(self, prompt: str | None = None, **options: Any) -> Generator[Piece]:
        """`LanguageModel.generate`, where the text, the whole of it, begins like the session's: only the rest is
        computed. Reading a second answer before the first one has ended raises InputError."""
        return self.model.generate(prompt, session=self, **options)

    def fork(self) -> Session:
        """A second session that begins like this one; no memory is copied until one of them continues."""
        return Session(self.model, self.model.fork(self.sequence), self.metadata, self.adapter)

    def close(self) -> None:
        """End the session. Its pages stay in the caches for texts that begin alike, as long as there is room. Raises
        InputError while an answer is being written."""
        self.check_free(self.model)
        sequence, self.sequence = self.sequence, Sequence()
        self.model.end(sequence, self.adapter)

    def check_free(self, model: Generating) -> None:
        """Raise InputError for a session of another model, and while an answer is being written."""
        if self.model is not model:
            raise InputError("expected a session of this model, got one of another; begin a new session")
        if self.answering:
            raise InputError("the session's answer has not ended; read it to its end, or close its iterator, first")

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the session to a file: after a power failure there is either the old file or the new one. While an
        answer is being written, it is saved up to the last run.

        Raises BundleError for a path that cannot be written and for metadata that are no plain values.
        """
        tokens, caches = self.model.copied(self.sequence)
        manifest = {
            "model": self.model.digest,
            "tokens": len(tokens),
            "metadata": plain(self.metadata, "metadata"),
        }
        if self.adapter is not None:
            manifest["adapter"] = self.adapter.digest
        parts = [("manifest", dump(manifest), REQUIRED)]
        parts.append(("tokens", np.asarray(tokens, "<i4").tobytes(), 0))
        parts += [(name, _clean(name, held, len(tokens)).tobytes(), 0) for name, held in caches.items()]
        write_atomically(path, assemble(parts, SESSION), BundleError)


def restore(model: Generating, path: str | os.PathLike[str], adapter: Adapter | None = None) -> Session:
    """The session that `Session.save` wrote. adapter: that which it had.

    Raises BundleError for a file that cannot be read or is damaged, InputError for a session of another model or
    adapter, and OutOfPages if the caches have no room for it.
    """
    shown = repr(os.fspath(path))
    file = opened(path, SESSION)
    manifest = named(shown, _manifest, file)
    if manifest["model"] != model.digest:
        raise InputError(
            f"{shown}: expected a session of this model, bundle {model.digest[:16]}…, got one of bundle"
            f" {manifest['model'][:16]}…; load that model, or begin a new session"
        )
    _need_adapter(shown, manifest.get("adapter"), None if adapter is None else adapter.digest)
    tokens, pages = named(shown, _contents, model, file, manifest)
    return Session(model, model.restored(tokens, pages), manifest["metadata"], adapter)


def _need_adapter(shown: str, held: str | None, given: str | None) -> None:
    if held == given:
        return
    wanted, got = (f"adapter {digest[:16]}…" if digest else "no adapter" for digest in (held, given))
    raise InputError(f"{shown}: this session was computed with {wanted}, got {got}; give the same, or begin a new one")


def _manifest(file: File) -> dict[str, Any]:
    found = manifest_of(file)
    more = ("adapter",) if isinstance(found, Mapping) and "adapter" in found else ()
    doc = object_of(found, "manifest", ("model", "tokens", "metadata", *more))
    for name in ("model", *more):
        string_of(doc[name], f"manifest, {name}")
    mapping_of(doc["metadata"], "manifest, metadata")
    return doc


def _contents(model: Generating, file: File, doc: Mapping[str, Any]) -> tuple[list[int], dict[str, Array]]:
    """The tokens, and the pages of each cache."""
    raw, count, most = section_of(file, "tokens"), doc["tokens"], model.engine.context
    if type(count) is not int or not 0 <= count <= most or len(raw) != 4 * count:
        refuse("section 'tokens'", f"4 bytes for each of 0 to {most} tokens", f"{len(raw)} bytes, {show(count)} tokens")
    tokens = np.frombuffer(raw, "<i4").tolist()
    if tokens and not 0 <= min(tokens) <= max(tokens) < model.about["vocabulary"]:
        refuse("section 'tokens'", f"tokens below {model.about['vocabulary']}", "others")
    pages = {}
    for name, like in model.engine.caches.items():
        data, shape = section_of(file, name), (needed(len(tokens)), *like.shape[1:])
        wanted = prod(shape) * like.dtype.itemsize
        if len(data) != wanted:
            refuse(f"section {name!r}", f"{wanted} bytes", str(len(data)))
        pages[name] = np.frombuffer(data, like.dtype).reshape(shape)
    return tokens, pages


def _clean(name: str, pages: Array, tokens: int) -> Array:
    """Pages without what earlier texts left behind the last token."""
    if tokens % PAGE:
        behind = slice(tokens % PAGE, None)
        pages[-1][(..., behind) if name.startswith(KEYS) else (slice(None), behind)] = 0
    return pages
