"""Where the time of a step goes: JAX's profiler over some steps, read by operator of the model."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import jax

from cloud.errors import TrackError
from cloud.track.watching.xspace import written_as
from cloud.train.callbacks import Callback, Fitting

__all__ = ["Profiled", "read_profile"]

_AFTER = 2
"""Steps that are not profiled: the first one is compiled."""
_MOST = 200
"""The most rows that are kept; the others are added up in one."""
_WAYS = re.compile(r"^jit\([^)]*\)/(.*)$", re.DOTALL)
_WRAPPED = re.compile(r"^(transpose|jvp|vmap|remat|checkpoint|rematted_computation)\((.*)\)$", re.DOTALL)


class _Event(NamedTuple):
    """Nanoseconds."""

    start: float
    end: float
    program: str
    instruction: str


class Profiled(Callback):
    """Runs JAX's profiler over at least `steps` steps, once, soon after training begins, and gives what
    `read_profile` finds to `keep`. In a run with several processes the first one is profiled.

    A profile that cannot be taken, as when another one is running, is a warning; training continues.
    """

    def __init__(self, keep: Callable[[Mapping[str, Any]], None], steps: int) -> None:
        if steps < 1:
            raise TrackError(f"expected to profile at least 1 step, got {steps}")
        self._keep, self._steps = keep, steps
        self._trainer: Fitting | None = None
        self._from = self._until = 0
        self._folder: TemporaryDirectory[str] | None = None
        self._done = False

    def started(self, trainer: Fitting) -> None:
        """Count from here."""
        self._trainer, self._from = trainer, trainer.steps_done

    def stepped(self, step: int, metrics: Mapping[str, float]) -> None:
        """Start or stop the profiler."""
        if self._done or self._trainer is None or jax.process_index():
            return
        if self._folder is None and step >= self._from + _AFTER:
            self._start(self._trainer.steps_done)  # more than `step`: steps are reported late
        elif self._folder is not None and step >= self._until:
            self._stop()

    def finished(self, trainer: Fitting) -> None:
        """Stop; of a short run, what there is."""
        self._stop()

    def failed(self, error: BaseException) -> None:
        """Stop."""
        self._stop()

    def _start(self, done: int) -> None:
        self._folder, self._until = TemporaryDirectory(prefix="msedge-profile-"), done + self._steps
        options = jax.profiler.ProfileOptions()
        options.python_tracer_level, options.host_tracer_level = 0, 1
        try:
            jax.profiler.start_trace(self._folder.name, profiler_options=options)
        except (RuntimeError, OSError) as error:
            self._give_up(error)

    def _stop(self) -> None:
        if self._folder is None or self._done:
            return
        try:
            jax.profiler.stop_trace()  # type: ignore[no-untyped-call]
            files = sorted(Path(self._folder.name).rglob("*.xplane.pb"))
            found = read_profile(files[0].read_bytes()) if files else {}
        except (RuntimeError, OSError, ValueError, TrackError) as error:
            self._give_up(error)
            return
        self._done = True
        self._folder.cleanup()
        if found.get("rows"):
            self._keep(found)

    def _give_up(self, error: Exception) -> None:
        self._done = True
        if self._folder is not None:
            self._folder.cleanup()
        warnings.warn(f"the steps were not profiled: {error}", RuntimeWarning, stacklevel=3)


def read_profile(data: bytes) -> dict[str, Any]:
    """From the contents of `xplane.pb`: {"program", "steps" (how often it ran), "seconds" (of one step, all devices'
    or cores' operators added), "rows": [{"phase", "node", "operator", "seconds" (of one step), "share"}]}.

    The program is the one with gradients, or else the one that took longest; "phase" is forward, backward or update.
    An operator that contains others, such as a loop, is counted without them. {} if no operator was seen. Raises
    TrackError for a damaged file.
    """
    events, runs = _events(jax.profiler.ProfileData.from_serialized_xspace(data))
    times: dict[str, dict[str, float]] = {}
    for event, seconds in events:
        of = times.setdefault(event.program, {})
        of[event.instruction] = of.get(event.instruction, 0.0) + seconds
    if not times:
        return {}
    programs = written_as(data)
    named = {program: _named(programs, program) for program in times}
    program = max(times, key=lambda name: (_has_gradients(named[name]), sum(times[name].values())))
    steps, names = max(1, len(runs[program])), named[program]
    rows: dict[tuple[str, str, str], float] = {}
    for instruction, seconds in times[program].items():
        key = _place(names.get(instruction, ""), instruction)
        rows[key] = rows.get(key, 0.0) + seconds / steps
    total = sum(rows.values())
    order = sorted(rows, key=lambda key: -rows[key])
    kept = [(*key, rows[key]) for key in order[:_MOST]]
    if rest := sum(rows[key] for key in order[_MOST:]):
        kept.append(("", "", "others", rest))
    made = [
        {"phase": phase, "node": node, "operator": operator, "seconds": own, "share": own / total if total else 0.0}
        for phase, node, operator, own in kept
    ]
    return {"program": program, "steps": steps, "seconds": total, "rows": made}


def _named(programs: Mapping[str, Mapping[str, str]], program: str) -> Mapping[str, str]:
    """The instructions of a program, whose name in the events lacks its number."""
    return next((names for name, names in programs.items() if name == program or name.startswith(f"{program}.")), {})


def _has_gradients(names: Mapping[str, str]) -> bool:
    return any("transpose(" in said for said in names.values())


def _events(profile: Any) -> tuple[list[tuple[_Event, float]], dict[str, set[Any]]]:
    """Every operator that ran, with its own seconds; and the runs of every program. Accelerators' timelines are used if
    there are any, else the host's."""
    found: dict[bool, list[tuple[_Event, float]]] = {True: [], False: []}
    runs: dict[str, set[Any]] = {}
    for plane in profile.planes:
        on_device = plane.name.startswith("/device:")
        for line in plane.lines:
            ran = []
            for event in line.events:
                stats = {key: value for key, value in event.stats if key in ("hlo_op", "hlo_module", "run_id")}
                if "hlo_op" not in stats or "hlo_module" not in stats:
                    continue
                program = str(stats["hlo_module"])
                ran.append(_Event(event.start_ns, event.start_ns + event.duration_ns, program, str(stats["hlo_op"])))
                runs.setdefault(program, set()).add(stats.get("run_id"))
            found[on_device] += _own(ran)
    return found[True] or found[False], runs


def _own(ran: Iterable[_Event]) -> list[tuple[_Event, float]]:
    """Seconds of each event on one timeline, without those of the events inside it."""
    made: list[list[Any]] = []
    around: list[int] = []
    for event in sorted(ran, key=lambda e: (e.start, -e.end)):
        while around and made[around[-1]][0].end <= event.start:
            around.pop()
        if around:
            made[around[-1]][1] -= (event.end - event.start) * 1e-9
        around.append(len(made))
        made.append([event, (event.end - event.start) * 1e-9])
    return [(event, max(seconds, 0.0)) for event, seconds in made]


def _place(said: str, instruction: str) -> tuple[str, str, str]:
    """(phase, node, operator) of "jit(step)/transpose(jvp(Conv 'a'))/mul"."""
    matched = _WAYS.match(said)
    if matched is None:
        return ("update" if said else "", "", said or instruction.partition(".")[0])
    *scopes, operator = _split(matched[1])
    ways, names = set[str](), []
    for scope in scopes:
        while (wrapped := _WRAPPED.match(scope)) is not None:
            ways.add(wrapped[1])
            scope = wrapped[2]
        names.append(scope)
    phase = "backward" if "transpose" in ways else "forward" if "jvp" in ways else "update"
    node = "/".join(name for name in names if name and not name.startswith(("jit(", "while", "body", "closed_call")))
    return phase, node, operator


def _split(text: str) -> list[str]:
    """At slashes outside parentheses and quotes."""
    parts, depth, quoted = [""], 0, False
    for letter in text:
        quoted ^= letter == "'"
        depth += (letter == "(") - (letter == ")") if not quoted else 0
        if letter == "/" and not depth and not quoted:
            parts.append("")
        else:
            parts[-1] += letter
    return parts
