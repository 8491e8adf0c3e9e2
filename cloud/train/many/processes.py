"""Training with several processes: connecting them. Must be done before any other use of JAX.

Set for each process: MSEDGE_COORDINATOR ("host:port" of the first one), MSEDGE_PROCESSES (how many), MSEDGE_PROCESS
(its number, from 0); or start them with SLURM or Open MPI, whose variables JAX reads. `cloud.train.many.elastic` starts
them on one machine.
"""

from __future__ import annotations

import os
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NoReturn

import jax

from cloud.errors import TrainError

__all__ = ["VARIABLES", "Heartbeat", "end_at_once", "free_port", "is_first", "join", "together", "with_devices"]

VARIABLES = ("MSEDGE_COORDINATOR", "MSEDGE_PROCESSES", "MSEDGE_PROCESS")
_LAUNCHERS = {"SLURM_STEP_NUM_TASKS": "SLURM_JOB_ID", "OMPI_COMM_WORLD_SIZE": "OMPI_MCA_orte_hnp_uri"}
"""By launcher: the variable with the number of processes, and the one by which JAX finds the first process."""


def join(environment: Mapping[str, str] = os.environ) -> tuple[int, int]:
    """Connect to the other processes, if any; returns (this one's number, how many there are).

    MSEDGE_DEVICES: split this process's CPU into this many devices. Raises TrainError for invalid settings,
    and if the others do not connect within five minutes.
    """
    if leash := environment.get("MSEDGE_LEASH"):
        threading.Thread(target=_end_with, args=(int(leash),), daemon=True).start()
    if devices := environment.get("MSEDGE_DEVICES"):
        config: Any = jax.config
        config.update("jax_num_cpu_devices", _number("MSEDGE_DEVICES", devices, 1))
    given = {name: environment.get(name, "") for name in VARIABLES}
    if any(given.values()):
        _meet(given)
    elif any(int(environment.get(count) or 1) > 1 and mark in environment for count, mark in _LAUNCHERS.items()):
        _initialize()
    return jax.process_index(), jax.process_count()


def with_devices(environment: Mapping[str, str], count: int) -> dict[str, str]:
    """The environment of a process whose CPU `join` splits into `count` devices, whatever XLA's own flag says here."""
    flags = [f for f in environment.get("XLA_FLAGS", "").split() if "host_platform_device_count" not in f]
    return {**environment, "MSEDGE_DEVICES": str(count), "XLA_FLAGS": " ".join(flags)}


@contextmanager
def together(
    environment: Mapping[str, str] = os.environ, *, status: int = 1,
    tell: Callable[[Exception], None] = traceback.print_exception,
) -> Iterator[tuple[int, int]]:  # fmt: skip
    """`join`; an error that leaves the block is printed and ends one of several processes at once, with `status`. (By
    itself Python would first wait for the others to end, which wait for this one in a collective operation.)"""
    where = join(environment)
    try:
        yield where
    except Exception as error:  # thread: the process ends, and its peers with it
        if where[1] == 1:
            raise
        tell(error)
        end_at_once(status)


def is_first() -> bool:
    """Whether this is the process that prints, records and exports."""
    return jax.process_index() == 0


def end_at_once(status: int) -> NoReturn:
    """Exit without waiting for the other processes."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def _meet(given: Mapping[str, str]) -> None:
    if missing := [name for name, value in given.items() if not value]:
        raise TrainError(f"expected all of {', '.join(VARIABLES)} or none; {', '.join(missing)} is missing")
    address = given["MSEDGE_COORDINATOR"]
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal():
        raise TrainError(f"MSEDGE_COORDINATOR: expected host:port, got {address!r}")
    count = _number("MSEDGE_PROCESSES", given["MSEDGE_PROCESSES"], 1)
    index = _number("MSEDGE_PROCESS", given["MSEDGE_PROCESS"], 0)
    if index >= count:
        raise TrainError(f"MSEDGE_PROCESS: expected 0 to {count - 1} of {count} processes, got {index}")
    if count > 1:
        _initialize(address, count, index)


def _initialize(address: str | None = None, count: int | None = None, index: int | None = None) -> None:
    try:
        jax.distributed.initialize(address, count, index)
    except (RuntimeError, ValueError) as error:
        where = f" at {address}" if address else ""
        raise TrainError(f"could not connect to the other processes{where}: {error}") from error


def _number(name: str, text: str, least: int) -> int:
    if not text.isdecimal() or int(text) < least:
        raise TrainError(f"{name}: expected a whole number of at least {least}, got {text!r}")
    return int(text)


def _end_with(pipe: int) -> None:
    """Exit when the pipe closes: the supervisor holds its other end, and without it nothing would stop this process."""
    with open(pipe, "rb") as held:
        held.read()
    print("the supervisor has ended", file=sys.stderr)
    end_at_once(1)


def free_port() -> int:
    """A port of 127.0.0.1 that is free at present."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        port: int = listening.getsockname()[1]
        return port


class Heartbeat:
    """Touches the file MSEDGE_HEARTBEAT, if that is set, at most once a second: shows that the process makes
    progress."""

    def __init__(self, environment: Mapping[str, str] = os.environ) -> None:
        self._path = environment.get("MSEDGE_HEARTBEAT")
        self._beaten = 0.0

    def beat(self) -> None:
        """A step is done."""
        if self._path and time.monotonic() - self._beaten >= 1.0:
            self._beaten = time.monotonic()
            os.utime(self._path)
