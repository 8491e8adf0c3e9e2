"""`msedge cluster`: several training and serving jobs on one described cluster, planned, simulated and run together."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

import typer

from edge.cli.cluster_manifest import manifest
from edge.cli.errors import CHECK_FAILED, COULD_NOT_RUN
from edge.cli.options import Json
from edge.cli.output import console, emit, say, seconds_text, table
from lite_runtime.errors import MsedgeError

if TYPE_CHECKING:
    from cloud.cluster.cluster import Cluster
    from cloud.cluster.jobs import File, Job
    from cloud.cluster.result import Result
    from cloud.cluster.simulate import Decides
    from cloud.cluster.state import Order

__all__ = ["COMMANDS"]

ClusterFile: TypeAlias = Annotated[
    Path, typer.Argument(metavar="CLUSTER.toml", help="The machines; `msedge cluster template` prints one.")
]
JobsFile: TypeAlias = Annotated[
    Path, typer.Argument(metavar="JOBS.toml", help="The jobs; `msedge cluster template jobs` prints one.")
]
SpeedsFile: TypeAlias = Annotated[
    Path | None,
    typer.Option("--speeds", metavar="FILE.json", help="Where the planner's results are kept, and looked up."),
]
Seconds: TypeAlias = Annotated[
    float, typer.Option("--seconds", min=1.0, metavar="S", help="For the planner, for each slice of each step.")
]
Page: TypeAlias = Annotated[
    Path | None, typer.Option("--page", metavar="FILE.html", help="Write who had which devices when as an HTML page.")
]


def template(
    which: Annotated[
        Literal["cluster", "jobs"], typer.Argument(help="The file of which a template is wanted.")
    ] = "cluster",
) -> None:
    """Print a template of a cluster's or of a jobs file."""
    from cloud.cluster.cluster import TEMPLATE
    from cloud.cluster.jobs import JOBS_TEMPLATE

    print({"cluster": TEMPLATE, "jobs": JOBS_TEMPLATE}[which], end="")


def plan(
    cluster: ClusterFile, jobs: JobsFile, speeds: SpeedsFile = None, seconds: Seconds = 10.0, as_json: Json = False
) -> None:
    """Show the speed of every job on every slice, what devices are worth, and who would begin where."""
    from cloud.cluster.jobs import Serving
    from cloud.cluster.scheduler import Scheduler
    from cloud.cluster.state import Event

    there, _, found = _read(cluster, jobs, speeds, seconds)
    scheduler = Scheduler(there)
    for job in found:
        scheduler.apply(Event("submitted", 0.0, job=job))
    orders = scheduler.apply(Event("tick", 0.0))
    names = [pool.name for pool in there.pools]
    rows: list[dict[str, Any]] = [
        {
            "job": job.name, "kind": "serving" if isinstance(job, Serving) else "training",
            "speeds": {
                name: {there.pools[at].words(one.size): one.speed for one in job.options if one.pool == at}
                for at, name in enumerate(names)
            },
        }
        for job in found
    ]  # fmt: skip
    begin = [_begin(order, there) for order in orders]
    prices = scheduler.prices
    value = prices.value if there.rules.policy == "makespan" else None
    if as_json:
        priced = dict(zip(names, prices.pools.tolist(), strict=True))
        emit({"devices": there.devices, "jobs": rows, "prices": priced, "least_seconds": value, "begin": begin})
        return
    shown = table("steps or requests per second, by devices", "job", *names, fold=tuple(names))
    for row in rows:
        shown.add_row(row["job"], *(", ".join(f"{d}: {v:.4g}" for d, v in row["speeds"][n].items()) for n in names))
    console().print(shown)
    if value is not None:
        print(f"{there.devices} devices; no schedule of all jobs at once takes less than {seconds_text(value)}")
    for one in begin:
        print(f"{one['gang']}: {one['devices']} devices of {one['pool']} from {one['first']} on")


def _begin(order: Order, cluster: Cluster) -> dict[str, Any]:
    pool = cluster.pools[order.place.pool]
    devices, first = pool.words(order.place.size), pool.words(order.place.first)
    return {"gang": order.gang, "pool": pool.name, "devices": devices, "first": first}


Policy: TypeAlias = Annotated[
    Literal["rules", "fifo", "backfill", "static"],
    typer.Option(
        "--policy", help="As [rules] says, or to compare with: first in first out, with backfilling, or parts."
    ),
]


def simulate(
    cluster: ClusterFile, jobs: JobsFile, speeds: SpeedsFile = None, seconds: Seconds = 10.0,
    policy: Policy = "rules",
    devices: Annotated[int, typer.Option("--devices", min=1, help="Of each part, for --policy static.")] = 8,
    until: Annotated[
        float, typer.Option("--until", min=0.0, metavar="SECOND", help="End then; 0: with the last training job.")
    ] = 0.0,
    outages: Annotated[
        list[str] | None,
        typer.Option("--outage", metavar="POOL/MACHINE@START-END", help="A machine is gone then; repeatable."),
    ] = None,
    error: Annotated[
        float, typer.Option("--error", min=0.0, max=2.0, help="By how much true speeds differ: 0.2 is about 20 %.")
    ] = 0.0,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Of these differences.")] = 0,
    page: Page = None, as_json: Json = False,
) -> None:  # fmt: skip
    """Simulate the jobs: how long all take, who waits, which requests are late. Exit code 1 if a deadline is missed."""
    from cloud.cluster.jobs import Training
    from cloud.cluster.simulate import simulate as simulated

    there, file, found = _read(cluster, jobs, speeds, seconds)
    if not until and not any(isinstance(job, Training) for job in found):
        raise typer.BadParameter("expected a second, as no training job ends", param_hint="--until")
    if outages and policy != "rules":
        raise typer.BadParameter("the policies to compare with know no lost machines", param_hint="--outage")
    gone = [_outage(text, there) for text in outages or ()]
    decides = _decides(policy, there, devices)
    result = simulated(there, found, decides, outages=gone, error=error, seed=seed, until=until or math.inf)
    if page is not None:
        _draw(page, result, file.base.name)
    _tell(result, there, as_json)
    if result.missed:
        raise typer.Exit(CHECK_FAILED)


def _decides(policy: str, cluster: Cluster, devices: int) -> Decides:
    from cloud.cluster.baselines import Fifo, Static
    from cloud.cluster.scheduler import Scheduler

    if policy == "rules":
        return Scheduler(cluster)
    return Static(cluster, devices) if policy == "static" else Fifo(cluster, backfill=policy == "backfill")


def _outage(text: str, cluster: Cluster) -> Any:
    from cloud.cluster.result import Outage

    place, _, times = text.partition("@")
    name, _, machine = place.rpartition("/")
    start, _, end = times.partition("-")
    try:
        made = Outage(cluster.places[name], int(machine), float(start), float(end))
    except (KeyError, ValueError):
        made = None
    if made is None or not (
        0 <= made.machine < cluster.pools[made.pool].machines and 0 <= made.start < made.end < math.inf
    ):
        raise typer.BadParameter(
            f"expected POOL/MACHINE@START-END of this cluster, got {text!r}", param_hint="--outage"
        )
    return made


def run(
    cluster: ClusterFile, jobs: JobsFile,
    folder: Annotated[Path, typer.Option("--folder", metavar="DIR", help="For journal, logs and checkpoints.")],
    speeds: SpeedsFile = None, seconds: Seconds = 10.0, page: Page = None, as_json: Json = False,
) -> None:  # fmt: skip
    """Run the jobs as processes of this machine, with virtual CPU devices, and those that are submitted meanwhile.
    Ctrl-C or SIGTERM lets all save; the same command goes on, also after the machine went down. Exit code 1 if a job
    failed, 3 if it was stopped."""
    from cloud.cluster.executor import execute
    from cloud.train.many.preempt import stopping_on_signals
    from edge.cli.cluster_submit import Gangs

    there, file, found = _read(cluster, jobs, speeds, seconds)
    gangs = Gangs(folder.absolute(), there, file)
    with stopping_on_signals(lambda name: say(f"{name}: all jobs save")) as stopped:
        result = execute(there, found, gangs, folder, stopping=lambda: bool(stopped), more=gangs.submitted, say=say)
    if page is not None:
        _draw(page, result, folder.name)
    _tell(result, there, as_json)
    if stopped:
        raise typer.Exit(COULD_NOT_RUN)
    if any(one.failed for one in result.jobs.values()):
        raise typer.Exit(CHECK_FAILED)


def submit(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The folder of msedge cluster run.")],
    jobs: JobsFile, speeds: SpeedsFile = None, seconds: Seconds = 10.0, as_json: Json = False,
) -> None:  # fmt: skip
    """Give more jobs to a cluster that runs; seconds in the file count from its beginning."""
    from cloud.cluster.jobs import read_jobs
    from cloud.cluster.journal import replayed
    from cloud.cluster.speeds import Speeds, jobs_of
    from edge.cli.cluster_submit import submitted

    scheduler, _ = replayed(folder / "journal.jsonl")
    file = read_jobs(jobs, scheduler.cluster)
    found = jobs_of(file, scheduler.cluster, Speeds(speeds, seconds), say)
    if again := [
        job.name for job in found if job.name in scheduler.state.named or job.name in scheduler.state.services
    ]:
        raise MsedgeError(f"{again[0]}: expected a name that no job of {str(folder)!r} has")
    path = submitted(folder, scheduler.cluster, file, found)
    names = [job.name for job in found]
    if as_json:
        emit({"file": str(path), "jobs": names})
    else:
        print(f"submitted: {', '.join(names)}")


def status(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The folder of msedge cluster run.")],
    page: Page = None, as_json: Json = False,
) -> None:  # fmt: skip
    """Show the jobs of a run, also while it runs, from its journal."""
    from cloud.cluster.journal import replayed

    scheduler, result = replayed(folder / "journal.jsonl")
    if page is not None:
        _draw(page, result, folder.name)
    _tell(result, scheduler.cluster, as_json)


def _read(cluster: Path, jobs: Path, speeds: Path | None, seconds: float) -> tuple[Cluster, File, list[Job]]:
    from cloud.cluster.cluster import read_cluster
    from cloud.cluster.jobs import read_jobs
    from cloud.cluster.speeds import Speeds, jobs_of

    if not math.isfinite(seconds):
        raise typer.BadParameter(f"expected a number of seconds, got {seconds}", param_hint="--seconds")
    there = read_cluster(cluster)
    file = read_jobs(jobs, there)
    return there, file, jobs_of(file, there, Speeds(speeds, seconds), say)


def _draw(path: Path, result: Result, name: str) -> None:
    from cloud.errors import ClusterError
    from edge.pages.cluster_page import cluster_page
    from lite_runtime._files import write_atomically

    write_atomically(path, cluster_page(result, name).encode(), ClusterError)
    say(f"page: {path}")


def _tell(result: Result, cluster: Cluster, as_json: bool) -> None:
    """All jobs, and the whole."""
    rows: list[dict[str, Any]] = [
        {
            "job": name, "state": _state(one, result), "arrived": one.job.arrives, "started": one.started,
            "ended": one.ended, "without_devices": one.gap, "stopped": one.moves,
        }
        for name, one in result.jobs.items()
    ]  # fmt: skip
    made = {
        "devices": cluster.devices, "makespan": result.makespan, "mean": result.mean, "used": result.used,
        "longest_without_devices": result.gap, "stopped": result.moves, "late_requests": result.late,
        "missed_deadlines": list(result.missed),
    }  # fmt: skip
    if as_json:
        emit({**made, "jobs": rows})
        return
    shown = table("", "job", "state", "arrived", "started", "ended", "without devices", "stopped",
                  right=("arrived", "started", "ended", "without devices", "stopped"))  # fmt: skip
    for row in rows[:MOST_ROWS]:
        times = (_time(row[key]) for key in ("arrived", "started", "ended", "without_devices"))
        shown.add_row(row["job"], row["state"], *times, str(row["stopped"]))
    console().print(shown)
    if len(rows) > MOST_ROWS:
        print(f"and {len(rows) - MOST_ROWS} more: --json")
    print(
        f"{cluster.devices} devices, {len(rows)} training jobs: all done after {_time(result.makespan)}, on average "
        f"after {_time(result.mean)}; devices were held for {result.used:.0%} of the time, nobody was without "
        f"for more than {_time(result.gap)}"
    )
    if result.requests:
        print(f"{result.late:.3%} of {result.requests:,.0f} requests were late")
    for name in result.missed:
        print(f"{name}: missed its deadline")


MOST_ROWS = 60


def _state(one: Any, result: Result) -> str:
    if one.failed:
        return "failed"
    if math.isfinite(one.ended):
        return "ended"
    return "runs" if any(span.job == one.job.name for span in result.running) else "waits"


def _time(seconds: float) -> str:
    if not math.isfinite(seconds):
        return "-"
    return f"{seconds / 3600:.2f} h" if seconds >= 3600 else f"{seconds:.0f} s"


COMMANDS: dict[str, Callable[..., None]] = {
    "template": template,
    "plan": plan,
    "simulate": simulate,
    "run": run,
    "submit": submit,
    "status": status,
    "manifest": manifest,
}
