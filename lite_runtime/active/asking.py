"""Requests for labels in a folder, and the labels that people gave.

    request.json          {"version": 1, "examples": "SHA256.npz", "model": …, "strategy": …, "classes": [NAME, …],
                           "items": [{"id": …, "score": …, "guess": CLASS}, …]}
    SHA256.npz            the items' inputs, one array an input, rows in the order of the items
    answers.json          {ID: CLASS or NAME or null, …}; null: nobody can say
    answers.csv           instead: lines `ID,CLASS`

Whatever shows the examples and writes the answers, a program on the device or a page, needs no more than this. An id is
a digest of its example, so that answers fit whatever the order, and no example is asked for twice.
"""

from __future__ import annotations

import csv
import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from lite_runtime._arrays import load_arrays, packed_arrays
from lite_runtime._files import write_atomically
from lite_runtime.active.keeping import Example, identity
from lite_runtime.errors import MsedgeError
from lite_runtime.frozen import NamedTuple
from lite_runtime.graph import Array

__all__ = ["Answers", "answers", "ask"]

REQUEST, ANSWERS, LINES = "request.json", "answers.json", "answers.csv"
_VERSION = 1
_MOST_TEXT = 1 << 26
_AGAIN = "ask again into an empty folder"


class Answers(NamedTuple):
    """What is labelled so far. inputs: by name, (n, ...); labels: (n,) int64; ids: of these rows. unknown: ids of
    examples that nobody could label; left: ids without an answer."""

    inputs: Mapping[str, Array]
    labels: Array
    ids: tuple[str, ...]
    unknown: tuple[str, ...]
    left: tuple[str, ...]


def ask(
    folder: str | os.PathLike[str], examples: Sequence[Example], *,
    classes: Sequence[str] = (), model: str = "", strategy: str = "",
) -> Path:  # fmt: skip
    """Write a request for the labels of `examples` (all with the same inputs); returns its file.

    classes: names, shown to people. model: the digest of the bundle that chose. Raises MsedgeError if there is nothing
    to ask, if the folder has a request already, and if it cannot be written.
    """
    place = Path(folder)
    if not examples:
        raise MsedgeError(f"nothing to ask in {str(place)!r}: expected at least 1 example, got none")
    if (place / REQUEST).exists():
        raise MsedgeError(f"{str(place)!r} has a request already; collect its answers, then choose an empty folder")
    kinds = {tuple((name, a.dtype.str, a.shape) for name, a in sorted(one.inputs.items())) for one in examples}
    if len(kinds) != 1:
        raise MsedgeError("expected examples of equal inputs, dtypes and shapes, got several kinds; ask for each kind")
    arrays = packed_arrays({name: np.stack([one.inputs[name] for one in examples]) for name in examples[0].inputs})
    name = f"{hashlib.sha256(arrays).hexdigest()}.npz"
    items = [{"id": one.id, "score": one.score, "guess": one.guess} for one in examples]
    body = {"version": _VERSION, "examples": name, "model": model, "strategy": strategy, "classes": list(classes),
            "items": items}  # fmt: skip
    try:
        place.mkdir(parents=True, exist_ok=True)
    except OSError as problem:
        raise MsedgeError(f"cannot make the folder {str(place)!r}: {problem.strerror or problem}") from problem
    write_atomically(place / name, arrays)
    write_atomically(place / REQUEST, json.dumps(body, indent=1).encode())
    return place / REQUEST


def answers(folder: str | os.PathLike[str]) -> Answers:
    """The examples of a request with the labels that its folder has by now.

    Raises MsedgeError for a folder without a request, for files that are damaged or do not fit each other, for ids that
    were not asked, labels that are no class, and two answers that differ.
    """
    place = Path(folder)
    body = _request(place)
    names = [str(name) for name in body["classes"]]
    inputs = _examples(place, body)
    ids = [item["id"] for item in body["items"]]
    given: dict[str, int | None] = {}
    for file, read in ((ANSWERS, _document), (LINES, _lines)):
        if (place / file).exists():
            for key, label in read(place / file).items():
                if key not in ids:
                    raise MsedgeError(f"{str(place / file)!r}: {key!r} was not asked for; remove it")
                found = _label(label, names, place / file, key)
                if given.setdefault(key, found) != found:
                    raise MsedgeError(f"{str(place)!r}: {key!r} has two answers, {given[key]} and {found}; remove one")
    rows = [row for row, key in enumerate(ids) if given.get(key) is not None]
    return Answers(
        {name: array[rows] for name, array in inputs.items()},
        np.array([given[ids[row]] for row in rows], np.int64),
        tuple(ids[row] for row in rows),
        tuple(key for key in ids if key in given and given[key] is None),
        tuple(key for key in ids if key not in given),
    )


def _request(place: Path) -> dict[str, Any]:
    """The checked request."""
    path = place / REQUEST
    body = _json(path)
    items = body.get("items")
    sound = (
        body.get("version") == _VERSION and isinstance(body.get("classes"), list)
        and isinstance(items, list) and all(_is_item(item) for item in items)
        and isinstance(body.get("examples"), str)
    )  # fmt: skip
    if not sound:
        raise MsedgeError(f"{str(path)!r}: expected a request of version {_VERSION}, got another document; {_AGAIN}")
    if len({item["id"] for item in body["items"]}) != len(body["items"]):
        raise MsedgeError(f"{str(path)!r}: an example is there twice; {_AGAIN}")
    return body


def _is_item(item: Any) -> bool:
    return isinstance(item, dict) and isinstance(item.get("id"), str)


def _examples(place: Path, body: Mapping[str, Any]) -> dict[str, Array]:
    """The inputs, which must be those that the request names."""
    name = str(body["examples"])
    path = place / name
    if os.path.basename(name) != name or not name.endswith(".npz"):
        raise MsedgeError(f"{str(place / REQUEST)!r}: expected the name of an .npz file, got {name!r}; {_AGAIN}")
    try:
        sound = hashlib.sha256(path.read_bytes()).hexdigest() == name[: -len(".npz")]
    except OSError as problem:
        raise MsedgeError(f"cannot read {str(path)!r}: {problem.strerror or problem}; {_AGAIN}") from problem
    inputs = load_arrays(path) if sound else {}
    count = len(body["items"])
    rows = [{n: a[row] for n, a in inputs.items()} for row in range(count)] if _long(inputs, count) else []
    if not rows or any(identity(row) != item["id"] for row, item in zip(rows, body["items"], strict=True)):
        raise MsedgeError(f"{str(path)!r}: expected the {count} examples that were asked for, got others; {_AGAIN}")
    return inputs


def _long(inputs: Mapping[str, Array], count: int) -> bool:
    return bool(inputs) and all(array.ndim and len(array) == count for array in inputs.values())


def _label(value: Any, names: Sequence[str], path: Path, key: str) -> int | None:
    """A class of an answer: its number or its name."""
    if value is None or value == "":
        return None
    if isinstance(value, str) and value in names:
        return names.index(value)
    number = int(value) if isinstance(value, str) and value.isdecimal() and len(value) < 10 else value
    whole = isinstance(number, int) and not isinstance(number, bool)
    if whole and 0 <= number < (len(names) or 1 << 31):
        return int(number)
    expected = f"one of {', '.join(names)}" if names else "the number of a class"
    raise MsedgeError(f"{str(path)!r}: {key!r}: expected {expected}, got {str(value)[:60]!r}")


def _document(path: Path) -> dict[str, Any]:
    return _json(path)


def _json(path: Path) -> dict[str, Any]:
    try:
        body = json.loads(_text(path), parse_constant=lambda word: word)
    except (ValueError, RecursionError) as problem:
        raise MsedgeError(f"{str(path)!r}: expected JSON, got something else: {problem}") from problem
    if not isinstance(body, dict):
        raise MsedgeError(f"{str(path)!r}: expected a JSON object, got {type(body).__name__}")
    return body


def _lines(path: Path) -> dict[str, Any]:
    """Lines `ID,CLASS`; a first line `id,label` is a heading."""
    found: dict[str, Any] = {}
    try:
        rows = list(csv.reader(_text(path).splitlines(), strict=True))
    except csv.Error as problem:
        raise MsedgeError(f"{str(path)!r}: expected lines ID,CLASS: {problem}") from problem
    for number, row in enumerate(rows, start=1):
        if not row or (number == 1 and [cell.strip().lower() for cell in row] == ["id", "label"]):
            continue
        if len(row) != 2:
            raise MsedgeError(f"{str(path)!r}, line {number}: expected ID,CLASS, got {len(row)} cells")
        key, label = (cell.strip() for cell in row)
        if found.setdefault(key, label) != label:
            raise MsedgeError(f"{str(path)!r}, line {number}: {key!r} has two answers; remove one")
    return found


def _text(path: Path) -> str:
    try:
        with open(path, "rb") as file:
            raw = file.read(_MOST_TEXT + 1)
        if len(raw) > _MOST_TEXT:
            raise MsedgeError(f"{str(path)!r}: expected at most {_MOST_TEXT} bytes, got more")
        return raw.decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as problem:
        words = problem.strerror if isinstance(problem, OSError) else problem
        raise MsedgeError(f"cannot read {str(path)!r}: {words}") from problem
