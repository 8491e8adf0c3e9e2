"""An application's files on disk: two slots, and one small file that says what they are.

    state.json            the durable state of the update (`edge.agent.update`), replaced by rename
    a/ b/                 a slot: release.json, files/, and while it is being made parts/
    current               a symbolic link to the running slot's files, where the file system has links
    spare/                files of a version that is being replaced, as a source of pieces
    personal/             what the device learned (`edge.agent.personal`)

What the state does not name is removed when the agent starts. A file in a slot is written once, and never changed: a
program that has it open or mapped keeps it when the slot gets another version.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from edge.agent.errors import AgentError
from edge.agent.update import SLOTS, Installed, Outcome, Phase, Refused, State, faults
from lite_runtime._files import refusal, sync_folder, write_atomically
from lite_runtime.bundle.refusal import list_of, object_of, refuse, show, string_of
from lite_runtime.bundle.strict import parsed
from lite_runtime.errors import MsedgeError
from lite_runtime.updates.checkin import MAX_REASON
from lite_runtime.updates.fields import sayable
from lite_runtime.updates.release import MAX_BYTES, Release, read_release

__all__ = ["READ_ONLY", "Slots", "remove", "sha256_of", "synced"]

FORMAT = 1
STATE, DOCUMENT, FILES, PARTS, SPARE, CURRENT, PERSONAL = (
    "state.json", "release.json", "files", "parts", "spare", "current", "personal"
)  # fmt: skip
MAX_STATE = 1 << 18
READ_ONLY = (errno.EROFS, errno.EACCES, errno.EPERM)
_CHUNK = 1 << 20


class Slots:
    """The folder of one application. Raises AgentError for a folder that cannot be made."""

    def __init__(self, folder: Path, *, writable: bool = True) -> None:
        self.folder = folder
        if writable:
            try:
                folder.mkdir(parents=True, exist_ok=True)
            except OSError as problem:
                if problem.errno not in READ_ONLY:
                    raise refusal(str(folder), problem, AgentError) from problem

    def files(self, slot: str) -> Path:
        """The folder with the files of the version in a slot."""
        return self.folder / slot / FILES

    def parts(self, slot: str) -> Path:
        """The folder with what is there of files that are not complete."""
        return self.folder / slot / PARTS

    # -- the state -----------------------------------------------------------------------------------------------------

    def load(self) -> tuple[State, str]:
        """The state, and what was wrong with its file ("": nothing). If it cannot be read, what is complete in a slot
        is what runs: of two, the one that has been there longer."""
        try:
            raw = (self.folder / STATE).read_bytes()[: MAX_STATE + 1]
            return _state_of(raw), ""
        except FileNotFoundError:
            why = ""
        except (OSError, MsedgeError) as problem:
            why = f"the state of this application cannot be read: {problem}"
        found = sorted(self._sound())
        if not found:
            return State(), why
        return State(running=found[0][1], previous=found[1][1] if len(found) > 1 else None, told=False), (
            why or "the state of this application is missing"
        )

    def save(self, state: State) -> None:
        """Replace the file of the state. Raises AgentError; then the disk has the state before."""
        write_atomically(self.folder / STATE, _bytes_of(state), AgentError)

    def _sound(self) -> Iterator[tuple[float, Installed]]:
        """The slots whose files are complete, each with the time at which it was begun."""
        for slot in SLOTS:
            path = self.folder / slot / DOCUMENT
            with contextlib.suppress(OSError, MsedgeError):
                raw = path.read_bytes()[: MAX_BYTES + 1]
                one = Installed(slot, read_release(raw).version, hashlib.sha256(raw).hexdigest())
                if not self.fault(one):
                    yield path.stat().st_mtime, one

    # -- versions in slots ---------------------------------------------------------------------------------------------

    def release(self, one: Installed) -> Release:
        """The release document in a slot. Raises AgentError for another one, or none."""
        path = self.folder / one.slot / DOCUMENT
        try:
            raw = path.read_bytes()[: MAX_BYTES + 1]
        except OSError as problem:
            raise AgentError(f"cannot read {str(path)!r}: {problem.strerror}") from None
        if hashlib.sha256(raw).hexdigest() != one.release:
            raise AgentError(f"{str(path)!r}: expected the release document of version {one.version}, got another one")
        return read_release(raw)

    def fault(self, one: Installed) -> str:
        """What is wrong with the files in a slot; "" if each has its digest. Reads them all."""
        try:
            release = self.release(one)
            for name, file in release.files.items():
                path = self.files(one.slot) / name
                size = path.stat().st_size
                if size != file.size:
                    return f"{name!r}: expected {file.size} bytes, got {size}"
                if (found := sha256_of(path)) != file.sha256:
                    return f"{name!r}: expected SHA-256 {file.sha256[:16]}…, got {found[:16]}…"
        except (OSError, MsedgeError) as problem:
            return str(problem)
        return ""

    def begin(self, one: Installed, document: bytes) -> None:
        """Prepare a slot for a version: parts of it that are there stay, files of another version become spare. Raises
        OSError."""
        folder, wanted = self.folder / one.slot, hashlib.sha256(document).hexdigest()
        held = folder / DOCUMENT
        same = held.exists() and hashlib.sha256(held.read_bytes()[: MAX_BYTES + 1]).hexdigest() == wanted
        if not same:
            self.discard_spare()
            if folder.exists():
                os.rename(folder, self.folder / SPARE)
        for made in (folder, folder / FILES, folder / PARTS):
            made.mkdir(exist_ok=True)
        if not same:
            write_atomically(held, document, AgentError)

    def spare(self) -> tuple[Path, Release] | None:
        """Files of the version that was replaced, and what they should be: nobody has checked them."""
        try:
            raw = (self.folder / SPARE / DOCUMENT).read_bytes()[: MAX_BYTES + 1]
            return self.folder / SPARE, read_release(raw)
        except (OSError, MsedgeError):
            return None

    def discard_spare(self) -> None:
        """Give back the disk that spare files take."""
        remove(self.folder / SPARE)

    def settle(self, one: Installed) -> None:
        """Make all files of a slot durable, with their names. Raises OSError."""
        folder = self.folder / one.slot
        for path in sorted((folder / FILES).iterdir()):
            synced(path)
        remove(folder / PARTS)
        for made in (folder / FILES, folder, self.folder):
            sync_folder(os.fspath(made))
        self.discard_spare()

    # -- what is left over ---------------------------------------------------------------------------------------------

    def clean(self, *states: State) -> list[str]:
        """Remove what none of these states names; returns what could not be removed."""
        named = [one for state in states for one in (state.running, state.previous, state.coming) if one is not None]
        coming = [state.coming for state in states]
        left: list[str] = []
        for path in _entries(self.folder):
            held = [one for one in named if one.slot == path.name]
            if held:
                left += self._clean_slot(path, held[0], held[0] in coming) if held.count(held[0]) == len(held) else []
            elif path.name not in (STATE, CURRENT, PERSONAL):
                left += remove(path)
        return left

    def _clean_slot(self, folder: Path, one: Installed, coming: bool) -> list[str]:
        """Remove what does not belong to a version; of one that is being made, its parts do."""
        try:
            names = set(self.release(one).files)
        except MsedgeError:
            return remove(folder) if coming else []
        left: list[str] = []
        for path in _entries(folder):
            if path.name == FILES or (coming and path.name == PARTS):
                begins = ("", ".delta-", ".damaged-") if path.name == PARTS else ("",)
                allowed = {begin + name for name in names for begin in begins}
                for inner in _entries(path):
                    left += remove(inner) if inner.name not in allowed else []
            elif path.name != DOCUMENT:
                left += remove(path)
        return left

    def point(self, state: State) -> None:
        """Let the link `current` name the running slot's files, where links can be made. Raises OSError for a disk that
        cannot be written."""
        link = self.folder / CURRENT
        target = os.path.join(state.running.slot, FILES) if state.running is not None else ""
        if not hasattr(os, "symlink") or (os.readlink(link) if link.is_symlink() else "") == target:
            return
        if not target:
            link.unlink(missing_ok=True)
            return
        made = self.folder / f".{CURRENT}"
        made.unlink(missing_ok=True)
        try:
            os.symlink(target, made)
        except OSError as problem:
            if os.name == "nt" or problem.errno in (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS):
                return  # FAT has no links, and on Windows few users may make them
            raise
        os.replace(made, link)
        sync_folder(os.fspath(self.folder))


# -- files -------------------------------------------------------------------------------------------------------------


def sha256_of(path: Path, start: int = 0, size: int | None = None) -> str:
    """SHA-256 in hex of a file, or of `size` bytes of it. Raises OSError."""
    found = hashlib.sha256()
    with open(path, "rb", buffering=0) as file:
        file.seek(start)
        while size is None or size > 0:
            part = file.read(_CHUNK if size is None else min(_CHUNK, size))
            if not part:
                break
            found.update(part)
            size = None if size is None else size - len(part)
    return found.hexdigest()


def synced(path: Path) -> None:
    """Wait until the disk has a file's bytes. Raises OSError."""
    mode = os.O_RDWR if os.name == "nt" else os.O_RDONLY  # Windows flushes what may be written alone
    handle = os.open(path, mode | getattr(os, "O_BINARY", 0))
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def remove(path: Path) -> list[str]:
    """Remove a file, a link or a folder with all that is in it; returns what could not be removed."""
    left: list[str] = []
    try:
        if path.is_dir() and not path.is_symlink():
            if sys.version_info >= (3, 12):
                shutil.rmtree(path, onexc=lambda _, where, __: left.append(str(where)))
            else:
                shutil.rmtree(path, onerror=lambda _, where, __: left.append(str(where)))
        else:
            path.unlink(missing_ok=True)
    except OSError:
        left.append(str(path))
    return left


def _entries(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []


# -- the file of the state ---------------------------------------------------------------------------------------------


def _bytes_of(state: State) -> bytes:
    content = json.dumps(_plain(state), sort_keys=True)
    digest = hashlib.sha256(content.encode()).hexdigest()
    return f'{{"format": {FORMAT}, "sha256": "{digest}", "state": {content}}}\n'.encode()


def _plain(value: Any) -> Any:
    if isinstance(value, str):
        return sayable(value, MAX_REASON)  # reasons may be any text, and the file must be readable
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return {name: _plain(one) for name, one in value._asdict().items()}
    return [_plain(one) for one in value] if isinstance(value, tuple) else value


def _state_of(raw: bytes) -> State:
    """Raises BundleError for a file that was not written so."""
    if len(raw) > MAX_STATE:
        refuse("state", f"at most {MAX_STATE} bytes", "more")
    top = object_of(parsed(raw, "state"), "state", ("format", "sha256", "state"))
    if top["format"] != FORMAT:
        refuse("state", f"format {FORMAT}", show(top["format"]), "install the msedge that wrote it")
    if hashlib.sha256(json.dumps(top["state"], sort_keys=True).encode()).hexdigest() != top["sha256"]:
        refuse("state", f"SHA-256 {show(top['sha256'])}", "another one")
    table = object_of(top["state"], "state", State._fields)
    if table["phase"] not in list(Phase):
        refuse("state, phase", f"one of {', '.join(Phase)}", show(table["phase"]))
    made = State(
        phase=Phase(table["phase"]),
        told=bool(table["told"]),
        rollout=string_of(table["rollout"], "state, rollout"),
        refused=tuple(_record(one, Refused, "refused") for one in list_of(table["refused"], "state, refused")),
        outcome=_record(table["outcome"], Outcome, "outcome"),
    )
    rest: dict[str, Any] = {
        **{name: _record(table[name], Installed, name) for name in ("running", "previous", "coming")},
        **{name: _count(table[name], name) for name in ("starts", "passed", "failed")},
    }
    made = made._replace(**rest)
    if wrong := faults(made):
        refuse("state", "one that this program writes", wrong[0])
    return made


def _record(value: Any, kind: Any, name: str) -> Any:
    if value is None:
        return None
    table = object_of(value, f"state, {name}", kind._fields)
    return kind(*(string_of(table[field], f"state, {name}, {field}") for field in kind._fields))


def _count(value: Any, name: str) -> int:
    if type(value) is not int or value < 0:
        refuse(f"state, {name}", "a whole number", show(value))
    return int(value)
