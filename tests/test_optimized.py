"""`make test-optimized` runs core tests under PYTHONOPTIMIZE=1: the product's asserts are gone, the tests' are not."""

from __future__ import annotations

import subprocess
import sys

import pytest
from _pytest.assertion.rewrite import AssertionRewritingHook

import tests.fuzz.bundles


def test_asserts_of_tests_count() -> None:
    """pytest compiles them itself, whatever Python does with asserts elsewhere."""
    with pytest.raises(AssertionError, match="assert not"):
        assert not [1]


def test_asserts_of_modules_that_tests_share_count() -> None:
    assert isinstance(tests.fuzz.bundles.__loader__, AssertionRewritingHook)


def test_processes_that_tests_start_run_alike() -> None:
    command = [sys.executable, "-c", "import sys; print(sys.flags.optimize)"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert int(done.stdout) == sys.flags.optimize
