"""`msedge cluster manifest`: a run on Kubernetes, as a JobSet or a job of Kubeflow's Trainer."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

import typer

from edge.cli.options import Changes, Json
from edge.cli.output import emit, say

__all__ = ["manifest"]


def manifest(
    path: Annotated[Path, typer.Argument(metavar="RUN.toml", help="The file of a run: see `msedge train`.")],
    image: Annotated[str, typer.Option("--image", help="The container's image, which has msedge installed.")],
    claim: Annotated[
        str, typer.Option("--claim", metavar="NAME", help="The PersistentVolumeClaim that all nodes share.")
    ],
    kind: Annotated[
        Literal["jobset", "trainjob"], typer.Option("--kind", help="A JobSet, or a TrainJob of Kubeflow's Trainer.")
    ] = "jobset",
    name: Annotated[str | None, typer.Option("--name", help="Of the objects; default: the file's name.")] = None,
    nodes: Annotated[int, typer.Option("--nodes", min=1, max=4096, metavar="N", help="Nodes, a process each.")] = 1,
    gpus: Annotated[int, typer.Option("--gpus", min=0, max=64, metavar="N", help="GPUs of each node.")] = 0,
    gpu: Annotated[str, typer.Option("--gpu", metavar="RESOURCE", help="What a GPU is called.")] = "nvidia.com/gpu",
    cpus: Annotated[str, typer.Option("--cpus", metavar="N", help="CPUs of each node, such as 8.")] = "",
    memory: Annotated[str, typer.Option("--memory", metavar="SIZE", help="Memory of each node, such as 64Gi.")] = "",
    folder: Annotated[
        str, typer.Option("--folder", help="Where the claim is mounted; relative paths of the file begin here.")
    ] = "/work",
    node: Annotated[
        list[str] | None,
        typer.Option(
            "--node", metavar="LABEL=VALUE",
            help="Only nodes with this label, whose taint of the same name is tolerated (spot machines); repeatable.",
        ),
    ] = None,
    grace: Annotated[
        int, typer.Option("--grace", min=1, max=3600, metavar="S", help="Seconds for saving before a node goes away.")
    ] = 60,
    restarts: Annotated[
        int, typer.Option("--restarts", min=0, max=10000, help="How often to restart after a process is lost.")
    ] = 10,
    changes: Changes = None,
    output: Annotated[Path | None, typer.Option("-o", "--output", metavar="FILE.yaml", help="Default: stdout.")] = None,
    as_json: Json = False,
) -> None:  # fmt: skip
    """Write the objects that run a file on Kubernetes: `kubectl apply -f FILE.yaml`.

    The processes find each other through the JobSet's headless service, and continue from the newest checkpoint when
    one of them is lost. A node that is taken away gives them --grace seconds to save; that costs no restart.
    """
    from cloud.errors import TrainError
    from cloud.train.jobs.config import read
    from cloud.train.many.manifest import Wanted, yaml_text
    from cloud.train.many.manifest import manifest as objects_of
    from lite_runtime._files import write_atomically

    config = read(path, changes or ())
    wanted = Wanted(
        name or path.stem.lower().replace("_", "-"), image, claim, nodes, gpus, gpu, cpus, memory, folder,
        restarts=restarts, grace=grace, labels=_labels(node or ()), changes=tuple(changes or ()),
    )  # fmt: skip
    found = objects_of(path.read_text(encoding="utf-8"), config, wanted, kind)
    if as_json:
        emit({"apiVersion": "v1", "kind": "List", "items": found})
    elif output is None:
        print(yaml_text(found), end="")
    else:
        write_atomically(output, yaml_text(found).encode(), TrainError)
        say(f"{output}: {', '.join(str(each['kind']) for each in found)}; kubectl apply -f {output}")


def _labels(texts: Sequence[str]) -> dict[str, str]:
    pairs = [text.partition("=") for text in texts]
    for (key, equals, _), text in zip(pairs, texts, strict=True):
        if not (key and equals):
            raise typer.BadParameter(f"expected LABEL=VALUE, got {text!r}", param_hint="--node")
    return {key: value for key, _, value in pairs}
