"""One application on a device: drives its update (`edge.agent.update`) with the disk, the source and the checks.

Every step begins with what the state says and ends with an event, so that it does not matter where the last process was
ended. What must be on disk before it counts (that another slot is written to, that a version is complete, that it runs)
is saved first; all else goes on in memory where the disk refuses, and is saved when it can be.
"""

from __future__ import annotations

import errno
import hashlib
import math
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from edge.agent.checking.health import Check, Context, judged, run
from edge.agent.checking.trying import Limits, Trial, asked, tried
from edge.agent.conditions import Conditions, cannot, closed, waits
from edge.agent.errors import AgentError, FetchError
from edge.agent.gathering import Gathering, Held
from edge.agent.machine import Facts, Machine
from edge.agent.personal.keeping import KEEP, Kept
from edge.agent.slots import READ_ONLY, Slots, remove
from edge.agent.source import Source
from edge.agent.update import (
    MAKING,
    TRYING,
    Again,
    Assigned,
    Damaged,
    Declined,
    Event,
    Failed,
    Fetched,
    Health,
    Installed,
    Passed,
    Phase,
    Return,
    Rules,
    Started,
    State,
    Stored,
    Switched,
    Told,
    durable,
    step,
)  # fmt: skip
from lite_runtime.errors import MsedgeError
from lite_runtime.frozen import NamedTuple
from lite_runtime.updates.release import Release, written

__all__ = ["Application", "Personal", "Settings", "Wish"]

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
STRICT = (Assigned, Stored, Switched)
FIRST, LONGEST = 10.0, 6 * 3600.0
"""Seconds until what failed is tried again: doubled from the first to the longest."""
SOON, WAITING = 1.0, 30.0
"""Seconds until an update goes on, and until it is looked whether what it waits for is there."""
RESTART = 120.0
"""Seconds that the program may take that is run after a switch."""

Say = Callable[[str, str, str], None]
"""Kind of an event, version, text."""


class _PausedError(FetchError):
    """A condition does not hold any more; what is left of a download waits for it."""


class Personal(NamedTuple):
    """How learned state goes over to a new version. names: patterns of arrays, (): all that was learned. examples: a
    file of the device's own examples, "" for none: .npz with the inputs of `evaluate`, .jsonl or .txt for language
    models. epochs: of fitting again, 0 for none. keep: versions whose state is kept."""

    names: tuple[str, ...] = ()
    examples: str = ""
    epochs: int = 0
    keep: int = KEEP


class Settings(NamedTuple):
    """What is configured for one application. channel: whose versions may run. health: checks in a trial, one after
    `every` seconds. restart: a program and its arguments that are run after a switch."""

    channel: str = "stable"
    health: Sequence[Check] = ()
    every: float = 10.0
    restart: tuple[str, ...] = ()
    rules: Rules = Rules()
    conditions: Conditions = Conditions()
    limits: Limits = Limits()
    personal: Personal = Personal()


class Wish(NamedTuple):
    """A version that should run: see `lite_runtime.updates.checkin.Assignment`."""

    version: str
    rollout: str = ""
    urgent: bool = False


class Application:
    """Not for use by several threads at once. `callbacks` are called with the folder of the running files after a
    switch, and after a return."""

    def __init__(
        self,
        name: str,
        folder: Path,
        settings: Settings,
        machine: Machine,
        say: Say = lambda kind, version, text: None,
        writable: bool = True,
    ) -> None:
        self.name, self.settings, self._machine, self._say = name, settings, machine, say
        self.slots, self.kept = Slots(folder, writable=writable), Kept(folder, settings.personal.keep)
        self.state, wrong = self.slots.load()
        self._saved: State | None = None if wrong else self.state
        self.callbacks: list[Callable[[Path], object]] = []
        self.waiting, self.trouble = "", wrong
        self.wish: Wish | None = None
        self.found: dict[str, Trial] = {}
        """What the checks before the switch measured, by file."""
        self._pause, self._not_before, self._begun, self._since, self._next = 0.0, 0.0, 0.0, 0.0, 0.0
        self._slow = "" if self.state.coming is None else self.state.coming.release
        """The release that pauses are about."""

    # -- what runs -----------------------------------------------------------------------------------------------------

    @property
    def folder(self) -> Path | None:
        """The folder of the running files; None if nothing runs."""
        return None if self.state.running is None else self.slots.files(self.state.running.slot)

    @property
    def pause(self) -> float:
        """Seconds until there may be something to do."""
        now = time.monotonic()
        if self.state.phase is Phase.TRIAL:
            return self._next - now
        if self.state.phase not in (*MAKING, *TRYING):
            return math.inf
        return max(WAITING if self.waiting else SOON, self._not_before - now)

    @property
    def busy(self) -> bool:
        """Whether an update is under way, and waits for nothing but time."""
        return self.state.phase in (*MAKING, *TRYING) and not self.waiting

    def start(self) -> None:
        """Go on after the last process, however it ended: read all files, remove what is left over."""
        if self.trouble:
            self._say("recovered", self.state.running.version if self.state.running else "", self.trouble)
        self.take(Started())
        staged = self.state.coming if self.state.phase is Phase.STAGED else None
        for one in (staged, self.state.previous, self.state.running):
            if one is not None and (wrong := self.slots.fault(one)):
                self._say("damaged", one.version, wrong)
                self.take(Damaged(one.slot, wrong))
        self._save()
        self._tidy()

    def take(self, event: Event) -> bool:
        """Let an event change the state; returns whether it did. A change that must be on disk first does not happen if
        the disk refuses."""
        before, after = self.state, step(self.state, event, self.settings.rules)
        if after == before:
            return False
        if isinstance(event, STRICT) and not self._save(after):
            return False
        self.state = after
        self._save()
        if after.outcome is not None and after.outcome != before.outcome:
            self._say(after.outcome.kind, after.outcome.version, after.outcome.reason)
        if after.running != before.running or after.phase is Phase.IDLE:
            self._tidy()
        return True

    def _save(self, state: State | None = None) -> bool:
        """Write what of a state (default: the current one) has to survive; False if the disk refuses."""
        kept = durable(self.state if state is None else state)
        if kept == self._saved:
            return True
        try:
            self.slots.save(kept)
        except AgentError as problem:
            self.trouble = str(problem)
            return False
        self._saved, self.trouble = kept, ""
        return True

    def _tidy(self) -> None:
        """Let `current` name what runs, and remove what neither the state on disk nor the one in memory names."""
        try:
            self.slots.point(self.state)
        except OSError as problem:
            self.trouble = f"{problem.filename}: {problem.strerror}"
        states = [self.state] if self._saved is None else [self.state, self._saved]
        self.slots.clean(*states)
        self.kept.expire([one for state in states for one in (state.running, state.previous, state.coming) if one])

    # -- what should run -----------------------------------------------------------------------------------------------

    def assign(self, wish: Wish, source: Source) -> None:
        """Begin with an update, unless it cannot run here, was refused before, or waits for something. Raises
        AgentError for a version that the repository does not offer."""
        self.wish = wish
        release = source.release(self.name, wish.version)
        digest = hashlib.sha256(written(release)).hexdigest()
        state, facts = self.state, self._facts()
        if any(one is not None and one.release == digest for one in (state.running, state.previous, state.coming)):
            self.take(Assigned(wish.version, digest, wish.rollout))
            self.waiting = ""
            return
        if state.phase in TRYING:
            return  # the trial ends first
        if why := cannot(release.requirements, facts):
            self.decline(wish, why)
            return
        if state.refusal(digest) is None:
            if digest != self._slow:  # another version does not wait for what that one could not do
                self._slow, self._pause, self._not_before = digest, 0.0, 0.0
            if time.monotonic() < self._not_before:
                return
            self.waiting = self._waits(release, facts)  # before the version that could be returned to is given up
            if self.waiting:
                return
        self.take(Assigned(wish.version, digest, wish.rollout))

    def decline(self, wish: Wish, reason: str) -> None:
        """Say that a version cannot run here; what is installed stays."""
        self.wish, self.waiting = wish, ""
        self.take(Declined(wish.version, reason, wish.rollout))

    def _waits(self, release: Release, facts: Facts) -> str:
        """What an update would wait for if it began."""
        running = set()
        if self.state.running is not None:
            running = {file.sha256 for file in self.slots.release(self.state.running).files.values()}
        size = sum(file.size for file in release.files.values() if file.sha256 not in running)
        spare = (self.state.previous, self.state.coming)
        freed = sum(_bytes_in(self.slots.folder / one.slot) for one in spare if one is not None)
        return waits(
            self.settings.conditions, facts, disk=max(0, size - freed), download=size,
            memory=release.requirements.memory, urgent=self._urgent,
        )  # fmt: skip

    def rollback(self, reason: str) -> bool:
        """Return to the version before; False if there is none."""
        return self.take(Return(reason)) and self.tell()

    def again(self, version: str = "") -> bool:
        """Let a version be tried again that was refused, or with "" all."""
        self._pause = self._not_before = 0.0
        return self.take(Again(version))

    @property
    def _urgent(self) -> bool:
        return self.wish is not None and self.wish.urgent

    def _facts(self) -> Facts:
        return self._machine.facts(self.slots.folder)

    # -- going on ------------------------------------------------------------------------------------------------------

    def advance(self, source: Source | None) -> None:
        """Do what can be done now, up to the end of the update or to something that has to be waited for. Never raises
        for what a source, a bundle or the disk does."""
        self._save()
        before: tuple[Phase, bool] | None = None
        while (now := (self.state.phase, self.state.told)) != before:
            before = now
            try:
                self._advance(source)
            except _PausedError as problem:
                self.waiting = str(problem)
            except FetchError as problem:
                self._later(str(problem))
            except OSError as problem:
                self._disk(problem)
            except MsedgeError as problem:
                self._later()
                self.take(Failed(str(problem)))

    def _advance(self, source: Source | None) -> None:
        phase = self.state.phase
        if phase in TRYING or phase is Phase.IDLE:
            if not self.state.told:
                self.tell()
            elif phase is Phase.TRIAL:
                self._examine()
        elif phase is Phase.STAGED:
            self._switch()
        elif source is not None and time.monotonic() >= self._not_before:
            self._make(source)

    def _make(self, source: Source) -> None:
        coming = self.state.coming
        assert coming is not None
        release = source.release(self.name, coming.version)
        document = written(release)
        if hashlib.sha256(document).hexdigest() != coming.release:
            self.take(Failed("the repository has another release of that version now"))
            return
        self.slots.begin(coming, document)
        gathering = self._gathering(coming, release, source)
        if self.state.phase is Phase.FETCHING:
            if not self._has_room(gathering, release):
                return
            gathering.fetch()
            self.take(Fetched())
        elif self.state.phase is Phase.REBUILDING:
            gathering.rebuild()
            self._check(coming, release)
        else:
            self.slots.settle(coming)
            self.take(Stored())
            self._pause = 0.0

    def _has_room(self, gathering: Gathering, release: Release) -> bool:
        needs = release.requirements.memory
        for last in (False, True):
            disk, download = gathering.needed()
            self.waiting = waits(
                self.settings.conditions, self._facts(), disk=disk, download=download, memory=needs, urgent=self._urgent
            )
            if not self.waiting.startswith("disk") or last:
                return not self.waiting
            self.slots.discard_spare()
        return False

    def _gathering(self, coming: Installed, release: Release, source: Source) -> Gathering:
        def allowed() -> None:
            why = waits(self.settings.conditions, self._facts(), download=1, urgent=self._urgent)
            if why:
                raise _PausedError(why)

        old: dict[str, list[Held]] = {name: [] for name in release.files}
        running = self.state.running
        if running is not None:
            self._hold(old, self.slots.files(running.slot), self.slots.release(running), True)
        if (spare := self.slots.spare()) is not None:
            self._hold(old, spare[0] / "files", spare[1], False)
        files, parts = self.slots.files(coming.slot), self.slots.parts(coming.slot)
        held = {name: tuple(rows) for name, rows in old.items()}
        return Gathering(release, source, files, parts, held, _seldom(allowed))

    def _hold(self, old: dict[str, list[Held]], folder: Path, release: Release, checked: bool) -> None:
        """Add the files of a version: of equal names first."""
        for name, file in release.files.items():
            one = Held(folder / name, file, checked)
            old.setdefault(name, []).insert(0, one)
            for other in old:
                if other != name:
                    old[other].append(one)

    def _check(self, coming: Installed, release: Release) -> None:
        """The checks before the switch. What runs already, for the same requirements, has passed them."""
        self.found, known = {}, set[str]()
        if self.state.running is not None:
            before = self.slots.release(self.state.running)
            if before.requirements == release.requirements:
                known = {file.sha256 for file in before.files.values()}
        for name, file in release.files.items():
            if file.sha256 in known:
                continue
            path = self.slots.files(coming.slot) / name
            found = tried(path, file, release.requirements, self.settings.limits, self._facts().memory)
            if found.refusal is not None:
                self.take(Failed(found.refusal.reason, found.refusal.kind, lasting=found.refusal.kind != "failed"))
                self._later()
                return
            self.found[name] = found
        self.take(Passed())

    def _switch(self) -> None:
        coming = self.state.coming
        assert coming is not None
        self.waiting = closed(self.settings.conditions, self._facts(), self._urgent)
        if self.waiting:
            return
        if wrong := self.slots.fault(coming):
            self.take(Damaged(coming.slot, wrong))
            return
        self._carry(coming)
        self.take(Switched())

    def tell(self) -> bool:
        """Tell the application which version runs."""
        problem, folder = "", self.folder
        if folder is not None:
            problem = self._told(folder)
        self._begun, self._since = time.monotonic(), time.time()
        self._next = self._begun + self.settings.every
        self.take(Told())
        if problem:
            self.take(Health(False, 0.0, problem))
        return True

    def _told(self, folder: Path) -> str:
        """What went wrong in telling, "" if nothing did."""
        for call in self.callbacks:
            try:
                call(folder)
            except Exception as error:  # user code: a callback
                return f"on_switch: {type(error).__name__}: {error}"
        if not self.settings.restart:
            return ""
        try:
            code, said = run(self.settings.restart, self._context(), RESTART)
        except OSError as error:
            return f"{self.settings.restart[0]}: {error.strerror}"
        if code is None:
            return f"{self.settings.restart[0]} did not end within {RESTART:g} s"
        return "" if code == 0 else f"{self.settings.restart[0]} exited with {code}{': ' + said if said else ''}"

    def _context(self) -> Context:
        version = "" if self.state.running is None else self.state.running.version
        return Context(self.name, version, self.folder or self.slots.folder, self._since)

    def _examine(self) -> None:
        """A health check, if it is time for one."""
        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + self.settings.every
        problem = judged(self.settings.health, self._context())
        self.take(Health(not problem, now - self._begun, problem))

    # -- what was learned ----------------------------------------------------------------------------------------------

    def personal(self, name: str) -> Path:
        """Where the application keeps what it learned on a file of the running version. Raises AgentError if nothing
        runs, OSError if the folder cannot be made."""
        if self.state.running is None:
            raise AgentError(f"{self.name}: expected a version that runs, got none yet; install one first")
        self.kept.prepare(self.state.running)
        return self.kept.path(self.state.running, name)

    def _carry(self, coming: Installed) -> None:
        """Carry what was learned over to a version that has nothing of its own yet."""
        running, settings = self.state.running, self.settings.personal
        files = self.slots.release(coming).files
        for name in self.kept.names(running) if running is not None else ():
            assert running is not None
            into = self.kept.path(coming, name)
            if name not in files or into.exists():
                continue
            words = {
                "do": "carry", "old": os.fspath(self.slots.files(running.slot) / name),
                "state": os.fspath(self.kept.path(running, name)),
                "new": os.fspath(self.slots.files(coming.slot) / name), "into": os.fspath(into),
                "names": list(settings.names), "examples": settings.examples, "epochs": settings.epochs,
            }  # fmt: skip
            answer = asked(words, self.settings.limits, self._facts().memory)
            self._say("personal", coming.version, f"{name}: {_carried(answer)}")

    # -- what goes wrong -----------------------------------------------------------------------------------------------

    def _later(self, why: str = "") -> None:
        """Try again after a pause, which grows."""
        self.waiting = why
        self._pause = min(max(FIRST, 2 * self._pause), LONGEST)
        self._not_before = time.monotonic() + self._pause

    def _disk(self, problem: OSError) -> None:
        """The disk is full, read-only or broken: give back what the update took; what runs goes on running."""
        where = f"{problem.filename}: " if problem.filename else ""
        self.trouble = f"{where}{problem.strerror or problem}"
        self._later()
        if self.state.phase in MAKING and self.state.coming is not None:
            if problem.errno in FULL:
                self.slots.discard_spare()
                remove(self.slots.folder / self.state.coming.slot)
            if problem.errno not in READ_ONLY:
                fix = "free some disk" if problem.errno in FULL else "check the disk"
                self.take(Failed(f"{self.trouble}; {fix}"))


def _carried(answer: dict[str, object]) -> str:
    """What became of learned state, in words."""
    if "refusal" in answer:
        return f"kept for the version before: {answer['refusal']}"
    said = [f"{answer['how']}"]
    for label in ("before", "after", "fresh"):
        score = answer[label]
        if isinstance(score, dict):
            accuracy = score["accuracy"]
            said.append(f"{label} {'loss ' + str(score['loss']) if accuracy is None else f'accuracy {accuracy:.4g}'}")
    return f"{', '.join(said)} on {answer['examples']} examples" if len(said) > 1 else said[0]


def _seldom(call: Callable[[], None], seconds: float = 1.0) -> Callable[[], None]:
    """The same, at most once in so many seconds."""
    last = [-seconds]

    def limited() -> None:
        now = time.monotonic()
        if now - last[0] >= seconds:
            last[0] = now
            call()

    return limited


def _bytes_in(folder: Path) -> int:
    total = 0
    for at, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.stat(os.path.join(at, name)).st_size
            except OSError:
                continue
    return total
