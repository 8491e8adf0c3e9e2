"""Built C libraries, compiled by this machine's compiler and called through ctypes."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from collections.abc import Mapping
from ctypes import POINTER, Structure, byref, c_char_p, c_float, c_int, c_int64, c_size_t, c_uint32, c_void_p
from enum import IntEnum
from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest

from converter.ahead.flat import DTYPES
from lite_runtime.graph import Array, numpy_dtype

CC = shutil.which("cc")
SOURCES = files("converter.ahead") / "c"
needs_cc = pytest.mark.skipif(CC is None or shutil.which("make") is None, reason="no C compiler, or no make")
WARNINGS = ("-std=c99", "-Wall", "-Wextra", "-Werror", "-pedantic", "-Wconversion", "-Wcast-align")
SANITIZED = ("-g", "-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")

Status = IntEnum(
    "Status",
    "OK MISALIGNED NOT_FLAT VERSION LENGTH DIGEST TARGET KERNELS TABLES TEXTS TENSORS BLOCKS SIGNATURES PORTS PROGRAM "
    "MEMORY NO_SIGNATURE INDEX DIFFERS",
    start=0,
)
"""`enum msedge_status`."""


class Port(Structure):
    """`struct msedge_port`."""

    _fields_ = (
        *(("name", c_char_p), ("data", c_void_p), ("sample", c_void_p), ("shape", POINTER(c_uint32))),
        *(("rank", c_uint32), ("dtype", c_int), ("elements", c_size_t), ("bytes", c_size_t)),
    )

    def array(self) -> Array:
        """Its memory."""
        raw = (ctypes.c_uint8 * self.bytes).from_address(self.data)
        return np.frombuffer(raw, numpy_dtype(DTYPES[self.dtype])).reshape([self.shape[i] for i in range(self.rank)])


class Signature(Structure):
    """`struct msedge_signature`."""

    _fields_ = (
        *(("name", c_char_p), ("inputs", POINTER(Port)), ("outputs", POINTER(Port))),
        *(("input_count", c_uint32), ("output_count", c_uint32), ("sample_runs", c_uint32), ("tolerance", c_float)),
        ("row", c_void_p),
    )


class Model(Structure):
    """`struct msedge`."""

    _fields_ = (
        *(("signatures", POINTER(Signature)), ("states", POINTER(Port))),
        *(("signature_count", c_uint32), ("state_count", c_uint32)),
        *(("made_by", c_char_p), ("bundle", c_char_p), ("where", c_char_p)),
        *(("flat", c_void_p), ("kernels", c_void_p), ("bases", c_void_p), ("buffers", c_void_p), ("fault", c_int64)),
    )


class Kernels(Structure):
    """`struct msedge_kernels` without kernels."""

    _fields_ = (("count", c_uint32), ("target", ctypes.c_char * 28), ("digest", ctypes.c_uint8 * 32))


def aligned(content: bytes | int, off: int = 0) -> Array:
    """Bytes, or so many, that begin `off` bytes after a multiple of 64."""
    size = content if isinstance(content, int) else len(content)
    raw = np.zeros(size + 192, np.uint8)
    start = -raw.ctypes.data % 64 + off
    if isinstance(content, bytes):
        raw[start : start + size] = np.frombuffer(content, np.uint8)
    return raw[start : start + size]


class Library:
    """The library of a folder, made by its Makefile."""

    def __init__(self, folder: Path) -> None:
        flags = f"CFLAGS=-O1 {' '.join(WARNINGS)}"
        subprocess.run(["make", "-s", "-C", str(folder), flags], check=True, capture_output=True)
        self.c = ctypes.CDLL(str(folder / "libmodel.so"))
        self.c.msedge_text.restype = c_char_p
        self.kernels = byref(Kernels.in_dll(self.c, "msedge_kernels"))
        self.flat = (folder / "model.msflat").read_bytes()

    def size(self, flat: bytes | Array, kernels: object = None) -> tuple[Status, int]:
        """What `msedge_size` says."""
        held = aligned(flat) if isinstance(flat, bytes) else flat
        needed = c_size_t(7)
        status = self.c.msedge_size(
            kernels or self.kernels, c_void_p(held.ctypes.data), c_size_t(held.size), byref(needed)
        )
        return Status(status), needed.value

    def open(self, flat: bytes | Array | None = None, memory: Array | None = None) -> Opened | Status:
        """A model, or why there is none."""
        held = aligned(self.flat) if flat is None else aligned(flat) if isinstance(flat, bytes) else flat
        if memory is None:
            memory = aligned(self.size(held)[1])
        memory[...] = 0xA5  # whatever was there
        model = Model()
        arguments = self.kernels, c_void_p(held.ctypes.data), c_size_t(held.size)
        status = self.c.msedge_open(byref(model), *arguments, c_void_p(memory.ctypes.data), c_size_t(memory.size))
        return Status(status) if status else Opened(self, model, held, memory)


class Opened:
    """A model in memory."""

    def __init__(self, library: Library, model: Model, *kept: Array) -> None:
        self.library, self.model, self.kept = library, model, kept
        self.signatures = [model.signatures[i] for i in range(model.signature_count)]
        self.names = [signature.name.decode() for signature in self.signatures]

    def test(self, name: str) -> Status:
        """What `msedge_test` says."""
        return Status(self.library.c.msedge_test(byref(self.model), self.names.index(name)))

    def try_run(self, inputs: Mapping[str, Array], name: str = "predict") -> Status:
        """What `msedge_run` says."""
        signature = self.signatures[self.names.index(name)]
        ports = {signature.inputs[i].name.decode(): signature.inputs[i] for i in range(signature.input_count)}
        assert ports.keys() == inputs.keys()
        for key, port in ports.items():
            array = port.array()
            assert (array.dtype, array.shape) == (inputs[key].dtype, inputs[key].shape)
            array[...] = inputs[key]
        return Status(self.library.c.msedge_run(byref(self.model), self.names.index(name)))

    def run(self, inputs: Mapping[str, Array], name: str = "predict") -> dict[str, Array]:
        """Copies of the outputs by name."""
        assert self.try_run(inputs, name) == Status.OK
        signature = self.signatures[self.names.index(name)]
        ports = [signature.outputs[i] for i in range(signature.output_count)]
        return {port.name.decode(): port.array().copy() for port in ports}

    def state(self) -> dict[str, Array]:
        """The state's memory by name."""
        ports = [self.model.states[i] for i in range(self.model.state_count)]
        return {port.name.decode(): port.array() for port in ports}


def program(folder: Path, source: Path, output: Path, *flags: str, compiler: str = "") -> Path:
    """A program of a source and the reader, with the kernels of a folder."""
    reader = [str(SOURCES / "msedge.c"), str(SOURCES / "msedge_test.c"), str(folder / "kernels.o")]
    command = [compiler or str(CC), *WARNINGS[:5], *flags, f"-I{SOURCES}", str(source), *reader, "-o", str(output)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return output
