"""PostgreSQL for tests: a server of one's own in a folder, on a socket there; nothing if it is not installed."""

from __future__ import annotations

import glob
import os
import pwd
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["binaries", "server"]


def binaries() -> Path | None:
    """The folder with initdb and postgres. Debian has it outside of PATH."""
    found = [*glob.glob("/usr/lib/postgresql/*/bin/initdb"), *filter(None, [shutil.which("initdb")])]
    return Path(found[-1]).parent if found else None


@contextmanager
def server(folder: Path) -> Iterator[str]:
    """The address of a new, empty server, which ends with the block. It does not run as root: then as `nobody`."""
    where = binaries()
    assert where is not None
    owner = pwd.getpwnam("nobody") if os.geteuid() == 0 else None
    user = {"user": owner.pw_uid, "group": owner.pw_gid, "extra_groups": []} if owner else {}
    data = folder / "data"
    data.mkdir()
    if owner:
        for each in (folder, data):
            os.chown(each, owner.pw_uid, owner.pw_gid)
    environment = {"PATH": os.environ["PATH"], "LC_ALL": "C"}
    common = {"cwd": folder, "env": environment, **user}
    words = [where / "initdb", "-D", data, "-U", "msedge", "--auth=trust", "--no-sync", "-E", "UTF8"]
    subprocess.run(words, check=True, capture_output=True, **common)
    options = ["-c", "fsync=off", "-c", "listen_addresses=", "-c", f"unix_socket_directories={folder}"]
    with open(folder / "log", "wb") as log:
        process = subprocess.Popen([where / "postgres", "-D", data, *options], stdout=log, stderr=log, **common)
    try:
        address = f"postgresql://msedge@/postgres?host={folder}"
        import psycopg

        from tests.waiting import until

        def up() -> bool:
            assert process.poll() is None, (folder / "log").read_text()
            try:
                psycopg.connect(address).close()
            except psycopg.OperationalError:
                return False
            return True

        until(up, 0.05)
        yield address
    finally:
        process.send_signal(signal.SIGQUIT)  # at once: nothing of it is kept
        process.wait()
