"""A plugin of pytest: what tests run native models on, and what these give, becomes records for `device.py`.

    MSEDGE_RECORDS=FOLDER python -m pytest -p tests.emulated.recording …

A record is one .npz file: the bundle, the inputs and the outputs. Models with state, runs of other signatures and
values that are no arrays of numbers are left out. MSEDGE_RECORDS_EACH: at most so many records for the same operators
and types. FOLDER/tests.txt names the tests that gave records. Generators of random numbers without a seed get one here,
so that records are the same each time.
"""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from lite_runtime.running.session import Model

FOLDER = Path(os.environ["MSEDGE_RECORDS"])
EACH = int(os.environ.get("MSEDGE_RECORDS_EACH", "1000000"))
RANDOM = frozenset("RandomUniform RandomNormal RandomUniformLike RandomNormalLike Bernoulli Multinomial".split())
LARGEST = 1 << 18
"""Bytes of a record's arrays: emulated processors are slow."""
_run = Model.run
_generator = np.random.default_rng
_seen: Counter[Any] = Counter()


def _recorded(self: Model, inputs: Mapping[str, Any], *arguments: Any, **options: Any) -> Any:
    given = {name: value.copy() for name, value in inputs.items() if isinstance(value, np.ndarray)}
    found = _run(self, inputs, *arguments, **options)
    if self._settings.native and not (arguments or options or self._uses) and len(given) == len(inputs):
        keep(self, given, found)
    return found


def keep(model: Model, inputs: Mapping[str, Any], found: Mapping[str, Any]) -> None:
    """Write a record, if there is room for it among those of its kind."""
    if not all(isinstance(value, np.ndarray) for value in found.values()):
        return
    arrays = {f"i:{name}": value for name, value in inputs.items()}
    arrays |= {f"o:{name}": value for name, value in found.items()}
    if not all(a.dtype.isbuiltin == 1 and a.dtype.kind in "biuf" for a in arrays.values()):
        return
    operators = [node.op for node in model._held.signatures["predict"].nodes]
    if RANDOM & set(operators) or sum(a.nbytes for a in arrays.values()) > LARGEST:
        return
    kind = (*operators, *(str(a.dtype) for a in arrays.values()))
    whole = np.frombuffer(model._held.data, np.uint8)
    name = hashlib.sha256(whole.tobytes() + b"".join(a.tobytes() for a in inputs.values())).hexdigest()[:20]
    path = FOLDER / f"{'-'.join(operators)[:60]}-{name}.npz"
    if _seen[kind] < EACH and not path.exists():
        _seen[kind] += 1
        np.savez_compressed(path, bundle=whole, **arrays)
        with open(FOLDER / "tests.txt", "a", encoding="utf-8") as file:
            file.write(os.environ["PYTEST_CURRENT_TEST"].rpartition(" ")[0] + "\n")


Model.run = _recorded  # type: ignore[method-assign]
np.random.default_rng = lambda seed=0: _generator(seed)
