"""A gateway and registries that come, go and stall."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

import msedge
from edge.gateway.sources.publishing import push
from lite_runtime import bundle
from tests.edge.gateway.live import Live, live
from tests.edge.gateway.models.conftest import tiny
from tests.edge.gateway.sources.oci_servers import Quiet, Spec, running
from tests.edge.gateway.sources.test_trust import states, status
from tests.waiting import until

X = np.ones((1, 4), np.float32)


def source(there: Live) -> dict[str, Any]:
    (found,) = status(there)["sources"]
    return dict(found)


@contextmanager
def silent() -> Iterator[str]:
    """A server that accepts connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield f"127.0.0.1:{listening.getsockname()[1]}"


def test_a_registry_that_is_down_at_the_start(tmp_path: Path) -> None:
    """Without a cache, the gateway starts, says so, and serves as soon as the registry answers."""
    data = tiny(3.0)
    row = {"name": "m", "version": 1, "digest": bundle.opened(data).digest, "url": "m"}

    up = threading.Event()

    class Back(Quiet):
        def do_GET(self) -> None:
            if not up.is_set():
                return self.connection.close()
            self.answer(200, data if self.path == "/m" else json.dumps({"models": [row]}).encode())

    with running(Back) as host:
        address = f"http://{host}/index.json"
        settings = {"repository__poll": 0.05, "repository__cache": str(tmp_path)}
        with live(address, **settings) as there, msedge.Client(there.address) as client:
            found = source(there)
            assert found["state"] == "unreachable" and "cannot fetch" in found["reason"] and not client.ready()
            assert f'msedge_source_up{{source="{address}"}} 0' in there.gateway.metrics("")[0].decode()
            until(lambda: "source of models has a problem" in there.log.getvalue())
            up.set()
            until(lambda: states(there).get(("m", "1"), ("", ""))[0] == "READY")
            np.testing.assert_array_equal(client.infer("m", {"x": X})["y"], 3 * X)
            until(lambda: source(there)["state"] == "ok" and client.ready())
            up.clear()
            until(lambda: source(there)["state"] == "stale")
            np.testing.assert_array_equal(client.infer("m", {"x": X})["y"], 3 * X)
        with live(address, **settings) as there:  # a start without the registry
            assert states(there)["m", "1"][0] == "READY"
            found = source(there)
            assert found["state"] == "stale" and found["age"] >= 0 and "its last index is used" in found["reason"]


def test_a_silent_registry_holds_up_nobody(tmp_path: Path, monkeypatch: Any) -> None:
    """Neither the models of others nor the end."""
    from edge.gateway.models import repository

    monkeypatch.setattr(repository, "PATIENCE", 0.2)
    path = tmp_path / "models" / "m.mslite"
    path.parent.mkdir()
    path.write_bytes(tiny(2.0))
    with silent() as one, live(
        f"oci://{one}/team/a,{path.parent}", repository__poll=0.05, repository__cache=str(tmp_path / "c")
    ) as there:
        assert states(there)["m", "1"][0] == "READY"
        with msedge.Client(there.address) as client:
            np.testing.assert_array_equal(client.infer("m", {"x": X})["y"], 2 * X)
        assert {each["state"] for each in status(there)["sources"]} == {"unread", "ok"}


def test_a_download_that_takes_longer_than_a_scan_arrives_without_polling(tmp_path: Path) -> None:
    """With `repository.poll = 0` too: a registry is asked until what it lists is here."""
    path, gate, spec = tmp_path / "m.mslite", threading.Event(), Spec()
    path.write_bytes(tiny(2.0))

    class Slow(Quiet):
        def do_GET(self) -> None:
            blob = spec.blobs[self.path[1:]]
            if blob == path.read_bytes():
                gate.wait(60)
            self.answer(200, blob)

    with running(Slow) as slow, spec.run() as host:
        push(path, f"oci://{host}/team/m:1")
        spec.elsewhere = f"http://{slow}"
        with live(f"oci://{host}/team/m:1", repository__poll=0, repository__cache=str(tmp_path / "c")) as there:
            assert not there.gateway.repository.served()
            gate.set()
            until(lambda: states(there).get(("m", "1"), ("", ""))[0] == "READY")
