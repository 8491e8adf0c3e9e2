"""The state of one model: its ready versions, failed versions with reasons, and the routing of its requests."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from tempfile import TemporaryDirectory
from typing import Any

from edge.gateway.errors import GatewayError
from edge.gateway.models import routing
from edge.gateway.models.config import ModelConfig
from edge.gateway.models.names import shown, version_of
from edge.gateway.models.served import Served
from edge.gateway.models.serving import Serving
from edge.gateway.models.shadow import Shadow
from edge.gateway.sources.listing import Candidate, Listing

__all__ = ["AGAIN", "Asleep", "Entry", "Failure", "Full", "Offer", "unknown"]

AGAIN = 1.0
"""Seconds after which a client should retry for a model that is being loaded."""


class Asleep(GatewayError):
    """The model was unloaded to save memory and is loaded again on request: see `Repository.wake`."""

    def __init__(self, name: str) -> None:
        text = f"model {name!r} was unloaded to save memory and is being loaded again"
        super().__init__(503, text, retry_after=AGAIN)
        self.name = name


class Full(GatewayError):
    """There is not enough memory for a model, and no other model may be unloaded for it."""

    def __init__(self, name: str, wanted: int, cap: int) -> None:
        super().__init__(
            503, f"model {name!r} needs about {wanted} bytes, and the loaded models in use leave too little of the"
            f" limit of {cap}; raise --repository-memory, or unload a model", retry_after=AGAIN,
        )  # fmt: skip


def unknown(name: str) -> GatewayError:
    """The error for a model that does not exist."""
    return GatewayError(404, f"there is no model {shown(name)}; POST /v2/repository/index lists all models")


class Offer:
    """The files by version from which to load a model, and the effective configuration."""

    __slots__ = ("config", "folder", "override", "versions")

    def __init__(
        self, versions: Mapping[int, Candidate], config: ModelConfig, *,
        override: ModelConfig | None = None, folder: TemporaryDirectory[str] | None = None,
    ) -> None:  # fmt: skip
        self.versions, self.config = versions, config
        self.override = override
        """The configuration of a load request, used instead of `config.toml`."""
        self.folder = folder
        """The folder of files from a load request, used instead of the source's."""


class Failure:
    """A file that could not be loaded; it is not tried again until it changes."""

    __slots__ = ("candidate", "error")

    def __init__(self, candidate: Candidate | None, error: GatewayError) -> None:
        self.candidate, self.error = candidate, error


class Entry:
    """A model by name. `lock` must be held to change what is loaded; reading needs no lock."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.lock = asyncio.Lock()
        self.listing = Listing({})
        """Its files in the source, as of the last check."""
        self.seen: Listing | None = None
        """A different listing, not yet confirmed by a second check."""
        self.offer = Offer({}, ModelConfig())
        self.loaded: dict[int, Serving] = {}
        self.stamps: dict[int, Candidate] = {}
        """The files of the loaded versions."""
        self.failed: dict[int, Failure] = {}
        self.loading: set[int] = set()
        self.weights: dict[int, tuple[Candidate, int]] = {}
        """Measured bytes of versions, and their files."""
        self.seconds: dict[int, float] = {}
        """Seconds of loading, for versions that are not published yet."""
        self.retiring: list[Serving] = []
        self.users = 0
        """Number of tasks that wait for the lock or hold it."""
        self.wanted = False
        """Whether to load it when its files change; false after it was unloaded on request."""
        self.asleep = False
        self.reason = "not loaded"
        """Why nothing is loaded, if nothing is."""
        self.shadow: Shadow | None = None
        self._default: Serving | None = None
        self._named: Mapping[str, Serving] = {}
        self._split: routing.Split | None = None
        self.labels: Mapping[str, int] = {}

    # -- routing -------------------------------------------------------------------------------------------------------

    def route(self, version: str, label: str, request_id: str) -> Serving:
        """The version that answers. Raises GatewayError: 400, 404, 503."""
        if version or label:
            return self._chosen(version, label)
        if self._split is not None:
            return self.loaded[self._split.pick(request_id)]
        if self._default is None:
            raise self._absence()
        return self._default

    def _chosen(self, version: str, label: str) -> Serving:
        found = self._named.get(version or label)
        if found is None:
            raise self._no_version(version or label)
        if version and label and self._named.get(label) is not found:
            text = f"version {shown(version)} is not the one labelled {shown(label)}; name one of the two"
            raise GatewayError(400, f"model {self.name!r}: {text}")
        return found

    def _absence(self) -> GatewayError:
        if self.asleep:
            return Asleep(self.name)
        if self.loading:
            return GatewayError(503, f"model {self.name!r} is being loaded", retry_after=AGAIN)
        if self.empty:
            return unknown(self.name)
        return GatewayError(503, f"model {self.name!r} is not ready: {self.reason}")

    def _no_version(self, text: str) -> GatewayError:
        """The error for a version that is not ready or does not exist."""
        known = self.offer.config.labels
        number = version_of(text)
        if self.asleep and (number in self.offer.versions or text in known):
            return Asleep(self.name)
        if number is None and text in known:
            target = known[text]
            number = target if isinstance(target, int) else max(self.offer.versions, default=None)
            if number is None or number not in (*self.failed, *self.loading):
                return GatewayError(503, f"model {self.name!r}: {text!r} is version {target}, which is not loaded")
        if number in self.loading:
            return GatewayError(503, f"model {self.name!r}, version {number} is being loaded", retry_after=AGAIN)
        if number is not None and number in self.failed:
            return GatewayError(503, f"model {self.name!r}, version {number}: {self.failed[number].error}")
        if not self.loaded:
            return self._absence()
        there = ", ".join([*map(str, sorted(self.loaded)), *self.labels])
        return GatewayError(404, f"model {self.name!r} has no version {shown(text)}; there are {there}")

    # -- what is loaded ------------------------------------------------------------------------------------------------

    def publish(self, loaded: Mapping[int, Serving], reason: str = "", *, asleep: bool = False) -> None:
        """Make these the serving versions, in one step; the former ones are retired."""
        config = self.offer.config
        gone = [served for served in self.loaded.values() if served not in loaded.values()]
        self.loaded, self.asleep, self.reason = dict(loaded), asleep, reason
        self.labels = routing.labelled(config, loaded)
        self._split = routing.Split.of(config, self.labels, loaded)
        number = routing.default(config, self.labels, loaded)
        self._default = loaded[number] if number is not None else None
        if loaded and number is None:
            self.reason = f"the version labelled {routing.STABLE!r} is not loaded"
        self._named = {
            **{str(number): served for number, served in loaded.items()},
            **{label: loaded[number] for label, number in self.labels.items()},
        }
        self._set_shadow(config)
        for served in loaded.values():
            served.config = config
            served.shadow = self.shadow if self.shadow is not None and served is not self.shadow.target else None
        self.retiring = [served for served in (*self.retiring, *gone) if not served.closed]
        for served in gone:
            served.retire()

    def _set_shadow(self, config: ModelConfig) -> None:
        """Set the configured shadow; the present one is kept if it is the same."""
        wanted = config.shadow
        target = self._named.get(wanted.version) if wanted is not None else None
        if wanted is None or not isinstance(target, Served):
            self.shadow = None
        elif self.shadow is None or self.shadow.target is not target or self.shadow.fraction != wanted.fraction:
            self.shadow = Shadow(target, wanted.fraction)

    @property
    def fresh(self) -> bool:
        """Whether its source was not checked yet."""
        return self.seen is None and self.empty

    def settled(self, listing: Listing) -> bool:
        """Record the source's current listing; returns whether it has changed, and was the same at the last check."""
        if listing == self.listing:
            self.seen = None
            return False
        if listing != self.seen:
            self.seen = listing
            return False
        self.listing, self.seen = listing, None
        return True

    @property
    def empty(self) -> bool:
        """Whether the entry holds no information: no source has the model, and nothing is or was loaded."""
        unheld = not self.loaded and self.offer.folder is None and not self.still_retiring()
        return unheld and self.listing == Listing({})

    @property
    def shares(self) -> Mapping[int, float]:
        """The share of requests without version or label, by version."""
        if self._split is not None:
            return self._split.shares
        return {} if self._default is None else {int(self._default.version): 1.0}

    @property
    def nbytes(self) -> int:
        """Approximate bytes of its versions."""
        return sum(served.nbytes for served in (*self.loaded.values(), *self.still_retiring()))

    def still_retiring(self) -> list[Serving]:
        """Old versions with unanswered requests."""
        self.retiring = [served for served in self.retiring if not served.closed]
        return self.retiring

    def rows(self) -> Iterator[dict[str, Any]]:
        """Its rows of the repository's index: one per version that is ready, loading, unloading or failed; one without
        a version if there is none."""
        states: dict[int, tuple[str, str]] = {int(s.version): ("UNLOADING", "") for s in self.still_retiring()}
        states |= {version: ("LOADING", "") for version in self.loading}
        states |= {version: ("UNAVAILABLE", str(failure.error)) for version, failure in self.failed.items()}
        problems = [text for text in (self.reason, self.listing.problem, self.listing.misconfigured) if text]
        for version, served in self.loaded.items():
            newer, unready = self.failed.get(version), served.problem
            worse = [f"the current file cannot be served: {newer.error}"] if newer is not None else []
            reasons = [*filter(None, [unready]), *worse, *problems]
            states[version] = ("UNAVAILABLE" if unready else "READY", "; ".join(reasons))
        if not states and not self.empty:
            yield {"name": self.name, "state": "UNAVAILABLE", "reason": self.reason}
        for version, (state, reason) in sorted(states.items()):
            yield {"name": self.name, "version": str(version), "state": state, "reason": reason}
