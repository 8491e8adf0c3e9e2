"""The image of deploy/Dockerfile, built without a daemon and run as a cluster runs it: `python -m tests.deployed`.

    python -m tests.deployed --base               # python:VERSION-slim from Debian's packages, where no hub is reached
    python -m tests.deployed --build              # buildah, --isolation chroot; needs no root
    python -m tests.deployed --run                # runc: needs root
    python -m tests.deployed --systemd            # deploy/msedge.service in systemd-nspawn: needs root

The container has the image's user, a read-only root, no capabilities, no new privileges and limited memory. Clients
ask it and check every answer while it gets SIGTERM. It must serve, write nothing, stay within the limit, answer what it
had accepted and end with 0. Under systemd, the same installation is started by its unit, asked, and shut down. Needs
Debian's mmdebstrap, buildah, runc and systemd-container. No test of the suite: building compiles kernels for minutes.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

import msedge
from lite_runtime.errors import MsedgeError
from tests.conftest import ROOT
from tests.edge.gateway.models.conftest import tiny

BASE = "docker.io/library/python:{}-slim"
NAME, LIMIT, CLIENTS, SECONDS = "msedge-deployed", 512 << 20, 16, 10.0
PACKAGES = "python3,python3-venv,python3-pip,ca-certificates"
OK, LEAVING, FULL = "answered", "503 or connection refused", "429"


def ran(*words: str, **given: Any) -> str:
    """The output of a command; ends the program if it fails."""
    done = subprocess.run(words, stdout=subprocess.PIPE, text=True, check=False, **given)
    if done.returncode:
        sys.exit(f"{' '.join(words)}: exit code {done.returncode}")
    return done.stdout.strip()


def base(python: str, suite: str) -> None:
    """An image of Debian with Python, under the name that the Dockerfile begins with."""
    with tempfile.TemporaryDirectory() as folder:
        archive = f"{folder}/root.tar"
        ran("mmdebstrap", "--variant=apt", f"--include={PACKAGES}", suite, archive)
        container = ran("buildah", "from", "scratch")
        root = ran("buildah", "mount", container)
        ran("tar", "-xf", archive, "-C", root, "--exclude=./dev/*")
        os.symlink("/usr/bin/python3", f"{root}/usr/local/bin/python")
        ran("buildah", "config", "--env", "PATH=/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin", container)
        ran("buildah", "commit", "--rm", container, BASE.format(python))


def build(python: str, targets: str, volumes: list[str]) -> None:
    """The image, without a daemon. volumes: for pip, such as its configuration."""
    words = ["buildah", "bud", "--isolation", "chroot", "--format", "docker", "--pull-never"]
    words += ["--build-arg", f"PYTHON={python}", "--build-arg", f"TARGETS={targets}"]
    words += ["--ignorefile", "deploy/Dockerfile.dockerignore", *(f"--volume={each}" for each in volumes)]
    ran(*words, "-f", "deploy/Dockerfile", "-t", "msedge", ".", cwd=ROOT)


def specification(root: str, image: dict[str, Any], models: Path) -> dict[str, Any]:
    """runc's configuration: what Kubernetes makes of deploy/kubernetes.yaml."""
    user, group = (int(number) for number in image["User"].split(":"))
    mounts = [{"destination": "/proc", "type": "proc", "source": "proc"},
              {"destination": "/dev", "type": "tmpfs", "source": "tmpfs"},
              {"destination": "/sys", "type": "sysfs", "source": "sysfs", "options": ["ro"]}]  # fmt: skip
    mounts += [{"destination": path, "type": "tmpfs", "source": "tmpfs", "options": ["size=64m", "mode=1777"]}
               for path in ("/tmp", "/var/cache/msedge/models")]  # fmt: skip
    mounts.append({"destination": "/models", "type": "bind", "source": str(models), "options": ["rbind", "ro"]})
    return {
        "ociVersion": "1.0.2",
        "root": {"path": root, "readonly": True},
        "mounts": mounts,
        "process": {
            "user": {"uid": user, "gid": group}, "cwd": "/", "noNewPrivileges": True, "capabilities": {},
            "args": [*image["Entrypoint"], *image["Cmd"]],
            "env": [*image["Env"], "MSEDGE_SERVE_HOST=127.0.0.1", "MSEDGE_SERVE_PORT=18642"],
        },
        "linux": {
            "namespaces": [{"type": kind} for kind in ("pid", "ipc", "uts", "mount")],
            "resources": {"memory": {"limit": LIMIT}}, "cgroupsPath": f"/{NAME}",
        },
    }  # fmt: skip


def ask(counts: Counter[str], stop: threading.Event) -> None:
    """One client, which checks its answers."""
    x = np.arange(400, dtype=np.float32).reshape(100, 4)
    with msedge.Client("http://127.0.0.1:18642") as client:
        while not stop.is_set():
            try:
                right = np.array_equal(client.infer("twice", {"x": x})["y"], 2 * x)
                counts[OK if right else "WRONG"] += 1
            except MsedgeError as error:
                status = getattr(error, "status", 503)
                counts[FULL if status == 429 else LEAVING if status == 503 else str(error)] += 1


def run() -> None:
    """Run the image and check what it does."""
    container = ran("buildah", "from", "--pull-never", "localhost/msedge")
    root = ran("buildah", "mount", container)
    image = json.loads(ran("buildah", "inspect", container))["OCIv1"]["config"]
    counts: Counter[str] = Counter()
    stop, clients = threading.Event(), []
    with tempfile.TemporaryDirectory() as folder, open(f"{folder}/log", "w+b") as log:
        models = Path(folder, "models")
        models.mkdir()
        models.chmod(0o755)
        Path(folder).chmod(0o755)
        (models / "twice.mslite").write_bytes(tiny(2.0))
        Path(folder, "config.json").write_text(json.dumps(specification(root, image, models)))
        process = subprocess.Popen(["runc", "run", "--bundle", folder, NAME], stdout=log, stderr=log)
        try:
            _until_ready(process, Path(folder, "log"))
            _cannot_write()
            clients = [threading.Thread(target=ask, args=(counts, stop)) for _ in range(CLIENTS)]
            for client in clients:
                client.start()
            time.sleep(SECONDS)
            peak = _peak()
            begun = time.monotonic()
            ran("runc", "kill", NAME, "TERM")
            code = process.wait(60)
            seconds = time.monotonic() - begun
        finally:
            stop.set()
            for client in clients:
                client.join()
            if process.poll() is None:
                ran("runc", "kill", NAME, "KILL")
                process.wait()
            ran("buildah", "rm", container)
        told = Path(folder, "log").read_text()
    print(f"{dict(counts)}; at most {peak >> 20} of {LIMIT >> 20} MiB; drained in {seconds:.1f} s, exit code {code}")
    if code or not counts[OK] or set(counts) - {OK, LEAVING, FULL} or '"answered_all":true' not in told:
        sys.exit(told[-4000:])


SYSTEM = "systemd,systemd-sysv,dbus,python3,python3-venv"


def systemd(suite: str) -> None:
    """Boot a system with the image's installation as the unit's service, and shut it down."""
    with tempfile.TemporaryDirectory() as folder:
        root, log = Path(folder, "root"), Path(folder, "log")
        _system(root, suite)
        command = ["systemd-nspawn", "-D", str(root), "--boot", "--register=no", "--keep-unit", "--console=pipe"]
        counts: Counter[str] = Counter()
        stop = threading.Event()
        client = threading.Thread(target=ask, args=(counts, stop))
        with open(log, "wb") as file:
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=file, stderr=file)
        try:
            _until_ready(process, log)
            client.start()
            time.sleep(2)
            process.terminate()  # an orderly shutdown of the system
            process.wait(120)
        finally:
            process.kill()
            stop.set()
            if client.ident is not None:
                client.join()
        told = ran("journalctl", "--directory", str(root / "var/log/journal"), "--unit", "msedge", "--output", "cat")
    print(f"under systemd: {dict(counts)}; {told.splitlines()[-1]!r}")
    if not counts[OK] or set(counts) - {OK, LEAVING} or '"answered_all":true' not in told or "Deactivated" not in told:
        sys.exit(told[-4000:])


def _system(root: Path, suite: str) -> None:
    """Debian with systemd, the image's installation, the unit, and a model."""
    with tempfile.TemporaryDirectory() as folder:
        ran("mmdebstrap", "--variant=apt", f"--include={SYSTEM}", suite, f"{folder}/root.tar")
        root.mkdir()
        ran("tar", "-xf", f"{folder}/root.tar", "-C", str(root), "--exclude=./dev/*")
    container = ran("buildah", "from", "--pull-never", "localhost/msedge")
    ran("cp", "-a", ran("buildah", "mount", container) + "/opt/msedge", str(root / "opt"))
    ran("buildah", "rm", container)
    (root / "usr/local/bin/python").symlink_to("/usr/bin/python3")
    ran("chroot", str(root), "useradd", "--system", "--no-create-home", "--shell", "/usr/sbin/nologin", "msedge")
    units, settings = root / "etc/systemd/system", root / "etc/msedge"
    (units / "msedge.service").write_bytes((ROOT / "deploy" / "msedge.service").read_bytes())
    (units / "multi-user.target.wants").mkdir(exist_ok=True)
    (units / "multi-user.target.wants/msedge.service").symlink_to("/etc/systemd/system/msedge.service")
    (settings / "models").mkdir(parents=True)
    (settings / "models/twice.mslite").write_bytes(tiny(2.0))
    (settings / "msedge.toml").write_text('[serve]\nmodels = ["models"]\nport = 18642\n')
    ran("chroot", str(root), "chmod", "-R", "a+rX", "/etc/msedge")
    (root / "var/log/journal").mkdir(exist_ok=True)  # so that the journal is kept


def _until_ready(process: subprocess.Popen[bytes], log: Path) -> None:
    for _ in range(600):
        try:
            with msedge.Client("http://127.0.0.1:18642") as client:
                if client.ready():
                    return
        except MsedgeError:
            pass
        if process.poll() is not None:
            break
        time.sleep(0.1)
    sys.exit(f"it does not serve:\n{log.read_text()[-4000:]}")


def _cannot_write() -> None:
    for path in ("/x", "/opt/msedge/x", "/models/x", "/var/cache/msedge/x"):
        if not subprocess.run(["runc", "exec", NAME, "touch", path], stderr=subprocess.DEVNULL, check=False).returncode:
            sys.exit(f"{path} can be written")


def _peak() -> int:
    """The most bytes of memory so far, from either version of cgroups."""
    for path in (f"/sys/fs/cgroup/{NAME}/memory.peak", f"/sys/fs/cgroup/memory/{NAME}/memory.max_usage_in_bytes"):
        if os.path.exists(path):
            return int(Path(path).read_text())
    return 0


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    for name in ("base", "build", "run", "systemd"):
        parser.add_argument(f"--{name}", action="store_true")
    parser.add_argument("--python", default="3.11", help="the base image's version")
    parser.add_argument("--suite", default="bookworm", help="Debian's release, whose Python this is")
    parser.add_argument("--targets", default="x86-64-v2 x86-64-v3", help="instruction sets of the kernels")
    parser.add_argument("--volume", action="append", default=[], help="for the build, such as ~/.config/pip:…:ro")
    given = parser.parse_args()
    if given.base:
        base(given.python, given.suite)
    if given.build:
        build(given.python, given.targets, given.volume)
    if given.run:
        run()
    if given.systemd:
        systemd(given.suite)


if __name__ == "__main__":
    main()
