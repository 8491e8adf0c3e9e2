"""An agent from its configuration: what the commands share, `msedge agent` and `python -m edge.agent.command`."""

from __future__ import annotations

import contextlib
import json
import signal
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edge.agent.agent import IDENTITY, TRUST, Agent, peek
from edge.agent.config import Config
from edge.agent.conversation import Conversation
from edge.agent.errors import AgentError
from edge.agent.fetching import Fetch, Folder, Https
from edge.agent.identity import Identity
from edge.agent.machine import Machine
from edge.agent.source import Repository, Source
from lite_runtime.updates.checkin import Event

if TYPE_CHECKING:
    from edge.agent.learning.populations import Population
    from edge.agent.learning.tasks import Now

__all__ = ["enrolled", "event_line", "event_text", "failed", "hub_of", "imported", "looked", "opened", "state_of"]
__all__ += ["state_text", "until_ended"]

Watch = Callable[[Event], None]


def opened(config: Config, watch: Watch = lambda event: None, hub: Conversation | None = None) -> Agent:
    """The agent of a configuration; its repository is that of the hub if there is no other. Raises AgentError."""
    fetch = _fetch(config) if config.agent.repository else hub or hub_of(config)
    return Agent(
        config.path(config.agent.folder),
        config.settings(),
        _source(config, fetch),
        machine=Machine(config.agent.costly),
        every=config.agent.every,
        attributes=config.agent.attributes,
        watch=watch,
    )


def hub_of(config: Config) -> Conversation | None:
    """The conversation with the hub that is configured; None without one."""
    if not config.agent.hub:
        return None
    authority = str(config.path(config.agent.authority)) if config.agent.authority else ""
    return Conversation(config.agent.hub, Identity(config.path(config.agent.folder) / IDENTITY), authority)


def _fetch(config: Config) -> Fetch:
    """The repository that is configured."""
    where = config.agent.repository
    if "://" not in where:
        return Folder(config.path(where))
    authority = str(config.path(config.agent.authority)) if config.agent.authority else None
    try:
        context = ssl.create_default_context(cafile=authority)
    except (OSError, ssl.SSLError) as error:
        raise AgentError(f"agent.authority: expected a PEM file of authorities, got {authority!r}: {error}") from None
    return Https(where, context)


def _source(config: Config, fetch: Fetch | None) -> Source:
    from edge.agent.trust import Trust

    assert fetch is not None  # a configuration without any is refused
    path = config.path(config.agent.root)
    try:
        root = path.read_bytes()
    except OSError as error:
        raise AgentError(f"agent.root: cannot read {str(path)!r}: {error.strerror}; get it from the hub") from None
    return Repository(Trust(config.path(config.agent.folder) / TRUST, root, fetch), fetch)


# -- commands ----------------------------------------------------------------------------------------------------------


def until_ended(config: Config, watch: Watch) -> None:
    """Keep the applications up to date until SIGTERM or SIGINT."""
    ended = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ended.set())
    hub = hub_of(config)
    with opened(config, watch, hub) as agent:
        agent.start()
        with _learning(config, hub, ended, lambda line: watch(Event(0, time.time(), "learning", text=line))):
            agent.run(None if hub is None else hub.check_in, ended)


@contextlib.contextmanager
def _learning(
    config: Config, hub: Conversation | None, ended: threading.Event, say: Callable[[str], None]
) -> Iterator[None]:
    """A thread that takes part in federated tasks until the end, if an application learns."""
    if hub is None or not config.learns:
        yield
        return
    from edge.agent.learning.populations import running
    from edge.agent.learning.tasks import Learning, Now

    folder, machine = config.path(config.agent.folder), Machine(config.agent.costly)

    def now() -> Now:
        facts = machine.facts(folder)
        return Now(facts.idle is not False, facts.charging is not False, bool(facts.metered))

    def populations() -> dict[str, Population]:
        known = hub.identity.enrolled
        return {} if known is None else running(folder, known.device, config.learning(machine.facts(folder)), say)

    learning = Learning(hub.another(), now, populations, config.agent.attributes, say)
    thread = threading.Thread(target=learning.run, args=(ended,), name="learning")
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def enrolled(config: Config, token: Path) -> str:
    """Make this device known to its hub by the token in a file; the device's id."""
    hub = hub_of(config)
    if hub is None:
        raise AgentError("agent.hub: expected the address of a hub, got none; add it to the configuration")
    try:
        given = token.read_text(encoding="ascii").strip()
    except (OSError, ValueError) as error:
        raise AgentError(f"cannot read the token in {str(token)!r}: {error}; check the path") from None
    found = hub.enrol(given, config.agent.attributes)
    hub.close()
    return found.device


def looked(config: Config, wait: float, watch: Watch) -> dict[str, Any]:
    """Look for new versions once, and do what can be done now, for `wait` seconds at most; the state then."""
    with opened(config, watch) as agent:
        agent.start()
        agent.once()
        return _settled(agent, wait)


def imported(config: Config, folder: Path, wait: float, watch: Watch) -> dict[str, Any]:
    """The same, from a folder instead of the network."""
    if not folder.is_dir():
        raise AgentError(f"expected a folder, got {str(folder)!r}; give that of a copied repository")
    with opened(config, watch) as agent:
        agent.source = _source(config, Folder(folder))
        agent.start()
        agent.once(agent.source)
        return _settled(agent, wait)


def _settled(agent: Agent, seconds: float) -> dict[str, Any]:
    """Go on until no update is under way that waits for nothing."""
    end = time.monotonic() + seconds
    while time.monotonic() < end and any(one.busy for one in agent.applications.values()):
        time.sleep(min(agent.pause, 0.2))
        agent.advance()
    return agent.status()


def state_of(config: Config) -> dict[str, Any]:
    """What `Agent.status` says, from the disk alone; an agent may run meanwhile."""
    return peek(config.path(config.agent.folder), config.settings())


# -- for people --------------------------------------------------------------------------------------------------------


def failed(state: dict[str, Any]) -> bool:
    """Whether something could not be done."""
    return bool(state["trouble"] or any(one["trouble"] for one in state["applications"].values()))


def event_text(event: Event) -> str:
    """An event in a line."""
    where = " ".join(word for word in (event.application, event.version) if word)
    return f"{event.kind}: {where}{': ' if where and event.text else ''}{event.text}"


def event_line(event: Event) -> str:
    """An event as a line of JSON."""
    return json.dumps(event._asdict())


def state_text(one: dict[str, Any]) -> str:
    """The state of an application in a few words."""
    if one["trouble"]:
        return str(one["trouble"])
    if one["waits"]:
        return f"waits for {one['waits']}"
    if one["phase"] != "idle":
        return str(one["phase"])
    last = one["outcome"]
    return "" if last is None else f"{last['version']} {last['kind']}{': ' + last['reason'] if last['reason'] else ''}"
