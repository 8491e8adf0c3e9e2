"""A bundle as a deployment of Ray Serve, with the gateway's JSON: Open Inference Protocol 2; needs the extra `ray`.

Ray starts and replaces the replicas and spreads requests over them. Within one, those that wait are computed together.
A single machine is better served by `msedge serve`, whose batches follow the measured cost of the model.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from edge.gateway.errors import GatewayError
from edge.gateway.ports import Ports, ports_of
from edge.gateway.protocol.elements import texts
from edge.gateway.protocol.request import Request, read
from edge.gateway.protocol.response import write
from lite_runtime.errors import InputError

if TYPE_CHECKING:
    from starlette.requests import Request as Call

__all__ = ["serve_app"]

VERSION = "1"


class _Replica:
    """Answers POST /v2/models/NAME/infer; GET /v2/models/NAME describes the model, GET /v2/health/ready says that it
    is there."""

    def __init__(self, path: str, name: str, most: int, wait: float) -> None:
        import lite_runtime

        self._model, self._name = lite_runtime.load(path), name
        self._ports = ports_of(self._model)
        from ray import serve

        self._together: Any = serve.batch(max_batch_size=most, batch_wait_timeout_s=wait)(self._computed)

    async def __call__(self, call: Call) -> Any:
        from starlette.responses import Response

        try:
            header, body = {}, await self._answer(call)
        except GatewayError as error:
            header, body = {"status_code": error.status}, [json.dumps({"error": str(error)}).encode()]
        parts, length = body if isinstance(body, tuple) else (body, None)
        made = Response(b"".join(parts), media_type="application/json", **header)
        if length is not None:
            made.headers["inference-header-content-length"] = str(length)
            made.headers["content-type"] = "application/octet-stream"
        return made

    async def _answer(self, call: Call) -> Any:
        """The parts of a body, or them and the length of their JSON."""
        path, base = call.url.path.rstrip("/"), f"/v2/models/{self._name}"
        if call.method == "POST" and path.endswith(f"{base}/infer"):
            length = call.headers.get("inference-header-content-length")
            if length is not None and not length.isdecimal():
                raise GatewayError(400, f"expected Inference-Header-Content-Length to be a number, got {length!r}")
            request = read(await call.body(), None if length is None else int(length), self._of)
            outputs = await self._together(request)
            if isinstance(outputs, GatewayError):
                raise outputs
            return tuple(write(self._name, VERSION, request, outputs, self._ports, {}, {}))
        if call.method == "GET" and path.endswith("/v2/health/ready"):
            return [b"{}"]
        if call.method == "GET" and path.endswith(base):
            return [json.dumps(_described(self._name, self._ports)).encode()]
        raise GatewayError(404, f"expected POST {base}/infer, GET {base} or GET /v2/health/ready")

    def _of(self, signature: str) -> Ports:
        if signature != "predict":
            raise GatewayError(400, f"expected the signature predict, got {signature!r}")
        return self._ports

    async def _computed(self, requests: list[Request]) -> list[Any]:
        """Outputs by name, or the error, of every request."""
        return await asyncio.to_thread(self._run, requests)

    def _run(self, requests: Sequence[Request]) -> list[Any]:
        found: list[Any] = [None] * len(requests)
        for group in _groups(requests, self._ports.batched):
            for at, made in zip(group, self._run_group([requests[at] for at in group]), strict=True):
                found[at] = made
        return found

    def _run_group(self, group: Sequence[Request]) -> list[Any]:
        given = [
            {name: texts(a, name) if a.dtype.hasobject else a for name, a in each.inputs.items()} for each in group
        ]
        try:
            if len(group) == 1:
                return [{name: np.array(array) for name, array in self._model.run(given[0]).items()}]
            joined = {name: np.concatenate([each[name] for each in given]) for name in given[0]}
            outputs = self._model.run(joined)
        except InputError as error:
            return [GatewayError(400, str(error)) for _ in group]
        ends = np.cumsum([each.rows for each in group])[:-1]
        parts = {name: np.split(np.array(array), ends) for name, array in outputs.items()}
        return [{name: part[at] for name, part in parts.items()} for at in range(len(group))]


def _groups(requests: Sequence[Request], batched: bool) -> list[list[int]]:
    """Positions of requests that one run computes: those whose rows have the same shapes."""
    found: dict[Any, list[int]] = {}
    for at, request in enumerate(requests):
        key = tuple((name, array.shape[1:]) for name, array in sorted(request.inputs.items())) if batched else at
        found.setdefault(key, []).append(at)
    return list(found.values())


def _described(name: str, ports: Ports) -> dict[str, Any]:
    def listed(which: Mapping[str, Any]) -> list[dict[str, Any]]:
        return [{"name": p.name, "datatype": p.datatype, "shape": list(p.open)} for p in which.values()]

    return {"name": name, "versions": [VERSION], "platform": "msedge", "inputs": listed(ports.inputs),
            "outputs": listed(ports.outputs)}  # fmt: skip


def serve_app(
    path: str | os.PathLike[str], *, name: str = "", most: int = 32, wait: float = 0.002, **options: Any
) -> Any:
    """An application for `ray.serve.run` that answers for the bundle at `path`, readable by all machines.

    `name`: the model's in addresses, by default the file's; `most`: requests that one run computes together; `wait`:
    seconds that the first of them waits for others; `options` of the deployment: num_replicas, ray_actor_options …
    """
    from ray import serve

    whole = os.path.abspath(path)
    made: Any = serve.deployment(_Replica).options(**options)
    return made.bind(whole, name or Path(whole).stem, most, wait)
