"""Explanations of a model's answers, as KServe's protocol names them: `POST /v1/models/NAME:explain`.

Rows of an explanation go through the model's queue like requests, in small batches, so that it takes turns with them;
how many rows and seconds one request may cost is a setting. Sources: KServe, Data Plane V1; what is in a request's
`parameters` and in an explanation is ours, as KServe leaves it to the explainer.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np

from edge.gateway.ensembles.ensemble import Target
from edge.gateway.errors import GatewayError
from edge.gateway.job import Job
from edge.gateway.models.served import Served
from edge.gateway.protocol.parameters import expect
from lite_runtime.errors import ExplainError, ExplainTimeError, MsedgeError
from lite_runtime.explaining import METHODS, Explanation, Limits, Subject, explain, subject_of, wish_for
from lite_runtime.graph import Array, Value

if TYPE_CHECKING:
    from edge.gateway.batching.scheduler import Scheduler
    from edge.gateway.operate.settings import Explaining
    from edge.gateway.protocol.request import Request

__all__ = ["Explainer", "parameters_of"]

ROWS = 16
"""Rows of a batch that an explanation asks for at once: others wait for no more."""
_USUAL = 1000
"""Samples of rise and kernel_shap that ask for no number, if the limit allows it."""
_KINDS: Mapping[str, tuple[type, ...]] = {
    "method": (str,), "target": (int,), "input": (str,), "output": (str,), "kind": (str,), "size": (int,),
    "baseline": (str, int, float), "steps": (int,), "rule": (str,), "samples": (int,), "seed": (int,),
}  # fmt: skip
"""The parameters of a request, and their types."""


def parameters_of(document: Mapping[str, Any]) -> dict[str, Any]:
    """The request's `parameters`, checked. Raises GatewayError (400)."""
    given = document.get("parameters", {})
    expect(type(given) is dict, "expected parameters to be an object")
    for name, value in given.items():
        expect(name in _KINDS, "parameters: expected some of %s, got %r", ", ".join(_KINDS), str(name)[:40])
        words = " or ".join(kind.__name__ for kind in _KINDS[name])
        fits = type(value) in _KINDS[name] and not (isinstance(value, float) and not math.isfinite(value))
        expect(fits, "parameters: %s: expected %s, got %r", name, words, str(value)[:40])
    return dict(given)


class Explainer:
    """Explains requests, a few at a time, each on a thread of its own."""

    def __init__(self, scheduler: Scheduler, settings: Explaining) -> None:
        self._scheduler, self._settings = scheduler, settings
        self._threads = ThreadPoolExecutor(settings.at_once, "msedge-explain")
        self._waiting = 0

    def close(self) -> None:
        """Wait for nothing that has not begun."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def explain(self, target: Target, request: Request, given: Mapping[str, Any]) -> list[dict[str, Any]]:
        """An explanation for each row of a request; `target`, acquired by the caller, stays loaded meanwhile.

        Raises GatewayError: 400 for what does not fit, 413 for a reply that would be too large, 429 if too many others
        wait, 501 for models that have no rows of scores, 504 after the limit of seconds.
        """
        served = _need_plain(target)
        if self._waiting >= self._settings.waiting:
            raise GatewayError(429, "too many explanations are waiting", retry_after=self._settings.seconds)
        loop = asyncio.get_running_loop()
        model = _Queued(served, self._scheduler, loop)
        self._waiting += 1
        try:
            return await loop.run_in_executor(self._threads, self._explained, model, request, given)
        except ExplainTimeError as error:
            raise GatewayError(504, str(error)) from None
        except ExplainError as error:
            raise GatewayError(400, str(error)) from None
        finally:
            model.stopped = True  # the client has gone, or all is done
            self._waiting -= 1

    def _explained(self, model: _Queued, request: Request, given: Mapping[str, Any]) -> list[dict[str, Any]]:
        name = given.get("input") or _only(request.inputs)
        expect(name in request.inputs, "parameters: input: expected one of %s", ", ".join(request.inputs))
        rows = len(request.inputs[name]) if request.inputs[name].ndim else 0
        expect(rows > 0, "expected at least one row to explain, got none")
        found, asked, begun = [], 0, perf_counter()
        for row in range(rows):
            one = {key: array[row : row + 1] for key, array in request.inputs.items()}
            left, seconds = self._settings.rows - asked, self._settings.seconds - (perf_counter() - begun)
            if left < 1 or seconds <= 0:
                raise GatewayError(400, f"the limits were reached after {row} of {rows} rows; ask for fewer at once")
            made, label, rows_of_it = _one(model, one.pop(name)[0], name, one, given, Limits(left, seconds))
            asked += rows_of_it
            found.append(_told(made, label))
        return found


def _need_plain(target: Target) -> Served:
    """The version, if its answers can be explained. Raises GatewayError (501) otherwise."""
    if not isinstance(target, Served):
        raise GatewayError(501, f"model {target.name!r}: an ensemble is not explained; ask for one of its models")
    for wrong, why in (
        (target.language is not None, "a language model is not explained"),
        (bool(target.streams), "a model that keeps state between requests is not explained"),
        (
            target.processing is not None,
            "its processing changes what clients send, so that it is not explained",
        ),
        ("predict" not in target.ports, "a model without the signature predict is not explained"),
    ):
        if wrong:
            raise GatewayError(501, f"model {target.name!r}: {why}")
    return target


def _only(inputs: Mapping[str, Array]) -> str:
    expect(len(inputs) == 1, "parameters: input: expected one of %s, as there are several", ", ".join(inputs))
    return next(iter(inputs))


def _one(
    model: _Queued, x: Array, name: str, held: Mapping[str, Array], given: Mapping[str, Any], limits: Limits
) -> tuple[Explanation, str | None, int]:
    """The explanation of a row, the target's label, and the rows that were asked of the model."""
    served, output = model.served, given.get("output")

    def subject(*, plain: bool) -> Subject:
        return subject_of(model, served.name, given=name, output=output, held=held, plain=plain, limits=limits)

    asked = subject(plain=False)
    method = given.get("method") or ("integrated_gradients" if asked.has_gradient else "kernel_shap")
    if method in METHODS and METHODS[method].needs == "scores":
        asked = subject(plain=True)
    samples = given.get("samples")
    if samples is None and method in ("rise", "kernel_shap") and limits.rows is not None:
        samples = min(_USUAL, max(2, limits.rows - 4))
    known = {key: given[key] for key in ("steps", "rule", "seed") if key in given}
    wish = wish_for(
        asked, x, kind=given.get("kind"), size=given.get("size"), baselines=[given.get("baseline", "zero")],
        samples=samples, **known,
    )  # fmt: skip
    made = explain(asked, x, method, wish, given.get("target"))
    labels = served.labels.get(output or next(iter(served.ports["predict"].outputs))) or served.labels.get("") or ()
    return made, labels[made.target] if made.target < len(labels) else None, asked.asked


def _told(made: Explanation, label: str | None) -> dict[str, Any]:
    return {
        "method": made.method, "target": made.target, **({} if label is None else {"label": label}),
        "score": made.score, "base_score": made.base, "completeness_error": made.gap, "rows": made.rows,
        "attributions": made.attributions.tolist(),
    }  # fmt: skip


class _Queued:
    """A served version in the place of `lite_runtime.Model`: rows go through the gateway's queue."""

    def __init__(self, served: Served, scheduler: Scheduler, loop: asyncio.AbstractEventLoop) -> None:
        self.served, self._scheduler, self._loop = served, scheduler, loop
        self.signatures = tuple(served.ports)
        self.stopped = False
        """Whether nobody waits for the explanation any more."""

    def inputs(self, signature: str = "predict") -> tuple[Value, ...]:
        """See `Model`."""
        return tuple(self.served.model.inputs(signature))

    def outputs(self, signature: str = "predict") -> tuple[Value, ...]:
        """See `Model`."""
        return tuple(self.served.model.outputs(signature))

    def run(self, inputs: Mapping[str, Array], signature: str = "predict") -> dict[str, Array]:
        """Outputs of all rows, on a thread that is not the loop's."""
        count = len(next(iter(inputs.values())))
        size = ROWS if self.served.ports[signature].batched else count
        parts = []
        for start in range(0, count, size):
            if self.stopped:
                raise ExplainError("nobody waits for the explanation")
            part = {name: np.ascontiguousarray(array[start : start + size]) for name, array in inputs.items()}
            parts.append(asyncio.run_coroutine_threadsafe(self._asked(part, signature), self._loop).result())
        return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}

    async def _asked(self, inputs: Mapping[str, Array], signature: str) -> Mapping[str, Array]:
        done: asyncio.Future[None] = self._loop.create_future()
        batched = self.served.ports[signature].batched
        rows = len(next(iter(inputs.values()))) if batched else 1
        job = Job(
            inputs, rows, lambda job: None if done.done() else done.set_result(None), arrived=perf_counter(),
            signature=signature, priority=self.served.config.priority,
        )  # fmt: skip
        self._scheduler.submit(job, self.served.runner_for(job))
        await done
        if job.error is not None:
            if isinstance(job.error, MsedgeError):
                raise job.error
            raise RuntimeError("the model failed") from job.error
        assert job.outputs is not None
        return job.outputs
