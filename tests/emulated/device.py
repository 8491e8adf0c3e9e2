"""Runs on the emulated processor: replays recorded runs of bundles, and calls compiled operations.

    python device.py [--records FOLDER] [--bundles FOLDER] [--operations FOLDER] [--hostile FOLDER]

The last line of stdout is a report in JSON.

Only NumPy, the standard library and `lite_runtime` as a device installs it (PYTHONPATH) are there.
"""

from __future__ import annotations

import argparse
import ctypes
import hashlib
import json
import mmap
import platform
import sys
import time
import traceback
from pathlib import Path
from typing import Any

import numpy as np

BOUND = 1e-5
"""How far float results may be from the recorded ones, as a part of their range."""


def replay(path: Path, threads: int) -> dict[str, Any]:
    """Run a record's bundle natively on its inputs, and compare."""
    import lite_runtime

    with np.load(path) as record:
        held = {name: record[name] for name in record.files}
    inputs = {name[2:]: value for name, value in held.items() if name.startswith("i:")}
    wanted = {name[2:]: value for name, value in held.items() if name.startswith("o:")}
    model = lite_runtime.load(held["bundle"].tobytes(), backend="native", threads=threads)
    found = model.run(inputs)
    if FLUSHES and any(map(_has_subnormals, (*inputs.values(), *wanted.values()))):
        return {}  # what its vectors take for 0
    digest, equal = hashlib.sha256(), True
    for name, want in wanted.items():
        got = np.array(found[name], order="C")
        digest.update(got.tobytes())
        equal &= _compared(name, got, want)
    return {"equal": equal, "sha256": digest.hexdigest(), "reference": list(model.cost(inputs).reference)}


FLUSHES = platform.machine().startswith("arm")
"""Whether vectors take numbers below 2**-126 for 0: NEON of 32-bit Arm."""


def _subnormal(array: Any) -> Any:
    """Where float32 numbers are subnormal, by their bits."""
    size = np.ascontiguousarray(array).view(np.int32) & 0x7FFFFFFF
    return (size > 0) & (size < 1 << 23)


def _has_subnormals(array: Any) -> bool:
    return array.dtype == np.float32 and bool(_subnormal(array).any())


def _compared(name: str, got: Any, want: Any) -> bool:
    """Whether the bits are equal, NaN apart. Raises AssertionError for integers that differ, and for floats that differ
    by more than they may."""
    assert (got.dtype, got.shape) == (want.dtype, want.shape), f"{name}: {got.dtype} {got.shape}"
    if got.tobytes() == want.tobytes():
        return True
    assert want.dtype.kind == "f", f"{name}: {int((got != want).sum())} of {want.size} differ"
    nan = np.isnan(want)
    assert (np.isnan(got) == nan).all(), f"{name}: NaN elsewhere"
    exact, finite = np.where(nan, 0, got) == np.where(nan, 0, want), np.isfinite(want)
    assert exact[~finite].all(), f"{name}: infinities elsewhere"
    got, want = got[finite].astype(np.float64), want[finite].astype(np.float64)
    if not want.size:
        return True
    room = BOUND * max(np.abs(want).max(), 1e-30) + (1e-6 if want.itemsize == 4 else 0)
    most = float(np.abs(got - want).max())
    assert most <= room, f"{name}: differs by {most}, allowed {room}"
    return bool(exact.all())


def digest(path: Path) -> dict[str, Any]:
    """SHA-256 of a bundle's outputs for `inputs_of` it: equal digests are equal bits."""
    import lite_runtime

    model = lite_runtime.load(str(path), backend="native")
    inputs = inputs_of(model.inputs())
    found = {name: np.ascontiguousarray(value) for name, value in model.run(inputs).items()}
    return {
        "sha256": {name: sha256_of(value) for name, value in found.items()},
        "values": {name: value.ravel()[:4096].astype(np.float64).tolist() for name, value in found.items()},
        "reference": list(model.cost(inputs).reference),
    }


def refusal(path: Path) -> dict[str, Any]:
    """Why a file is refused; "" for one that is read. Another error than BundleError is a failure."""
    from lite_runtime import BundleError, bundle

    try:
        bundle.read(str(path))
    except BundleError as problem:
        return {"refused": str(problem).replace(str(path), path.name)}
    return {"refused": ""}


def sha256_of(array: Any) -> str:
    """The first 16 digits of an array's digest."""
    return hashlib.sha256(array.tobytes()).hexdigest()[:16]


def inputs_of(ports: Any) -> dict[str, Any]:
    """Inputs that follow from a seed, for one example; made of integers, so that no function of the system has a part
    in them."""
    rng, inputs = np.random.Generator(np.random.PCG64(7)), {}
    for port in ports:
        shape, dtype = [size if isinstance(size, int) else 1 for size in port.shape or ()], np.dtype(port.dtype)
        if dtype.kind in "iu":
            low, high = (np.iinfo(dtype).min, np.iinfo(dtype).max) if dtype.itemsize == 1 else (0, 4)
            inputs[port.name] = rng.integers(low, high + 1, shape, dtype)
        else:
            inputs[port.name] = (rng.integers(-1024, 1024, shape) / np.float32(512)).astype(dtype)
    return inputs


def operation(path: Path) -> None:
    """Call an operation's code on every row. Raises AssertionError where a result differs."""
    with np.load(path) as record:
        code, begin, name = record["code"].tobytes(), int(record["begin"]), str(record["name"])
        operands = [record[f"operand{i}"] for i in range(int(record["operands"]))]
        wanted = record["wanted"]
        if "table" in record.files:  # its address was the other machine's
            table = record["table"]
            operands[-1] = np.full(len(operands[-1]), table.ctypes.data, np.int64)
    memory = mmap.mmap(-1, len(code) + 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    memory.write(code)
    address = np.frombuffer(memory, np.uint8).ctypes.data + begin
    function: Any = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * (len(operands) + 1))(address)
    stores = name == "store_first"
    held = [np.ascontiguousarray(operand).copy() for operand in operands]
    found = held[1] if stores else np.zeros(wanted.shape, wanted.dtype)
    for i in range(len(wanted)):
        function(*(o.ctypes.data + i * o.strides[0] for o in held), found.ctypes.data + i * found.strides[0])
    if FLUSHES and wanted.dtype == np.float32:
        found, wanted = (np.where(_subnormal(wanted), np.float32(0), array) for array in (found, wanted))
    kind = np.dtype(np.float16) if name == "to_half" else wanted.dtype
    found, wanted = found.view(kind), wanted.view(kind)
    if kind.kind == "f":
        nan = np.isnan(wanted)
        assert (np.isnan(found) == nan).all(), f"{path.stem}: NaN elsewhere"
        found, wanted = np.where(nan, 0, found).astype(kind), np.where(nan, 0, wanted).astype(kind)
    assert found.tobytes() == wanted.tobytes(), f"{path.stem}: {int((found != wanted).sum())} of {wanted.size} differ"


def _files(folder: Path | None, pattern: str) -> list[Path]:
    return sorted(folder.glob(pattern)) if folder else []


def main() -> None:
    """Everything in the given folders; failures are in the report, with their reasons."""
    parser = argparse.ArgumentParser()
    for name in ("records", "bundles", "operations", "hostile"):
        parser.add_argument(f"--{name}", type=Path)
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    from lite_runtime.native.target import host

    target, began = host(), time.process_time()
    assert target is not None, "no target for this processor"
    ran: dict[str, Any] = {}
    failed: dict[str, str] = {}
    for path in _files(args.operations, "*.npz"):
        try:
            operation(path)
            ran[f"operation {path.stem}"] = {}
        except AssertionError as problem:
            failed[f"operation {path.stem}"] = str(problem)
    work = [(path, lambda path: replay(path, args.threads)) for path in _files(args.records, "*.npz")]
    work += [(path, digest) for path in _files(args.bundles, "*.mslite")]
    work += [(path, refusal) for path in _files(args.hostile, "*.mslite")]
    for path, run in work:
        try:
            ran[path.stem] = run(path)
        except AssertionError as problem:
            failed[path.stem] = str(problem)
        except Exception:  # whatever a record does is part of the report
            failed[path.stem] = traceback.format_exc(limit=-3)
    report = {"target": target.name, "seconds": time.process_time() - began, "ran": ran, "failed": failed}
    json.dump(report, sys.stdout)


if __name__ == "__main__":
    main()
