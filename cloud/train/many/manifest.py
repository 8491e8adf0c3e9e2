"""A run on Kubernetes: the objects by which a JobSet, or Kubeflow's Trainer, starts it on several nodes.

Every node has one process, with all of the node's devices. They find each other through the headless service that the
JobSet makes, under the variables of `cloud.train.many.processes`. If one is lost, all are started again and continue
from the newest checkpoint; a process that is told to stop saves first and exits with `PREEMPTED`, which costs no
restart. Sources: the JobSet API (jobset.x-k8s.io/v1alpha2) and the Trainer API (trainer.kubeflow.org/v1alpha1).
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any

from cloud.errors import TrainError
from cloud.train.jobs.config import Config
from cloud.train.many.elastic import RESTARTS
from cloud.train.many.preempt import PREEMPTED
from cloud.train.many.processes import VARIABLES

__all__ = ["KINDS", "Wanted", "manifest", "yaml_text"]

NODE = "node"
"""The name of the replicated job and of its container; Kubeflow's Trainer looks for a container with this name."""
FILE, USER = "run.toml", 10001
WRONG_USAGE = 2
INDEX = "metadata.annotations['batch.kubernetes.io/job-completion-index']"
_NAME = re.compile(r"[a-z]([a-z0-9-]*[a-z0-9])?")


@dataclass(frozen=True)
class Wanted:
    """What a manifest is for: `nodes`, each with `gpus` (0: none) of the resource `gpu`, `cpus` and `memory` ("": not
    asked for); `claim`: the PersistentVolumeClaim that all nodes mount at `folder`, the folder of the run's file;
    `grace`: seconds for saving when a node is taken away; `restarts` after the loss of a process; `labels` of nodes,
    whose taints of the same keys are tolerated."""

    name: str
    image: str
    claim: str
    nodes: int = 1
    gpus: int = 0
    gpu: str = "nvidia.com/gpu"
    cpus: str = ""
    memory: str = ""
    folder: str = "/work"
    port: int = 8476
    restarts: int = 10
    grace: int = 60
    labels: Mapping[str, str] = field(default_factory=dict)
    changes: Sequence[str] = ()


def manifest(text: str, config: Config, wanted: Wanted, kind: str = "jobset") -> list[dict[str, Any]]:
    """The objects for the run in the file with this `text`, of the kind "jobset" or "trainjob". Raises TrainError."""
    if kind not in KINDS:
        raise TrainError(f"expected a kind among {', '.join(KINDS)}, got {kind!r}")
    _check(config, wanted)
    about = {"name": wanted.name, "labels": {"app.kubernetes.io/name": wanted.name}}
    file = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": about, "data": {FILE: text}}
    return [file, *KINDS[kind](about, wanted)]


def _check(config: Config, wanted: Wanted) -> None:
    if not (_NAME.fullmatch(wanted.name) and len(wanted.name) <= 40):
        raise TrainError(f"name: expected at most 40 of a-z, 0-9 and -, a letter first, got {wanted.name!r}")
    if wanted.nodes > 1 and config.parallel.mode == "none":
        raise TrainError(f'parallel.mode: expected "data" or "auto" for {wanted.nodes} nodes, got "none"')
    ways = wanted.nodes * max(1, wanted.gpus)
    if config.parallel.mode == "data" and config.train.batch % ways:
        raise TrainError(f"train.batch: expected a multiple of {ways}, the devices, got {config.train.batch}")
    if not PurePosixPath(wanted.folder).is_absolute() or wanted.folder == "/":
        raise TrainError(f"folder: expected an absolute path such as /work, got {wanted.folder!r}")
    if not config.checkpoint.folder:
        raise TrainError("checkpoint.folder: expected a folder, from which the run continues on other nodes, got none")
    export = config.export
    kept = {"checkpoint.folder": config.checkpoint.folder, "track.store": config.track.store,
            "export.onnx": export.onnx, "export.bundle": export.bundle, "export.adapter": export.adapter}  # fmt: skip
    for key, path in kept.items():
        whole = PurePosixPath(os.path.normpath(PurePosixPath(wanted.folder) / path))
        if path and not whole.is_relative_to(wanted.folder):
            raise TrainError(f"{key}: expected a path on the volume, below {wanted.folder}, got {path!r}")


def _jobset(about: Mapping[str, Any], wanted: Wanted) -> list[dict[str, Any]]:
    spec = _jobset_spec(wanted, {})
    return [{"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "metadata": about, "spec": spec}]


def _trainjob(about: Mapping[str, Any], wanted: Wanted) -> list[dict[str, Any]]:
    """A runtime of its own has what a TrainJob cannot say: the volumes and the policy of failures."""
    api = "trainer.kubeflow.org/v1alpha1"
    template = {"spec": _jobset_spec(wanted, {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"})}
    return [
        {
            "apiVersion": api, "kind": "TrainingRuntime",
            "metadata": {**about, "labels": {**about["labels"], "trainer.kubeflow.org/framework": "jax"}},
            "spec": {"mlPolicy": {"numNodes": wanted.nodes}, "template": template},
        },
        {
            "apiVersion": api, "kind": "TrainJob", "metadata": about,
            "spec": {
                "runtimeRef": {
                    "apiGroup": "trainer.kubeflow.org", "kind": "TrainingRuntime", "name": wanted.name
                },
                "trainer": {"image": wanted.image, "numNodes": wanted.nodes},
            },
        },
    ]  # fmt: skip


KINDS = {"jobset": _jobset, "trainjob": _trainjob}


def _jobset_spec(wanted: Wanted, labels: Mapping[str, str]) -> dict[str, Any]:
    """All nodes are started again if one fails, but not after wrong usage."""
    usage = {"name": "usage", "action": "FailJobSet", "onJobFailureReasons": ["PodFailurePolicy"]}
    template: dict[str, Any] = {"spec": _job_spec(wanted)}
    if labels:
        template["metadata"] = {"labels": dict(labels)}
    return {
        "network": {"enableDNSHostnames": True, "publishNotReadyAddresses": True},
        "failurePolicy": {"maxRestarts": wanted.restarts, "rules": [usage]},
        "successPolicy": {"operator": "All"},
        "replicatedJobs": [{"name": NODE, "replicas": 1, "template": template}],
    }


def _job_spec(wanted: Wanted) -> dict[str, Any]:
    def on(status: int, action: str) -> dict[str, Any]:
        return {"action": action, "onExitCodes": {"containerName": NODE, "operator": "In", "values": [status]}}

    return {
        "completionMode": "Indexed", "completions": wanted.nodes, "parallelism": wanted.nodes, "backoffLimit": 0,
        "podFailurePolicy": {"rules": [on(PREEMPTED, "Ignore"), on(WRONG_USAGE, "FailJob")]},
        "template": {"spec": _pod_spec(wanted)},
    }  # fmt: skip


def _pod_spec(wanted: Wanted) -> dict[str, Any]:
    asked = {"cpu": wanted.cpus, "memory": wanted.memory, wanted.gpu: str(wanted.gpus) if wanted.gpus else ""}
    asked = {name: amount for name, amount in asked.items() if amount}
    limits = {name: amount for name, amount in asked.items() if name != "cpu"}
    command = ["msedge", "train", f"{wanted.folder}/{FILE}"]
    command += [word for change in wanted.changes for word in ("--set", change)]
    container = {
        "name": NODE, "image": wanted.image, "command": command, "workingDir": wanted.folder, "env": _env(wanted),
        "ports": [{"name": "coordinator", "containerPort": wanted.port}],
        "resources": {key: each for key, each in (("requests", asked), ("limits", limits)) if each},
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
        "volumeMounts": [
            {"name": "work", "mountPath": wanted.folder},
            {"name": "file", "mountPath": f"{wanted.folder}/{FILE}", "subPath": FILE, "readOnly": True},
            {"name": "shared", "mountPath": "/dev/shm"},
        ],
    }  # fmt: skip
    made: dict[str, Any] = {
        "restartPolicy": "Never", "automountServiceAccountToken": False, "enableServiceLinks": False,
        "terminationGracePeriodSeconds": wanted.grace,
        "securityContext": {
            "runAsNonRoot": True, "runAsUser": USER, "runAsGroup": USER, "fsGroup": USER,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [container],
        "volumes": [
            {"name": "work", "persistentVolumeClaim": {"claimName": wanted.claim}},
            {"name": "file", "configMap": {"name": wanted.name}},
            {"name": "shared", "emptyDir": {"medium": "Memory"}},
        ],
    }  # fmt: skip
    if wanted.labels:
        made["nodeSelector"] = dict(wanted.labels)
        made["tolerations"] = [
            {"key": key, "operator": "Equal", "value": value} for key, value in wanted.labels.items()
        ]
    return made


def _env(wanted: Wanted) -> list[dict[str, Any]]:
    """RESTARTS above 0: continue from a checkpoint if there is one."""
    coordinator, processes, process = VARIABLES
    made: list[dict[str, Any]] = [
        {"name": RESTARTS, "value": "1"},
        {"name": "MSEDGE_RUNS", "value": f"{wanted.folder}/runs.sqlite"},
        {"name": "HOME", "value": "/tmp"},
    ]
    if wanted.nodes > 1:
        made += [
            {"name": coordinator, "value": f"{wanted.name}-{NODE}-0-0.{wanted.name}:{wanted.port}"},
            {"name": processes, "value": str(wanted.nodes)},
            {"name": process, "valueFrom": {"fieldRef": {"fieldPath": INDEX}}},
        ]
    return made


def yaml_text(objects: Sequence[Mapping[str, Any]]) -> str:
    """JSON data as documents of YAML: texts are quoted as in JSON, long ones written line by line."""
    return "---\n".join("\n".join(_lines(each)) + "\n" for each in objects)


def _lines(value: Any) -> list[str]:
    if isinstance(value, Mapping) and value:
        return [line for key, each in value.items() for line in _entry(f"{key}:", each)]
    if isinstance(value, list | tuple) and value:
        return [line for each in value for line in _item(each)]
    return [json.dumps(value, ensure_ascii=True)]


def _entry(head: str, value: Any) -> list[str]:
    if isinstance(value, str) and _is_block(value):
        return [f"{head} |", *(f"  {line}" if line else "" for line in value.split("\n")[:-1])]
    inner = _lines(value)
    if isinstance(value, Mapping | list | tuple) and value:
        return [head, *(f"  {line}" for line in inner)]
    return [f"{head} {inner[0]}"]


def _is_block(text: str) -> bool:
    """Whether a text of several lines can be written as it is."""
    lines = text.split("\n")
    plain = all(line.isascii() and (line.isprintable() or not line) for line in lines)
    return plain and len(lines) > 2 and not lines[-1] and bool(lines[-2]) and not text.startswith((" ", "\n"))


def _item(value: Any) -> list[str]:
    first, *rest = _lines(value)
    return [f"- {first}", *(f"  {line}" for line in rest)]
