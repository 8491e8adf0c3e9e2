"""Node, as a process that tests ask."""

from __future__ import annotations

import base64
import json
import shutil
import struct
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from lite_runtime.graph import Array, numpy_dtype

NODE = shutil.which("node")
OPTIONS = ("--disallow-code-generation-from-strings", "--no-concurrent-recompilation")
"""No eval; and none of V8's optimising threads, which may wait for a garbage collection that Node never runs once its
main thread waits for them (https://github.com/nodejs/node/issues/54918): one process in fifty did not end."""
SCRIPT = Path(__file__).with_name("run.mjs")
WEB = Path(__file__).parents[3] / "converter" / "ahead" / "web"
needs_node = pytest.mark.skipif(NODE is None, reason="no node")


class Ran(NamedTuple):
    """Outputs by name of every run, the state after them, and the rest of the answer."""

    outputs: list[dict[str, Array]]
    state: dict[str, Array]
    answer: dict[str, Any]


def ask(folder: Path, task: str, *arguments: str, given: Any = None) -> Any:
    """The answer of `run.mjs`."""
    assert NODE is not None
    command = [NODE, *OPTIONS, str(SCRIPT), str(folder), task, *arguments]
    done = subprocess.run(command, input=json.dumps(given), capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def run(
    folder: Path,
    *inputs: Mapping[str, Array],
    signatures: Sequence[str] = ("predict",),
    state: Mapping[str, Array] | None = None,
    threads: int = 1,
) -> Ran:
    """What a built folder computes for these inputs, one after the other, by the signatures in turns, after a
    self-test. state: before the first run."""
    names = [signatures[i % len(signatures)] for i in range(len(inputs))]
    runs = [{"signature": name, "inputs": _texts(each)} for name, each in zip(names, inputs, strict=True)]
    answer = ask(
        folder, "run", given={"runs": runs, "state": None if state is None else _texts(state), "threads": threads}
    )
    ports = [answer["signatures"][name]["outputs"] for name in names]
    outputs = [_arrays(texts, each) for texts, each in zip(answer["outputs"], ports, strict=True)]
    return Ran(outputs, _arrays(answer["state"], answer["states"]), answer)


def prepared(cases: Sequence[Mapping[str, Any]]) -> list[str]:
    """The answers of `input.mjs`: inputs by declared processing."""
    assert NODE is not None
    command = [NODE, *OPTIONS, str(Path(__file__).with_name("input.mjs")), str(WEB)]
    done = subprocess.run(command, input=json.dumps(cases), capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert isinstance(found, list) and len(found) == len(cases)
    return found


def _texts(arrays: Mapping[str, Array]) -> dict[str, str]:
    return {name: base64.b64encode(np.ascontiguousarray(array).tobytes()).decode() for name, array in arrays.items()}


def _arrays(texts: Mapping[str, str], ports: Sequence[Mapping[str, Any]]) -> dict[str, Array]:
    assert list(texts) == [port["name"] for port in ports]
    return {
        port["name"]: np.frombuffer(base64.b64decode(texts[port["name"]]), numpy_dtype(port["dtype"])).reshape(
            port["shape"]
        )
        for port in ports
    }


def many(folder: Path, task: str, files: Sequence[bytes], scratch: Path) -> list[str]:
    """What a task of `run.mjs` says for each of these files."""
    path = scratch / "files.bin"
    path.write_bytes(b"".join(struct.pack("<I", len(file)) + file for file in files))
    found = ask(folder, task, str(path))
    assert isinstance(found, list) and len(found) == len(files)
    return found


def load(folder: Path, models: Sequence[bytes], scratch: Path) -> list[str]:
    """What loading each of these flat files says, with the folder's kernels."""
    return many(folder, "load", models, scratch)
