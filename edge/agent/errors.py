"""The errors of the agent. Their text says what was expected, what was found, where, and the fix."""

from __future__ import annotations

from lite_runtime.errors import MsedgeError

__all__ = ["AgentError", "FetchError", "MissingError", "UntrustedError"]


class AgentError(MsedgeError):
    """Base class of the agent's errors."""


class FetchError(AgentError):
    """A file of the repository could not be fetched now; a later try may succeed."""


class MissingError(FetchError):
    """The repository has no such file, or does not let this device read it."""


class UntrustedError(AgentError):
    """What a repository offers is not believed. kind: one of `edge.agent.trust.KINDS`, for logs and reports."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(text)
        self.kind = kind
