"""What a device's owner demands before an update, an evaluation or a personal version leaves: the device declines to
send more.

The server's message says what is done to updates, and a device follows it; here it may decline. Clipping, the device's
own noise and masks are applied by the device itself; for noise that the server adds, the device must trust the server.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Annotated, ClassVar

from msgspec import Meta

from federated import tree
from federated.errors import FederatedError
from federated.messages.transforms import Privacy
from federated.privacy.accountant import Accountant
from federated.tables import NotNegative, Reader, Table, Whole
from federated.tree import Tree

__all__ = ["Demands"]


class Demands(Table, frozen=True):
    """By default none. Fields are named like the keys of `--node-config`."""

    reader: ClassVar[Reader] = Reader(FederatedError, "")
    most_clip: Annotated[float, Meta(gt=0)] = math.inf
    """Updates are clipped to this norm or less."""
    least_noise: NotNegative = 0.0
    """Noise of at least this multiple of the bound is added, by the device or, as promised, by the server."""
    least_own_noise: NotNegative = 0.0
    """The device itself adds noise of at least this multiplier."""
    secure_only: bool = False
    """Updates are sent only in secure sums."""
    least_devices: Whole = 0
    """Updates are sent only in secure sums of this many devices or more."""
    version_only: str = ""
    """Personal versions are sent only if the server asks for no parameters but these: glob patterns separated by
    spaces; "": any."""
    features_only: str = ""
    """Questions about data, and trees, are answered only if they are about these arrays: glob patterns separated by
    spaces, the labels as "labels"; "": any."""
    malicious_only: bool = False
    """Updates are sent only in secure sums that hold against a malicious server."""
    most_epsilon: Annotated[float, Meta(gt=0)] = math.inf
    """All that this device sends with noise in one run costs at most this epsilon, at `delta`, by its own account."""
    delta: Annotated[float, Meta(gt=0, lt=1)] = 1e-5

    @classmethod
    def of(cls, words: Mapping[str, object]) -> Demands:
        """From a node's configuration; other keys are ignored. Raises FederatedError, naming the key, for a value of
        another type."""
        return cls.reader.read(
            cls, {key: words[key] for key in cls.__struct_fields__ if key in words}, "--node-config: "
        )

    def check(self, privacy: Privacy, multiplier: float) -> None:
        """Raises FederatedError if a message that asks for an update offers less."""
        if self == NOTHING:
            return
        noise = multiplier if privacy.noise != "none" else 0.0
        clip = privacy.clip or math.inf
        offers = [
            ("most_clip", clip <= self.most_clip, f"updates clipped to {self.most_clip:g} or less", f"{clip:g}"),
            ("least_noise", noise >= self.least_noise, f"noise of {self.least_noise:g} or more", f"{noise:g}"),
            (
                "least_own_noise",
                self.least_own_noise <= (noise if privacy.noise == "local" else 0.0),
                f"local noise of {self.least_own_noise:g} or more",
                f"{privacy.noise} noise of {noise:g}",
            ),
            ("most_epsilon", noise or self.most_epsilon == math.inf, "noise", "none"),
            ("secure_only", privacy.secure or not self.secure_only, "a secure sum", "none"),
            ("least_devices", privacy.secure or not self.least_devices, "a secure sum", "none"),
            ("malicious_only", privacy.secure or not self.malicious_only, "a secure sum", "none"),
        ]
        for name, enough, expected, got in offers:
            if not enough:
                raise FederatedError(f"this device's owner demands {name}: expected {expected}, got {got}")

    @property
    def noisy(self) -> bool:
        """Whether noise is demanded: then the device does not tell how many examples it has either."""
        return max(self.least_noise, self.least_own_noise) > 0 or self.most_epsilon < math.inf

    def check_evaluation(self, privacy: Privacy, multiplier: float) -> None:
        """Raises FederatedError if a message that asks for an evaluation offers less: noise demanded for updates must
        be on evaluations too, and none are sent where updates are sent only in secure sums."""
        noise = multiplier if privacy.noise != "none" and privacy.evaluation == "noisy" else 0.0
        own = noise if privacy.noise == "local" else 0.0
        offers = [
            ("least_noise", noise >= self.least_noise, f"noise of {self.least_noise:g} or more", f"{noise:g}"),
            ("least_own_noise", own >= self.least_own_noise, f"local noise of {self.least_own_noise:g}", f"{own:g}"),
            ("most_epsilon", noise or self.most_epsilon == math.inf, "noise", "none"),
            *(
                (name, not getattr(self, name), "none, as it is not sent in a secure sum", "a message for one")
                for name in ("secure_only", "least_devices", "malicious_only")
            ),
        ]
        for name, enough, expected, got in offers:
            if not enough:
                raise FederatedError(f"this device's owner demands {name}: evaluation: expected {expected}, got {got}")

    def check_spent(self, spent: Accountant) -> None:
        """Raises FederatedError if a device's account after a message would exceed what is demanded."""
        if self.most_epsilon < math.inf and (got := spent.epsilon(self.delta)) > self.most_epsilon:
            raise FederatedError(
                f"this device's owner demands most_epsilon: expected at most {self.most_epsilon:g} in one run, got "
                f"{got:.4g} with this message"
            )

    def check_version(self, params: Tree, only: Sequence[str]) -> None:
        """Raises FederatedError if a personal version of the parameters that match `only` (of none given: all) would
        have others than the owner allows."""
        if not self.version_only:
            return
        asked = tree.split(params, only)[0] if only else params
        if beyond := asked.keys() - tree.split(params, self.version_only.split())[0].keys():
            raise FederatedError(
                f"this device's owner demands version_only: expected sync.only within {self.version_only!r}, got "
                f"{min(beyond)!r} and {len(beyond) - 1} more"
            )

    def check_features(self, names: Sequence[str]) -> None:
        """Raises FederatedError for a question about an array that the owner does not allow."""
        allowed = self.features_only.split()
        for name in names if allowed else ():
            if not any(fnmatchcase(name, pattern) for pattern in allowed):
                raise FederatedError(
                    f"this device's owner demands features_only: expected a question about {self.features_only!r}, got "
                    f"one about {name!r}"
                )

    def check_sum(self, fewest: int, malicious: bool) -> None:
        """Raises FederatedError if `fewest`, the smallest number of devices in a secure sum, is too small, or if it
        does not hold against a malicious server although that is demanded."""
        if self.malicious_only and not malicious:
            raise FederatedError(
                "this device's owner demands malicious_only: expected a secure sum with a malicious server as threat "
                "model, got one with an honest but curious server"
            )
        if fewest < self.least_devices:
            raise FederatedError(
                f"this device's owner demands least_devices: expected a sum of {self.least_devices} devices or more, "
                f"got one that may be of {fewest}"
            )


NOTHING = Demands()
