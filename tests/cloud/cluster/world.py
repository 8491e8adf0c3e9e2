"""Clusters and jobs for tests."""

from __future__ import annotations

from cloud.cluster.cluster import Cluster, Pool, Rules
from cloud.cluster.jobs import Option, Training
from cloud.parallel.topology import DEVICES

QUICK = Rules(round=10.0, quantum=30.0, patience=200.0)


def pool(name: str, machines: int, devices: int, *, parts: int = 1, switch: int = 0, device: str = "cpu") -> Pool:
    figures, memory, inside, between = DEVICES[device]
    return Pool(name, machines, devices, parts, switch or machines, memory, figures, inside, between)


def cluster(*pools: Pool, rules: Rules = QUICK) -> Cluster:
    return Cluster("test", pools, rules)


def options(there: Cluster, speed: float = 1.0, serial: float = 0.1, slower: float = 2.0) -> tuple[Option, ...]:
    """Speeds by Amdahl's law; each pool is `slower` than the one before."""
    return tuple(
        Option(index, size, speed / slower**index / (serial + (1 - serial) / (size / one.parts)))
        for index, one in enumerate(there.pools)
        for size in one.sizes
    )


def job(name: str, rows: tuple[Option, ...], steps: float, **said: object) -> Training:
    given: dict[str, object] = {"saving": 2.0, "starting": 4.0, "every": 20.0, **said}
    return Training(name, rows, steps, **given)  # type: ignore[arg-type]
