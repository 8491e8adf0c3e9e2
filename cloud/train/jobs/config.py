"""A training run as a TOML file: every section is a `Table`, checked as it is read; errors name the key.

A key that is not set has the default given here; a key that does not exist is an error.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from cloud.parallel.compressed.method import Compress
from cloud.train.jobs import settings
from cloud.train.jobs.augmenting.keys import AugmentKeys
from cloud.train.jobs.sections import READ, Section, need, overridden
from cloud.train.jobs.varied import AdversarialKeys, DistillKeys, LoraKeys, PruneKeys
from cloud.train.stepping.schedules import SCHEDULES
from cloud.train.tuning.space import Tune
from federated.tables import Count, Fraction, NotNegative, Number, Positive, Share, Whole

__all__ = [
    "Checkpoint", "Config", "Data", "Export", "Model", "Parallel", "Track", "Train", "parse", "read", "read_size",
]  # fmt: skip


def _one_of(table: str, said: Mapping[str, str]) -> None:
    given = [key for key, value in said.items() if value]
    keys = ", ".join(said)
    need(len(given) == 1, f"[{table}]", f"one of the keys {keys}", ", ".join(given) or "none of them")


class Model(Section, frozen=True):
    """What is trained: one of `zoo` (a builder of `cloud.zoo`), `onnx` (a file), `function` ("module:function", which
    returns an `onnx_ir.Model`, a Flax module or a task). `options` are keyword arguments of a builder or function."""

    zoo: str = ""
    onnx: str = ""
    function: str = ""
    options: Mapping[str, Any] = msgspec.field(default_factory=dict)
    trainable: tuple[str, ...] = ()
    """Glob patterns of the initialisers that are weights; (): all that can be trained."""

    def __post_init__(self) -> None:
        super().__post_init__()
        _one_of("model", {"zoo": self.zoo, "onnx": self.onnx, "function": self.function})
        need(not (self.onnx and self.options), "model.options", "none with model.onnx", dict(self.options))


_SOURCES = ("builtin", "npz", "text", "folder", "records", "function")


class Data(Section, frozen=True):
    """Where examples are: one of `builtin` ("digits"), `npz` (a file of arrays), `text` (a file, byte by byte),
    `folder` (of images, one folder per class), `records` (written by `cloud.data.write_records`), `function`
    ("module:function", which returns (inputs, labels), a pipeline of `cloud.data`, or two of these: for training and
    for validation)."""

    builtin: Literal["", "digits"] = ""
    npz: str = ""
    text: str = ""
    folder: str = ""
    records: str = ""
    function: str = ""
    options: Mapping[str, Any] = msgspec.field(default_factory=dict)
    """Keyword arguments of the function."""
    inputs: Mapping[str, str] = msgspec.field(default_factory=dict)
    """The file's array (of records: the value) for each of the model's inputs; by default the one of the same name."""
    labels: str | Mapping[str, str] = "labels"
    """The array of labels, or several by name, for a model with several heads."""
    weights: str = ""
    """The array of the examples' weights, by which their loss is multiplied; "": all 1."""
    validation_inputs: Mapping[str, str] = msgspec.field(default_factory=dict)
    validation_labels: str | Mapping[str, str] = ""
    validation: Share = 0.1
    """The share of examples held out, if the file has no validation arrays. 0: none."""
    scale: Number = 1.0
    """Where the model takes floats, integers become value * scale + offset."""
    offset: Number = 0.0
    length: Count = 128
    """The length of a text's windows."""
    limit: Whole = 0
    """The most examples to use, chosen by the seed; 0: all."""
    augment: tuple[AugmentKeys, ...] = ()
    """Random changes of the training data, one after the other: see `cloud.data.Policy`."""

    def __post_init__(self) -> None:
        super().__post_init__()
        _one_of("data", {name: getattr(self, name) for name in _SOURCES})
        need(not self.options or bool(self.function), "data.options", "none without data.function", dict(self.options))
        apart = bool(self.npz) or not (self.validation_inputs or self.validation_labels)
        need(apart, "data.validation_inputs and validation_labels", "none without data.npz", self.validation_labels)
        named = bool(self.npz or self.records or self.folder)
        several = named or (isinstance(self.labels, str) and not self.weights)
        need(several, "data.weights and labels of several heads", "none without npz, records or folder", self.weights)
        both = bool(self.validation_inputs) == bool(self.validation_labels)
        need(both, "data.validation_labels", "to be set together with data.validation_inputs", self.validation_labels)


class Train(settings.Loss, frozen=True):
    """How it is trained."""

    epochs: Whole = 10
    """0: as many as `steps` need, also if only `steps` is set. With both, the run ends at the first that is reached."""
    steps: Whole = 0
    """The run ends after exactly this many, also in the middle of an epoch; 0: after its epochs."""
    batch: Count = 64
    optimizer: settings.Optimizer = "adam"
    rate: Positive = 1e-3
    """The learning rate at its highest."""
    schedule: Literal[
        "constant", "linear", "cosine", "polynomial", "exponential", "step", "cosine_restarts", "one_cycle",
        "inverse_sqrt",
    ] = "constant"  # fmt: skip
    warmup: Share = 0.0
    """The share of steps in which the rate rises from 0."""
    rises: Literal["linear", "cosine", "quadratic"] = "linear"
    """How it rises."""
    momentum: Share = 0.9
    """For optimizer = "momentum" (Nesterov's)."""
    weight_decay: NotNegative = 0.0
    """Decoupled for adamw, lion, muon and thor, otherwise added to the gradient."""
    decay: Literal["matrices", "all"] = "matrices"
    """What decays: arrays of rank 2 and up, so neither biases nor the scales of normalisations, or all."""
    groups: tuple[settings.Group, ...] = ()
    """Parameters with a rate and an optimiser of their own; each belongs to the first group that matches it."""
    layer_decay: Fraction = 1.0
    """The rate is multiplied by this once for every layer that comes behind."""
    layers: tuple[str, ...] = ()
    """Glob patterns of the layers for layer_decay, from the front; (): by the names of parameters."""
    heads: Mapping[str, settings.Head] = msgspec.field(default_factory=dict)
    """Several losses, by output, added up."""
    metrics: tuple[str, ...] = ("accuracy",)
    augment: str = ""
    """"module:function", which changes a batch's inputs: see `Trainer`."""
    seed: Annotated[int, Meta(ge=0, lt=1 << 31, description="a whole number from 0 to below 2^31")] = 0
    precision: Literal["float32", "bfloat16", "float16"] = "float32"
    accumulate: Count = 1
    clip: NotNegative = 0.0
    gradient_norm: bool = False
    """Record the norm before clipping every step; with clip it is always recorded."""
    freeze: tuple[str, ...] = ()
    recompute: Fraction = 0.0
    average: Share = 0.0
    swa: Share = 0.0
    """Use the mean of the weights after this share of the steps instead; 0: no."""
    swa_every: Whole = 0
    """Steps between the weights that it is the mean of; 0: an epoch."""
    swa_batches: Whole = 0
    """Batches over which BatchNormalization's statistics are estimated for it; 0: an epoch."""
    evaluate_steps: Whole = 0
    """Validate after this many steps, 0: after each epoch."""
    evaluate_share: Share = 0.0
    """Validate after this share of each epoch too."""
    last: Literal["pad", "drop"] = "pad"
    lora: LoraKeys | None = None
    distill: DistillKeys | None = None
    prune: PruneKeys | None = None
    adversarial: AdversarialKeys | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        need(self.epochs >= (not self.steps), "train.epochs", "at least 1, or 0 together with train.steps", self.epochs)
        alone = self.lora is None or self.prune is None
        need(alone, "train.prune", "none together with train.lora, whose adapters would fill the zeros", "both")
        alone = self.adversarial is None or self.distill is None
        need(alone, "train.adversarial", "none together with train.distill", "both")
        need(self.layer_decay > 0, "train.layer_decay", "a share above 0", self.layer_decay)
        used = self.layer_decay < 1
        need(used or not self.layers, "train.layers", "none without train.layer_decay", list(self.layers))
        need(self.warmup > 0 or self.rises == "linear", "train.rises", "linear without train.warmup", self.rises)
        one = not (self.evaluate_steps and self.evaluate_share)
        need(one, "train.evaluate_share", "0 together with train.evaluate_steps", self.evaluate_share)
        need(not (self.swa and self.average), "train.swa", "0 together with train.average", self.swa)
        said = self.swa or not (self.swa_every or self.swa_batches)
        need(bool(said), "train.swa_every and swa_batches", "0 without train.swa", self.swa_every)
        if self.heads:
            settings.only(self, "train", {*self.__struct_fields__} - {*settings.Loss.__struct_fields__}, "with heads")


class Parallel(Section, frozen=True):
    """The devices used. `mode`: "none" (one), "data" (each computes part of every batch), "auto" (as the planner
    decides)."""

    mode: Literal["none", "data", "auto"] = "none"
    plan: str = ""
    """A file that `msedge plan -o` wrote for this run, used instead of searching."""
    topology: str = ""
    """The topology for `msedge plan`, "auto" and `compress`: a preset or a TOML file; "": the devices present."""
    memory: str = ""
    """Likewise: memory of one device, such as "16GiB"; "": the topology's."""
    compiled: Whole | None = None
    """For "auto": compile this many of the best plans and use the best program; 0: the estimate decides; without it:
    as many as a minute allows, at most 4."""

    compress: str = ""
    """How gradients cross slow links: "int8", "int8:BLOCK", "powersgd", "powersgd:RANK", "auto" (int8 where the planner
    expects that it saves time); "": exactly. The slow links are those of the topology's first level."""

    def __post_init__(self) -> None:
        super().__post_init__()
        need(not self.plan or self.mode == "auto", "parallel.plan", 'mode = "auto" together with it', self.mode)
        if self.compress:
            many = self.mode != "none" and not self.plan
            need(many, "parallel.compress", '"", or mode = "data" or "auto" and no plan', self.compress)
            Compress.named(self.compress)
        chosen = not self.compiled or (self.mode == "auto" and not self.plan)
        need(chosen, "parallel.compiled", '0, or mode = "auto" and no plan', self.compiled)
        if self.memory:
            read_size(self.memory, "parallel.memory")


class Checkpoint(Section, frozen=True):
    """Where checkpoints are saved, from which `msedge train --resume` continues; no folder: no checkpoints."""

    folder: str = ""
    every: Whole = 0
    """Steps between them; 0: at the end of each epoch."""
    keep: Count = 3
    best: str = ""
    """Validation's "loss" or a metric: the checkpoint with its best value is kept too."""


class Export(Section, frozen=True):
    """Files written at the end; "" for none."""

    onnx: str = ""
    bundle: str = ""
    adapter: str = ""
    """With [train.lora]: a state file for bundles of the first model that have the same adapters; `onnx` and `bundle`
    have them added to the weights."""
    quantize: Literal["none", "fp16", "dynamic", "int8", "int16x8", "w8", "w4"] = "none"
    """The bundle's quantisation; it is calibrated on examples of the training data."""


class Track(Section, frozen=True):
    """The record of the run."""

    store: str = ""
    """The SQLite file; "": the path in MSEDGE_RUNS, or runs.sqlite in the working folder."""
    name: str = ""
    keep: bool = True
    mlflow: str = ""
    """MLflow's server or store that gets the run too, such as "sqlite:///mlflow.db" or "http://127.0.0.1:5000"."""
    wandb: str = ""
    """The project of Weights & Biases that gets the run too; WANDB_MODE=offline needs no server."""
    experiment: str = ""
    """MLflow's experiment; "": msedge."""
    profile: Whole = 0
    """How many steps JAX's profiler watches, soon after the first ones, for the page of the run; 0: none."""

    def __post_init__(self) -> None:
        super().__post_init__()
        copied = self.keep or not (self.mlflow or self.wandb)
        need(copied, "track.keep", "true with track.mlflow or track.wandb, which get what is recorded", self.keep)
        need(not self.experiment or bool(self.mlflow), "track.experiment", "none without track.mlflow", self.experiment)


class _File(Section, frozen=True):
    """The whole file."""

    model: Model
    data: Data
    train: Train = Train()
    schedule: settings.Schedule = settings.Schedule()
    stopping: settings.Stopping = settings.Stopping()
    plateau: settings.Plateau = settings.Plateau()
    freezing: settings.Freezing = settings.Freezing()
    parallel: Parallel = Parallel()
    checkpoint: Checkpoint = Checkpoint()
    export: Export = Export()
    track: Track = Track()
    tune: Tune | None = None
    """For `msedge tune`; `msedge train` does not use it."""

    def __post_init__(self) -> None:
        super().__post_init__()
        kind = self.train.schedule
        used = (*SCHEDULES[kind].takes, *(("floor",) if self.train.warmup else ()))
        fixed = self.freezing.kind and self.parallel.plan
        need(not fixed, "parallel.plan", "none with freezing, which changes the step: search for plans", fixed)
        settings.only(self.schedule, "schedule", used, f"with train.schedule = {kind!r}, which does not use it")


class Config(_File, frozen=True):
    """A run. `source` is the parsed file, `folder` the base of relative paths."""

    source: Mapping[str, Any] = msgspec.field(default_factory=dict)
    folder: Path = Path()

    def __post_init__(self) -> None:
        """Does nothing: its parts were checked when they were created."""

    def path(self, text: str) -> Path:
        """A path in the file, resolved."""
        return self.folder / text


_UNITS = {"": 0, "K": 10, "M": 20, "G": 30, "T": 40}


def read(path: str | os.PathLike[str], changes: Iterable[str] = ()) -> Config:
    """The configuration in a TOML file with "section.key=value" `changes`; paths in it are relative to its folder.

    Raises TrainError, which names the key.
    """
    return parse(overridden(READ.file(path), changes), Path(path).resolve().parent)


def parse(words: Mapping[str, Any], folder: Path = Path()) -> Config:
    """The configuration that a parsed file describes."""
    train, tables = words.get("train"), words
    if isinstance(train, Mapping):
        steps = {"epochs": 0} if train.get("steps") else {}
        heads: dict[str, Any] = {"metrics": []} if train.get("heads") else {}
        tables = {**words, "train": {**steps, **heads, **train}}
    return Config(**msgspec.structs.asdict(READ.read(_File, tables)), source=words, folder=folder)


def read_size(text: str, key: str) -> float:
    """Bytes of "16GiB", "512 MB", "1e9"; both kinds of units count in powers of 1024. Raises TrainError."""
    found = re.fullmatch(r"\s*([0-9.]+(?:e[0-9]+)?)\s*(?:([KMGT]?)i?B?)\s*", text, re.IGNORECASE)
    try:
        size = float(found[1]) * 2 ** _UNITS[found[2].upper()] if found else 0.0
    except ValueError:
        size = 0.0
    need(0 < size < 1e18, key, 'bytes such as "16GiB"', text)
    return size
