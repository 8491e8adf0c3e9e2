"""What `make release` builds: equal bits from equal commits, installable where no index is asked."""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import numpy as np
import pytest

from lite_runtime import bundle
from tests.conftest import ROOT
from tests.edge.gateway.models.conftest import tiny

VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["version"]


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The wheel of msedge, built twice at the same time, in environments that differ."""
    folder = tmp_path_factory.mktemp("release")
    command = [sys.executable, str(ROOT / "wheels" / "release.py")]
    builds = [
        subprocess.Popen(
            [*command, str(folder / name), "--only", "msedge"], umask=umask, stdout=subprocess.PIPE,
            env={**os.environ, "TMPDIR": str(tmp_path_factory.mktemp(name)), "PYTHONHASHSEED": name},
        )
        for name, umask in (("1", 0o022), ("2", 0o077))
    ]  # fmt: skip
    for one in builds:
        one.communicate()
        assert one.returncode == 0
    return [next((folder / name).glob("*.whl")) for name in "12"]


def test_two_builds_have_equal_bits(wheels: list[Path]) -> None:
    one, other = (path.read_bytes() for path in wheels)
    assert one == other and wheels[0].name == f"msedge-{VERSION}-py3-none-any.whl"
    told = (wheels[0].parent / "SHA256SUMS").read_text()
    assert told == (wheels[1].parent / "SHA256SUMS").read_text()
    head, row = told.splitlines()
    assert row == f"{hashlib.sha256(one).hexdigest()}  {wheels[0].name}" and "setuptools" in head
    subprocess.run(["sha256sum", "--check", "--strict", "SHA256SUMS"], cwd=wheels[0].parent, check=True)


@pytest.fixture(scope="module")
def agent(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The agent as one file, built twice with equal bits."""
    folder = tmp_path_factory.mktemp("agent")
    command = [sys.executable, str(ROOT / "wheels" / "release.py")]
    for name in "12":
        done = subprocess.run(
            [*command, str(folder / name), "--only", "agent"], env={**os.environ, "PYTHONHASHSEED": name}
        )
        assert done.returncode == 0
    one, other = (next((folder / name).glob("*.pyz")) for name in "12")
    assert one.read_bytes() == other.read_bytes() and one.name == f"msedge-agent-{VERSION}.pyz"
    return one


def bare(folder: Path, *names: str) -> tuple[Path, dict[str, str]]:
    """An environment of Python with nothing but some packages of this one; and variables that name no other."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    (site,) = (folder / "lib").glob("python*/site-packages")
    here = Path(np.__file__).parents[1]
    for path in (path for name in names for path in here.glob(name)):
        (site / path.name).symlink_to(path)
    found = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}
    return folder / "bin" / "python", found


def test_a_device_runs_the_agent_as_one_file(agent: Path, tmp_path: Path) -> None:
    """Beside it are NumPy and cryptography alone."""
    from benchmarks.updates_faults.world import APP, World

    packages = ("numpy", "numpy.libs", "cryptography", "cffi", "_cffi_backend*", "pycparser")
    python, environment = bare(tmp_path / "venv", *packages)
    with zipfile.ZipFile(agent) as packed:
        names = packed.namelist()
    assert not [name for name in names if name.endswith((".so", ".pyd"))] and "tuf/ngclient/updater.py" in names
    assert not [name for name in names if name.startswith(("edge/cli", "edge/gateway", "converter", "cloud"))]
    assert {f"{name}.dist-info" for name in ("tuf", "urllib3", "securesystemslib", "msedge")} <= {
        f"{name.partition('-')[0]}.dist-info" for name in names if name.endswith("/METADATA")
    }

    def ran(*words: str, code: int = 0) -> str:
        done = subprocess.run([python, agent, *words], cwd=tmp_path, env=environment, capture_output=True, text=True)
        assert done.returncode == code, done.stderr
        return done.stdout

    assert ran("--version").strip() == VERSION
    world = World(tmp_path / "hub")
    (tmp_path / "root.json").write_bytes(world.root)
    world.offer("1")
    text = (
        ran("init")
        .replace('"https://hub.example.org/repository"', '"hub/repository"')
        .replace("/var/lib/msedge", "device")
    )
    (tmp_path / "agent.toml").write_text(
        f"{text}\n[applications.{APP}.trial]\nseconds = 0\nsuccesses = 1\nevery = 0.01\n"
    )
    found = json.loads(ran("once", "agent.toml", "--wait", "60", "--json"))["applications"][APP]
    assert found["running"]["version"] == "1" and found["outcome"]["kind"] == "committed"
    assert all(check["samples"] == 1 and not check["native"] for check in found["checks"].values()) and found["checks"]
    assert json.loads(ran("status", "agent.toml", "--json"))["applications"][APP]["folder"] == found["folder"]
    assert f"{APP}: runs 1" in ran("status", "agent.toml")
    code = "import sys; sys.path.insert(0, sys.argv[1]); import tuf, edge.agent as t; print(tuf.__file__, t.__file__)"
    told = subprocess.check_output([python, "-c", code, agent], cwd=tmp_path, env=environment, text=True)
    assert all(path.startswith(f"{agent}/") for path in told.split())
    done = subprocess.run(
        [python, agent, "once", "none.toml"], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 3 and done.stderr.startswith("error: cannot read 'none.toml'")
    assert "Traceback" not in done.stderr


def test_no_wheel_asks_for_a_package_of_ours_by_name(wheels: list[Path]) -> None:
    """But for its own extras, which pip takes from the wheel itself."""
    with zipfile.ZipFile(wheels[0]) as archive:
        (path,) = (name for name in archive.namelist() if name.endswith("METADATA"))
        needs = re.findall(r"(?m)^Requires-Dist: (.*)$", archive.read(path).decode())
    assert any(need.startswith("numpy") for need in needs)
    assert all(re.match(r"msedge\[[\w,]+\] *; *extra ==", need) for need in needs if need.startswith("msedge"))
    assert not re.search(r"install_requires=.*msedge", (ROOT / "wheels" / "federated" / "setup.py").read_text("utf-8"))


def test_the_wheel_is_installed_without_an_index(wheels: list[Path], tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "venv")], check=True)
    python = tmp_path / "venv" / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--no-index", "--quiet"]
    # The packages of others are those of this environment.
    (site,) = (tmp_path / "venv" / "lib").glob("python*/site-packages")
    (site / "others.pth").write_text(str(Path(np.__file__).parents[1]), encoding="utf-8")
    subprocess.run([*pip, "--no-deps", "--no-compile", f"{wheels[0]}[cli]"], check=True)
    (tmp_path / "m.mslite").write_bytes(tiny(2.0))
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}

    def msedge(*words: str) -> str:
        command = [tmp_path / "venv" / "bin" / "msedge", *words]
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert msedge("--version").strip() == VERSION
    assert bundle.opened(tmp_path / "m.mslite").digest in msedge("inspect", "m.mslite", "--json")
    code = "import edge, lite_runtime, msedge; print(edge.__file__, lite_runtime.__file__, msedge.__file__)"
    told = subprocess.check_output([python, "-c", code], cwd=tmp_path, env=environment, text=True)
    assert all(Path(path).is_relative_to(site) for path in told.split())
