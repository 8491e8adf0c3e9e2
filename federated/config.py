"""A federated run as a TOML file: every section is a `Table`, checked as it is read; errors name the key.

A key that is not set has the default that stands here; a key that does not exist is an error.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import msgspec
from msgspec import Meta

from federated.algorithms import Algorithm, algorithm_from
from federated.codec import Codec
from federated.codec.signds import SignDS
from federated.errors import FederatedError
from federated.messages.downlink import follows
from federated.messages.pipeline import Pipeline
from federated.tables import Count, NotNegative, Positive, Reader, Seed, Share, Table, Whole

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

_READ = Reader(FederatedError, "msedge federate --init writes one")
_Part = Annotated[float, Meta(gt=0, le=1)]


class _Section(Table, frozen=True):
    """A section of a run's file."""

    reader: ClassVar[Reader] = _READ


class Model(_Section, frozen=True):
    """The bundle that devices train: `msedge convert --trainable` makes one."""

    bundle: str


class Data(_Section, frozen=True):
    """Where examples are. `shards`: one .npz with arrays by input name, `labels` and `device`, or a folder of NAME.npz;
    simulated devices are its names. A real device has data of its own: its node's configuration says where."""

    shards: str = ""
    labels: str = "labels"
    device: str = "device"
    test: Share = 0.25
    """The share of each label's examples that a device keeps to test its model on."""


class Local(_Section, frozen=True):
    """What a device does in a round: `steps` of the algorithm on batches of `batch` examples."""

    steps: Count = 10
    batch: Count = 20


class Rounds(_Section, frozen=True):
    """How many rounds, and who is in them."""

    count: Count = 10
    fraction: _Part = 1.0
    """Of the devices that may train, how many a round wants."""
    minimum: Count = 1
    """Devices that must have come before a round begins, and that it wants at least."""
    quorum: _Part = 0.5
    """Of the devices wanted, how many must answer; a round with fewer changes nothing and is tried again."""
    attempts: Count = 3
    over_selection: Annotated[float, Meta(ge=0, le=10)] = 0.0
    """How many more are asked than are wanted, for those that fail: 0.3 asks 30 % more."""
    deadline: Positive = 600.0
    """Seconds that devices have to answer."""
    compensate: bool = False
    """Whether devices that answer rarely count more when they do."""
    seed: Seed = 0
    mode: Literal["sync", "async"] = "sync"


class Buffer(_Section, frozen=True):
    """Rounds without waiting (`rounds.mode = "async"`): see `federated.server.asynchronous`."""

    size: Count = 10
    """Updates that make one step of the server."""
    concurrency: Count = 20
    """Devices that work at any time."""
    exponent: NotNegative = 0.5
    """An update that is s versions late counts 1 / (1 + s)^exponent."""
    most: Whole = 20
    """Versions an update may be late; later ones are refused."""


class Evaluation(_Section, frozen=True):
    """Accuracy before and after a device adapts to `support` examples of each label, on devices that train and on ones
    that never do."""

    every: Whole = 5
    """Rounds between evaluations; there is one after the last in any case. 0: none at all."""
    held_out: Share = 0.0
    """The share of devices that never train."""
    support: Count = 5
    steps: Count = 10
    batch: Count = 20
    devices: Count = 100
    """The most devices of each kind that are asked."""


class Wire(_Section, frozen=True):
    """Codecs by name: what devices send (`up`) and are sent (`down`)."""

    up: tuple[str, ...] = ()
    down: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        Codec.parse(self.up)
        down = Codec.parse(self.down)
        _READ.need(
            not down.feedback and not down.find(SignDS) and (down.selection is None or follows(down)),
            "codec.down",
            'a number format (float16, int8, int4), with "difference" before it or not, and a selection (mask, topk) '
            'only with "difference", since the next difference includes what was left out; no feedback, no signds',
            list(self.down),
        )


class Limits(_Section, frozen=True):
    """What an update may be; others are refused, counted and named in the report."""

    norm: Positive = 1e6
    """The largest Euclidean norm."""
    examples: Count = 1_000_000
    """The most examples a device may claim: its weight in the mean; and labels that an evaluation may be of."""


class State(_Section, frozen=True):
    """Files that outlive processes."""

    checkpoint: str = ""
    """The server's, written after each round; "" for none."""
    devices: str = ""
    """What simulated devices keep of their own; "" for memory. A real device's node says where its file is."""


class Sync(_Section, frozen=True):
    """Where devices' personal versions go after each evaluation, of those whose owners agreed; "": nowhere."""

    store: str = ""
    only: tuple[str, ...] = ()
    """Glob patterns of the parameters that differ from device to device: these alone are tuned, so that a server
    computes the rest once for requests of many devices; (): whatever the algorithm adapts."""
    versions: Count = 3
    """The newest that are kept of each device."""
    days: Positive = 90.0
    """How long."""


class Report(_Section, frozen=True):
    """What is left in the end; "" for none."""

    json: str = ""
    """Every round as a row, and the summary."""
    bundle: str = ""
    """The global model as a new bundle."""


class _Sections(_Section, frozen=True):
    """The sections that a run uses as they are."""

    model: Model
    data: Data = Data()
    local: Local = Local()
    rounds: Rounds = Rounds()
    buffer: Buffer = msgspec.field(default=Buffer(), name="async")
    evaluation: Evaluation = Evaluation()
    codec: Wire = Wire()
    limits: Limits = Limits()
    state: State = State()
    sync: Sync = Sync()
    report: Report = Report()


class _File(_Sections, frozen=True):
    """The file whole, with the sections that `algorithm_from` and `Pipeline.of` read."""

    algorithm: Mapping[str, Any] = msgspec.field(default_factory=lambda: {"name": "fedavg"})
    privacy: Mapping[str, Any] = msgspec.field(default_factory=dict)
    robust: Mapping[str, Any] = msgspec.field(default_factory=dict)


class Config(_Sections, frozen=True, kw_only=True):
    """A run. `pipeline` is what happens to updates: the sections [codec], [privacy] and [robust] put together."""

    algorithm: Algorithm
    pipeline: Pipeline = msgspec.field(default_factory=Pipeline)
    source: Mapping[str, Any] = msgspec.field(default_factory=dict)
    """The file's own words, which devices are sent parts of."""
    folder: Path = Path()
    """What relative paths are relative to."""

    def __post_init__(self) -> None:
        """Nothing: its parts were checked when they were made."""

    def path(self, text: str) -> Path:
        """A path of the file."""
        return self.folder / text


def read(path: str | os.PathLike[str]) -> Config:
    """The configuration in a TOML file; paths in it are relative to its folder. FederatedError names the key."""
    return parse(_READ.file(path), Path(path).resolve().parent)


def parse(words: Mapping[str, Any], folder: Path = Path()) -> Config:
    """The configuration that a parsed file describes. Raises FederatedError."""
    file = _READ.read(_File, words)
    parts = msgspec.structs.asdict(file)
    privacy, robust = parts.pop("privacy"), parts.pop("robust")
    pipeline = Pipeline.of(
        file.codec.up,
        privacy,
        robust,
        asynchronous=file.rounds.mode == "async",
        compensate=file.rounds.compensate,
    )
    if pipeline.privacy.sampling == "poisson" and file.rounds.over_selection:
        raise FederatedError(
            'rounds.over_selection: expected 0 with privacy.sampling = "poisson": chance alone must choose devices'
        )
    parts["algorithm"] = algorithm_from(file.algorithm)
    return Config(**parts, pipeline=pipeline, source=words, folder=folder)


TEMPLATE = """\
# A federated run: msedge federate run.toml --simulate 0 (all devices of the shards)
#                  msedge federate run.toml --superlink 127.0.0.1:9092
# Lines that begin with `#` show defaults. Paths are relative to this file.

[model]
bundle = "model.mslite"        # made by: msedge convert model.onnx -o model.mslite --trainable '*'

[data]
shards = "devices.npz"         # arrays by input name, labels, device (owner of each example); or a folder of NAME.npz
# test = 0.25                  # the share of its examples that a device keeps for testing

[algorithm]
name = "fedavg"                # its hyperparameters follow: rate = 0.05

[local]
# steps = 10                   # local steps per round
# batch = 20                   # examples per step

[rounds]
count = 20
# fraction = 1.0               # the share of the devices that a round wants
# minimum = 1
# quorum = 0.5                 # the share of those that must answer
# attempts = 3                 # at one round before the run fails
# over_selection = 0.0         # the share of additional devices that are asked
# deadline = 600.0             # seconds until a round ends
# compensate = false           # answers of devices that answer rarely get more weight
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
checkpoint = "run.state"       # the server's, after each round: --resume continues from it
# devices = ""                 # the state of simulated devices

[sync]
# store = ""                   # personal versions, of devices whose owners agreed
# only = []                    # such as ["head*"]: tune only these; a server computes the rest once for all devices
# versions = 3
# days = 90.0

[report]
json = "run.json"
# bundle = ""                  # the global model as a new bundle
"""
