"""A repository with its keys and a clock that tests turn, devices that trust it, and thieves of its keys."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from tuf.api.metadata import Metadata

from cloud.hub.repository import Keys, Repository
from cloud.hub.repository.releases import Releases
from cloud.hub.storage import Storage, storage_at
from edge.agent.errors import MissingError
from edge.agent.trust import Trust
from lite_runtime import bundle
from lite_runtime.graph import Graph, Value

DAY = 86_400.0
START = 1_790_000_000.0


def bundle_at(path: Path, *seeds: int, source: str = "") -> Path:
    """A bundle with a tensor of 40 KB for each seed."""
    arrays = {f"t{i}": np.random.default_rng(seed).integers(-99, 99, 40_000, np.int8) for i, seed in enumerate(seeds)}
    outputs = tuple(Value(name, "int8", array.shape) for name, array in arrays.items())
    graph = Graph((), outputs, (), arrays, "constants")
    bundle.write(path, {"run": graph}, provenance={"source_digest": source} if source else {})
    return path


class Files:
    """The files of a repository in memory, as a device fetches them; tests replace some."""

    def __init__(self, files: Mapping[str, bytes]) -> None:
        self.files = dict(files)
        self.asked: list[str] = []

    @classmethod
    def of(cls, storage: Storage) -> Files:
        return cls({name: storage.read(name) for name in storage.names()})

    def copy(self) -> Files:
        return Files(self.files)

    def open(self, name: str, start: int = 0) -> Iterator[bytes]:
        self.asked.append(name)
        if name not in self.files:
            raise MissingError(f"no {name}")
        yield self.files[name][start:]

    def metadata(self, name: str) -> Metadata[Any]:
        return Metadata.from_bytes(self.files[f"metadata/{name}.json"])


class World:
    """Everything in one folder. now: the time of all, devices too. An application `keys` with one version."""

    def __init__(self, folder: Path, storage: Storage | None = None, **given: Any) -> None:
        self.folder, self.now = folder, START
        self.storage = storage or storage_at(folder / "repository")
        self.keys = Keys([folder / "keys"])
        self.repository = Repository(self.storage, self.keys, lambda: self.now)
        self.releases = Releases(self.repository)
        self.repository.init(**{"applications": ["keys", "other"], **given})
        self.root = self.storage.read("metadata/1.root.json")

    def bundle(self, *seeds: int) -> Path:
        return bundle_at(self.folder / f"{'-'.join(map(str, seeds))}.mslite", *seeds)

    def add(self, version: str, *seeds: int, application: str = "keys") -> Any:
        return self.releases.add(application, version, {"model.mslite": self.bundle(*seeds)})

    def files(self) -> Files:
        return Files.of(self.storage)

    def device(self, files: Any, name: str = "device", **given: Any) -> Trust:
        given = {"clock": lambda: self.now, **given}
        return Trust(self.folder / name, self.root, files, **given)

    def forge(
        self, files: Files, name: str, keys: tuple[str, ...], change: Callable[[Any], None], to: str = ""
    ) -> None:
        """Change a file of metadata, and sign it with these keys alone: by the names of the files that hold them."""
        made = copy.deepcopy(files.metadata(name))
        change(made.signed)
        made.signatures.clear()
        for key in keys:
            (path,) = self.folder.glob(f"**/{key}.pub")
            from cloud.hub.repository.keys import public_of

            signer = Keys([path.parent]).signer(public_of(path)[1].keyid)
            assert signer is not None
            made.sign(signer, append=True)
        files.files[f"metadata/{to or name}.json"] = made.to_bytes()
