"""Hostile state files with right digests: refused, or state that a model accepts or refuses completely."""

from __future__ import annotations

from random import Random

import numpy as np

import lite_runtime
from lite_runtime import BundleError, InputError
from lite_runtime.bundle.layout import STATE
from lite_runtime.bundle.opening import opened
from lite_runtime.bundle.reading import section_of, unpacked
from lite_runtime.bundle.writing import assemble
from lite_runtime.learning import checkpoint
from tests.fuzz.mutate import spoil_json
from tests.lite_runtime.learners import initial, learner


def test_state_files_never_fail_unmeant() -> None:
    file = opened(checkpoint.write(None, initial() | {"n": np.array(7, np.int64)}, "m" * 64, {"round": 1}), STATE)
    manifest, weights = unpacked(bytes(section_of(file, "manifest"))), bytes(section_of(file, "weights"))
    model, ends = lite_runtime.load(learner()), {"refused": 0, "unfit": 0, "taken": 0}
    for number in range(3000):
        rng = Random(number)
        body = rng.randbytes(len(weights)) if rng.random() < 0.2 else weights
        data = assemble([("manifest", spoil_json(rng, manifest), 1), ("weights", body, 1)], STATE)
        before = model.state_version
        try:
            found = checkpoint.read(data)
            again = checkpoint.read(checkpoint.write(None, found.state, found.model, found.metadata))
            assert (again.model, again.state.keys()) == (found.model, found.state.keys())
            model.load_state_dict(found.state)
            ends["taken"] += 1
        except BundleError:
            ends["refused"] += 1
        except InputError:
            ends["unfit"] += 1
            assert model.state_version == before
    assert min(ends.values()) > 50
