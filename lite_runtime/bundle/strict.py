"""JSON and zlib streams of untrusted files: strict, and limited in size."""

from __future__ import annotations

import json
import zlib
from typing import Any, NoReturn

from lite_runtime.bundle.layout import MAX_MANIFEST, MAX_RATIO
from lite_runtime.bundle.refusal import refuse
from lite_runtime.graph.verify import MAX_DEPTH

__all__ = ["deflated", "inflated", "parsed"]


def deflated(data: bytes | bytearray) -> bytes:
    """A zlib stream within the expansion ratio that readers allow; stored uncompressed if it would exceed it."""
    packed = zlib.compress(data, 9)
    return packed if len(data) <= MAX_RATIO * len(packed) else zlib.compress(data, 0)


def inflated(raw: bytes, what: str) -> bytes:
    """The contents of exactly one zlib stream, limited in size; `what` names it in errors."""
    limit = min(MAX_MANIFEST, MAX_RATIO * len(raw))
    stream = zlib.decompressobj()
    try:
        content = stream.decompress(raw, limit + 1)
    except zlib.error as error:
        refuse(what, "a zlib stream", str(error))
    if len(content) > limit or not stream.eof or stream.unused_data:
        got = f"more than {limit} bytes" if len(content) > limit else "a stream cut short, or bytes after its end"
        refuse(what, "one zlib stream", got)
    return content


def parsed(raw: bytes, what: str) -> Any:
    """Strict JSON: UTF-8, no repeated keys, no NaN or Infinity, no lone surrogates, bounded nesting."""

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        made = dict(pairs)
        if len(made) < len(pairs):
            keys = [key for key, _ in pairs]
            refuse(what, "unique keys in an object", f"{next(k for k in keys if keys.count(k) > 1)!r} twice")
        return made

    def no_constant(name: str) -> NoReturn:
        refuse(what, "finite numbers", name)

    if len(raw) > MAX_MANIFEST:
        refuse(what, f"at most {MAX_MANIFEST} bytes", str(len(raw)))
    try:
        text = raw.decode("utf-8")
        doc = json.loads(text, object_pairs_hook=unique, parse_constant=no_constant)
        if "\\ud" in text or "\\uD" in text:  # perhaps half of a surrogate pair: rare, so the full check may be slow
            json.dumps(doc, ensure_ascii=False).encode("utf-8")
    except UnicodeDecodeError as error:
        refuse(f"{what}, byte {error.start}", "UTF-8", repr(raw[error.start : error.start + 4]))
    except UnicodeEncodeError as error:
        refuse(what, "valid Unicode text", f"half of a surrogate pair: {error.object[error.start]!r}")
    except RecursionError:
        refuse(what, f"at most {MAX_DEPTH} levels of nesting", "far more")
    except ValueError as error:
        refuse(what, "JSON", str(error))
    return doc
