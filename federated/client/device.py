"""A device: it answers messages, which are bytes, with bytes, independently of the transport.

A message is a packed object and tree (`federated.messages.packed`); `kind` is the request:

    hello     -> hello       the device's name, how many examples it has (1 where the number is private), its bundle
    train     -> update      the algorithm's local work on the device's data, encoded
    secure    -> secure      a stage of a secure sum (`federated.server.secure_round`)
    sync      -> personal    its personal version of the model, if its owner agreed
    evaluate  -> evaluation  sums before and after adapting to a few examples, or shares with noise
    question  -> answer      a contribution to a sum (`federated.analytics`)

An invalid message is answered with a refusal that gives the reason. All randomness follows from the run's seed, the
round and the device's name, and personal state from an earlier round: a repeated request gets the same answer.
"""

from __future__ import annotations

import hmac
import math
from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from hashlib import sha256
from typing import Any, TypeAlias, cast

import numpy as np

from federated import tree
from federated.algorithms import Algorithm, algorithm_from
from federated.algorithms.steps import tune
from federated.analytics.base import Asked, question_digest
from federated.analytics.registry import question_from
from federated.client.demands import Demands
from federated.client.identity import identity
from federated.client.state import StateStore
from federated.codec import Codec, Spec
from federated.data import draw, pick, size, split, support_query
from federated.errors import FederatedError
from federated.evaluation import WIDEST, before_after, shares
from federated.evaluation import told as loss_told
from federated.learner import Batch, Evaluation, Indexed, Learner
from federated.messages import fields
from federated.messages.agreement import work_digest
from federated.messages.downlink import Behind, catch_up, first, follows, read_whole
from federated.messages.packed import pack, unpack
from federated.messages.transforms import Privacy, Transforms
from federated.privacy.accountant import Accountant
from federated.privacy.noise import NoiseSource, SecureSource
from federated.privacy.secure import FixedPoint, Identity, SecureDevice, Stage
from federated.server.rounds import seed_of
from federated.tree import Tree
from lite_runtime.errors import MsedgeError

__all__ = ["VERSION", "Device"]

VERSION = 2
"""The version of the messages; both ends must have the same."""
TUNING = 0.05
"""The rate of SGD for algorithms without such a hyperparameter."""

Reply: TypeAlias = tuple[dict[str, Any], Tree]


@dataclass(frozen=True)
class Task:
    """A decoded message: what every device of a round has to do."""

    meta: Mapping[str, Any]
    broadcast: Tree
    algorithm: Algorithm
    transforms: Transforms

    @property
    def round(self) -> int:
        """The round's number, from 1."""
        return int(self.meta["round"])

    def told(self, loss: Any, within: float) -> dict[str, float | None]:
        """What a device reports besides its update: nothing that noise or masks are meant to hide. The loss of a device
        that diverged is None, which the server refuses."""
        privacy = self.transforms.privacy
        told: dict[str, float | None] = {"within": within} if privacy.adaptive else {}
        return told if self.transforms.quiet else told | {"loss": loss_told(loss)}

    def rng(self, what: str, device: str) -> np.random.Generator:
        """The generator of one device in one round."""
        return np.random.default_rng(seed_of(self.meta["seed"], what, self.round, device))


@dataclass
class Device:
    """`bundle`: the digest of the learner's bundle."""

    name: str
    learner: Learner
    data: Batch
    store: StateStore
    bundle: str
    source: NoiseSource | None = None
    """The source of local noise; None: the operating system's generator."""
    consent: str = "none"
    """The owner's consent: see `federated.server.store.CONSENTS`."""
    demands: Demands = field(default_factory=Demands)
    """The privacy that the owner demands before an update leaves."""
    peers: frozenset[bytes] | None = None
    """The public keys of devices that may take part in secure sums with a malicious server; None: those of the first
    contact."""

    def answer(self, message: bytes) -> bytes:
        """The reply. Raises FederatedError only for bytes that are not a message at all."""
        meta, _ = _opened(message)
        try:
            reply, content = _KINDS[_kind(message)](self, message)
        except MsedgeError as error:
            reply, content = {"kind": "refusal", "why": str(error)[:500]}, {}
            if isinstance(error, Behind):
                reply["behind"] = True
        same = {key: meta[key] for key in ("run", "round", "attempt") if key in meta}
        return pack({"version": VERSION, "device": self.name} | same | reply, content)

    def hello(self, message: bytes) -> Reply:
        """Who this is. A run greets a device when it begins: state of earlier runs is deleted then, including the
        secrets of their sums. `proof` shows that a device which returns as another node has the state of the one that
        joined; it differs from run to run, so that one server cannot use it in another's run."""
        words, _ = _opened(message)
        run, hidden = str(words["run"]), words.get("private") is True or self.demands.noisy
        self.store.forget_others(self.name, (run, _model(run)))
        proof = hmac.digest(self.store.secret(self.name), run.encode(), "sha256").hex()
        count = 1 if hidden else size(self.data)
        return {"kind": "hello", "examples": count, "bundle": self.bundle, "proof": proof}, {}

    def train(self, message: bytes) -> Reply:
        """A round's work."""
        task = self._task(message)
        algorithm, run, meta = task.algorithm, str(task.meta["run"]), task.meta
        self.demands.check(task.transforms.privacy, meta["multiplier"])
        self._spend(task.transforms.privacy, run, float(meta["multiplier"]))
        personal = algorithm.enrol(task.broadcast)
        kept = (self.store.load(self.name, run, task.round) or {}) if personal or task.transforms.codec.feedback else {}
        train, _ = self._parts(task)
        rng = task.rng("train", self.name)
        rows = Batch({}, np.arange(size(train)))
        batches = draw(rows, rng, meta["steps"] * algorithm.batches_a_step, meta["batch"])
        learner = algorithm.shaped(Indexed(self.learner, train))
        update, personal = algorithm.local(learner, task.broadcast, kept.get("personal") or personal, batches)
        leaving = task.transforms.outgoing(update.payload, self.source or SecureSource(), meta["multiplier"])
        residual: Tree = {}
        if task.transforms.privacy.secure:
            data = self._masked(message, task, leaving.tree, 1.0 if algorithm.uniform else size(train), rng)
        else:
            data, residual = _encode(task.transforms.codec, leaving.tree, rng, kept.get("residual"))
        if personal or residual:
            self.store.save(self.name, run, task.round, {"personal": personal, "residual": residual})
        count = 1 if task.transforms.quiet else size(train)
        return {"kind": "update", "examples": count} | task.told(update.loss, leaving.within), {"data": data}

    def _spend(self, privacy: Privacy, run: str, multiplier: float) -> None:
        """Charge a message with noise to this device's own account of the run, before it leaves. Raises FederatedError
        if its owner does not allow that much. The server's noise counts as if this device took part in every round."""
        if privacy.noise == "none":
            return
        if self.demands.most_epsilon < math.inf:
            account = Accountant().charge(multiplier)
            for noise, count in self.store.spent(self.name, run).items():
                account = account.charge(noise, 1.0, count)
            self.demands.check_spent(account)
        self.store.spend(self.name, run, multiplier)

    def secure(self, message: bytes) -> Reply:
        """A stage of a secure sum other than `train`. Its secrets are kept only between its messages: those of a sum
        that was not completed are deleted when the next one begins. That an answer was given is kept for ever, and
        before it leaves: a device takes part in one sum of a round, and answers each stage once."""
        meta, body = _opened(message)
        request = body["secure"].tobytes()
        if meta["stage"] == "keys":
            party = SecureDevice(request, int(meta["number"]), identity=self._identity())
            self.demands.check_sum(party.terms.least, party.terms.malicious)
            answer = party.keys()
            self.store.begin_sum(self.name, str(meta["run"]), int(meta["round"]), Stage.KEYS)
            self.store.forget(self.name, "sum *")
            self._store_party(meta, party)
        else:
            party = self._party(meta)
            stage = party.stage
            answer = _STAGES[meta["stage"]](party, request)
            self._step(meta, stage, party)
        return {"kind": "secure"}, {"data": np.frombuffer(answer, np.uint8)}

    def question(self, message: bytes) -> Reply:
        """A contribution to a sum of what devices hold, masked in a secure sum. Raises FederatedError for a question
        that the owner does not allow, or that makes no sense."""
        meta, body = _opened(message)
        arrays = body.get("arrays", {})
        if not isinstance(arrays, dict) or not all(isinstance(value, np.ndarray) for value in arrays.values()):
            raise FederatedError("question: expected arrays by name")
        asked = Asked.of(question_from(meta["question"]), meta, arrays)
        self.demands.check_features(asked.question.features or (*self.data.inputs, "labels"))
        self.demands.check(asked.privacy, asked.multiplier)
        self._spend(asked.privacy, str(meta["run"]), asked.multiplier)
        # The same examples answer all questions of a run: no other ones are revealed by asking again.
        rng = np.random.default_rng(seed_of(meta["seed"], "question", self.name))
        vector = asked.vector(self.data, rng, self.source or SecureSource())
        if not asked.privacy.secure:
            return {"kind": "answer"}, {"data": vector}
        if "secure" not in body:
            raise FederatedError("question: expected a message of the secure sum")
        digest, party = question_digest(meta, arrays), self._party(meta)
        if party.terms.work != digest:
            raise FederatedError("secure sum: expected the question that all devices agreed on, got another")
        masked = party.masked(body["secure"].tobytes(), vector.astype(np.int32).view(np.uint32))
        self._step(meta, Stage.MASKED, party, sha256(digest + vector.tobytes()).digest())
        return {"kind": "answer"}, {"data": np.frombuffer(masked, np.uint8)}

    def _identity(self) -> Identity:
        return identity(self.store, self.name, self.peers)

    def _step(self, meta: Mapping[str, Any], answered: Stage, party: SecureDevice, put: bytes | None = None) -> None:
        """Enter an answer in the ledger, then keep what the next one needs."""
        before = Stage.MASKED if answered == Stage.REVEALED and not party.terms.malicious else Stage(answered - 2)
        self.store.advance_sum(self.name, str(meta["run"]), int(meta["round"]), before, answered, put)
        self._store_party(meta, party)

    def _store_party(self, meta: Mapping[str, Any], party: SecureDevice) -> None:
        left = party.save() if party.stage != Stage.TERMS else b""
        self.store.save(self.name, _slot(meta), int(meta["round"]), {"party": np.frombuffer(left, np.uint8)})

    def _masked(self, message: bytes, task: Task, update: Tree, weight: float, rng: np.random.Generator) -> np.ndarray:
        """The update on the sum's grid, masked (uint8 [n])."""
        _, body = _opened(message)
        words = task.meta.get("secure")
        known = {"bound", "devices", "bits", "heaviest"}
        if not (isinstance(words, dict) and set(words) == known and "secure" in body):
            raise FederatedError(f"train: expected the terms of a secure sum, got {str(words)[:80]}")
        if not all(isinstance(value, _NUMBER) for value in words.values()):
            raise FederatedError(f"train: expected numbers as the terms of a secure sum, got {str(words)[:80]}")
        grid = FixedPoint(**words)
        party = self._party(task.meta)
        if party.terms.work != work_digest(task.meta, task.broadcast):
            raise FederatedError(
                "secure sum: expected the model and the work that all devices of the sum agreed on, got others; the "
                "server must send the same to all of them"
            )
        weight = 1.0 if task.transforms.uniform else weight
        vector = grid.quantise(update, min(weight, grid.heaviest), Spec.of(update), rng).vector
        answer = party.masked(body["secure"].tobytes(), vector)
        self._step(task.meta, Stage.MASKED, party, _input_digest(update))
        return np.frombuffer(answer, np.uint8)

    def _party(self, meta: Mapping[str, Any]) -> SecureDevice:
        kept = self.store.load(self.name, _slot(meta), int(meta["round"]) + 1) or {}
        if not len(kept.get("party", ())):
            raise FederatedError("secure sum: expected keys that this device made for this round, got none; wait for "
                                 "the next round")
        return SecureDevice.restore(kept["party"].tobytes(), self._identity())

    def evaluate(self, message: bytes) -> Reply:
        """How good the model is on this device, before and after adapting. Devices that train adapt to examples of
        their training part and are tested on the others; held-out devices are tested on all their other examples."""
        task = self._task(message)
        meta = task.meta
        self.demands.check_evaluation(task.transforms.privacy, meta["multiplier"])
        personal = task.algorithm.enrol(task.broadcast)
        kept = (self.store.load(self.name, str(meta["run"]), task.round + 1) or {}) if personal else {}
        batches, query = self._tested(task)
        own = kept.get("personal") or personal
        if batches is None:
            before = after = self.learner.evaluate(task.algorithm.start(task.broadcast, own), query)
        else:
            learner = task.algorithm.shaped(self.learner)
            before, after = before_after(task.algorithm, learner, task.broadcast, own, batches, query)
        if task.transforms.noisy_evaluation:
            return {"kind": "evaluation", "shares": self._noisy(task, before, after)}, {}
        return {"kind": "evaluation", "before": _sums(before), "after": _sums(after)}, {}

    def _tested(self, task: Task) -> tuple[Batch | None, Batch]:
        """Batches to adapt on (None: the device does not adapt), and the examples tested on."""
        meta, rng = task.meta, task.rng("evaluate", self.name)
        if not meta["steps"]:
            return None, self.data if meta["held_out"] else self._parts(task)[1]
        if meta["held_out"]:
            support, query = support_query(self.data, meta["support"], rng)
        else:
            train, query = self._parts(task)
            support, _ = support_query(train, meta["support"], rng)
        return draw(support, rng, meta["steps"], min(meta["batch"], size(support))), query

    def _noisy(self, task: Task, before: Evaluation, after: Evaluation) -> list[float]:
        """An evaluation to which noise is added, here or by the server."""
        privacy, multiplier = task.transforms.privacy, float(task.meta["multiplier"])
        self._spend(privacy, str(task.meta["run"]), multiplier)
        found = shares(before, after, float(task.meta["lowest"]), privacy.most_loss)
        if privacy.noise == "local":
            found = found + WIDEST * multiplier * (self.source or SecureSource()).normal(len(found))
        return [float(share) for share in found]

    def personal(self, message: bytes) -> Reply:
        """This device's personal version of the model, adapted to its examples, if its owner agreed to send it: all
        parameters, or only those that the message asks for."""
        if self.consent == "none":
            return {"kind": "personal", "consent": "none"}, {}
        task = self._task(message)
        self.demands.check_version(task.broadcast["params"], [str(pattern) for pattern in task.meta["only"]])
        own = task.algorithm.enrol(task.broadcast)
        kept = (self.store.load(self.name, str(task.meta["run"]), task.round + 1) or {}) if own else {}
        train, _ = self._parts(task)
        rng = task.rng("personal", self.name)
        batches = draw(train, rng, task.meta["steps"], min(task.meta["batch"], size(train)))
        personal = kept.get("personal") or own
        if task.meta["only"]:
            params = self._tuned(task, personal, batches)
        else:
            learner = task.algorithm.shaped(self.learner)
            params = task.algorithm.personalise(learner, task.broadcast, personal, batches)
        return {"kind": "personal", "consent": self.consent}, params

    def _tuned(self, task: Task, personal: Tree, batches: Batch) -> Tree:
        """The selected parameters, tuned with the rest of the common model; they start as the device's own, if any."""
        common, only = task.broadcast["params"], [str(pattern) for pattern in task.meta["only"]]
        names = tree.split(common, only)[0]
        if not names:
            raise FederatedError(f"sync: expected only = {only} to match some parameters, got none"[:500])
        start = tree.merge(common, tree.take(personal.get("params", {}), names))
        rate = float(getattr(task.algorithm, "tuning_rate", 0) or getattr(task.algorithm, "rate", TUNING))
        learner, momentum = task.algorithm.shaped(self.learner), getattr(task.algorithm, "momentum", 0.0)
        tuned, _ = tune(learner, start, batches, rate, names, statistics=False, momentum=momentum)
        return tree.take(tuned, names)

    def _task(self, message: bytes) -> Task:
        task = _task(message, cast(Hashable, self.learner), self.bundle)
        codec, words = Codec.parse(task.meta["down"]), task.meta
        if not follows(codec):
            return task
        if words.get("parts") is None:
            return self._keep(task, task.broadcast)
        _, body = _opened(message)
        held = self._held(task)
        return self._keep(task, catch_up(codec, words, body["data"].tobytes(), Spec.of(task.broadcast), held))

    def _keep(self, task: Task, broadcast: Tree) -> Task:
        """Keep this version of the model in addition to the previous one. Versions kept for other runs are deleted."""
        run, version = _model(task.meta["run"]), task.meta["model"]
        if version and task.meta.get("parts") != []:
            if self.store.load(self.name, run, version + 1) is None:
                self.store.forget(self.name, "model *")
            self.store.save(self.name, run, version, {"version": np.int64(version), "broadcast": broadcast})
        return replace(task, broadcast=broadcast)

    def _held(self, task: Task) -> Iterator[tuple[int, Tree]]:
        """Versions of the model on this device, the newest first; the last is the bundle's."""
        before = task.meta["model"] + 1
        while kept := self.store.load(self.name, _model(task.meta["run"]), before):
            before = int(kept["version"])
            yield before, kept["broadcast"]
        yield 0, task.broadcast

    def _parts(self, task: Task) -> tuple[Batch, Batch]:
        """The examples trained on and those kept to test with; the same ones in every round."""
        key = float(task.meta["test"]), int(task.meta["seed"])
        if self._split is None or self._split[0] != key:
            parts = self.data, pick(self.data, slice(0))
            if key[0]:
                rng = np.random.default_rng(seed_of(key[1], "test", self.name))
                parts = split(self.data, 1 - key[0], rng)
            self._split = key, parts
        return self._split[1]

    _split: tuple[tuple[float, int], tuple[Batch, Batch]] | None = None


def _slot(meta: Mapping[str, Any]) -> str:
    """Where a sum's secrets are kept: separately for each attempt, so that they are never mixed up."""
    return f"sum {meta['round']} {meta['attempt']} {meta['run']}"


def _input_digest(update: Tree) -> bytes:
    """Of an update as it is masked."""
    spec = Spec.of(update)
    return sha256(spec.digest + spec.flatten(update).astype("<f4", copy=False).tobytes()).digest()


def _model(run: str) -> str:
    """The key under which the model received in a run is kept."""
    return f"model {run}"


@lru_cache(maxsize=2)
def _opened(message: bytes) -> tuple[dict[str, Any], dict[str, Any]]:
    """Decoded once: in simulation all devices receive the same bytes."""
    return unpack(message)


@lru_cache(maxsize=2)
def _kind(message: bytes) -> str:
    """The message's kind, after checking the whole message. Raises FederatedError."""
    meta, body = _opened(message)
    if meta.get("version") != VERSION:
        raise FederatedError(f"expected messages of version {VERSION}, got {meta.get('version')!r}")
    kind = str(meta.get("kind"))
    if kind not in _KINDS:
        raise FederatedError(f"expected one of {', '.join(_KINDS)}, got {kind!r}")
    _check(meta, body, kind)
    return kind


@lru_cache(maxsize=2)
def _task(message: bytes, learner: Any, bundle: str) -> Task:
    """The task of a message for devices with this learner (compared by identity), with the model if it was sent whole,
    or the bundle's if it was sent as differences. Raises FederatedError if they cannot do it."""
    meta, body = _opened(message)
    if meta.get("bundle") != bundle:
        raise FederatedError(
            f"expected work on bundle {bundle[:12]}, got {str(meta.get('bundle'))[:12]}; install the same bundle on "
            "server and device"
        )
    algorithm = algorithm_from(meta["algorithm"])
    if algorithm.second_order and not learner.second_order:
        raise FederatedError(f"{algorithm.name}: expected second derivatives, which this bundle does not offer; "
                             "convert it with --second-order")
    start = algorithm.broadcast(algorithm.init(learner.params))
    codec, data = Codec.parse(meta["down"]), body["data"].tobytes()
    broadcast = read_whole(codec, data, Spec.of(start)) if meta.get("parts") is None else first(start)
    return Task(meta, broadcast, algorithm, Transforms.of(meta["up"], meta["privacy"]))


def _check(meta: Mapping[str, Any], body: Tree, kind: str) -> None:
    """Raises FederatedError for fields that are missing, have wrong types, or ask for more than a device should do."""
    fields.check(kind, meta, _FIELDS[kind])
    for key in ("steps", "batch", "support"):
        least = 0 if (kind, key) == ("evaluate", "steps") else 1
        if key in meta and not least <= meta[key] <= MOST:
            raise FederatedError(f"{kind}: expected {key} from {least} to {MOST}, got {meta[key]}")
    if meta.get("steps", 1) * meta.get("batch", 1) > MOST:
        raise FederatedError(f"{kind}: expected at most {MOST} examples, got {meta['steps']} * {meta['batch']}")
    if not all(0 <= meta.get(key, 0) < 1 << 31 for key in ("round", "attempt")):
        raise FederatedError(f"{kind}: expected a round and an attempt, got {meta['round']}, {meta['attempt']}")
    sizes = meta.get("parts") or ()
    if not (0 <= meta.get("model", 0) < 1 << 31 and all(type(size) is int and size >= 0 for size in sizes)):
        raise FederatedError(f"{kind}: expected a version and lengths, got {meta['model']}, {str(meta['parts'])[:80]}")
    if not 0 <= meta.get("test", 0) < 1 or not 0 <= meta.get("multiplier", 0) < np.inf:
        share = meta.get("test", 0)
        raise FederatedError(f"{kind}: expected a share and a multiplier, got {share}, {meta['multiplier']}")
    if kind == "secure" and meta["stage"] not in ("keys", *_STAGES):
        raise FederatedError(f"secure: expected a stage, one of keys, {', '.join(_STAGES)}, got {meta['stage'][:80]!r}")
    for key in _ARRAYS.get(kind, ()):
        if not (isinstance(body.get(key), np.ndarray) and body[key].dtype == np.uint8 and body[key].ndim == 1):
            raise FederatedError(f"{kind}: expected bytes named {key!r}")


def _encode(codec: Codec, payload: Tree, rng: np.random.Generator, residual: Tree | None) -> tuple[np.ndarray, Tree]:
    """An update as bytes (uint8 [n]), and its residual. An empty payload gives no bytes."""
    if not any(True for _ in tree.leaves(payload)):
        return np.zeros(0, np.uint8), {}
    encoded = codec.encode(payload, rng, residual=residual)
    return np.frombuffer(encoded.data, np.uint8), encoded.residual


def _sums(found: Evaluation) -> list[float | None]:
    return [loss_told(found.loss), int(found.correct), int(found.examples)]


MOST = 10_000_000
"""The most examples that a device processes in one round, whatever the server requests."""
_NUMBER = (float, int)
_ROUND = {"run": (str,), "round": (int,), "attempt": (int,)}
_WORK = {
    **_ROUND, "bundle": (str,), "algorithm": (dict,), "seed": (int,), "test": _NUMBER, "up": (list,), "down": (list,),
    "privacy": (dict,), "multiplier": _NUMBER, "steps": (int,), "batch": (int,), "model": (int,),
    "digest": (str,), "parts": (list, type(None)),
}  # fmt: skip
_FIELDS: Mapping[str, Mapping[str, tuple[type, ...]]] = {
    "hello": {"run": (str,)},
    "train": _WORK,
    "evaluate": {**_WORK, "held_out": (bool,), "support": (int,), "lowest": _NUMBER},
    "secure": {**_ROUND, "stage": (str,), "number": (int,)},
    "sync": {**_WORK, "only": (list,)},
    "question": {
        **_ROUND, "question": (dict,), "step": _NUMBER, "devices": (int,), "noise": (str,), "secure": (bool,),
        "threat": (str,), "multiplier": _NUMBER, "seed": (int,),
    },
}
_STAGES: Mapping[str, Callable[[SecureDevice, bytes], bytes]] = {
    "shares": SecureDevice.shares,
    "agree": SecureDevice.consistent,
    "reveal": SecureDevice.revealed,
}
_ARRAYS = {"train": ("data",), "evaluate": ("data",), "sync": ("data",), "secure": ("secure",)}
_KINDS: Mapping[str, Callable[[Device, bytes], Reply]] = {
    "hello": Device.hello,
    "train": Device.train,
    "evaluate": Device.evaluate,
    "secure": Device.secure,
    "sync": Device.personal,
    "question": Device.question,
}
