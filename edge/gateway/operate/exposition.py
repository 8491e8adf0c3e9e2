"""Metrics as Prometheus text or OpenMetrics.

Not written with prometheus_client, which cannot name a counter without `_total`, as Triton's are named, and whose
import takes 70 ms of a server's start. The tests check the output with its parsers.

https://prometheus.io/docs/instrumenting/exposition_formats/, https://prometheus.io/docs/specs/om/open_metrics_spec/
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import inf, isfinite, isnan
from typing import Literal, NamedTuple

from edge.gateway.operate.histograms import Histogram

__all__ = ["OPENMETRICS", "PROMETHEUS", "Family", "expose"]

PROMETHEUS = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"

Labels = Mapping[str, str]


class Family(NamedTuple):
    """Metrics with one name. `samples`: by their labels; of a histogram every `every`-th bound is shown."""

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    help: str
    samples: Sequence[tuple[Labels, float | Histogram]]
    every: int = 1


def expose(families: Iterable[Family], accept: str = "") -> tuple[bytes, str]:
    """The text, and its content type: OpenMetrics if the header Accept prefers it."""
    openmetrics = _prefers_openmetrics(accept)
    lines = [line for family in families for line in _lines(family, openmetrics)]
    text = "".join(f"{line}\n" for line in (*lines, *(["# EOF"] if openmetrics else [])))
    return text.encode(), OPENMETRICS if openmetrics else PROMETHEUS


def _lines(family: Family, openmetrics: bool) -> Iterator[str]:
    name, kind = family.name, str(family.kind)
    if openmetrics and kind == "counter":
        # OpenMetrics requires counters to end in _total; others, such as Triton's, must have an unknown type.
        name, kind = (name.removesuffix("_total"), kind) if name.endswith("_total") else (name, "unknown")
    yield f"# HELP {name} {_escaped(family.help, quote=openmetrics)}"
    yield f"# TYPE {name} {kind}"
    for labels, value in family.samples:
        if isinstance(value, Histogram):
            yield from _distribution(family, labels, value)
        else:
            yield f"{family.name}{_braces(labels)} {_number(value)}"


def _distribution(family: Family, labels: Labels, found: Histogram) -> Iterator[str]:
    for bound, count in found.cumulative(family.every):
        yield f"{family.name}_bucket{_braces({**labels, 'le': _number(float(bound))})} {count}"
    yield f"{family.name}_sum{_braces(labels)} {_number(found.total)}"
    yield f"{family.name}_count{_braces(labels)} {found.count}"


def _braces(labels: Labels) -> str:
    inner = ",".join(f'{name}="{_escaped(value, quote=True)}"' for name, value in labels.items())
    return f"{{{inner}}}" if inner else ""


def _escaped(text: str, *, quote: bool) -> str:
    plain = text.replace("\\", "\\\\").replace("\n", "\\n")
    return plain.replace('"', '\\"') if quote else plain


def _number(value: float) -> str:
    if isfinite(value):
        return repr(value)
    return "NaN" if isnan(value) else "+Inf" if value == inf else "-Inf"


def _prefers_openmetrics(accept: str) -> bool:
    wanted = {"application/openmetrics-text": 0.0, "text/plain": 0.0}
    for part in accept.split(",")[:32]:
        kind, *parameters = (word.strip() for word in part.split(";"))
        if kind in wanted:
            wanted[kind] = max(wanted[kind], _quality(parameters))
    openmetrics, plain = wanted.values()
    return openmetrics > 0 and openmetrics >= plain


def _quality(parameters: Iterable[str]) -> float:
    for parameter in parameters:
        if parameter.startswith("q="):
            try:
                return float(parameter[2:])
            except ValueError:
                return 0.0
    return 1.0
