"""A request in OpenAI's protocol, from its arrival to the version that answers it, on the event loop's thread."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from functools import partial
from time import perf_counter
from typing import Any, Protocol

from edge.gateway.exchange import Ask
from edge.gateway.infer import LABEL
from edge.gateway.infer import Host as Desk
from edge.gateway.language.body import ParameterError
from edge.gateway.language.service import Languages
from edge.gateway.models.entry import Asleep
from edge.gateway.models.served import Served
from edge.gateway.models.serving import Serving
from edge.gateway.operate.statistics import ModelStatistics
from edge.gateway.protocol.body import Body

__all__ = ["Arrival", "Gateway"]


class _Logged(Body):
    """What the log calls such a request."""

    def __init__(self, path: str) -> None:
        self._path = path

    def call(self, model: str) -> tuple[str, str]:
        """Method and path."""
        return "POST", self._path


class Gateway(Desk, Protocol):
    """What it needs from the gateway."""

    languages: Languages

    def owner(self, ask: Ask) -> str:
        """Who a request belongs to."""
        raise NotImplementedError

    def demand_device(self, device: str, ask: Ask) -> None:
        """Raise GatewayError (403) unless the client is that device."""
        raise NotImplementedError


class Arrival:
    """One request. Subclasses read it, and say which models can answer."""

    def __init__(self, gateway: Gateway, ask: Ask, path: str) -> None:
        """ask: without body."""
        self._gateway, self._ask, self._arrived = gateway, ask._replace(form=_Logged(path)), perf_counter()
        self.identity = gateway.ids.of(ask.fields.get("x-request-id"))
        self._served: Served | None = None
        gateway.under_way += 1

    async def begin(self, given: Mapping[str, Any]) -> None:
        """Accept the request with that body. Raises GatewayError."""
        raise NotImplementedError

    @property
    def stream(self) -> bool:
        """Whether the client wants events."""
        return False

    def events(self) -> AsyncGenerator[bytes]:
        """The reply as events, if the client wants them."""
        raise NotImplementedError

    async def whole(self) -> dict[str, Any]:
        """The reply. Raises GatewayError if there is none."""
        raise NotImplementedError

    def end(self, status: int) -> None:
        """The request was answered with that status, or its client has left (499)."""
        gateway, served, now = self._gateway, self._served, perf_counter()
        gateway.under_way -= 1
        if served is not None:
            statistics = gateway.statistics.of(served.name, served.version)
            if status == 200:
                self._record(statistics, now)
            else:
                statistics.fail(None, status, now)
            served.release()
        if status not in (200, 499):
            gateway.statistics.refused["infer", status] += 1
        if gateway.watching or status == 500:
            gateway.ended(self._ask, self.identity, status, now - self._arrived, None, served)

    def _record(self, statistics: ModelStatistics, now: float) -> None:
        """Record that the request was answered."""
        statistics.answered(now - self._arrived, now)

    def _refusal(self, served: Serving) -> str:
        """Why that model cannot answer, as the end of a sentence; "" if it can."""
        raise NotImplementedError

    async def _routed(self, given: Mapping[str, Any], device: str | None = None) -> Served:
        """The version that answers a body, which is held until `end`. device: whose adapter it wants, None for none.
        Raises GatewayError: 400, 401, 403, 404."""
        gateway, name = self._gateway, given.get("model")
        if isinstance(name, str):
            self._ask = self._ask._replace(model=name, body=memoryview(b"{}"))
            gateway.admit_inference(self._ask)
        if device is not None:
            gateway.demand_device(device, self._ask)
        if not isinstance(name, str) or not name:
            raise ParameterError("model", "model: expected the name of a model, got none", "missing_required_parameter")
        fields = self._ask.fields
        route = partial(
            gateway.repository.route, name, "", fields.get(LABEL, ""), fields.get("x-request-id", "")
        )  # fmt: skip
        try:
            served = route()
        except Asleep:
            await gateway.repository.wake(name)
            served = route()
        refusal = self._refusal(served)
        if refusal or not isinstance(served, Served):
            raise ParameterError("model", f"model {name!r} {refusal}", "model_not_supported")
        served.acquire(self._arrived)
        self._served = served
        return served
