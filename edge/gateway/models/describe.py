"""A model's metadata (Open Inference Protocol) and configuration (Triton's format)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from edge.gateway.ensembles.ensemble import Assembly, Target
from edge.gateway.ensembles.scheduling import End
from edge.gateway.models.config import ModelConfig, Policy
from edge.gateway.models.served import Served
from edge.gateway.ports import Port, Ports
from edge.gateway.sources.listing import BUNDLE

__all__ = ["ENSEMBLE", "PLATFORM", "configuration", "metadata"]

PLATFORM, ENSEMBLE = "msedge", "ensemble"


def metadata(target: Target, versions: Iterable[str]) -> dict[str, Any]:
    """The reply of `GET /v2/models/NAME`. `versions`: all that are ready."""
    described = {signature: _sides(ports) for signature, ports in target.outer.items()}
    platform = ENSEMBLE if isinstance(target, Assembly) else PLATFORM
    made = {"name": target.name, "versions": list(versions), "platform": platform, **described[target.first]}
    return made if len(described) == 1 else {**made, "signatures": described}


def configuration(target: Target, limit: int) -> dict[str, Any]:
    """The reply of `GET /v2/models/NAME/config`. limit: most rows of a batch if the model's file has no limit."""
    own = _ensemble(target, limit) if isinstance(target, Assembly) else _bundle(target, limit)
    return {
        "name": target.name,
        "version_policy": _policy(target.config.versions),
        "parameters": {},
        **own,
        **_ours(target.config),
    }


def _bundle(served: Served, limit: int) -> dict[str, Any]:
    ports = served.outer[served.first]
    most = (served.config.max_batch or limit) if ports.batched else 0
    made: dict[str, Any] = {
        "platform": PLATFORM,
        "backend": PLATFORM,
        "max_batch_size": most,
        "input": [_tensor(port, ports.batched) for port in ports.inputs.values()],
        "output": [_tensor(port, ports.batched) for port in ports.outputs.values()],
        "instance_group": [{"name": served.name, "kind": "KIND_CPU", "count": 1}],
        "default_model_filename": BUNDLE,
    }
    if served.streams:
        made["sequence_batching"] = {"direct": {}}
    if most:
        sizes = [size for size in served.config.ladder if size <= most]
        made["dynamic_batching"] = {"preferred_batch_size": sizes, "max_queue_delay_microseconds": 0}
    return made


def _ensemble(target: Assembly, limit: int) -> dict[str, Any]:
    ports, graph = target.ports, target.ensemble.scheduling
    most = (target.ensemble.most_rows or limit) if ports.batched else 0
    return {
        "platform": ENSEMBLE,
        "backend": "",
        "max_batch_size": most,
        "input": [_end(port, graph.inputs[name], ports.batched) for name, port in ports.inputs.items()],
        "output": [_end(port, graph.outputs[name], ports.batched) for name, port in ports.outputs.items()],
        "ensemble_scheduling": graph.document,
    }


def _end(port: Port, end: End, batched: bool) -> dict[str, Any]:
    shape = {} if end.shape is None else {"reshape": {"shape": list(end.shape)}}
    return _tensor(port, batched) | shape


def _ours(config: ModelConfig) -> dict[str, Any]:
    """The settings without an equivalent in Triton, as far as they are set."""
    shadow = {} if config.shadow is None else {"shadow": config.shadow._asdict()}
    cached = {"response_cache": {"enable": True}} if config.response_cache else {}
    plain = {
        "labels": dict(config.labels), "split": dict(config.split), "queue_rows": config.queue_rows,
        "concurrency": config.concurrency, "timeout": config.timeout, "priority": config.priority,
        "memory": config.memory, "pinned": config.pinned,
    }  # fmt: skip
    return {key: value for key, value in plain.items() if value} | shadow | cached


def _sides(ports: Ports) -> dict[str, Any]:
    return {
        side: [{"name": p.name, "datatype": p.datatype, "shape": list(p.open)} for p in held.values()]
        for side, held in (("inputs", ports.inputs), ("outputs", ports.outputs))
    }


def _tensor(port: Port, batched: bool) -> dict[str, Any]:
    kind = "STRING" if port.datatype == "BYTES" else port.datatype
    return {"name": port.name, "data_type": f"TYPE_{kind}", "dims": list(port.open[batched:])}


def _policy(policy: Policy) -> Mapping[str, Any]:
    policies: Mapping[str, Mapping[str, Any]] = {
        "latest": {"latest": {"num_versions": policy.latest}},
        "all": {"all": {}},
        "specific": {"specific": {"versions": list(policy.chosen)}},
    }
    return policies[policy.kind]
