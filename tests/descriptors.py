"""The descriptors of the gateway's gRPC messages: `python -m tests.descriptors --update` makes them from the .proto
files, and a test compares."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

FOLDER = Path(__file__).resolve().parents[1] / "edge" / "gateway" / "grpc"
SOURCES = ("health.proto", "inference.proto")


def made() -> bytes:
    """A serialised FileDescriptorSet, by protoc."""
    from grpc_tools import protoc

    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder, "descriptors.binpb")
        words = ["protoc", f"-I{FOLDER}", f"--descriptor_set_out={target}", *SOURCES]
        if protoc.main(words) != 0:
            raise SystemExit(f"protoc refused {SOURCES}")
        return target.read_bytes()


if __name__ == "__main__":
    if sys.argv[1:] != ["--update"]:
        raise SystemExit(__doc__)
    (FOLDER / "descriptors.binpb").write_bytes(made())
