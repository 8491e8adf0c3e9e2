"""The process that makes machine code, which `build.prepare` starts: a family's bitcode, then a target's code of it.

    MSEDGE_SHAPE=… NUMBA_OPT=0 python -m lite_runtime.native.compile TARGET FAMILY…

Bitcode is kept in the cache for the other targets of its shape; numba, which makes it (`portable.py`), is not imported
where it is there. With --portable before the target: bitcode alone.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress

from lite_runtime.native import build, target, trust
from lite_runtime.native.codegen.retarget import code_of
from lite_runtime.targets import AHEAD, TARGETS, WASM_PARTS, Target, named

try:
    import fcntl
except ImportError:  # Windows: two processes may compile the same
    LOCKS = False
else:
    LOCKS = True


def _kept_portable(family: str, wanted: Target) -> bytes:
    """A family's bitcode from the cache, compiled first if it is not there."""
    shape = wanted.shape_of(family)
    if shape != target.shape():
        raise build.BuildError(f"expected MSEDGE_SHAPE={shape} for {family} of {wanted.name}, got {target.shape()}")
    with _locked(build._portable_path(family, shape)):
        made = build.read_portable(family, shape)
        if made is None:
            from lite_runtime.native.portable import portable

            made = portable(family)
            build.write_portable(family, shape, made)
        return made


def _keep(path: str, wanted: Target, family: str, code: bytes, kernels: Mapping[str, int]) -> None:
    """Write a family's image file atomically."""
    trust.write(path, build.image_file({family: (code, kernels)}))


def _prepare(wanted: Target, families: Sequence[str]) -> None:
    """Compile families into the cache, except those already there."""
    for family in families:
        path = build._path(family, wanted)
        if not os.path.exists(path):
            with _locked(path):
                if not os.path.exists(path):
                    _keep(path, wanted, family, *code_of(_kept_portable(family, wanted), wanted, family))


@contextmanager
def _locked(path: str) -> Iterator[None]:
    """Wait while another process compiles the same. The lock file is removed again: a process that waited for it finds
    the result."""
    trust.make_folder(os.path.dirname(path))
    if not LOCKS:
        yield
        return
    with open(f"{path}.lock", "wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            yield
        finally:
            with suppress(FileNotFoundError):
                os.unlink(lock.name)


if __name__ == "__main__":
    alone = sys.argv[1] == "--portable"
    name, *families = sys.argv[1 + alone :]
    wanted = named(name, (*TARGETS, *AHEAD, *WASM_PARTS))
    if alone:
        for each in families:
            _kept_portable(each, wanted)
    else:
        _prepare(wanted, families)
