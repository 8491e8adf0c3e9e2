"""Waiting jobs are counted by version, each job once, for any number of runners and versions of a model."""

from __future__ import annotations

from tests.edge.gateway.batching.simulated import Simulated, World


def test_waiting_requests_are_counted_by_version() -> None:
    world = World(inline=0.0)
    old, new, other = (Simulated(world, name, a=10e-3) for name in ("m", "m", "n"))
    new.key = "m/2/predict/x"
    for runner, rows in ((old, 1), (old, 3), (new, 2), (new, 5), (new, 4), (other, 7)):
        world.scheduler.submit(world.job(rows), runner)
    assert world.scheduler.waiting() == {("m", "1"): (2, 4), ("m", "2"): (3, 11), ("n", "1"): (1, 7)}
    models = world.scheduler.snapshot()["models"]
    assert {name: (of["jobs"], of["rows"]) for name, of in models.items()} == {"m": (5, 15), "n": (1, 7)}
    world.go()
    assert not world.scheduler.waiting()
