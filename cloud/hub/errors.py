"""The errors of the hub. Their text says what was expected, what was found, where, and the fix."""

from __future__ import annotations

from lite_runtime.errors import MsedgeError

__all__ = ["DatabaseError", "HubError", "KeyNeededError", "StorageError"]


class HubError(MsedgeError):
    """The hub cannot do what was asked."""


class DatabaseError(HubError):
    """The database cannot be used now, or could not store something; a later try may succeed."""


class StorageError(HubError):
    """The storage of a repository cannot be read or written, or lacks a file."""


class KeyNeededError(HubError):
    """A change waits for signatures of keys that were not given."""
