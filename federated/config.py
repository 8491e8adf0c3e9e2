"""A federated run as a TOML file: every section is a `Table`, checked as it is read; errors name the key.

A key that is not set has the default given here; a key that does not exist is an error.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import msgspec
from msgspec import Meta

from federated.algorithms import Algorithm, algorithm_from
from federated.codec import Codec
from federated.codec.signds import SignDS
from federated.errors import FederatedError
from federated.messages.downlink import follows
from federated.messages.transforms import Transforms
from federated.schedule import Schedule
from federated.tables import Count, NotNegative, Positive, Reader, Seed, Share, Table, Whole

__all__ = [
    "TEMPLATE",
    "Buffer",
    "Config",
    "Data",
    "Evaluation",
    "Gate",
    "Hierarchy",
    "History",
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
    simulated devices are its names. For a real device, its node's configuration gives the path of its data, and the
    names of its arrays as `labels` and `owners`."""

    shards: str = ""
    labels: str = "labels"
    device: str = "device"
    test: Share = 0.25
    """The share of its examples that a device keeps to test its model, of every label in proportion. With two examples
    or more, at least one is kept and at least one is trained on."""


class Local(_Section, frozen=True):
    """The local work of a round: `steps` of the algorithm on batches of `batch` examples."""

    steps: Count = 10
    batch: Count = 20


class Rounds(_Section, frozen=True):
    """The number of rounds, and which devices take part."""

    count: Count = 10
    fraction: _Part = 1.0
    """The share of the devices that may train that a round wants."""
    minimum: Count = 1
    """The number of devices that must be there before a round begins, and the least that it wants."""
    quorum: _Part = 0.5
    """The share of wanted devices that must answer; a round with fewer changes nothing and is repeated."""
    attempts: Count = 3
    over_selection: Annotated[float, Meta(ge=0, le=10)] = 0.0
    """The share of additional devices that are asked because some fail: 0.3 asks 30 % more than wanted."""
    deadline: Positive = 600.0
    """Seconds within which devices must answer."""
    compensate: bool = False
    """Whether answers of devices that answer rarely get more weight."""
    seed: Seed = 0
    mode: Literal["sync", "async"] = "sync"


class Hierarchy(_Section, frozen=True):
    """Aggregators between the devices and this server, the root (`federated.hierarchy`). Each is a server of its own
    devices under the same [rounds], and hands up one sum."""

    aggregators: tuple[Count, ...] = ()
    """How many aggregators answer to the root, to each of these, and so on; the last ones have devices. (): none, the
    devices answer to the root."""
    quorum: _Part = 0.5
    """The share of a server's aggregators that must hand up a sum; a round with fewer changes nothing."""
    deadline: Positive = 1800.0
    """Seconds within which an aggregator must answer, longer than its devices may take."""
    influence: NotNegative = 10.0
    """The largest weight of an aggregator, and the largest weight times norm, as a multiple of the median of the
    aggregators of the same server, to which others are cut; 0: no limit."""


class Buffer(_Section, frozen=True):
    """Asynchronous rounds (`rounds.mode = "async"`): see `federated.server.asynchronous`."""

    size: Count = 10
    """The number of updates per server step."""
    concurrency: Count = 20
    """The number of devices that work at the same time."""
    exponent: NotNegative = 0.5
    """An update that is s versions late has weight 1 / (1 + s)^exponent."""
    most: Whole = 20
    """The most versions that an update may be late; later ones are refused."""


class Evaluation(_Section, frozen=True):
    """Accuracy before and after a device adapts to `support` examples of each label, on devices that train and on
    held-out ones."""

    every: Whole = 5
    """Rounds between evaluations; there is always one after the last. 0: no evaluation."""
    held_out: Share = 0.0
    """The share of held-out devices, which never train."""
    training: bool = True
    """Whether devices that train are evaluated too."""
    support: Count = 5
    steps: Whole = 10
    """Steps of adapting; 0: devices do not adapt, and held-out ones are tested on all their examples."""
    batch: Count = 20
    devices: Count = 100
    """The most devices of each kind that are evaluated."""


class Gate(_Section, frozen=True):
    """What the last evaluation must show before the model is written to `report.bundle`. A run that does not pass fails
    and keeps its checkpoint."""

    against: Literal["none", "start", "previous"] = "none"
    """The model that it must not be worse than: the start's, which is then evaluated before the first round, or that of
    the previous evaluation (if there is none, the start's)."""
    figure: Literal["accuracy_before", "accuracy_after", "loss_before", "loss_after"] = "accuracy_before"
    """What is compared, before or after adapting: the mean accuracy, or the median loss, over the devices of each
    kind."""
    margin: NotNegative = 0.0
    """By how much it may be worse."""
    answered: Annotated[float, Meta(ge=0, le=1, description="a share from 0 to 1")] = 0.0
    """The share of the devices asked that must answer the evaluation."""

    @property
    def active(self) -> bool:
        """Whether anything is demanded."""
        return self.against != "none" or self.answered > 0


class Wire(_Section, frozen=True):
    """Codecs by name: for messages from devices (`up`) and to devices (`down`)."""

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
    """Limits of an update; others are refused, counted and named in the report. `outlier` and `influence` are explained
    in `federated.server.influence`; robust rules and central noise have their own."""

    norm: Positive = 1e6
    """The largest Euclidean norm."""
    outlier: NotNegative = 10.0
    """The largest norm as a multiple of the round's median norm; 0: no limit."""
    influence: NotNegative = 3.0
    """The largest weight, and the largest weight times norm, as a multiple of the round's median, to which others are
    cut; 0: no limit."""
    examples: Count = 1_000_000
    """The most examples that a device may claim, which is its weight in the mean, and the most labels of an
    evaluation."""


class State(_Section, frozen=True):
    """Files with state that survives processes."""

    checkpoint: str = ""
    """The server's checkpoint, written after each round; "" for none."""
    devices: str = ""
    """The state of simulated devices; "" for memory. For a real device, its node's configuration gives the path."""


class History(_Section, frozen=True):
    """Earlier rounds that are kept next to the checkpoint: `msedge federate --return-to` continues from one of them."""

    keep: Whole = 0
    """How many of the newest are kept; 0: none."""
    every: Count = 1
    """Only rounds whose number this divides are kept, and the last one."""


class Sync(_Section, frozen=True):
    """The store of personal versions, filled after each evaluation from devices whose owners agreed; "": none."""

    store: str = ""
    only: tuple[str, ...] = ()
    """Glob patterns of the parameters that differ from device to device: only these are tuned and sent, so that a
    server computes the rest once for requests of many devices; (): all that the algorithm adapts."""
    versions: Count = 3
    """The number of newest versions kept per device."""
    days: Positive = 90.0
    """The retention in days."""
    consent: Literal["none", "backup", "serve"] = "none"
    """The consent of simulated devices. A real device has its owner's, which its node's configuration gives."""


class Report(_Section, frozen=True):
    """Files written at the end; "" for none."""

    json: str = ""
    """A JSON file with a row per round, and the summary."""
    bundle: str = ""
    """The global model as a new bundle."""
    adapter: str = ""
    """What was learned beside a language model, as an adapter of the run's bundle (.msstate)."""


class _Sections(_Section, frozen=True):
    """The sections that a run uses directly."""

    model: Model
    data: Data = Data()
    local: Local = Local()
    rounds: Rounds = Rounds()
    schedule: Schedule = Schedule()
    hierarchy: Hierarchy = Hierarchy()
    buffer: Buffer = msgspec.field(default=Buffer(), name="async")
    evaluation: Evaluation = Evaluation()
    gate: Gate = Gate()
    codec: Wire = Wire()
    limits: Limits = Limits()
    state: State = State()
    history: History = History()
    sync: Sync = Sync()
    report: Report = Report()


class _File(_Sections, frozen=True):
    """The whole file, with the sections that `algorithm_from` and `Transforms.of` read."""

    algorithm: Mapping[str, Any] = msgspec.field(default_factory=lambda: {"name": "fedavg"})
    privacy: Mapping[str, Any] = msgspec.field(default_factory=dict)
    robust: Mapping[str, Any] = msgspec.field(default_factory=dict)


class Config(_Sections, frozen=True, kw_only=True):
    """A run. `transforms`: the update transforms, which are the sections [codec], [privacy] and [robust] combined."""

    algorithm: Algorithm
    transforms: Transforms = msgspec.field(default_factory=Transforms)
    source: Mapping[str, Any] = msgspec.field(default_factory=dict)
    """The parsed file; parts of it are sent to devices."""
    folder: Path = Path()
    """The base of relative paths."""

    def __post_init__(self) -> None:
        """Does nothing: its parts were checked when they were created."""

    def path(self, text: str) -> Path:
        """A path in the file, resolved."""
        return self.folder / text


def read(path: str | os.PathLike[str]) -> Config:
    """The configuration in a TOML file; paths in it are relative to its folder. Raises FederatedError, naming the
    key."""
    return parse(_READ.file(path), Path(path).resolve().parent)


def parse(words: Mapping[str, Any], folder: Path = Path()) -> Config:
    """The configuration that a parsed file describes. Raises FederatedError."""
    file = _READ.read(_File, words)
    parts = msgspec.structs.asdict(file)
    privacy, robust = parts.pop("privacy"), parts.pop("robust")
    transforms = Transforms.of(
        file.codec.up,
        privacy,
        robust,
        asynchronous=file.rounds.mode == "async",
        compensate=file.rounds.compensate,
        aggregators=bool(file.hierarchy.aggregators),
    )
    if transforms.privacy.sampling == "poisson" and file.rounds.over_selection:
        raise FederatedError(
            'rounds.over_selection: expected 0 with privacy.sampling = "poisson": chance alone must choose devices'
        )
    _READ.need(not file.gate.active or file.evaluation.every > 0, "evaluation.every", "at least 1 with [gate]", 0)
    evaluation, kept = file.evaluation, bool(file.sync.store)
    _READ.need(evaluation.steps > 0 or not kept, "evaluation.steps", "at least 1 with sync.store", evaluation.steps)
    tested = evaluation.training or evaluation.held_out > 0 or not evaluation.every
    _READ.need(tested, "evaluation.held_out", "a share above 0 with training = false", evaluation.held_out)
    _READ.need(not file.history.keep or bool(file.state.checkpoint), "state.checkpoint", "a path with history.keep", "")
    _check_hierarchy(file)
    parts["algorithm"] = algorithm_from(file.algorithm)
    made = Config(**parts, transforms=transforms, source=words, folder=folder)
    _refuse_idle(made)
    made.schedule.check(made.algorithm)
    features = made.transforms.features | ({"history"} if file.history.keep else set())
    for feature in sorted(features & made.algorithm.excludes.keys()):
        why = made.algorithm.excludes[feature]
        raise FederatedError(f"these settings cannot be combined: {made.algorithm.name} with {feature}: {why}")
    return made


def _check_hierarchy(file: _File) -> None:
    """Raises FederatedError for sections that do not go with aggregators, and times that do not."""
    if not file.hierarchy.aggregators:
        return
    if file.sync.store:
        raise FederatedError(
            "these settings cannot be combined: sync.store with hierarchy.aggregators: personal versions would pass "
            "through every server on the way up"
        )
    slowest = file.rounds.deadline
    _READ.need(file.hierarchy.deadline > slowest, "hierarchy.deadline", f"more than rounds.deadline, {slowest:g}",
               file.hierarchy.deadline)  # fmt: skip


def _refuse_idle(config: Config) -> None:
    """Raises FederatedError for a key that another key leaves without effect, if it differs from its default."""
    sections: Mapping[str, Table] = {
        "rounds": config.rounds,
        "async": config.buffer,
        "hierarchy": config.hierarchy,
        "evaluation": config.evaluation,
        "history": config.history,
        "sync": config.sync,
        "privacy": config.transforms.privacy,
    }
    for section, keys, acts, needed in _IDLE:
        for key in () if acts(config) else keys:
            value = getattr(sections[section], key)
            if value != getattr(type(sections[section])(), key):
                raise FederatedError(f"{section}.{key}: has no effect without {needed}; got {_shown(value)}; omit it")


def _shown(value: object) -> str:
    return repr(list(value) if isinstance(value, tuple) else value)[:80]


_IDLE: tuple[tuple[str, tuple[str, ...], Callable[[Config], bool], str], ...] = (
    ("async", Buffer.__struct_fields__, lambda c: c.rounds.mode == "async", 'rounds.mode = "async"'),
    (
        "rounds",
        ("fraction", "quorum", "over_selection"),
        lambda c: c.rounds.mode == "sync",
        'rounds.mode = "sync" (asynchronous rounds have async.concurrency and async.size)',
    ),
    (
        "hierarchy",
        ("quorum", "deadline", "influence"),
        lambda c: bool(c.hierarchy.aggregators),
        "hierarchy.aggregators",
    ),
    ("evaluation", ("support", "batch"), lambda c: c.evaluation.steps > 0, "evaluation.steps"),
    ("history", ("every",), lambda c: c.history.keep > 0, "history.keep"),
    ("sync", ("only", "versions", "days", "consent"), lambda c: bool(c.sync.store), "sync.store"),
    (
        "privacy",
        ("multiplier", "epsilon", "delta", "evaluation", "most_loss"),
        lambda c: c.transforms.privacy.noise != "none",
        "privacy.noise",
    ),
    ("privacy", ("threshold", "bits"), lambda c: c.transforms.privacy.secure, "privacy.secure = true"),
    ("privacy", ("count_noise",), lambda c: c.transforms.privacy.adaptive > 0, "privacy.adaptive"),
)
"""(section, keys, when they have an effect, what that needs)"""


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
name = "fedavg"                # its hyperparameters follow (docs/algorithms.md): rate = 0.05
# momentum = 0.0               # of the steps on a device
# clip_norm = 0.0              # the largest norm of a step's gradients; 0: any
# weight_decay = 0.0           # of matrices and filters

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

[schedule]
# local = "constant"           # of the rate of devices' steps over the rounds: or "step" (every, factor), "cosine"
# server = "constant"          # of server_rate
# warmup = 0                   # rounds in which both rise to the full rate
# every = 10                   # step: rounds until the rate is multiplied by factor again
# factor = 0.5
# rounds = 0                   # cosine: its last round, after which the factor is `least`; 0: the run's last
# least = 0.0

[hierarchy]                    # aggregators between the devices and this server (docs/federated-hierarchy.md)
# aggregators = []             # such as [10], or [4, 25]: four servers, each with 25 that have devices
# quorum = 0.5                 # the share of a server's aggregators that must hand up a sum
# deadline = 1800.0            # seconds until an aggregator must have answered
# influence = 10.0             # times the median of the aggregators: the most that one counts; 0: no limit

[evaluation]
# every = 5                    # rounds
# held_out = 0.0               # the share of held-out devices, which never train
# training = true              # whether devices that train are evaluated too
# support = 5                  # examples of each label to adapt to
# steps = 10                   # of adapting; 0: none, and held-out devices are tested on all their examples
# batch = 20
# devices = 100

[gate]                         # what the last evaluation must show before report.bundle is written
# against = "none"             # or "start", "previous": the model that it must not be worse than
# figure = "accuracy_before"   # or accuracy_after, loss_before, loss_after (adapting)
# margin = 0.0                 # by how much it may be worse
# answered = 0.0               # the share of the devices asked that must answer

[codec]
# up = []                      # such as ["feedback", "topk:0.05", "int8"]
# down = []                    # such as ["float16"], or ["difference", "topk:0.1", "int8"]

[privacy]
# clip = 0.0                   # the norm that updates are scaled down to; 0: none
# noise = "none"               # or "central", "local": then multiplier, or epsilon and delta
# evaluation = "noisy"         # with noise: evaluations get noise and are charged; or "open"
# most_loss = 10.0             # with noise: larger losses count as this much in evaluations
# secure = false               # the server sees sums only
# model = "malicious"          # the server that secure sums assume; or "honest-but-curious", which needs less

[robust]
# rule = "mean"                # or norm_bound, median, trimmed_mean, krum, multi_krum, bulyan, geometric_median

[limits]
# norm = 1e6                   # of an update
# outlier = 10.0               # times the round's median norm: larger updates are refused; 0: no limit
# influence = 3.0              # times the round's median: the most that one device counts; 0: no limit
# examples = 1000000           # that a device may claim

[state]
checkpoint = "run.state"       # the server's, after each round: --resume continues from it
# devices = ""                 # the state of simulated devices

[history]                      # earlier rounds that --history lists and --return-to continues from
# keep = 0                     # how many of the newest are kept; 0: none
# every = 1                    # only rounds whose number this divides, and the last

[sync]
# store = ""                   # personal versions, of devices whose owners agreed
# only = []                    # such as ["head*"]: tune and send only these; the rest is computed once for all
# versions = 3
# days = 90.0
# consent = "none"             # of simulated devices: "backup" or "serve"; a real device has its owner's

[report]
json = "run.json"
# bundle = ""                  # the global model as a new bundle
# adapter = ""                 # of a language model: what was learned, for msedge chat --adapter
"""
