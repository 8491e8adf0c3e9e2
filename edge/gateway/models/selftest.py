"""The self-test of a model: its golden samples are run and compared with the outputs in the bundle."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from edge.gateway.errors import GatewayError
from lite_runtime.running.golden import difference, sampled, tolerance_of

if TYPE_CHECKING:
    from lite_runtime import Model

__all__ = ["self_test"]


def self_test(model: Model, signatures: Iterable[str]) -> int:
    """Run the golden samples of these signatures; returns their number. Raises GatewayError (400) that says what
    differs, by how much, and where."""
    tolerance, count = tolerance_of(model.bundle), 0
    for name, got, expected in sampled(model, signatures):
        for output, array in expected.items():  # a sample may omit outputs
            problem = difference(got[output], array, tolerance)
            if problem:
                raise GatewayError(
                    400, f"self-test: output {output!r} of {name!r} differs from the golden sample: {problem};"
                    " the file was changed, or this machine computes wrongly: convert the model again"
                )  # fmt: skip
        count += 1
    return count
