"""The list of public models: `models.json`, read and checked."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from federated.tables import Count, Reader, Table
from lite_runtime.errors import MsedgeError

__all__ = ["KINDS", "LIST", "Entry", "entries", "file_of"]

LIST = Path(__file__).with_name("models.json")
KINDS = ("vision", "sound", "text", "table", "streaming")
_READER = Reader(MsedgeError, "see benchmarks/zoo/listing.py")


class Entry(Table, frozen=True):
    """One model: a file of a package of PyPI or npm, or of a public GitHub repository at a commit.

    registry: "" is PyPI, "sdist" a source archive of PyPI. licence: what the package or the repository states.
    sizes: shapes of inputs with open dimensions, one mapping for each case; none: 1 for every open dimension, and 3 in
    place of open first dimensions. ranges: the lowest and highest value of inputs that not every value is valid for.
    state: for each input that continues an output of the run before, that output. note: why the result is not "equal".
    """

    reader = _READER
    name: str
    kind: Literal["vision", "sound", "text", "table", "streaming"]
    sha256: Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]
    size: Count
    path: str
    package: str = ""
    version: str = ""
    registry: Literal["", "npm", "sdist"] = ""
    repository: str = ""
    commit: str = ""
    licence: str = ""
    sizes: tuple[dict[str, tuple[int, ...]], ...] = ()
    ranges: dict[str, tuple[float, float]] = msgspec.field(default_factory=dict)
    state: dict[str, str] = msgspec.field(default_factory=dict)
    note: str = ""

    @property
    def format(self) -> str:
        """The ending of the file: "onnx" or "tflite"."""
        return self.path.rpartition(".")[2]

    @property
    def peer(self) -> str:
        """The runtime of the model's format."""
        return {"onnx": "onnxruntime", "tflite": "ai-edge-litert"}[self.format]

    @property
    def source(self) -> str:
        """Markdown: where the file is."""
        if self.package:
            return f"{self.registry or 'PyPI'} {self.package} {self.version}"
        return f"GitHub {self.repository} @{self.commit[:10]}"

    def as_dict(self) -> Mapping[str, object]:
        """The keys that are not empty."""
        return {key: value for key in self.__struct_fields__ if (value := getattr(self, key))}


def entries(path: Path = LIST) -> list[Entry]:
    """The models of a list, in its order. Raises MsedgeError for one that is not valid."""
    try:
        rows = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise MsedgeError(f"{path}: expected a list of models in JSON: {error}") from error
    found = [_READER.read(Entry, row, f"{path.name}: ") for row in rows]
    names = [entry.name for entry in found]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise MsedgeError(f"{path}: expected every name once, found {', '.join(twice)} several times")
    return found


def file_of(entry: Entry, folder: Path) -> Path:
    """Where `fetch` puts the model's file: names are digests, because many models are called model.onnx."""
    return folder / f"{entry.sha256}.{entry.format}"
