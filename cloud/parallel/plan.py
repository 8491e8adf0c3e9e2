"""A plan: how every operator and value of a step is split over a mesh; plain data that can be saved and compared."""

from __future__ import annotations

from dataclasses import dataclass, field

from cloud.parallel.graph import Split

__all__ = ["Assignment", "Collective", "Estimate", "Figures", "Mesh", "Plan"]


@dataclass(frozen=True, slots=True)
class Mesh:
    """Axes from the slowest links to the fastest: their sizes, and the index of each one's topology level."""

    sizes: tuple[int, ...]
    levels: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Assignment:
    """For one operator: the mesh axes that split each of its loops, and the split of each result after partial results
    are combined (whole: all-reduce; split: reduce-scatter)."""

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
    """The planner's prediction for one step on one device; seconds and bytes. `gap`: the share of its seconds that
    another plan on this mesh could at most save, among plans that treat repeated blocks alike; 1 if nothing is proven.
    `crowded`: whether the memory limit excluded a cheaper plan."""

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
        """Computing, and the collectives that it does not hide."""
        return self.compute_seconds + self.exposed_seconds


@dataclass(frozen=True, slots=True)
class Figures:
    """A compiled program's cost: seconds of a step by the planner's cost model, peak bytes of a device as allocated."""

    step_seconds: float
    peak_bytes: int


@dataclass(frozen=True, slots=True)
class Plan:
    """`entering[i]`: how argument i of the step is sharded; `ops[k]`: the choice for equation k of the flat jaxpr.
    `graph` and `topology` are digests of what it was made for. `regather`: parameters gathered for the forward pass are
    gathered again in the backward pass. `recompute`: share of the forward segments that are computed again in the
    backward pass. `parts`: in which the step's loops keep what they add up, as for `trace`. `compiled`: figures of its
    program if that was compiled."""

    mesh: Mesh
    entering: tuple[Split, ...]
    ops: tuple[Assignment, ...]
    estimate: Estimate
    graph: str
    topology: str
    regather: bool = False
    recompute: float = 0.0
    parts: int = 1
    name: str = "searched"
    compiled: Figures | None = None

    @property
    def figures(self) -> Figures:
        """Those of the compiled program, else the estimate's."""
        return self.compiled or Figures(self.estimate.step_seconds, self.estimate.peak_bytes)
