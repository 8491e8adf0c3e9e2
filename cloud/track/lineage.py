"""Where a file came from: data and first model -> run -> ONNX -> bundle, as far as the store has records."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from cloud.errors import TrackError
from cloud.track.digests import digest_of_file
from cloud.track.runs import Artifact
from cloud.track.store import Store
from lite_runtime.errors import BundleError

__all__ = ["Link", "identity", "lineage"]


@dataclass(frozen=True)
class Link:
    """One element of the chain. `kind`: "data", "model", "run", or an artifact's ("onnx", "bundle" …); `digest` is the
    run's id for a run; `sources` are the positions in the chain of what it was made from."""

    kind: str
    digest: str
    text: str
    sources: tuple[int, ...] = ()


def identity(path: str | os.PathLike[str]) -> tuple[str, str]:
    """(digest, digest of its source or "") of a file; a bundle contains both. Raises TrackError."""
    from lite_runtime import bundle

    shown = os.fspath(path)
    if shown.endswith(".mslite"):
        try:
            held = bundle.read(shown)
        except BundleError as error:
            raise TrackError(f"{shown!r}: expected a bundle: {error}") from error
        made_of = held.provenance.get("parent") or held.provenance.get("source_digest") or ""
        return held.digest, str(made_of)
    return digest_of_file(shown), ""


def lineage(store: Store, what: str | os.PathLike[str]) -> list[Link]:
    """The chain to `what`: a file, a digest (64 hexadecimal digits), or a run, followed by the files it wrote.

    Sources come before what was made from them. Raises TrackError if `what` is none of these.
    """
    chain = _Chain(store)
    word = os.fspath(what)
    if Path(word).is_file():
        digest, source = identity(word)
        chain.file(digest, Path(word).name, source)
    elif re.fullmatch(r"[0-9a-f]{64}", word):
        chain.file(word, "", "")
    else:
        run = _run(store, word)
        chain.run(run)
        for made in store.artifacts(run):
            chain.artifact(run, made)
    return chain.links


def _run(store: Store, word: str) -> str:
    """Its id. A word that looks like a file name is reported as a missing file."""
    try:
        return store.run(word).id
    except TrackError as error:
        if Path(word).suffix or os.sep in word:
            raise TrackError(f"there is no file {word!r}, and it is no run either: {error}") from error
        raise


class _Chain:
    """Built from the front: the sources of an element are added before it, each element once."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.links: list[Link] = []
        self._places: dict[str, int | None] = {}

    def _put(self, key: str, link: Link) -> int:
        self.links.append(link)
        self._places[key] = len(self.links) - 1
        return len(self.links) - 1

    def _known(self, key: str) -> bool:
        """Whether an element is in the chain or being added: this ends the search if a file is its own ancestor."""
        if key in self._places:
            return True
        self._places[key] = None
        return False

    def _at(self, *keys: str) -> tuple[int, ...]:
        return tuple(place for key in keys if (place := self._places.get(key)) is not None)

    def run(self, run_id: str) -> None:
        if self._known(run_id):
            return
        run = self.store.run(run_id)
        if run.data and not self._known(run.data):
            self._put(run.data, Link("data", run.data, _words_of(run.config.get("data"))))
        if run.model:
            self.file(run.model, _words_of(run.config.get("model")), "", kind="model")
        if run.parent:
            self.run(run.parent)
        text = " · ".join(filter(None, (run.name, run.state)))
        self._put(run_id, Link("run", run_id, text, self._at(run.data, run.model, run.parent)))

    def artifact(self, run_id: str, made: Artifact) -> None:
        if self._known(made.digest):
            return
        if self.store.makers(made.source):
            self.file(made.source, "", "")
            sources = self._at(made.source)
        else:  # it has no recorded source other than the run
            self.run(run_id)
            sources = self._at(run_id)
        self._put(made.digest, Link(made.kind, made.digest, made.path, sources))

    def file(self, digest: str, text: str, source: str, kind: str = "") -> None:
        """`text`, `source` and `kind` describe it if the store has no record."""
        if digest in self._places:
            return
        makers = self.store.makers(digest)
        if makers:
            self.artifact(*makers[0])
            return
        self._places[digest] = None
        if source:
            self.file(source, "", "")
        self._put(digest, Link(kind or "file", digest, text or "not in this store", self._at(source)))


def _words_of(section: object) -> str:
    """A short form of a configuration's data or model section."""
    if not isinstance(section, dict):
        return ""
    said = (f"{key} = {value}" for key, value in section.items() if value not in ("", None, [], {}))
    return ", ".join(said)[:200]
