"""Settings that a manager changes while the gateway runs: the log's, and those of traces, for all models or one.

Names and values are those of Triton's protocol extensions "logging" and "trace"; what has no meaning here is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from edge.gateway.errors import GatewayError
from edge.gateway.operate.logs import Log
from edge.gateway.protocol.parameters import expect, wrong

__all__ = ["Adjust", "Tracing"]

_TRACED, _OFF = ["TIMESTAMPS"], ["OFF"]
_FIXED_LOG: Mapping[str, tuple[str, str]] = {
    "log_file": ("", "the log is written to stderr"),
    "log_format": ("ISO8601", "times are written in this way; logs.format is set at the start"),
}
_FIXED_TRACE: Mapping[str, tuple[str, str]] = {
    "trace_file": ("", "spans are sent to traces.endpoint"),
    "trace_count": ("-1", "the number of traces is not limited"),
    "log_frequency": ("0", "spans are sent as they come"),
    "trace_mode": ("opentelemetry", "spans are sent with OpenTelemetry"),
}
"""Settings with one possible value, and why."""
_MOST = 10**9


class Tracing(NamedTuple):
    """on: whether spans are recorded at all; share: of the traces that begin here, the share that is recorded."""

    on: bool
    share: float


class Adjust:
    """The settings that can change; on the event loop's thread. share: `traces.share`, None without an endpoint."""

    def __init__(self, log: Log, share: float | None) -> None:
        self._log, self._log_start = log, (log.level, log.share)
        self._can_trace = share is not None
        self._start = self._all = Tracing(bool(share), share or 0.0)
        self._models: dict[str, dict[str, Any]] = {}
        """What differs for a model: fields of Tracing."""

    # -- the log -------------------------------------------------------------------------------------------------------

    def log_settings(self) -> dict[str, Any]:
        """The log's settings."""
        return _log_words(self._log.level, self._log.share)

    def change_log(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Change the log's settings, None: to those of the start; returns all of them. Raises GatewayError (400), and
        then nothing has changed."""
        start, words = _log_words(*self._log_start), self.log_settings()
        for name, value in given.items():
            if name not in words:
                raise _unknown(name, words)
            words[name] = start[name] if value is None else _checked(name, value)
        expect(words["log_error"], "log_error: expected true, as internal errors are always logged")
        levels = [words["log_verbose_level"] > 0, words["log_info"], words["log_warning"], True]
        expect(
            levels == sorted(levels), "expected log_warning with log_info, and log_info with log_verbose_level 1: a"
            " level includes the graver ones",
        )  # fmt: skip
        level = ("debug", "info", "warning", "error")[levels.index(True)]
        if given:  # before the change, which may be to log less
            self._log.event("info", "log settings change", lowest=level, requests=words["log_requests"])
        self._log.change(level, words["log_requests"])
        return self.log_settings()

    # -- traces --------------------------------------------------------------------------------------------------------

    def tracing(self, model: str) -> Tracing:
        """Which of a model's requests are traced."""
        own = self._models.get(model)
        return self._all if own is None else self._all._replace(**own)

    def trace_settings(self, model: str) -> dict[str, Any]:
        """The settings of traces, for a model, or "": for those without their own."""
        found = self.tracing(model)
        fixed = {name: value for name, (value, _) in _FIXED_TRACE.items()}
        rate = str(round(1 / found.share)) if found.share else "0"
        return {"trace_level": list(_TRACED if found.on else _OFF), "trace_rate": rate, **fixed}

    def change_trace(self, model: str, given: Mapping[str, Any]) -> dict[str, Any]:
        """Change the settings of traces. None: as all models, or as at the start. Raises GatewayError (400), and then
        nothing has changed."""
        if given and not self._can_trace:
            raise wrong("expected the setting traces.endpoint at the start, to which traces are sent; there is none")
        own, start = dict(self._models.get(model, {})), self._start._asdict()
        found = self._all._asdict() if not model else own
        for name, value in given.items():
            if name in _FIXED_TRACE:
                _demand_fixed(name, value, _FIXED_TRACE)
            elif name not in _TRACE:
                raise _unknown(name, [*_TRACE, *_FIXED_TRACE])
            else:
                field, read = _TRACE[name]
                if value is not None:
                    found[field] = read(name, value)
                elif model:
                    found.pop(field, None)
                else:
                    found[field] = start[field]
        if model:
            self._models[model] = found
        else:
            self._all = Tracing(**found)
        if given:
            self._log.event("info", "trace settings change", model=model, **self.tracing(model)._asdict())
        return self.trace_settings(model)


def _log_words(level: str, share: float) -> dict[str, Any]:
    return {
        "log_file": "", "log_info": level in ("debug", "info"), "log_warning": level != "error", "log_error": True,
        "log_verbose_level": int(level == "debug"), "log_format": "ISO8601", "log_requests": share,
    }  # fmt: skip


def _checked(name: str, value: Any) -> Any:
    """A value of a setting of the log."""
    if name in _FIXED_LOG:
        return _demand_fixed(name, value, _FIXED_LOG)
    if name == "log_verbose_level":
        return _whole(name, value)
    if name == "log_requests":
        return _share(name, value)
    expect(type(value) is bool, "%s: expected true or false, got %r", name, value)
    return value


def _demand_fixed(name: str, value: Any, fixed: Mapping[str, tuple[str, str]]) -> str:
    only, why = fixed[name]
    if value is not None and str(value) != only:
        raise wrong(f"{name}: expected {only!r}, got {value!r}; it cannot be changed: {why}")
    return only


def _whole(name: str, value: Any) -> int:
    """A whole number, or its digits, as clients write numbers in both ways."""
    digits = str(value) if type(value) in (int, str) else ""
    fits = digits.isascii() and digits.isdigit() and len(digits) < 16 and int(digits) <= _MOST
    expect(fits, "%s: expected a whole number from 0 to %s, got %r", name, _MOST, value)
    return int(digits)


def _share(name: str, value: Any) -> float:
    """A number from 0 to 1, or its text, as gRPC's message has no field for it."""
    try:
        share = float(value) if type(value) in (int, float, str) else -1.0
    except (ValueError, OverflowError):
        share = -1.0
    expect(0 <= share <= 1, "%s: expected a number from 0 to 1, the share of requests that are logged, got %r", name,
           value)  # fmt: skip
    return share


def _rate(name: str, value: Any) -> float:
    """One of so many requests is traced."""
    single = value[0] if type(value) is list and len(value) == 1 else value
    number = _whole(name, single)
    expect(number > 0, "%s: expected at least 1 (each request); trace_level OFF ends tracing", name)
    return 1 / number


def _level(name: str, value: Any) -> bool:
    levels = value if type(value) is list else [value]
    if levels not in (_TRACED, _OFF):
        raise wrong(f"{name}: expected TIMESTAMPS or OFF, as tensors are not recorded, got {value!r}")
    return levels == _TRACED


_TRACE: Mapping[str, tuple[str, Callable[[str, Any], Any]]] = {
    "trace_level": ("on", _level),
    "trace_rate": ("share", _rate),
}
"""Settings of traces that change: the field of Tracing, and how a value is read."""


def _unknown(name: str, known: Any) -> GatewayError:
    return wrong(f"no setting is named {name!r}; expected {', '.join(known)}")
