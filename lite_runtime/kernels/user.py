"""Calls of functions that a user's program has compiled."""

from __future__ import annotations

from lite_runtime.kernels.walker import call_kernel
from lite_runtime.native.simd import kernel, num
from lite_runtime.steps.declaration import named
from lite_runtime.steps.user import INPUTS, OUTPUTS, Call

CALL = named(Call)


@kernel(Call, unread=(*INPUTS, *OUTPUTS))
def call(step, bases, worker, workers):
    """Call the function at an address, which reads the rest of the step."""
    call_kernel(num(step, CALL.function), step, bases, worker, workers)
