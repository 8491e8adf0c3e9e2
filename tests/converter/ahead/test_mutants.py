"""Flat files with right digests whose steps have other numbers: the engine survives whatever kernels then do.

Readers check where operands lie, not what kernels do with the numbers of a step. So a run may give wrong results, leave
memory (an error), or never end, which only the caller can stop, by ending the worker that it runs in.
"""

from __future__ import annotations

import json
import struct
import subprocess
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from converter.ahead import build
from lite_runtime.native.target import host
from tests.converter.ahead import models, node, tables

pytestmark = [pytest.mark.skipif(host() is None, reason="no native kernels on this processor"), node.needs_node]
SCRIPT = Path(__file__).with_name("mutants.mjs")
COUNT = 150


def mutants(flat: bytes, count: int) -> list[bytes]:
    """The file with one or two other words in a program each."""
    rng = np.random.default_rng(11)
    programs, found = tables.programs(flat), []
    for _ in range(count):
        data = bytearray(flat)
        program = programs[int(rng.integers(len(programs)))]
        for at in rng.integers(len(program.words), size=int(rng.integers(1, 3))).tolist():
            now = int(program.words[at])
            near = [0, 1, -1, now + 1, now - 1, 2 * now, int(rng.integers(-1000, 1000))]
            far = [2**31, 2**40, -(2**40), 2**62, int(rng.integers(-(2**62), 2**62))]
            value = int(rng.choice(np.array([*near, *far], object)))
            struct.pack_into("<q", data, program.at + 8 * at, max(-(2**63), min(2**63 - 1, value)))
        found.append(tables.sealed(bytes(data)))
    return found


@pytest.mark.parametrize("name", ["int8_convnet", "transformer"])
def test_no_number_of_a_step_ends_the_engine(name: str, tmp_path: Path) -> None:
    build(models.MODELS[name](), tmp_path / "built")
    files = mutants((tmp_path / "built/model.msflat").read_bytes(), COUNT)
    (tmp_path / "files").write_bytes(b"".join(struct.pack("<I", len(file)) + file for file in files))
    command = [str(node.NODE), str(SCRIPT), str(tmp_path / "built"), str(tmp_path / "files")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    said = Counter(text if text in ("", "endless") else text[:40] for text in json.loads(done.stdout))
    assert said.total() == COUNT and said[""] > COUNT / 10
    refused = "MsedgeError: model: the flat file is damaged"[:40], "MsedgeError: the model stopped (memory access"[:40]
    assert all(said[text] for text in refused)
    others = [text for text in said if text not in ("", "endless") and not text.startswith("MsedgeError: ")]
    assert others == [] and said["endless"] < COUNT / 10
