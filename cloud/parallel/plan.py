"""A plan: how every operator and value of a step is split over a mesh. Data: saved, compared, pinned, replayed."""

from __future__ import annotations

from dataclasses import dataclass, field

from cloud.parallel.graph import Split

__all__ = ["Assignment", "Collective", "Estimate", "Mesh", "Plan"]


@dataclass(frozen=True, slots=True)
class Mesh:
    """Axes from the slowest links to the fastest: sizes, and the index of the topology's level each lies in."""

    sizes: tuple[int, ...]
    levels: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Assignment:
    """Of one operator: the mesh axes that split each of its loops, and how each result lies once partial results are
    put together (whole: all-reduce; split: reduce-scatter)."""

    loops: tuple[tuple[int, ...], ...]
    results: tuple[Split, ...]


@dataclass(frozen=True, slots=True)
class Collective:
    """One collective of a step, predicted or found in a compiled program. `kind`: "all-reduce", "all-gather",
    "reduce-scatter", "all-to-all", "collective-permute". `bytes`: of its result on one device, as compiled programs
    count; `axes`: the mesh axes it runs over; `times`: trips of the loops around it; `why`: the value and operator."""

    kind: str
    bytes: int
    axes: tuple[int, ...]
    group: int
    times: int = 1
    why: str = ""


@dataclass(frozen=True, slots=True)
class Estimate:
    """What the planner expects of one step on one device; seconds and bytes. `gap`: the share of its seconds that
    another plan on this mesh may still save, of those that treat alike blocks alike; 1 where nothing is proven.
    `crowded`: whether memory stood in the way of a cheaper one."""

    compute_seconds: float
    collective_seconds: float
    exposed_seconds: float
    peak_bytes: int
    state_bytes: int
    collectives: tuple[Collective, ...] = field(default=())
    gap: float = 1.0
    crowded: bool = False

    @property
    def step_seconds(self) -> float:
        """Computing, and the collectives that nothing hides."""
        return self.compute_seconds + self.exposed_seconds


@dataclass(frozen=True, slots=True)
class Plan:
    """`entering[i]`: how argument i of the step lies; `ops[k]`: equation k of the flat jaxpr. `graph` and `topology`
    are digests of what it was made for. `regather`: parameters gathered for the forward pass are gathered again
    backward. `recompute`: share of the forward segments whose inside is computed again in the backward pass."""

    mesh: Mesh
    entering: tuple[Split, ...]
    ops: tuple[Assignment, ...]
    estimate: Estimate
    graph: str
    topology: str
    regather: bool = False
    recompute: float = 0.0
    name: str = "searched"
