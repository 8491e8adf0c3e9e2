"""Aggregators as processes of their own, reached as from a SuperNode: through their sockets."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from federated.client.nodes import Uplink, node_from
from federated.errors import FederatedError
from federated.run import simulate
from tests.federated.fleets import config, fleet
from tests.federated.hierarchy.test_equal import FREE, play
from tests.federated.test_runs import same
from tests.waiting import PATIENCE, until

ROOT = Path(__file__).parents[3]
PROGRAM = """
import sys
from federated.run import aggregate
from tests.federated.hierarchy.test_processes import MADE, WORDS
from tests.federated.hierarchy.test_equal import grouped
place, share = sys.argv[1], sys.argv[2].split(",")
inner = grouped(WORDS, MADE, [share])["group-0"].exchange
aggregate(WORDS, MADE.start, inner, place)
"""
MADE = fleet(5)
NAMES = sorted(MADE.shards)
WORDS = config(rounds={"count": 2, **FREE}, evaluation={"every": 2}, hierarchy={"aggregators": [2]})


def test_two_processes_and_a_root(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "ignore"}
    sockets = [tmp_path / "north.sock", tmp_path / "south.sock"]
    running = [
        subprocess.Popen([sys.executable, "-c", PROGRAM, place, ",".join(share)], env=environment)
        for place, share in zip(sockets, (NAMES[:2], NAMES[2:]), strict=True)
    ]
    try:
        until(lambda: all(place.exists() for place in sockets) or any(each.poll() is not None for each in running))
        nodes = {place.stem: node_from({"aggregator": str(place)}) for place in sockets}
        ended = play(WORDS, MADE, nodes)
        # Told that the run is over, they end by themselves and leave their registry of devices.
        assert [each.wait(PATIENCE) for each in running] == [0, 0]
    finally:
        for each in running:
            each.kill()
            each.wait()
    alone = simulate(config(rounds={"count": 2, **FREE}, evaluation={"every": 2}), MADE)
    assert same(ended.state, alone.state)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["north.devices", "south.devices"]
    assert set(ended.rows[-1]["evaluation"]["training"]["by_device"]) == {
        *(f"north/{name}" for name in NAMES[:2]),
        *(f"south/{name}" for name in NAMES[2:]),
    }


def test_a_node_s_configuration() -> None:
    assert node_from({"aggregator": "/run/a.sock"}) == Uplink("/run/a.sock")
    with pytest.raises(FederatedError, match="expected aggregator alone, got data, device as well"):
        node_from({"aggregator": "/run/a.sock", "device": "a", "data": "b"})
