"""The language models of a gateway: a host for every version of one, and their figures."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from time import perf_counter
from typing import TYPE_CHECKING
from weakref import WeakSet

from edge.gateway.language.adapters import Adapters
from edge.gateway.language.figures import Figures
from edge.gateway.language.forecast import LEAST, Pace
from edge.gateway.language.host import Host, Send
from edge.gateway.operate.settings import Settings
from lite_runtime.language.adapters import blank
from lite_runtime.language.engine import CHUNK, Engine, Part
from lite_runtime.language.generation import LanguageModel
from lite_runtime.language.pages import PAGE

if TYPE_CHECKING:
    from edge.gateway.models.served import Served

__all__ = ["Languages"]

CONTEXTS = 4
"""Caches hold so many of the longest texts unless the settings or the machine's memory say otherwise."""
WARM = 0.5
"""Seconds that the smallest run may take for larger ones to be tried before a version serves requests."""


class Languages:
    """Makes hosts, and remembers them."""

    def __init__(self, settings: Settings, memory: int, send: Send, bug: Callable[[BaseException, str], None]) -> None:
        """memory: bytes that the process may use. send, bug: see `Host`."""
        self._settings, self._memory, self._send, self._bug = settings, memory, send, bug
        self.adapters = Adapters(settings.language.adapters, settings.language.adapters_loaded)
        self._figures: dict[tuple[str, str], Figures] = {}
        self._hosts: WeakSet[Host] = WeakSet()

    def host(self, served: Served) -> Host | None:
        """The host of a version that is being loaded; None unless it is a language model. Any thread."""
        if "language" not in served.model.bundle.metadata:
            return None
        settings, config = self._settings, served.config
        positions, adapters = self._sizes(served)
        model = LanguageModel(served.model, positions=positions, adapters=adapters)
        pace = Pace()
        _warm(model.engine, pace)
        most = min(config.max_batch or settings.language.texts, CHUNK)
        made = Host(model, pace, self._send, self._bug, most=most, queue=settings.batching.queue_requests)
        self._hosts.add(made)
        return made

    def figures(self, name: str, version: str) -> Figures:
        """The figures of a version."""
        return self._figures.setdefault((name, version), Figures())

    def forget(self, name: str, version: str) -> None:
        """A version is gone."""
        self._figures.pop((name, version), None)

    def metrics(self, hosts: Mapping[tuple[str, str], Host]) -> dict[tuple[str, str], tuple[Figures, dict[str, int]]]:
        """What `figures.families` shows of the present versions."""
        return {key: (self.figures(*key), host.figures()) for key, host in hosts.items()}

    def stop(self) -> None:
        """Cancel all requests and end all threads; any thread."""
        for host in tuple(self._hosts):
            host.stop()

    def _sizes(self, served: Served) -> tuple[int, int]:
        """Tokens that the caches of a model hold: what the settings say, or some of the longest texts, but no more than
        a quarter of the memory. And adapters: no more than another quarter holds."""
        smallest, words, quarter = Engine(served.model, PAGE, 0), self._settings.language, self._memory // 4
        room = quarter // max(1, smallest.bytes_per_token)
        adapters = min(words.adapters_loaded, quarter // max(1, smallest.bytes_per_adapter))
        return words.tokens or max(PAGE, min(CONTEXTS * smallest.context, room)), max(1, adapters)


def _warm(engine: Engine, pace: Pace) -> None:
    """Run a few tokens, so that missing kernels are noticed and speeds are known."""
    if engine.layout is not None:
        slot = engine.attach(blank(engine.layout, engine.model.bundle.digest))
        sequence = engine.start(slot)
        engine.run([Part(sequence, [0])])
        engine.end(sequence)
        engine.detach(slot)
    most = min(CHUNK, engine.context - 2, engine.pages.count * PAGE - 2)
    for size in (1, min(LEAST, most), min(LEAST, most), most):
        if size < 1 or (size > LEAST and pace.token * size > WARM):
            continue
        sequence = engine.start()
        for tokens in (size, 1):
            begun = perf_counter()
            engine.run([Part(sequence, [0] * tokens)])
            pace.ran(int(tokens == 1), tokens - int(tokens == 1), perf_counter() - begun)
        engine.end(sequence)
