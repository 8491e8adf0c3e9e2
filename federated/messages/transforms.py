"""The update transforms between a device and the mean, and which of them can be combined.

    on the device   clip -> local noise -> codec, or fixed point and masks
    on the server   codec, or the sum -> clip again -> robust rule or mean -> central noise

Combinations that would break a guarantee are refused before the first round: `EXCLUDES` and `NEEDS` list them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

import msgspec
import numpy as np
from msgspec import Meta

from federated import tree
from federated.codec import Codec, Spec
from federated.codec.codec import Difference
from federated.codec.mask import Mask
from federated.codec.signds import SignDS
from federated.codec.topk import TopK
from federated.errors import FederatedError
from federated.exact import ExactSum
from federated.privacy.accountant import Accountant, noise_for
from federated.privacy.clipping import AdaptiveBound, Clip, FlatClip, LayerClip
from federated.privacy.noise import GaussianNoise, NoiseSource
from federated.privacy.secure import FixedPoint, lowest_threshold
from federated.robust import Aggregate, Aggregator, Mean, aggregator_from
from federated.robust.aggregators import mean_of
from federated.tables import NotNegative, Reader, Share, Table
from federated.tree import Tree

__all__ = ["EXCLUDES", "NEEDS", "Outgoing", "Privacy", "Transforms"]

_READ = Reader(FederatedError, "")


class Privacy(Table, frozen=True):
    """The section [privacy]."""

    reader: ClassVar[Reader] = _READ
    clip: NotNegative = 0.0
    """The Euclidean norm that an update is scaled down to; 0: none."""
    by_layer: bool = False
    """Whether each array is clipped to its part of the norm."""
    adaptive: Share = 0.0
    """The share of devices whose updates should be within the bound, which is adapted to it; 0: a fixed bound."""
    count_noise: NotNegative = 0.0
    """With `adaptive` and noise: the standard deviation of noise on the number of devices within the bound."""
    noise: Literal["none", "central", "local"] = "none"
    multiplier: NotNegative = 0.0
    """Noise as a multiple of the bound; 0: as required by `epsilon`."""
    epsilon: NotNegative = 0.0
    """The privacy budget of all rounds together."""
    delta: Annotated[float, Meta(gt=0, lt=1, description="a number in (0, 1), less than 1 / devices")] = 1e-5
    evaluation: Literal["noisy", "open"] = "noisy"
    """With noise: whether evaluations get noise too, and are charged, or are sent as they are."""
    most_loss: Annotated[float, Meta(gt=0)] = 10.0
    """With noise: losses count as at most this much in evaluations."""
    sampling: Literal["fixed", "poisson"] = "fixed"
    """How devices are chosen: a fixed number, or each independently at random, which costs less epsilon."""
    secure: bool = False
    """Secure aggregation: whether the server sees only sums."""
    threshold: Annotated[float, Meta(gt=0.5, le=1, description="a share above 0.5, at most 1")] = 0.6
    """With `secure`: the share of a round's devices that must stay until its end, above a half; with
    `model = "malicious"` more than two thirds must."""
    model: Literal["malicious", "honest-but-curious"] = "malicious"
    """With `secure`: the server that is assumed. Against a malicious one, which need not follow the protocol, devices
    sign, and more than two thirds must stay; against one that follows it and is curious, more than a half."""
    bits: Literal[16, 32] = 32
    """With `secure`: the bits of each integer on the wire, 16 or 32."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.noise != "none" and (self.multiplier > 0) == (self.epsilon > 0):
            raise FederatedError("privacy: noise needs one of multiplier and epsilon above 0")

    @classmethod
    def of(cls, words: Mapping[str, Any]) -> Privacy:
        """From the section of a file. Raises FederatedError, naming the key."""
        return _READ.read(cls, words, "privacy")


class Outgoing(NamedTuple):
    """The update that goes to the codec; whether its norm was within the bound (1.0 or 0.0), for `adaptive`."""

    tree: Tree
    within: float


@dataclass(frozen=True)
class Transforms:
    """A run's update transforms. `asynchronous`: asynchronous rounds; `compensate`: rare answers get more weight;
    `aggregators`: several servers add up.

    Raises FederatedError for combinations that exclude each other, with the reason.
    """

    codec: Codec = field(default_factory=Codec)
    privacy: Privacy = field(default_factory=Privacy)
    rule: Aggregator = field(default_factory=Mean)
    asynchronous: bool = False
    compensate: bool = False
    aggregators: bool = False

    @classmethod
    def of(
        cls,
        up: Sequence[str] = (),
        privacy: Mapping[str, Any] | None = None,
        robust: Mapping[str, Any] | None = None,
        *,
        asynchronous: bool = False,
        compensate: bool = False,
        aggregators: bool = False,
    ) -> Transforms:
        """From a file's `codec.up` and its sections [privacy] and [robust] (`rule` and its parameters)."""
        words = dict(robust or {})
        rule = aggregator_from(str(words.pop("rule", "mean")), words)
        return cls(Codec.parse(up), Privacy.of(privacy or {}), rule, asynchronous, compensate, aggregators)

    def __post_init__(self) -> None:
        wrong = [
            f"{feature} with {other}: {why}"
            for feature, other, why in EXCLUDES
            if {feature, other} <= self.features
        ]
        wrong += [
            f"{feature} without {other}: {why}"
            for feature, other, why in NEEDS
            if feature in self.features and other not in self.features
        ]
        if wrong:
            raise FederatedError("these settings cannot be combined: " + "; ".join(wrong))

    @cached_property
    def features(self) -> frozenset[str]:
        """The names of active features, as used in the tables below."""
        private = self.privacy
        present = {
            "a difference": self.codec.find(Difference),
            "error feedback": self.codec.feedback,
            "a sparse codec": self.codec.find(TopK) or self.codec.find(Mask),
            "signds": self.codec.find(SignDS),
            "a lossy number format": self.codec.values.name in ("float16", "int8", "int4"),
            "clipping": private.clip > 0,
            "an adaptive bound": private.adaptive > 0,
            "clipping by layer": private.by_layer,
            "central noise": private.noise == "central",
            "local noise": private.noise == "local",
            "noise": private.noise != "none",
            "noise on the count": private.count_noise > 0,
            "a noisy adaptive bound": private.adaptive > 0 and private.noise != "none",
            "secure sums": private.secure,
            "a robust rule": not isinstance(self.rule, Mean),
            "asynchronous rounds": self.asynchronous,
            "compensate": self.compensate,
            "aggregators": self.aggregators,
            "a rule that compares updates": not self.rule.adds,
        }
        return frozenset(name for name, there in present.items() if there)

    @property
    def uniform(self) -> bool:
        """Whether every update has weight 1: a weight would exceed the bound for which the noise was chosen, and it is
        claimed by the device, so that a malicious device could outweigh all others in a robust rule."""
        return self.privacy.noise != "none" or "a robust rule" in self.features

    @property
    def quiet(self) -> bool:
        """Whether devices do not report losses and norms, because no noise or mask would protect them."""
        return self.privacy.noise != "none" or self.privacy.secure

    @property
    def noisy_evaluation(self) -> bool:
        """Whether evaluations get noise."""
        return self.privacy.noise != "none" and self.privacy.evaluation == "noisy"

    @cached_property
    def clip(self) -> Clip | None:
        """This round's clipping."""
        if not self.privacy.clip:
            return None
        return (LayerClip if self.privacy.by_layer else FlatClip)(self.privacy.clip)

    def outgoing(self, update: Tree, source: NoiseSource, multiplier: float = 0.0) -> Outgoing:
        """On the device: the update clipped, with local noise of this multiplier if there is any."""
        if self.clip is None:
            return Outgoing(update, 1.0)
        clipped = self.clip(update)
        return Outgoing(self._noise(self.clip, multiplier).of_device(clipped.tree, source), float(clipped.within))

    def combine(
        self,
        updates: Sequence[Tree],
        weights: Sequence[float],
        source: NoiseSource,
        multiplier: float = 0.0,
        expected: float | None = None,
    ) -> Aggregate:
        """On the server: the aggregate of decoded updates, at least one. The rest as for `mean`."""
        if not self.rule.adds:
            return self.rule(updates, weights)
        total = self.summed(updates, weights)
        return Aggregate(self.mean(total, Spec.of(updates[0]), len(updates), source, multiplier, expected), ())

    def summed(self, updates: Sequence[Tree], weights: Sequence[float]) -> ExactSum:
        """On the server, with a rule that adds: the sum [size + 1] of decoded updates times their weights, and of the
        weights, last.

        Under central noise updates are clipped once more: a codec may have lengthened them, or a device lied.
        """
        if self.clip is None or self.privacy.noise != "central":
            return self.rule.summed(updates, weights)
        return self.rule.summed([self.clip(update).tree for update in updates], [1.0] * len(updates))

    def mean(
        self,
        total: ExactSum,
        spec: Spec,
        devices: int,
        source: NoiseSource,
        multiplier: float = 0.0,
        expected: float | None = None,
    ) -> Tree:
        """The mean from such a sum over this many devices, perhaps none, with central noise of this multiplier if there
        is any. `expected`: under Poisson sampling, the expected number of devices, by which the sum is divided."""
        return self.add_noise(spec.unflatten(mean_of(total).astype(np.float32)), devices, source, multiplier, expected)

    def add_noise(
        self, mean: Tree, devices: int, source: NoiseSource, multiplier: float, expected: float | None = None
    ) -> Tree:
        """Central noise on a mean of clipped updates, such as the result of a secure sum."""
        if self.clip is None or self.privacy.noise != "central":
            return mean
        divisor = expected or devices
        return self._noise(self.clip, multiplier).of_mean(tree.scale(mean, devices / divisor), divisor, source)

    def multiplier(self, rounds: int, rate: float, evaluations: int = 0) -> float:
        """The noise multiplier: as given, or as required by `epsilon` for that many rounds and evaluations. `rate`: the
        share of devices per round."""
        if self.privacy.noise == "none":
            return 0.0
        if self.privacy.multiplier:
            return self.privacy.multiplier
        noisy = evaluations if self.noisy_evaluation else 0
        return noise_for(self.privacy.epsilon, self.privacy.delta, self._rate(rate), rounds, noisy)

    def charge(self, account: Accountant, multiplier: float, rate: float, rounds: int = 1) -> Accountant:
        """The account after `rounds` more. Without Poisson sampling, or with local noise, the rounds of the device that
        took part in most of them are counted."""
        return account if self.privacy.noise == "none" else account.charge(multiplier, self._rate(rate), rounds)

    def update_multiplier(self, multiplier: float) -> float:
        """The multiplier of noise on the update itself, if the count for `adaptive` needs a part of it."""
        return self._bound.multiplier(multiplier) if "a noisy adaptive bound" in self.features else multiplier

    def next(self, within: float, devices: int, normal: float) -> Transforms:
        """The next round's, its bound moved towards the `adaptive` share. `within`: the sum of what devices reported;
        `normal`: a standard normal number."""
        if not self.privacy.adaptive:
            return self
        return self.at(self._bound.next(within, devices, normal).bound)

    def at(self, bound: float) -> Transforms:
        """The same with another clipping bound: a round's, or a checkpoint's."""
        return replace(self, privacy=msgspec.structs.replace(self.privacy, clip=bound))

    def fixed_point(self, devices: int, heaviest: float, multiplier: float = 0.0) -> FixedPoint:
        """How updates become integers for a secure sum of this many devices, none with more weight than `heaviest` (use
        the largest real weight: it determines the grid). Leaves room for six deviations of local noise."""
        room = 1 + 12 * multiplier * (self.privacy.noise == "local")
        return FixedPoint(self.privacy.clip * room, devices, self.privacy.bits, 1.0 if self.uniform else heaviest)

    def threshold(self, devices: int) -> int:
        """How many of a secure sum's devices must stay until its end."""
        lowest = lowest_threshold(devices, malicious=self.privacy.model == "malicious")
        return max(lowest, math.ceil(self.privacy.threshold * devices - 1e-9))

    @property
    def _bound(self) -> AdaptiveBound:
        return AdaptiveBound(self.privacy.clip, self.privacy.adaptive, count_noise=self.privacy.count_noise)

    def _noise(self, clip: Clip, multiplier: float) -> GaussianNoise:
        if self.privacy.noise == "none":
            return GaussianNoise(clip, 0.0)
        return GaussianNoise(clip, multiplier, self.privacy.noise)

    def _rate(self, rate: float) -> float:
        """The probability of taking part in a round that the accountant may assume."""
        return rate if self.privacy.sampling == "poisson" and self.privacy.noise == "central" else 1.0


EXCLUDES = (
    ("secure sums", "a robust rule", "the server sees no single update that a rule could compare; clip on devices"),
    ("secure sums", "a sparse codec", "masks cancel only if all devices send the same elements"),
    ("secure sums", "signds", "masks cancel only if all devices send the same elements"),
    ("secure sums", "a lossy number format", "integers are summed on one scale; privacy.bits says how many bits"),
    ("secure sums", "error feedback", "fixed point rounds without bias and leaves nothing to send later"),
    ("secure sums", "a difference", "full updates are summed"),
    ("secure sums", "asynchronous rounds", "masks cancel between devices of one round only"),
    ("secure sums", "an adaptive bound", "each device would show whether its update was within the bound"),
    ("secure sums", "compensate", "the server cannot weight single updates, which it does not see"),
    ("noise", "compensate", "a weight above 1 exceeds the bound for which the noise was chosen"),
    ("noise", "asynchronous rounds", "a device may be in one step several times, which the accounting does not cover"),
    ("central noise", "a robust rule", "one device moves a median or Krum's choice by more than bound / devices"),
    ("local noise", "error feedback", "what the noise hid in one round would be sent in the next"),
    ("local noise", "signds", "signds is private by itself; noise before it adds nothing to its guarantee"),
    ("local noise", "an adaptive bound", "each device would show whether its update was within the bound"),
    ("a robust rule", "asynchronous rounds", "distances between updates to different versions show who is late"),
    (
        "aggregators",
        "a rule that compares updates",
        "no server has all updates; the mean and norm_bound with a bound of its own add up",
    ),
    ("aggregators", "asynchronous rounds", "partial sums belong to one version of the model"),
    ("an adaptive bound", "asynchronous rounds", "updates were clipped to the bounds of different versions"),
    ("an adaptive bound", "clipping by layer", "the bound follows the norm of whole updates"),
)
"""(one, other, why they exclude each other)"""

NEEDS = (
    ("noise", "clipping", "noise covers what one device can change, which privacy.clip bounds"),
    ("secure sums", "clipping", "sums must not overflow, so privacy.clip must bound their elements"),
    ("an adaptive bound", "clipping", "privacy.clip is the initial bound"),
    ("clipping by layer", "clipping", "privacy.clip is the norm that is divided among the layers"),
    ("a noisy adaptive bound", "noise on the count", "the number within the bound is private; set privacy.count_noise"),
)
"""(one, what it needs, why)"""
