"""Objects that clients have made: which ones are opened, and what happens when they change."""

from __future__ import annotations

import asyncio
import gc
import os
import secrets
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from edge.gateway.errors import GatewayError
from edge.gateway.protocol.layout import Shared, Slice
from edge.gateway.shared.peer import user_of
from edge.gateway.shared.region import FOLDER, Region, opened
from edge.gateway.shared.regions import Borrowed, Regions, Wish

ME = os.geteuid()
OTHER = 65534


@pytest.fixture
def made() -> Iterator[Path]:
    """An object of 4096 random bytes."""
    path = Path(FOLDER, f"msedge-{secrets.token_hex(8)}")
    path.write_bytes(os.urandom(4096))
    yield path
    path.unlink(missing_ok=True)


def refused(status: int, match: str, key: str, offset: int = 0, size: int = 16, user: int | None = ME) -> None:
    with pytest.raises(GatewayError, match=match) as caught:
        opened("r", key, offset, size, user)
    assert caught.value.status == status


def files() -> set[str]:
    """What this process has open in the folder."""
    gc.collect()  # errors that tests have caught
    found = set()
    for name in os.listdir("/proc/self/fd"):
        try:
            found.add(os.readlink(f"/proc/self/fd/{name}"))
        except OSError:
            continue
    return {path for path in found if path.startswith(FOLDER)}


def place(offset: int, size: int) -> Slice:
    return Slice("r", offset, size)


@pytest.mark.parametrize("slash", ["/", ""])
def test_tensors_are_copied_both_ways(made: Path, slash: str) -> None:
    rng, content = np.random.default_rng(), bytearray(made.read_bytes())
    region = opened("r", f"{slash}{made.name}", 96, 4000, ME)
    for _ in range(200):
        offset = int(rng.integers(0, 4000))
        part = place(offset, int(rng.integers(0, 4000 - offset + 1)))
        region.check(part, "x")
        if rng.random() < 0.5:
            found = region.read(part, "x")
            assert found == content[96 + offset : 96 + offset + part.size]
            assert not part.size or np.frombuffer(found, np.uint8).ctypes.data % 64 == 0
        else:
            data = rng.bytes(part.size)
            region.write(part, memoryview(data), "x")
            content[96 + offset : 96 + offset + part.size] = data
    assert made.read_bytes() == content


@pytest.mark.parametrize(("offset", "size"), [(0, 4001), (4000, 1), (4001, 0), (1 << 60, 8), (8, 1 << 60)])
def test_places_outside(made: Path, offset: int, size: int) -> None:
    region = opened("r", made.name, 96, 4000, ME)
    with pytest.raises(GatewayError, match=r"input 'x': shared_memory_region 'r' has 4000 bytes") as caught:
        region.check(place(offset, size), "input 'x'")
    assert caught.value.status == 400


@pytest.mark.parametrize(
    "key",
    ["", "/", "//x", "/a/b", "../x", "..", "/..", "/.", "a/../b", "/etc/passwd", "x\0y", "x" * 300, "/x\n/y"],
)  # fmt: skip
def test_keys_that_are_no_names(key: str) -> None:
    refused(400, "key: expected a shared memory object's name|does not exist", key)


def test_bounds_of_a_region(made: Path) -> None:
    for offset, size in ((0, 0), (-1, 8), (0, -8), (1 << 62, 8), (0, 1 << 62)):
        refused(400, "expected offset from 0 and byte_size from 1 on", made.name, offset, size)
    for offset, size in ((0, 4097), (4096, 1), (4000, 97)):
        refused(400, "the object has 4096 bytes", made.name, offset, size)
    assert opened("r", made.name, 4095, 1, ME).size == 1
    refused(400, "does not exist", "/msedge-no-such-object")


def test_what_is_no_object_is_not_opened(made: Path, tmp_path: Path) -> None:
    """Links, pipes, folders, and files that have another name elsewhere."""
    beside = made.with_name(f"{made.name}-beside")
    secret = tmp_path / "secret"
    secret.write_bytes(bytes(4096))
    try:
        for target, match in ((secret, "is a link"), (made, "is a link"), (tmp_path, "is a link")):
            beside.symlink_to(target)
            refused(400, match, beside.name)
            beside.unlink()
        os.mkfifo(beside)
        refused(400, "another kind of file", beside.name)
        beside.unlink()
        beside.mkdir()
        refused(400, "cannot be opened: Is a directory", beside.name)
        beside.rmdir()
        os.link(made, beside)
        refused(400, "several names", beside.name)
    finally:
        if beside.is_dir():
            beside.rmdir()
        beside.unlink(missing_ok=True)
    assert not files()


def test_objects_of_others(made: Path) -> None:
    """A client may not use the gateway's rights to files that are not its own."""
    refused(403, rf"an object of your own \(user {ME + 1}\), this one is another user's", made.name, user=ME + 1)
    refused(403, "the kernel does not tell which user you are", made.name, user=None)
    assert opened("r", made.name, 0, 16, 0).size == 16  # the superuser may read it anyway
    assert not files()


def test_an_object_that_the_gateway_may_only_read_holds_inputs_alone(made: Path) -> None:
    """As a user who is not the owner: in a process of that user, if this one is the superuser's."""
    made.chmod(0o444)
    code = f"""
import os
from edge.gateway.shared.region import opened
from edge.gateway.protocol.layout import Slice
if os.geteuid() == 0:
    os.setuid({OTHER})
region = opened("r", {made.name!r}, 0, 16, {ME})
print(region.writable, bytes(region.read(Slice("r", 0, 16), "x")).hex())
"""
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert out == ["False", made.read_bytes()[:16].hex()]
    made.chmod(0)
    code = code.replace("region = ", "print(0)\nregion = ")
    failed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "may not read it; change its permissions" in failed.stderr
    made.unlink()
    os.mkfifo(made, 0o444)  # which waits for a writer when it is opened for reading alone
    failed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)
    assert "another kind of file" in failed.stderr
    region = Region("r", "/r", 0, 16, os.memfd_create("r"), False)
    with pytest.raises(GatewayError, match="output 'y': the gateway's user may not write") as caught:
        Borrowed(lambda _: region, Shared([], {"y": place(0, 16)}))
    assert caught.value.status == 400


def test_an_object_that_becomes_shorter_is_an_error_and_no_signal(made: Path) -> None:
    region = opened("r", made.name, 0, 4096, ME)
    os.truncate(made, 100)
    assert len(region.read(place(0, 100), "x")) == 100
    for part in (place(0, 101), place(100, 1), place(4000, 96)):
        with pytest.raises(GatewayError, match="has become shorter than when") as caught:
            region.read(part, "input 'x'")
        assert caught.value.status == 400
        with pytest.raises(GatewayError, match="has become shorter"):
            region.write(part, bytes(part.size), "output 'y'")
    assert made.stat().st_size == 100  # writing does not make it longer
    os.truncate(made, 0)
    with pytest.raises(GatewayError, match="has become shorter"):
        region.read(place(0, 4096), "x")
    os.truncate(made, 4096)
    assert region.read(place(0, 4096), "x") == bytes(4096)


def test_it_stays_open_as_long_as_somebody_uses_it(made: Path) -> None:
    held = [opened("r", made.name, 0, 4096, ME)] * 2
    content = made.read_bytes()
    made.unlink()
    held.pop()
    found = held[0].read(place(0, 4096), "x")
    assert found == content and files()
    held.clear()
    assert not files()


# -- who asks ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("family", "address", "seen"),
    [(socket.AF_INET, "127.0.0.1", "127.0.0.1"), (socket.AF_INET, "127.8.9.1", "127.8.9.1"),
     (socket.AF_INET6, "::1", "::1"), (socket.AF_INET6, "::ffff:127.0.0.1", "::ffff:127.0.0.1")],
)  # fmt: skip
def test_the_kernel_knows_whose_a_connection_is(family: int, address: str, seen: str) -> None:
    listener = socket.socket(family)
    if family == socket.AF_INET6:
        listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
    listener.bind(("::" if address.startswith("::f") else address, 0))
    listener.listen()
    with listener, socket.create_connection((address, listener.getsockname()[1]), None, (address, 0)) as client:
        there, name = listener.accept()
        with there:
            assert name[0] == seen and user_of(name[0], name[1]) == ME
        assert client.fileno() >= 0
    assert user_of(seen, 1) is None


def test_of_two_that_register_a_name_at_the_same_time_one_is_refused(made: Path) -> None:
    async def run() -> None:
        regions, wish = Regions(8, 1 << 20), Wish("r", made.name, 0, 16)
        with socket.create_server(("127.0.0.1", 0)) as there, socket.create_connection(there.getsockname()) as client:
            both = (regions.register("", wish, *client.getsockname()) for _ in range(2))
            first, second = await asyncio.gather(*both, return_exceptions=True)
        assert first is None and isinstance(second, GatewayError) and second.status == 409
        assert (len(regions), regions.nbytes) == (1, 16)
        regions.close()
        assert (len(regions), regions.nbytes) == (0, 0)

    asyncio.run(run())


def test_a_client_of_another_user(made: Path) -> None:
    """As the superuser: what a client of another user has made, it may use; what this process has made, it may not."""
    listener = socket.create_server(("127.0.0.1", 0))
    code = f"""
import os, socket
"x".encode("idna")  # which a name of a host needs, and which this user may not be able to read
if os.geteuid() == 0:
    os.setuid({OTHER})
made = socket.socket()
made.connect(("127.0.0.1", {listener.getsockname()[1]}))
made.recv(1)
"""
    listener.settimeout(60)
    with listener, subprocess.Popen([sys.executable, "-c", code]) as process:
        try:
            there, (address, port) = listener.accept()
            user = user_of(address, port)
            assert user == (OTHER if ME == 0 else ME)
            if ME == 0:
                refused(403, f"user {OTHER}", made.name, user=user)
                os.chown(made, OTHER, OTHER)
            assert opened("r", made.name, 0, 16, user).size == 16
            there.close()
        finally:
            process.kill()
