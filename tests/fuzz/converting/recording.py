"""A plugin of pytest: every model that a test builds becomes a file of the folder $FUZZ_RECORDED."""

from __future__ import annotations

import os
from hashlib import blake2b
from pathlib import Path

from tests.converter.frontends.tflite.builder import Builder

_build = Builder.build


def _recorded(self: Builder) -> bytes:
    data = _build(self)
    name = blake2b(data, digest_size=12).hexdigest()
    (Path(os.environ["FUZZ_RECORDED"]) / f"{name}.tflite").write_bytes(data)
    return data


Builder.build = _recorded  # type: ignore[method-assign]
