"""Values are read by many threads at once, as agents of one process do."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import sys, threading
import msgspec
from federated.tables import Reader

sys.setswitchinterval(1e-6)
for number in range(60):
    inner = msgspec.defstruct(f"Inner{number}", [("a", int), ("b", list[int]), ("c", dict[str, float])])
    fields = [(f"f{i}", inner | None) for i in range(12)] + [("x", list[inner]), ("y", dict[str, inner])]
    kind = msgspec.defstruct(f"Outer{number}", fields)
    one = {"a": 1, "b": [1], "c": {"z": 1.0}}
    value = {**{f"f{i}": one for i in range(12)}, "x": [one], "y": {"k": one}}
    gate, found = threading.Barrier(16), []

    def read():
        gate.wait()
        found.append(Reader(ValueError, "").read(kind, value, "it"))

    threads = [threading.Thread(target=read) for _ in range(16)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert len(found) == 16 and all(one == found[0] for one in found), found
print("read")
"""


def test_a_type_that_is_new_to_all_threads() -> None:
    """In a process of its own: without a lock it ends with a segmentation fault."""
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout.strip() == "read", done.stderr
