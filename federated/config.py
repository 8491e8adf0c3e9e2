"""A federated run as a TOML file: sections are frozen dataclasses, checked as they are read; errors name the key.

What is not said has the default that stands here; a key that does not exist is an error, not ignored.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from federated.algorithms import Algorithm, algorithm_from
from federated.codec import Codec
from federated.codec.signds import SignDS
from federated.errors import FederatedError
from federated.messages.downlink import follows
from federated.messages.pipeline import Pipeline
from federated.sections import Sections

__all__ = [
    "TEMPLATE",
    "Buffer",
    "Config",
    "Data",
    "Evaluation",
    "Limits",
    "Local",
    "Model",
    "Report",
    "Rounds",
    "State", "Sync",
    "Wire",
    "parse",
    "read",
]  # fmt: skip

_READ = Sections(FederatedError, "msedge federate --init writes one")
_need = _READ.need


@dataclass(frozen=True)
class Model:
    """The bundle that devices train: `msedge convert --trainable` makes one."""

    bundle: str


@dataclass(frozen=True)
class Data:
    """Where examples are. `shards`: one .npz with arrays by input name, `labels` and `device`, or a folder of NAME.npz;
    simulated devices are its names. A real device has data of its own: its node's configuration says where."""

    shards: str = ""
    labels: str = "labels"
    device: str = "device"
    test: float = 0.25
    """The share of each label's examples that a device keeps to test its model on."""

    def __post_init__(self) -> None:
        _need(0 <= self.test < 1, "data.test", "a share from 0 to below 1", self.test)


@dataclass(frozen=True)
class Local:
    """What a device does in a round: `steps` of the algorithm on batches of `batch` examples."""

    steps: int = 10
    batch: int = 20

    def __post_init__(self) -> None:
        _need(self.steps >= 1, "local.steps", "at least 1", self.steps)
        _need(self.batch >= 1, "local.batch", "at least 1", self.batch)


@dataclass(frozen=True)
class Rounds:
    """How many rounds, and who is in them."""

    count: int = 10
    fraction: float = 1.0
    """Of the devices that may train, how many a round wants."""
    minimum: int = 1
    """Devices that must have come before a round begins, and that it wants at least."""
    quorum: float = 0.5
    """Of the devices wanted, how many must answer; a round with fewer changes nothing and is tried again."""
    attempts: int = 3
    over_selection: float = 0.0
    """How many more are asked than are wanted, for those that fail: 0.3 asks 30 % more."""
    deadline: float = 600.0
    """Seconds that devices have to answer."""
    compensate: bool = False
    """Whether devices that answer rarely count more when they do."""
    seed: int = 0
    mode: Literal["sync", "async"] = "sync"

    def __post_init__(self) -> None:
        _need(self.count >= 1, "rounds.count", "at least 1", self.count)
        _need(0 < self.fraction <= 1, "rounds.fraction", "more than 0, at most 1", self.fraction)
        _need(self.minimum >= 1, "rounds.minimum", "at least 1", self.minimum)
        _need(0 < self.quorum <= 1, "rounds.quorum", "more than 0, at most 1", self.quorum)
        _need(self.attempts >= 1, "rounds.attempts", "at least 1", self.attempts)
        _need(0 <= self.over_selection <= 10, "rounds.over_selection", "from 0 to 10", self.over_selection)
        _need(self.deadline > 0, "rounds.deadline", "seconds, more than 0", self.deadline)
        _need(0 <= self.seed < 1 << 63, "rounds.seed", "from 0 to below 2^63", self.seed)


@dataclass(frozen=True)
class Buffer:
    """Rounds without waiting (`rounds.mode = "async"`): see `federated.server.asynchronous`."""

    size: int = 10
    """Updates that make one step of the server."""
    concurrency: int = 20
    """Devices that work at any time."""
    exponent: float = 0.5
    """An update that is s versions late counts 1 / (1 + s)^exponent."""
    most: int = 20
    """Versions an update may be late; later ones are refused."""

    def __post_init__(self) -> None:
        _need(self.size >= 1, "async.size", "at least 1", self.size)
        _need(self.concurrency >= 1, "async.concurrency", "at least 1", self.concurrency)
        _need(self.exponent >= 0, "async.exponent", "at least 0", self.exponent)
        _need(self.most >= 0, "async.most", "at least 0", self.most)


@dataclass(frozen=True)
class Evaluation:
    """Accuracy before and after a device adapts to `support` examples of each label, on devices that train and on ones
    that never do."""

    every: int = 5
    """Rounds between evaluations; there is one after the last in any case. 0: none at all."""
    held_out: float = 0.0
    """The share of devices that never train."""
    support: int = 5
    steps: int = 10
    batch: int = 20
    devices: int = 100
    """The most devices of each kind that are asked."""

    def __post_init__(self) -> None:
        _need(self.every >= 0, "evaluation.every", "at least 0", self.every)
        _need(0 <= self.held_out < 1, "evaluation.held_out", "a share from 0 to below 1", self.held_out)
        for key in ("support", "steps", "batch", "devices"):
            _need(getattr(self, key) >= 1, f"evaluation.{key}", "at least 1", getattr(self, key))


@dataclass(frozen=True)
class Wire:
    """Codecs by name: what devices send (`up`) and are sent (`down`)."""

    up: tuple[str, ...] = ()
    down: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        Codec.parse(self.up)
        down = Codec.parse(self.down)
        _need(
            not down.feedback and not down.find(SignDS) and (down.selection is None or follows(down)),
            "codec.down",
            'a form of values (float16, int8, int4), with "difference" before it or not, and a selection (mask, topk) '
            'only with "difference", whose next one holds what was left out: no feedback, no signds',
            list(self.down),
        )


@dataclass(frozen=True)
class Limits:
    """What an update may be; others are refused, counted and named in the report."""

    norm: float = 1e6
    """The largest Euclidean norm."""
    examples: int = 1_000_000
    """The most examples a device may claim: its weight in the mean; and labels that an evaluation may be of."""

    def __post_init__(self) -> None:
        _need(self.norm > 0, "limits.norm", "more than 0", self.norm)
        _need(self.examples >= 1, "limits.examples", "at least 1", self.examples)


@dataclass(frozen=True)
class State:
    """Files that outlive processes."""

    checkpoint: str = ""
    """The server's, written after each round; "" for none."""
    devices: str = ""
    """What simulated devices keep of their own; "" for memory. A real device's node says where its file is."""


@dataclass(frozen=True)
class Sync:
    """Where devices' personal versions go after each evaluation, of those whose owners agreed; "": nowhere."""

    store: str = ""
    only: tuple[str, ...] = ()
    """Glob patterns of the parameters that differ from device to device: these alone are tuned, so that a server
    computes the rest once for requests of many devices; (): whatever the algorithm adapts."""
    versions: int = 3
    """The newest that are kept of each device."""
    days: float = 90.0
    """How long."""

    def __post_init__(self) -> None:
        _need(self.versions >= 1, "sync.versions", "at least 1", self.versions)
        _need(self.days > 0, "sync.days", "more than 0", self.days)


@dataclass(frozen=True)
class Report:
    """What is left in the end; "" for none."""

    json: str = ""
    """Every round as a row, and the summary."""
    bundle: str = ""
    """The global model as a new bundle."""


@dataclass(frozen=True)
class Config:
    """A run. `pipeline` is what happens to updates: the sections [codec], [privacy] and [robust] put together."""

    model: Model
    algorithm: Algorithm
    data: Data = Data()
    local: Local = Local()
    rounds: Rounds = Rounds()
    buffer: Buffer = Buffer()
    evaluation: Evaluation = Evaluation()
    codec: Wire = Wire()
    limits: Limits = Limits()
    state: State = State()
    sync: Sync = Sync()
    report: Report = Report()
    pipeline: Pipeline = field(default_factory=Pipeline)
    source: Mapping[str, Any] = field(default_factory=dict)
    """The file's own words, which devices are sent parts of."""
    folder: Path = Path()
    """What relative paths are relative to."""

    def path(self, text: str) -> Path:
        """A path of the file."""
        return self.folder / text


_SECTIONS: dict[str, tuple[str, type]] = {
    "model": ("model", Model),
    "data": ("data", Data),
    "local": ("local", Local),
    "rounds": ("rounds", Rounds),
    "async": ("buffer", Buffer),
    "evaluation": ("evaluation", Evaluation),
    "codec": ("codec", Wire),
    "limits": ("limits", Limits),
    "state": ("state", State),
    "sync": ("sync", Sync),
    "report": ("report", Report),
}
_OPEN = ("privacy", "robust")
"""Read by `federated.messages.pipeline`."""


def read(path: str | os.PathLike[str]) -> Config:
    """The configuration in a TOML file; paths in it are relative to its folder. FederatedError names the key."""
    return parse(_READ.words(path), Path(path).resolve().parent)


def parse(words: Mapping[str, Any], folder: Path = Path()) -> Config:
    """The configuration that a parsed file says."""
    _READ.known(words, (*_SECTIONS, "algorithm", *_OPEN))
    if "model" not in words:
        raise FederatedError('[model]: expected this section with bundle = "FILE.mslite", got none')
    sections: dict[str, Any] = {
        into: _READ.section(kind, words[name], name) for name, (into, kind) in _SECTIONS.items() if name in words
    }
    algorithm = algorithm_from(words.get("algorithm", {"name": "fedavg"}))
    made = Config(**sections, algorithm=algorithm, source=words, folder=folder)
    pipeline = Pipeline.of(
        made.codec.up,
        words.get("privacy"),
        words.get("robust"),
        asynchronous=made.rounds.mode == "async",
        compensate=made.rounds.compensate,
    )
    if pipeline.privacy.sampling == "poisson" and made.rounds.over_selection:
        raise FederatedError(
            'rounds.over_selection: expected 0 with privacy.sampling = "poisson": who is asked must be chance alone'
        )
    return replace(made, pipeline=pipeline)


TEMPLATE = """\
# A federated run: msedge federate run.toml --simulate 0 (all devices of the shards)
#                  msedge federate run.toml --superlink 127.0.0.1:9092
# Lines behind `#` show defaults. Paths are relative to this file.

[model]
bundle = "model.mslite"        # made by: msedge convert model.onnx -o model.mslite --trainable '*'

[data]
shards = "devices.npz"         # arrays by input name, labels, device (whose each example is); or a folder of NAME.npz
# test = 0.25                  # the share of its examples a device keeps to test on

[algorithm]
name = "fedavg"                # its hyperparameters follow: rate = 0.05

[local]
# steps = 10                   # of the algorithm, in a round
# batch = 20                   # examples a step

[rounds]
count = 20
# fraction = 1.0               # of the devices, how many a round wants
# minimum = 1
# quorum = 0.5                 # of those, how many must answer
# attempts = 3                 # at a round before the run gives up
# over_selection = 0.0         # how many more are asked
# deadline = 600.0             # seconds
# compensate = false           # devices that answer rarely count more when they do
# seed = 0
# mode = "sync"                # or "async": then [async] size, concurrency, exponent, most

[evaluation]
# every = 5                    # rounds
# held_out = 0.0               # the share of devices that never train
# support = 5                  # examples of each label to adapt to
# steps = 10
# batch = 20
# devices = 100

[codec]
# up = []                      # such as ["feedback", "topk:0.05", "int8"]
# down = []                    # such as ["float16"], or ["difference", "topk:0.1", "int8"]

[privacy]
# clip = 0.0                   # the norm that updates are scaled down to; 0: none
# noise = "none"               # or "central", "local": then multiplier, or epsilon and delta
# secure = false               # the server sees sums only

[robust]
# rule = "mean"                # or norm_bound, median, trimmed_mean, krum, multi_krum, bulyan, geometric_median

[limits]
# norm = 1e6                   # of an update
# examples = 1000000           # that a device may claim

[state]
checkpoint = "run.state"       # the server's, after each round: --resume goes on from there
# devices = ""                 # what simulated devices keep

[sync]
# store = ""                   # devices' own versions, of those whose owners agreed
# only = []                    # such as ["head*"]: tune these alone; a server computes the rest once for all devices
# versions = 3
# days = 90.0

[report]
json = "run.json"
# bundle = ""                  # the global model as a new bundle
"""
