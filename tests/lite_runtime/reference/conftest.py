"""Every test draws the same random numbers, independent of the tests before it."""

from __future__ import annotations

import zlib

import numpy as np
import pytest

from tests.lite_runtime.reference.oracle import RNG


@pytest.fixture(autouse=True)
def _reseed(request: pytest.FixtureRequest) -> None:
    seed = zlib.crc32(request.node.nodeid.encode())
    RNG.bit_generator.state = np.random.default_rng(seed).bit_generator.state
