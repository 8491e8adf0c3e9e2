"""Where things are in a fleet's repository: the names of targets, and of the files that hold them."""

from __future__ import annotations

from lite_runtime.errors import MsedgeError
from lite_runtime.updates.release import may_name

__all__ = ["CHANNELS", "DELTAS", "METADATA", "RESERVED", "attestation_target", "channel_target", "delta_target"]
__all__ += ["file_of_piece", "file_of_target", "is_application", "release_target"]

METADATA = "metadata"
CHANNELS, DELTAS = "channels", "deltas"
RESERVED = frozenset({"root", "targets", "snapshot", "timestamp", DELTAS})
"""Names of roles that no application may have."""


def is_application(name: object) -> bool:
    """Whether a text may name an application: it names its role and the folder of its targets too."""
    return may_name(name) and name not in RESERVED


def release_target(application: str, version: str) -> str:
    """The target that is the document of a release. Raises MsedgeError for names that none can have."""
    _check(application, version)
    if version == CHANNELS:
        raise MsedgeError(f"expected another version than {CHANNELS!r}, where channels are kept")
    return f"{application}/{version}/release.json"


def attestation_target(application: str, version: str) -> str:
    """The target that attests where a release comes from; devices do not read it. Raises MsedgeError as above."""
    return f"{release_target(application, version).removesuffix('.json')}.intoto.jsonl"


def channel_target(application: str, name: str) -> str:
    """The target that is the document of a channel. Raises MsedgeError for names that none can have."""
    _check(application, name)
    return f"{application}/{CHANNELS}/{name}.json"


def delta_target(old: str, new: str) -> str:
    """The target that turns the file with the SHA-256 `old` (hex) into that with `new`."""
    return f"{DELTAS}/{old}/{new}"


def file_of_target(target: str, sha256: str) -> str:
    """The file that holds a target: its name begins with the digest, so that old and new content exist side by side
    (consistent snapshots, section 6.2 of the TUF specification)."""
    folder, slash, name = target.rpartition("/")
    return f"targets/{folder}{slash}{sha256}.{name}"


def file_of_piece(sha256: str) -> str:
    """The file that holds a piece of a release's file."""
    return f"pieces/{sha256}"


def _check(application: str, part: str) -> None:
    if not is_application(application) or not may_name(part):
        raise MsedgeError(
            f"expected an application and a version or channel of 1 to 64 of a-z 0-9 . _ -, beginning with a letter or"
            f" digit, without '..', and no application named {', '.join(sorted(RESERVED))}; got {application!r}"
            f" and {part!r}"
        )
