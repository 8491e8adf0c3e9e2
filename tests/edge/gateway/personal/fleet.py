"""A model, devices with versions of it in a store, and what each device's own bundle answers."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

import lite_runtime
from cloud.zoo import mlp, resnet8
from converter.conversion import convert
from converter.training.options import Training
from edge.gateway.job import Job
from edge.gateway.personal.heads import Heads
from edge.gateway.personal.runner import PersonalRunner
from edge.gateway.personal.versions import Versions
from edge.gateway.ports import ports_of
from federated.server.store import PersonalStore
from lite_runtime import Model, bundle
from lite_runtime.graph import Array

SHAPES: Mapping[str, tuple[int, ...]] = {
    "dense": (7,),
    **dict.fromkeys(("head", "filters", "norms", "int8"), (3, 16, 16)),
}


@cache
def made(kind: str) -> bytes:
    """dense: all of an MLP is personal; of a ResNet, head: its last layer; norms: its norms too; filters: its first
    convolution too; int8: its last layer, behind integers."""
    if kind == "dense":
        return bytes(convert(mlp(7, 3, hidden=(5,)), trainable="*").bundle)
    model, own = resnet8((3, 16, 16), 5, filters=(4, 8)), {"filters": "stem.conv*", "norms": "*.bn.*"}
    training = Training(("head*", *([own[kind]] if kind in own else [])))
    rows = [{"x": np.random.default_rng(i).standard_normal((1, 3, 16, 16)).astype(np.float32)} for i in range(4)]
    words: dict[str, Any] = {"quantize": "int8", "calibration": rows} if kind == "int8" else {}
    return bytes(convert(model, trainable=training, **words).bundle)


def params(held: bundle.Bundle, seed: int) -> dict[str, Array]:
    """What a device might have learned."""
    rng = np.random.default_rng(seed)
    reads = held.uses["predict"].reads.values()
    return {name: np.asarray(held.state[name] + 0.3 * rng.standard_normal(held.state[name].shape), np.float32)
            for name in reads}  # fmt: skip


def base(held: bundle.Bundle) -> dict[str, Array]:
    """The parameters that versions are differences from."""
    return {name: held.state[name] for name in held.uses["predict"].reads.values()}


def fill(store: PersonalStore, kind: str, devices: int) -> None:
    """Versions of devices d0, d1, …"""
    held = bundle.read(made(kind))
    for i in range(devices):
        store.put(f"d{i}", held.digest, params(held, i), base(held), round=1, consent="serve")


class Fleet:
    """A store of devices d0, d1, … and a runner for them."""

    def __init__(self, folder: Path, kind: str, devices: int, *, slots: int = 64, limit: int = 16) -> None:
        from concurrent.futures import ThreadPoolExecutor

        self.store = PersonalStore(folder / "personal.sqlite")
        fill(self.store, kind, devices)
        self.kind, self.told = kind, list[str]()
        self.model: Model = lite_runtime.load(made(kind))
        self.versions = Versions(self.store)
        self.versions.look()
        self.heads = Heads(self.versions, self.model, ThreadPoolExecutor(1))
        self.runner = PersonalRunner(
            self.model, "predict", ports_of(self.model), {"x": SHAPES[kind]}, self.heads, name="m", version="1",
            limit=limit, slots=slots, tell=lambda event, facts: self.told.append(event),
        )  # fmt: skip

    def job(self, device: str, rows: int = 1, seed: int = 0) -> Job:
        x = np.random.default_rng(seed).standard_normal((rows, *SHAPES[self.kind])).astype(np.float32)
        return Job({"x": x}, rows, lambda job: None, arrived=0.0, device=device)

    def wanted(self, x: Array, seed: int | None) -> Array:
        """What the bundle of the device's own gives; None: the model for all."""
        data = made(self.kind)
        own = data if seed is None else bundle.with_state(data, params(self.model.bundle, seed))
        return next(iter(lite_runtime.load(own).run({"x": x}).values()))


def answer(job: Job) -> Array:
    assert job.error is None, job.error
    assert job.outputs is not None
    return next(iter(job.outputs.values()))
