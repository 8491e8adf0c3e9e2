"""The hub's figures as OpenTelemetry's metrics, sent to a collector by HTTP. Needs the extra `otel`.

msedge.hub.requests, msedge.hub.request.duration (s)   by path and status
msedge.hub.devices                                     by state
msedge.hub.versions                                    devices by application and version
msedge.hub.rollout.members, msedge.hub.rollout.percent by rollout; members by verdict too
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from cloud.hub.server.fleet import Fleet
from lite_runtime.errors import MissingExtraError

if TYPE_CHECKING:
    from opentelemetry.metrics import CallbackOptions, Observation
    from opentelemetry.sdk.metrics.export import MetricReader

__all__ = ["Observer", "reader_for"]

EVERY = 15.0
"""Seconds between two exports."""
_BOUNDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 60.0)


def reader_for(collector: str) -> MetricReader:
    """What sends metrics to a collector, such as http://localhost:4318/v1/metrics. Raises MissingExtraError."""
    try:
        from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
        from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
    except ModuleNotFoundError as error:
        raise MissingExtraError(error.name or "opentelemetry", "otel", "collector needs it") from error
    return PeriodicExportingMetricReader(OTLPMetricExporter(endpoint=collector), export_interval_millis=EVERY * 1000)


class Observer:
    """Counts requests, and lets a reader ask for the state of a fleet, from a thread of its own."""

    def __init__(self, reader: MetricReader, fleet: Callable[[], Fleet]) -> None:
        from opentelemetry.sdk.metrics import MeterProvider
        from opentelemetry.sdk.metrics.view import ExplicitBucketHistogramAggregation, View
        from opentelemetry.sdk.resources import Resource

        view = View(
            instrument_name="msedge.hub.request.duration", aggregation=ExplicitBucketHistogramAggregation(_BOUNDS)
        )
        self._fleet = fleet
        self._provider = MeterProvider(
            [reader], Resource.create({"service.name": "msedge-hub"}), shutdown_on_exit=False, views=[view]
        )
        meter = self._provider.get_meter("msedge.hub")
        self._requests = meter.create_counter("msedge.hub.requests")
        self._seconds = meter.create_histogram("msedge.hub.request.duration", "s")
        for name, seen in (
            ("devices", self._devices), ("versions", self._versions), ("rollout.members", self._members),
            ("rollout.percent", self._percent),
        ):  # fmt: skip
            meter.create_observable_gauge(f"msedge.hub.{name}", [self._observed(seen)])

    def request(self, path: str, status: int, seconds: float) -> None:
        """Count a request. path: the route's, not the client's."""
        about: dict[str, str | int] = {"path": path, "status": status}
        self._requests.add(1, about)
        self._seconds.record(seconds, about)

    def close(self) -> None:
        """Send the last figures."""
        self._provider.shutdown()

    def _observed(self, seen: Callable[[Fleet], Iterable[tuple[float, dict[str, str]]]]) -> Any:
        from opentelemetry.metrics import Observation

        def ask(options: CallbackOptions) -> list[Observation]:
            return [Observation(value, about) for value, about in seen(self._fleet())]

        return ask

    @staticmethod
    def _devices(fleet: Fleet) -> Iterable[tuple[float, dict[str, str]]]:
        return [(count, {"state": state}) for state, count in fleet.summary()["states"].items()]

    @staticmethod
    def _versions(fleet: Fleet) -> Iterable[tuple[float, dict[str, str]]]:
        found = fleet.summary()["versions"]
        return [
            (count, {"application": application, "version": version})
            for application, counts in found.items()
            for version, count in counts.items()
        ]

    @staticmethod
    def _members(fleet: Fleet) -> Iterable[tuple[float, dict[str, str]]]:
        return [
            (count, {"rollout": one.id, "verdict": verdict or "open"})
            for one in list(fleet.rollouts.values())
            for verdict, count in one.counts().items()
        ]

    @staticmethod
    def _percent(fleet: Fleet) -> Iterable[tuple[float, dict[str, str]]]:
        return [(one.percent, {"rollout": one.id}) for one in list(fleet.rollouts.values())]
