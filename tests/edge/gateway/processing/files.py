"""Pictures and sounds made on the spot, and ports to send them to."""

from __future__ import annotations

import io
import struct
from typing import Any

import numpy as np
from PIL import Image

from edge.gateway.ports import DATATYPES, Port, Ports
from lite_runtime.graph import Array, Dim, numpy_dtype

_DATATYPE_OF = {ours: theirs for theirs, ours in DATATYPES.items()}


def png(pixels: Array, **options: Any) -> bytes:
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, "PNG", **options)
    return out.getvalue()


def jpeg(pixels: Array, orientation: int = 1, **options: Any) -> bytes:
    out, exif = io.BytesIO(), Image.Exif()
    exif[0x0112] = orientation
    Image.fromarray(pixels).save(out, "JPEG", exif=exif, **{"quality": 95, **options})
    return out.getvalue()


def wav(
    data: bytes, *, rate: int = 16000, channels: int = 1, bits: int = 16, form: int = 1, extra: bytes = b""
) -> bytes:
    block = channels * bits // 8
    fmt = struct.pack("<HHIIHH", form, channels, rate, rate * block & 0xFFFFFFFF, block, bits) + extra
    chunks = b"".join(struct.pack("<4sI", name, len(c)) + c + b"\0" * (len(c) % 2)
                      for name, c in ((b"fmt ", fmt), (b"LIST", b"odd"), (b"data", data)))  # fmt: skip
    return b"RIFF" + struct.pack("<I", 4 + len(chunks)) + b"WAVE" + chunks


def port(name: str, dtype: str, *shape: Dim) -> Port:
    kind = numpy_dtype(dtype)
    return Port(name, _DATATYPE_OF[dtype], kind, 0 if kind.hasobject else kind.itemsize, shape)


def ports(inputs: list[Port], outputs: list[Port] | None = None, batched: bool = True) -> Ports:
    outputs = outputs or [port("y", "float32", "n", 10)]
    return Ports({p.name: p for p in inputs}, {p.name: p for p in outputs}, batched)


def texts(*items: Any) -> Array:
    """A BYTES tensor [n]."""
    array = np.empty(len(items), object)
    array[:] = items
    return array


def declared(steps: list[dict[str, Any]], outputs: list[dict[str, Any]] | None = None) -> dict[str, Any]:
    """One input `file` for the model's `x`."""
    return {"version": 1, "inputs": [{"name": "file", "feeds": "x", "steps": steps}], "outputs": outputs or []}
