"""The agent of a device: it keeps applications up to date from a fleet's repository, and proves what it installs.

Importing this package loads nothing heavy; each public name is imported when it is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lite_runtime._lazy import lazy

if TYPE_CHECKING:
    from edge.agent.agent import Agent, installed
    from edge.agent.application import Personal, Settings
    from edge.agent.checking.health import Function
    from edge.agent.errors import AgentError
    from edge.agent.fetching import Folder, Https
    from edge.agent.source import Repository
    from edge.agent.trust import Trust
    from edge.agent.update import Rules

__all__ = ["Agent", "AgentError", "Folder", "Function", "Https", "Personal", "Repository", "Rules", "Settings"]
__all__ += ["Trust", "installed"]

_HOMES = {
    "Agent": "edge.agent.agent",
    "AgentError": "edge.agent.errors",
    "Folder": "edge.agent.fetching",
    "Function": "edge.agent.checking.health",
    "Https": "edge.agent.fetching",
    "Personal": "edge.agent.application",
    "Repository": "edge.agent.source",
    "Rules": "edge.agent.update",
    "Settings": "edge.agent.application",
    "Trust": "edge.agent.trust",
    "installed": "edge.agent.agent",
}
"""Every public name and the module that defines it."""

__getattr__ = lazy("edge.agent", _HOMES, "agent", "the agent checks signatures with it")


def __dir__() -> list[str]:
    return sorted(__all__)
