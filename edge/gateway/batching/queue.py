"""The queue of one runner: its jobs in the order of computation."""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heapify, heappop, heappush

from edge.gateway.job import Job

__all__ = ["IDLE", "MIDDLE", "Queue", "rank"]

MIDDLE = 100
"""The rank of priority 0, the default: priorities 1 to 99 come before it, those above after it."""
IDLE = 1_000_000
"""Jobs from this priority on are computed only when no job of any model waits: copies for shadows."""


def rank(job: Job) -> int:
    """The rank of a job: lower ranks go first."""
    return job.priority or MIDDLE


class Queue:
    """Jobs ordered by rank, deadline, arrival; counted in rows.

    Removing only marks a job: it is skipped at its turn, or dropped together with others once removed jobs are the
    majority. Its inputs are freed at once.
    """

    __slots__ = ("_dead", "_heaps", "_number", "_order", "_rows", "jobs", "rows")

    def __init__(self) -> None:
        self.jobs, self.rows = 0, 0
        """Number of waiting rows and jobs."""
        self._heaps: dict[int, list[tuple[float, int, Job]]] = {}
        self._rows: dict[int, int] = {}
        """Jobs by rank; no entry is empty."""
        self._order: list[int] = []
        """The ranks in ascending order."""
        self._number, self._dead = 0, 0

    def push(self, job: Job) -> None:
        """Insert a job in order."""
        at = rank(job)
        heap = self._heaps.get(at)
        if heap is None:
            heap = self._heaps[at] = []
            self._rows[at] = 0
            self._order = sorted(self._heaps)
        self._number += 1
        heappush(heap, (job.deadline, self._number, job))
        self._count(at, job.rows, 1)

    def remove(self, job: Job) -> None:
        """Remove a waiting job."""
        job.cancelled = True
        job.inputs = {}
        self._count(rank(job), -job.rows, -1)
        self._dead += 1
        if self._dead > 64 and self._dead > self.jobs:
            for at, heap in list(self._heaps.items()):
                heap[:] = [entry for entry in heap if not entry[2].cancelled]
                heapify(heap)
                self._tidy(at)
            self._dead = 0

    def head(self) -> Job | None:
        """The next job."""
        while self._order:
            heap = self._heaps[self._order[0]]
            while heap and heap[0][2].cancelled:
                heappop(heap)
                self._dead -= 1
            if heap:
                return heap[0][2]
            self._tidy(self._order[0])
        return None

    def take(self, rows: int) -> list[Job]:
        """The next jobs in order, with at most so many rows together, but at least one job.

        A job that does not fit ends the batch: if smaller jobs overtook it, it might wait for ever.
        """
        taken: list[Job] = []
        left = rows
        while (job := self.head()) is not None and (job.rows <= left or not taken):
            taken.append(job)
            left -= job.rows
            self._pop(job)
        return taken

    def expire(self, now: float) -> list[Job]:
        """Remove and return the jobs whose deadline has passed."""
        late: list[Job] = []
        for at in list(self._order):
            heap = self._heaps.get(at)
            while heap and (heap[0][2].cancelled or heap[0][0] <= now):
                job = heap[0][2]
                if job.cancelled:
                    heappop(heap)
                    self._dead -= 1
                else:
                    late.append(job)
                    self._pop(job)
            self._tidy(at)
        return late

    def ahead(self, job: Job) -> int:
        """Waiting rows with the job's rank or a better one, which may be computed before it."""
        mine = rank(job)
        if len(self._rows) == 1:
            return self.rows if self._order[0] <= mine else 0
        return sum(rows for at, rows in self._rows.items() if at <= mine)

    def __iter__(self) -> Iterator[Job]:
        return (entry[2] for heap in self._heaps.values() for entry in heap if not entry[2].cancelled)

    def _pop(self, job: Job) -> None:
        """Remove the first job of its rank."""
        at = rank(job)
        heappop(self._heaps[at])
        self._count(at, -job.rows, -1)
        self._tidy(at)

    def _count(self, at: int, rows: int, jobs: int) -> None:
        self._rows[at] += rows
        self.rows += rows
        self.jobs += jobs

    def _tidy(self, at: int) -> None:
        if at in self._heaps and not self._heaps[at]:
            del self._heaps[at], self._rows[at]
            self._order = sorted(self._heaps)
