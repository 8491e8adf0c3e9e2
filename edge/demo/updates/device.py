"""One simulated device: the agent and its learning are those of real devices; the program that uses the model is here.

The program classifies what it sees, in batches of examples drawn from the device's own, counts inputs, answers and
confidence as telemetry, and has a head of its own, fitted to the device's examples.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

import lite_runtime
from edge.agent import Agent, Repository, Trust
from edge.agent import Settings as Application
from edge.agent.agent import IDENTITY, TRUST
from edge.agent.application import Personal
from edge.agent.checking.trying import Limits
from edge.agent.conditions import Conditions
from edge.agent.conversation import Conversation, LaterError
from edge.agent.identity import Identity
from edge.agent.learning import populations
from edge.agent.learning.tasks import Learning, Now
from edge.agent.machine import Facts, Machine
from edge.agent.telemetry import Telemetry
from edge.agent.update import Rules
from edge.demo.updates.scene import APP, FILE, Examples, Mine
from federated.client.lite import LiteLearner
from federated.learner import Batch
from lite_runtime.errors import MsedgeError

__all__ = ["Accuracy", "Device", "Said"]

HEAD = "head*"
STEPS, RATE = 40, 0.3
"""Of fitting a head."""
EPOCHS = 100
"""In which the agent may fit the carried state to a new version, by the bundle's own steps."""


class Said(NamedTuple):
    """What all devices are told. root: the repository's first root. streams: telemetry of inputs, by name: the column.
    drawn: examples of a batch. every: seconds between two batches."""

    url: str
    root: bytes
    streams: dict[str, int]
    drawn: int
    every: float


class Accuracy(NamedTuple):
    """On the examples aside: of the version as it is, with the device's own state, and with a head that was fitted to
    this version anew. examples: how many."""

    device: str
    version: str
    changes: bool
    examples: int
    common: float
    own: float
    fresh: float


class _Here(Machine):
    """A device on its charger at night; the machine of the demo is none of these."""

    def facts(self, folder: object) -> Facts:
        """See `Machine`."""
        found = super().facts(str(folder))
        return found._replace(battery=100, charging=True, metered=False, idle=True)


class Device:
    """A device with a folder of its own. token: it enrols with it. Threads: the agent's, the program's, learning's."""

    def __init__(self, name: str, folder: Path, mine: Mine, token: str, said: Said, log: Callable[[str], None]) -> None:
        self.name, self.folder, self.mine, self._said, self._log = name, folder, mine, said, log
        folder.mkdir(parents=True, exist_ok=True)
        self._draw = np.random.default_rng(int.from_bytes(name.encode()[-4:]))
        self._changed = False
        self._keep(mine.learn)
        self._hub = Conversation(said.url, Identity(folder / IDENTITY), timeout=60)
        self._enrol(token)
        assert self._hub.identity.enrolled is not None
        self.id: str = self._hub.identity.enrolled.device
        self._telemetry = Telemetry(folder / "telemetry.json", enabled=True)
        self._tells = self._hub.another()
        self._machine = _Here()
        self.agent = self._made()
        self._stop, self._threads = threading.Event(), list[threading.Thread]()
        self.talks = threading.Event()
        """Whether the program tells of its work."""
        self._model: tuple[Path, lite_runtime.Model] | None = None

    def _enrol(self, token: str) -> None:
        while self._hub.identity.enrolled is None:
            try:
                self._hub.enrol(token, {})
            except LaterError as problem:
                self._log(f"{self.name}: {problem}")
                time.sleep(1.0)

    def _made(self) -> Agent:
        settings = Application(
            rules=Rules(seconds=0.0, successes=1, failures=1),
            every=0.0,
            conditions=Conditions(free=0),
            limits=Limits(reference=False),
            personal=Personal(names=(HEAD,), examples=str(self.folder / KEPT), epochs=EPOCHS),
        )
        source = Repository(Trust(self.folder / TRUST, self._said.root, self._hub), self._hub)
        return Agent(self.folder, {APP: settings}, source, machine=self._machine, every=5.0)

    # -- its life

    def start(self) -> None:
        """Begin to check in, to work and to offer itself."""
        self.agent.start()
        learns = Learning(self._hub.another(), self._now, self._populations, watch=self._log, every=2.0)
        for name, run in (
            ("agent", lambda: self.agent.run(self._hub.check_in, self._stop)),
            ("program", self._work),
            ("learning", lambda: learns.run(self._stop)),
        ):
            self._threads.append(threading.Thread(target=self._guarded, args=(run,), name=f"{self.name}-{name}"))
            self._threads[-1].start()

    def _guarded(self, run: Callable[[], None]) -> None:
        try:
            run()
        except Exception as problem:  # thread: a device of the demo that breaks is said so, and the others go on
            self._log(f"{self.name}: {type(problem).__name__}: {problem}")

    def stop(self) -> None:
        """Let the threads end."""
        self._stop.set()

    def join(self) -> None:
        """Wait until they have."""
        for thread in self._threads:
            thread.join()
        self.agent.close()
        for hub in (self._hub, self._tells):
            hub.close()

    def change(self) -> None:
        """From now on it sees what it sees later; what it keeps is of that time."""
        self._changed = True
        self._keep(self.mine.learn_later)

    def _now(self) -> Now:
        facts = self._machine.facts(self.folder)
        return Now(bool(facts.idle), bool(facts.charging), bool(facts.metered))

    def _populations(self) -> dict[str, populations.Population]:
        settings = {APP: populations.Settings(str(self.folder / KEPT), FILE)}
        return populations.running(self.folder, self.id, settings, self._log)

    def _keep(self, examples: Examples) -> None:
        """The examples that it keeps, as the agent and federated tasks find them."""
        path = self.folder / KEPT
        partial = path.with_suffix(".partial.npz")
        np.savez(partial, x=examples.x, labels=examples.y)
        partial.replace(path)

    # -- the program

    def _work(self) -> None:
        while not self._stop.wait(self._said.every):
            if not self.talks.is_set():
                continue
            with contextlib.suppress(MsedgeError):  # a version may be switched this moment; the next batch tells
                self._see()
            try:
                self._telemetry.flush(time.time())
                self._telemetry.send(self._tells)
            except MsedgeError as problem:
                self._log(f"{self.name}: {problem}")

    def _see(self) -> None:
        """Classify a batch, and count."""
        found = self._running()
        if found is None:
            return
        version, model = found
        seen = self.mine.learn_later if self._changed else self.mine.learn
        rows = self._draw.integers(0, len(seen.y), self._said.drawn)
        shares = _softmax(model.run({"x": seen.x[rows]}, "predict")["logits"])
        for row, share in zip(rows, shares, strict=True):
            for name, column in self._said.streams.items():
                self._telemetry.value(APP, version, name, float(seen.x[row, column]))
            self._telemetry.value(APP, version, "confidence", float(share.max()))
            self._telemetry.seen(APP, version, "answer", f"class.{int(share.argmax())}")

    def _running(self) -> tuple[str, lite_runtime.Model] | None:
        """The version that runs, and its model with the device's own state."""
        state = self.agent.applications[APP].state.running
        path = self.agent.current(APP, FILE)
        if state is None or path is None:
            return None
        if self._model is None or self._model[0] != path.resolve():
            model = lite_runtime.load(path)
            own = self.agent.personal(APP, FILE)
            if own.exists():
                model.load_state(own)
            self._model = path.resolve(), model
        return state.version, self._model[1]

    # -- its own head

    def personalise(self) -> None:
        """Fit a head to the kept examples, and keep it where the agent finds it."""
        path = self.agent.current(APP, FILE)
        if path is None:
            return
        model = lite_runtime.load(path)
        model.load_state_dict({**model.state_dict(), **_fitted(path, self._seen()[0])})
        model.save_state(self.agent.personal(APP, FILE))
        self._model = None

    def measure(self) -> Accuracy | None:
        """How good the running version is, on the examples aside; None if nothing runs."""
        state, path = self.agent.applications[APP].state.running, self.agent.current(APP, FILE)
        if state is None or path is None:
            return None
        learn, aside = self._seen()
        learner = LiteLearner(path)
        common, batch = dict(learner.params), Batch({"x": aside.x}, aside.y)
        own = dict(common)
        if (kept := self.agent.personal(APP, FILE)).exists():
            held = lite_runtime.load(path)
            held.load_state(kept)
            own = {name: value for name, value in held.state_dict().items() if name in common}
        fresh = {**common, **_fitted(path, learn)}
        scores = [int(learner.evaluate(one, batch).correct) / len(aside.y) for one in (common, own, fresh)]
        return Accuracy(self.name, state.version, self.mine.changes, len(aside.y), *scores)

    def _seen(self) -> tuple[Examples, Examples]:
        mine = self.mine
        return (mine.learn_later, mine.aside_later) if self._changed else (mine.learn, mine.aside)


KEPT = "kept.npz"


def _fitted(path: Path, examples: Examples) -> dict[str, npt.NDArray[Any]]:
    """A head for these examples: some steps of gradient descent on all of them, the rest as it is."""
    learner = LiteLearner(path)
    params, batch = dict(learner.params), Batch({"x": examples.x}, examples.y)
    head = [name for name in params if name.startswith(HEAD.rstrip("*"))]
    for _ in range(STEPS):
        found = learner.gradient(params, batch)
        params |= {name: params[name] - np.float32(RATE) * found.grads[name] for name in head}
    return {name: params[name] for name in head}


def _softmax(logits: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    found = np.exp(logits - logits.max(-1, keepdims=True))
    shares: npt.NDArray[np.float32] = found / found.sum(-1, keepdims=True)
    return shares
