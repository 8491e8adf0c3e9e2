"""Deltas between versions of bundles, against zstd's and bsdiff's:

    python -m benchmarks.deltas MODELS DATA [--language FILE.gguf TEXT]

MODELS and DATA hold MLPerf Tiny's ResNet-8, Coral's MobileNetV2 and images of CIFAR-10. Models are trained by their own
`train_step` for one epoch and quantised as before (`_delta_cases`); every delta is rebuilt by a process of its own that
has NumPy and the standard library, and compared byte for byte. zstd (the program, `--patch-from`, level 19, window of
128 MB) and bsdiff4 are compared with where they are installed. The table is Markdown.
"""

from __future__ import annotations

import argparse
import datetime
import hashlib
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from benchmarks._delta_cases import Pair, language, mobilenet, pairs, resnet
from benchmarks.machine import cpu
from cloud.hub.deltas import make
from lite_runtime.updates.pieces import missing, pieces_of

__all__ = ["Row", "main", "measured"]

DEVICE = """
import sys, time
from lite_runtime.updates.delta import rebuild
old, delta, new, size, sha256 = sys.argv[1:]
begin = time.perf_counter()
rebuild(old, delta, new, size=int(size), sha256=sha256)
print(time.perf_counter() - begin)
with open("/proc/self/status") as lines:
    print(next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM")))
"""


class Row(NamedTuple):
    """One pair of files. Sizes and memory in bytes (0: not measured)."""

    name: str
    size: int
    delta: int
    pieces: int
    zstd: int
    bsdiff: int
    make_seconds: float
    rebuild_seconds: float
    rebuild_memory: int


def measured(pair: Pair, folder: Path) -> Row:
    """Make, rebuild and compare; raises CalledProcessError or AssertionError if the file does not come out."""
    old, new, delta, made = (folder / name for name in ("old", "new", "delta", "made"))
    old.write_bytes(pair.old)
    new.write_bytes(pair.new)
    begin = time.perf_counter()
    delta.write_bytes(make(old, new))
    seconds = time.perf_counter() - begin
    arguments = [str(old), str(delta), str(made), str(len(pair.new)), hashlib.sha256(pair.new).hexdigest()]
    done = subprocess.run([sys.executable, "-c", DEVICE, *arguments], capture_output=True, text=True, check=True)
    if made.read_bytes() != pair.new:
        raise AssertionError(f"{pair.name}: another file was rebuilt")
    took, memory = done.stdout.split()
    changed = sum(piece.size for piece in missing(pieces_of(new), pieces_of(old)))
    sizes = len(pair.new), delta.stat().st_size, changed, _zstd(old, new, folder / "patch"), _bsdiff(pair)
    return Row(pair.name, *sizes, seconds, float(took), int(memory))


def _zstd(old: Path, new: Path, patch: Path) -> int:
    if shutil.which("zstd") is None:
        return 0
    options = ["-q", "-f", "-19", "--ultra", "--long=27", f"--patch-from={old}"]
    subprocess.run(["zstd", *options, str(new), "-o", str(patch)], capture_output=True, check=True)
    return patch.stat().st_size


MOST_BSDIFF = 16 << 20
"""bsdiff sorts suffixes in 17 times the file's size, for minutes."""


def _bsdiff(pair: Pair) -> int:
    try:
        import bsdiff4  # type: ignore[import-not-found]
    except ImportError:
        return 0
    return len(bsdiff4.diff(pair.old, pair.new)) if len(pair.new) <= MOST_BSDIFF else 0


def main(arguments: list[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("models", type=Path)
    parser.add_argument("data", type=Path)
    parser.add_argument("--language", nargs=2, type=Path, metavar=("GGUF", "TEXT"), help="a language model and a text")
    options = parser.parse_args(arguments)
    cases: Iterator[Pair] = chain.from_iterable(
        pairs(base(options.models, options.data)) for base in (resnet, mobilenet)
    )
    if options.language:
        cases = chain(cases, language(*options.language))
    print(f"{datetime.date.today():%d %B %Y}, {cpu()}\n")
    print("| what changed | before, after | file | delta | changed pieces | zstd | bsdiff | make | rebuild | memory |")
    print("|---|---|---|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        for pair in cases:
            row = measured(pair, Path(folder))
            others = " | ".join(f"{size:,}" if size else "" for size in (row.pieces, row.zstd, row.bsdiff))
            print(
                f"| {row.name} | {pair.before:.3f}, {pair.after:.3f} | {row.size:,} "
                f"| {row.delta:,} ({row.delta / row.size:.2%}) | {others} "
                f"| {row.make_seconds:.1f} s | {row.rebuild_seconds:.2f} s | {row.rebuild_memory / 1e6:.0f} MB |",
                flush=True,
            )
    return 0


if __name__ == "__main__":
    sys.exit(main())
