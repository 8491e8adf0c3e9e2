"""What `msedge cluster run` starts for a job, and jobs that are submitted while it runs: files in its folder."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

from cloud.cluster.cluster import Cluster
from cloud.cluster.executor import saved_steps
from cloud.cluster.jobs import File, Job
from cloud.cluster.state import Order
from cloud.errors import ClusterError
from cloud.parallel.topology import DEVICES
from cloud.train.many.processes import free_port
from edge.cli.output import say
from lite_runtime._files import write_atomically

__all__ = ["Gangs", "submitted"]

PLACE = "submitted"


class _What(msgspec.Struct, forbid_unknown_fields=True):
    """What is started: `msedge train` with a run file, or `msedge serve` with a bundle. `steps`: instead of the file's,
    if not 0."""

    kind: str
    path: str
    steps: int = 0


class _Submission(msgspec.Struct, forbid_unknown_fields=True):
    jobs: list[Job]
    what: dict[str, _What]


def _what(file: File, cluster: Cluster) -> dict[str, _What]:
    """By job. Raises ClusterError for jobs that cannot run here."""
    if other := [pool.name for pool in cluster.pools if pool.device != DEVICES["cpu"][0]]:
        raise ClusterError(
            f'{other[0]}: expected device = "cpu", as processes here have, got another; msedge cluster simulate'
        )
    found: dict[str, _What] = {}
    for said in file.training:
        if not said.config:
            raise ClusterError(f"{said.name}: expected config = a file of msedge train, got none")
        found[said.name] = _What("train", str(file.path(said.config)), said.steps)
    for serving in file.serving:
        if not serving.bundle or not file.path(serving.bundle).is_file():
            raise ClusterError(f"{serving.name}: expected bundle = a file to serve, got {serving.bundle!r}")
        found[serving.name] = _What("serve", str(file.path(serving.bundle)))
    return found


def submitted(folder: Path, cluster: Cluster, file: File, jobs: Sequence[Job]) -> Path:
    """Write the jobs where the run finds them. Raises ClusterError."""
    data = msgspec.json.encode(_Submission(list(jobs), _what(file, cluster)))
    place = folder / PLACE
    place.mkdir(exist_ok=True)
    path = place / f"{hashlib.blake2b(data, digest_size=8).hexdigest()}.json"
    write_atomically(path, data, ClusterError)
    return path


class Gangs:
    """Commands for gangs; see `cloud.cluster.executor.Launches`. Checkpoints are below the run's folder."""

    def __init__(self, folder: Path, cluster: Cluster, file: File) -> None:
        self.folder = folder
        self.what = _what(file, cluster)
        self._read: set[str] = set()
        self._early = self._found()  # also what was submitted to a run before this one

    def command(self, order: Order) -> Sequence[str]:
        """The command of a gang; it continues from a checkpoint if there is one."""
        start, what = [sys.executable, "-m", "edge.cli"], self.what[order.job]
        if what.kind == "serve":
            return [*start, "serve", what.path, "--host", "127.0.0.1", "--port", str(free_port())]
        steps = ["--set", f"train.steps={what.steps}"] if what.steps else []
        return [*start, "train", what.path, *steps, "--set", f"checkpoint.folder={self._kept(order.job)}"]

    def steps(self, job: str) -> float:
        """Saved steps."""
        return saved_steps(self._kept(job))

    def submitted(self) -> list[Job]:
        """Jobs that came since it was asked last."""
        early, self._early = self._early, []
        return early + self._found()

    def _found(self) -> list[Job]:
        """Jobs of files that were not read yet; a file that is none is named once."""
        found: list[Job] = []
        for path in sorted((self.folder / PLACE).glob("*.json")):
            if path.name in self._read:
                continue
            self._read.add(path.name)
            try:
                made = msgspec.json.decode(path.read_bytes(), type=_Submission)
            except (OSError, msgspec.MsgspecError, RecursionError) as error:
                say(f"{path}: expected jobs as msedge cluster submit writes them: {error}")
                continue
            jobs = [job for job in made.jobs if job.name in made.what and job.name not in self.what]
            self.what.update((job.name, made.what[job.name]) for job in jobs)
            found += jobs
        return found

    def _kept(self, job: str) -> Path:
        return self.folder / "checkpoints" / job
