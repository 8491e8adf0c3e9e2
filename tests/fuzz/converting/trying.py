"""One case: the file that its number makes, what is asked of the converter, and what comes of it."""

from __future__ import annotations

import itertools
import os
import traceback
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

from converter import convert
from converter.lowering import lower
from converter.pass_lists import to_ir
from converter.quantize import Options
from converter.report import page
from lite_runtime import MsedgeError
from tests.fuzz.bundles import make_inputs, try_file
from tests.fuzz.converting import gguf_files, gguf_seeds, onnx_files, ort_files, raw_bytes, tflite_files

__all__ = ["CLEAN", "ROOT", "Case", "Outcome", "Seeds", "try_case"]

ROOT = Path(__file__).resolve().parents[3]
CLEAN = ("ran", "converted", "refused")
"""Kinds of outcomes that no file is wrong to have: a bundle that ran, one that was not run, or one clear error."""
_LONGEST, _LINES = 12_000, 24
"""Characters and lines of an error that a person can read."""
_SPOIL: dict[str, Callable[[Random, bytes, list[bytes]], bytes]] = {
    "gguf": gguf_files.spoil, "onnx": onnx_files.spoil, "ort": ort_files.spoil, "tflite": tflite_files.spoil,
}  # fmt: skip
_ASKED: tuple[tuple[int, dict[str, Any]], ...] = (
    (80, {}),
    (5, {"quantize": "fp16"}),
    (3, {"quantize": "int8"}),
    (2, {"quantize": Options("int8", io="int8")}),
    (1, {"quantize": "int16x8"}),
    (3, {"quantize": "dynamic"}),
    (1, {"quantize": "w8"}),
    (1, {"quantize": Options("w4", block_size=16)}),
    (2, {"to": "onnx"}),
    (2, {"explain": True}),
)
_SHARES = list(itertools.accumulate(share for share, _ in _ASKED))


@dataclass(frozen=True)
class Seeds:
    """Sound files of one format. Small ones are chosen more often: they take less time."""

    form: str
    files: list[bytes]

    def choose(self, rng: Random) -> bytes:
        """The smaller of two."""
        return min(rng.choice(self.files), rng.choice(self.files), key=len)


@dataclass(frozen=True)
class Case:
    """A seed's file after some changes, each of which depends on its own number only; and what is asked."""

    seeds: Seeds
    key: str
    steps: tuple[int, ...]

    @classmethod
    def numbered(cls, seeds: Seeds, seed: int, number: int) -> Case:
        """Case `number` of the run with that seed."""
        key = f"{seed}:{number}"
        return cls(seeds, key, tuple(range(Random(key).choice((1, 1, 1, 2, 2, 3, 6)))))

    def file(self) -> bytes:
        """The bytes."""
        rng = Random(f"{self.key}:file")
        data, blind = self.seeds.choose(rng), rng.random() < 0.2
        for step in self.steps:
            spoil = raw_bytes.spoil if blind else _SPOIL[self.seeds.form]
            data = spoil(Random(f"{self.key}:{step}"), data, self.seeds.files)
        return data

    def asked(self) -> dict[str, Any]:
        """Arguments of `convert`."""
        return dict(Random(f"{self.key}:asked").choices([a for _, a in _ASKED], cum_weights=_SHARES)[0])


class Outcome(NamedTuple):
    """`kind`: one of CLEAN, or what went wrong; `place`: where, the same for equal causes; `text`: all of it."""

    kind: str
    place: str
    text: str


def try_case(data: bytes, asked: dict[str, Any], folder: Path, form: str, seed: str) -> Outcome:
    """Convert a file, in an empty folder, and run what it gives."""
    warnings.simplefilter("ignore")
    source, output = folder / f"model.{form}", folder / "output"
    source.write_bytes(data)
    (folder / "weights.bin").write_bytes(bytes(64))
    before = set(os.listdir(folder))
    try:
        if asked.get("quantize") is not None:
            asked["calibration"] = _calibration(source, asked, seed)
        made = convert(source, output=output, **asked)
    except MsedgeError as error:
        left = set(os.listdir(folder)) - before
        return Outcome("partial output", _place(error), str(left)) if left else _refusal(error)
    except Exception as error:  # the point of a fuzzer; the type checker's rule is about the product
        return Outcome("error", _place(error), traceback.format_exc())
    try:
        if output.read_bytes() != made.bundle or set(os.listdir(folder)) != {*before, "output"}:
            return Outcome("partial output", "success", str(os.listdir(folder)))
        made.report.as_json()
        page(made.report)
        if "to" in asked:
            return Outcome("converted", "", "")
        if made.report.language and gguf_seeds.ran(made.bundle):
            return Outcome("ran", "", "")
        done = try_file(made.bundle, "native", 1, Random(seed).randrange(1000))
    except Exception as error:  # as above
        return Outcome("error after conversion", _place(error), traceback.format_exc())
    if "read" not in done:
        return Outcome("unreadable bundle", "", "")
    return Outcome("ran" if "ran" in done else "converted", "", "")


def _calibration(source: Path, asked: dict[str, Any], seed: str) -> Any:
    """Two rows of what the model says its inputs are; None for none, or too large ones, or modes without any."""
    if asked["quantize"] in ("fp16", "dynamic"):
        return None
    rng = Random(seed)
    rows = [make_inputs(lower(to_ir(source)), rng) for _ in range(2)]
    return None if any(row is None for row in rows) else rows


def _refusal(error: MsedgeError) -> Outcome:
    text = str(error)
    for words, kind in (("a bug in msedge", "bug"), ("MemoryError", "memory"), ("report this as a bug", "unforeseen")):
        if words in text:
            return Outcome(kind, _place(_cause(error)), _all(error))
    lines = text.split("\n")
    if not all(line.isprintable() for line in lines):
        return Outcome("unprintable", _place(error), repr(text))
    if len(text) > _LONGEST or len(lines) > _LINES or not text:
        return Outcome("too long", _place(error), f"{len(text)} characters, {len(lines)} lines\n{text[:2000]}")
    return Outcome("refused", type(error).__name__, text)


def _cause(error: BaseException) -> BaseException:
    while error.__cause__ is not None:
        error = error.__cause__
    return error


def _all(error: BaseException) -> str:
    return "".join(traceback.format_exception(error))


def _place(error: BaseException) -> str:
    """Type, and the innermost line of this repository."""
    frames: Sequence[traceback.FrameSummary] = traceback.extract_tb(error.__traceback__)
    ours = [f for f in frames if f.filename.startswith(str(ROOT)) and "/tests/" not in f.filename]
    where = f"{Path(ours[-1].filename).relative_to(ROOT)}:{ours[-1].lineno}" if ours else "?"
    return f"{type(error).__name__} at {where}"


