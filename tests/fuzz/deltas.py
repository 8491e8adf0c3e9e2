"""Does any delta crash the device that rebuilds a file, hang it, fill its disk or memory, or give a wrong file?

    python -m tests.fuzz.deltas --cases 100000 --seed 1

Cases are sound deltas that were damaged: bytes, cuts, headers, and operations with any operands, whose streams are
compressed anew so that the reader gets to them. Each is rebuilt with the size and the digest that a release says.
Success with the right bytes and BundleError are what may happen; anything else is a finding, as are more than ten
seconds, a file that is left behind, and memory beyond a limit. Exit status: 0 nothing found, 1 something found.
"""

from __future__ import annotations

import argparse
import hashlib
import lzma
import resource
import signal
import sys
import tempfile
import traceback
from collections import Counter
from collections.abc import Iterable
from functools import cache
from io import BytesIO
from pathlib import Path
from random import Random
from types import FrameType
from typing import NamedTuple

import numpy as np

from cloud.hub.deltas.making import delta_of
from lite_runtime import BundleError, bundle
from lite_runtime.graph import Array, Graph, Value, dtype_name
from lite_runtime.updates.delta import rebuild
from lite_runtime.updates.delta.layout import FILTERS, MAGIC, read_head

__all__ = ["Seed", "damaged", "main", "run", "seeds", "try_delta"]

PATIENCE = 10
NUMBERS = (0, 1, 2, 3, 5, 127, 128, 255, 16384, 65535, 1 << 20, 1 << 31, 1 << 40, (1 << 63) - 1, 1 << 63, 1 << 70)


class Seed(NamedTuple):
    """Two files and the delta between them."""

    old: bytes
    new: bytes
    delta: bytes


@cache
def seeds() -> tuple[Seed, ...]:
    """One of every kind of operation, element and operand."""
    rng = np.random.default_rng(11)
    text = rng.bytes(300)
    pairs = [(text + b"abc" * 50, text[:100] + rng.bytes(70) + text[150:])]
    for change in (1, 37):
        arrays = [_arrays(np.random.default_rng(12), change * part) for part in (0, 1)]
        files = (bundle.write(None, {"s": _graph(part)}, metadata={"n": i}) for i, part in enumerate(arrays))
        pairs.append((next(files), next(files)))
    return tuple(Seed(old, new, delta_of(memoryview(old), memoryview(new))) for old, new in pairs)


def _graph(arrays: dict[str, Array]) -> Graph:
    outputs = tuple(Value(name, dtype_name(a.dtype), a.shape) for name, a in arrays.items())
    return Graph((), outputs, (), arrays, "constants")


def _arrays(rng: np.random.Generator, change: int) -> dict[str, Array]:
    wide = rng.normal(0, 20, (24, 20, 9))
    factors = 1 + change / 100 * rng.random((24, 1, 1)) * rng.random((1, 20, 1))
    step = (rng.random(2000) < 0.2) * change
    return {
        "int8": np.clip(np.rint(wide * factors), -127, 127).astype(np.int8),
        "half": ((rng.integers(0, 256, 2000) & 0xF0) + (step & 15)).astype(np.uint8).reshape(20, 100),
        "int32": (rng.integers(-(2**31), 2**31, 2000) + step * 1000).astype(np.int32),
        "float32": (rng.normal(size=2000) * (1 + step / 1000)).astype(np.float32),
        "float16": (rng.normal(size=2000) * (1 + step / 100)).astype(np.float16),
        "int64": rng.integers(0, 9, 50) + step[:50],
    }


def damaged(rng: Random, seed: Seed) -> bytes:
    """A delta that was changed somewhere."""
    kind = rng.randrange(6)
    data = bytearray(seed.delta)
    if kind == 0:
        return bytes(data[: rng.randrange(len(data))])
    if kind == 1:
        for _ in range(rng.choice((1, 1, 2, 8))):
            data[rng.randrange(len(data))] = rng.randrange(256)
        return bytes(data)
    if kind == 2:
        return bytes(data) + rng.randbytes(rng.randrange(1, 20))
    head = read_head(BytesIO(seed.delta))
    control = lzma.decompress(seed.delta[head.start : head.start + head.control], lzma.FORMAT_RAW, None, FILTERS)
    frames = seed.delta[head.start + head.control :]
    return _written(rng, seed, _spoiled(rng, control) if kind < 5 else control, frames)


def _spoiled(rng: Random, control: bytes) -> bytes:
    """Operations with bytes changed, numbers put in, parts repeated, or a bomb in place of the rest."""
    at = rng.randrange(len(control) + 1)
    kind = rng.randrange(6)
    if kind == 0:
        return control[:at] + bytes([rng.randrange(256)]) + control[at + 1 :]
    if kind == 1:
        return control[:at] + _varint(rng.choice(NUMBERS)) + control[at + rng.randrange(3) :]
    if kind == 2:
        return control[:at] + control[rng.randrange(len(control)) :]
    if kind == 3:
        return control[:at] + bytes([rng.randrange(5)]) * rng.choice((1, 1000, 1 << 22))
    if kind == 4:
        operands = b"".join(_varint(rng.choice(NUMBERS)) for _ in range(rng.randrange(1, 12)))
        return control[:at] + bytes([rng.randrange(4)]) + operands + control[at:]
    return control[:at]


def _written(rng: Random, seed: Seed, control: bytes, frames: bytes) -> bytes:
    """A delta of these parts, perhaps with another header or other frames."""
    packed = lzma.compress(control, lzma.FORMAT_RAW, filters=[{**FILTERS[0], "preset": 0}])
    sizes = [len(seed.old), len(seed.new), len(packed)]
    if rng.random() < 0.1:
        sizes[rng.randrange(3)] = rng.choice(NUMBERS)
    if rng.random() < 0.4 and frames:
        words = bytearray(frames)
        at = rng.randrange(len(words))
        words[at : at + 4] = rng.choice((rng.randbytes(4), b"\0" * 4, b"\xff" * 4))
        frames = bytes(words)
    digests = b"".join(hashlib.sha256(part).digest()[:16] for part in (seed.old, seed.new))
    return b"".join([MAGIC, *map(_varint, sizes), digests, packed, frames])


def _varint(value: int) -> bytes:
    made = bytearray()
    while value > 127:
        made.append(value & 127 | 128)
        value >>= 7
    return bytes([*made, value])


def try_delta(folder: Path, seed: Seed, delta: bytes) -> str:
    """What happened: "rebuilt", "refused", or the text of a finding."""
    old, new = folder / "old", folder / "new"
    old.write_bytes(seed.old)

    def stop(_number: int, _frame: FrameType | None) -> None:
        raise TimeoutError(f"more than {PATIENCE} seconds")

    signal.signal(signal.SIGALRM, stop)
    signal.alarm(PATIENCE)
    try:
        rebuild(old, delta, new, size=len(seed.new), sha256=hashlib.sha256(seed.new).hexdigest())
    except BundleError as error:
        left = {path.name for path in folder.iterdir()} - {"old"}
        return "refused" if str(error) and not left else f"left behind: {left}"
    except BaseException:
        return traceback.format_exc()
    finally:
        signal.alarm(0)
    made = new.read_bytes()
    new.unlink()
    return "rebuilt" if made == seed.new else "a wrong file"


def run(seed: int, cases: Iterable[int]) -> tuple[Counter[str], list[tuple[int, str]]]:
    """Counts of what happened, and findings with their cases."""
    counts: Counter[str] = Counter()
    findings = []
    with tempfile.TemporaryDirectory() as name:
        for number in cases:
            rng = Random(f"{seed} {number}")
            chosen = rng.choice(seeds())
            text = try_delta(Path(name), chosen, damaged(rng, chosen))
            known = text in ("rebuilt", "refused")
            counts[text if known else "findings"] += 1
            if not known:
                findings.append((number, text))
    return counts, findings


def main(arguments: list[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--cases", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))
    counts, findings = run(options.seed, range(options.cases))
    for number, text in findings:
        print(f"case {number} of seed {options.seed}: {text}")
    print(", ".join(f"{name} {count}" for name, count in sorted(counts.items())))
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
