"""Loading a version from a file: read, verified, self-tested and warmed up, or the graph of an ensemble. Blocking; runs
on a separate thread."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import blake2b
from time import perf_counter

import numpy as np

import lite_runtime
from edge.gateway.ensembles.ensemble import Ensemble, Find
from edge.gateway.ensembles.scheduling import read
from edge.gateway.errors import GatewayError
from edge.gateway.models.config import ModelConfig
from edge.gateway.models.served import Factory, Served, signatures_of
from edge.gateway.models.serving import Serving
from edge.gateway.sequences.stream import streams_of
from edge.gateway.sources.listing import Candidate, is_ensemble
from edge.gateway.sources.trust import Trust
from lite_runtime import bundle
from lite_runtime.errors import BundleError, MsedgeError
from lite_runtime.native import build
from lite_runtime.running.golden import self_test

__all__ = ["Loader"]

_ALIGN = 64
MOST_ENSEMBLE = 1 << 20
"""Most bytes of an ensemble's file."""


def _nowhere(name: str, version: str, request_id: str) -> Serving:
    raise GatewayError(404, f"there is no model {name!r}")


@dataclass(frozen=True)
class Loader:
    """Loads versions.

    factory: makes runners. prepare: called on the loading thread with the new version before it serves requests, for
    processing and warm-up. forget: called on the event loop's thread with a retired version without requests, while its
    runners still exist. threads: that may share one inference. most: bytes of a bundle; limit: bytes that one inference
    may hold. find: the models of ensembles, on the event loop's thread. trust: which bundles may be served; None: all.
    """

    factory: Factory
    prepare: Callable[[Served], None] = lambda served: None
    forget: Callable[[Serving], None] = lambda served: None
    threads: int = 1
    most: int = 4 << 30
    limit: int = 4 << 30
    find: Find = _nowhere
    trust: Trust | None = None

    def load(self, name: str, version: int, candidate: Candidate, config: ModelConfig, old: Serving | None) -> Serving:
        """The version in that file; `old` if it has the same content and settings.

        Raises only GatewayError, with the reason why it cannot be served: files are not trusted.
        """
        with _refusing(f"model {name!r}, version {version}"):
            if is_ensemble(candidate.path):
                return self._ensemble(name, version, candidate, config, old)
            data = _read(candidate, self.most)
            signer = self.trust.check(data, name, version) if self.trust is not None else ""
            known = isinstance(old, Served) and old.config.made_as(config)
            if known and old is not None and bundle.opened(data).digest == old.digest:
                old.signer = signer
                return old
            try:
                served = self._made(name, version, data, config)
            except build.NotCompiledError as error:
                served = self._made(name, version, data, config, "reference")
                served.awaits = error.families
            served.signer = signer
            return served

    def trusts(self, served: Serving) -> bool:
        """Whether a version may go on serving: see `Trust.holds`."""
        return self.trust is None or (isinstance(served, Served) and self.trust.holds(served.model.bundle.data))

    def _ensemble(
        self, name: str, version: int, candidate: Candidate, config: ModelConfig, old: Serving | None
    ) -> Serving:
        if self.trust is not None:
            text = "expected a bundle that a trusted key has signed (trust.keys), got an ensemble, which is not signed"
            raise self.trust.refusal(name, version, text)
        data = _read(candidate, MOST_ENSEMBLE)
        digest = blake2b(data, digest_size=32).hexdigest()
        if isinstance(old, Ensemble) and digest == old.digest:
            return old
        return Ensemble(name, version, read(data, candidate.path, name), config, digest, self.find, self.forget)

    def again(self, served: Served) -> Served:
        """The same version, natively. Raises NotCompiledError if kernels are still missing, else as `load`."""
        with _refusing(f"model {served.name!r}, version {served.version}"):
            return self._made(served.name, int(served.version), served.model.bundle.data, served.config)

    def _made(
        self, name: str, version: int, data: memoryview | bytes, config: ModelConfig, backend: str = "auto"
    ) -> Served:
        """Raises NotCompiledError if kernels are missing that could be compiled here."""
        with build.uncompiled():
            model = lite_runtime.load(data, threads=self.threads, backend=backend, limit=config.memory or self.limit)
            self_test(model, (*signatures_of(model), *streams_of(model)))
            served = Served(name, version, model, config, self.factory, self.forget)
            self.prepare(served)
        served.resident += _working(served)
        served.used = perf_counter()
        return served


@contextmanager
def _refusing(what: str) -> Iterator[None]:
    """Raise GatewayError for whatever a file causes."""
    try:
        yield
    except (GatewayError, build.NotCompiledError):
        raise
    except MsedgeError as error:
        raise GatewayError(400, f"{what}: {error}") from error
    except MemoryError:
        raise GatewayError(503, "there is not enough memory to load it; free some, or serve fewer models") from None
    except Exception as error:  # request: the loading of one model
        found = f"{type(error).__name__}: {str(error)[:200]}"
        raise GatewayError(500, f"loading it failed, which is a bug in msedge: {found}") from error


def _read(candidate: Candidate, most: int) -> memoryview:
    """Read the whole file into memory: a mapped file that is overwritten would change during requests, and one that is
    truncated would crash the process.

    Raises BundleError for a file that changes while it is read; the next check of the folder tries again. The text does
    not name the folder, as clients see it.
    """
    name = os.path.basename(candidate.path)
    try:
        flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)  # a pipe must not block
        with open(os.open(candidate.path, flags), "rb", buffering=0) as file:
            size = os.fstat(file.fileno()).st_size
            if size > most:
                raise BundleError(f"expected a bundle of at most {most} bytes, got {size}; raise the limit to serve it")
            home = np.empty(size + _ALIGN, np.uint8)
            data = home[-home.ctypes.data % _ALIGN :][:size].data
            filled = 0
            while filled < size and (count := file.readinto(data[filled:])):
                filled += count
            status = os.fstat(file.fileno())
    except OSError as error:
        raise BundleError(f"cannot read {name!r}: {error.strerror}; check its permissions") from None
    if filled < size or (status.st_size, status.st_mtime_ns, status.st_ino) != candidate.stamp:
        raise BundleError(f"{name!r} is being written; write beside it and rename")
    return data.toreadonly()


def _working(served: Served) -> int:
    """Approximate bytes of working memory: that of one row for each row of every compiled batch size. For the first
    signature; 0 if its shapes are dynamic."""
    signature, model = served.first, served.model
    shapes = served.fixed_shapes(signature)
    if shapes is None:
        return 0
    rows = (1,) if served.ports[signature].batched else ()
    ports = served.ports[signature].inputs
    zeros = {n: np.full((*rows, *s), "" if ports[n].dtype.hasobject else 0, ports[n].dtype) for n, s in shapes.items()}
    try:
        arena = model.cost(zeros, signature).arena_bytes
    except MsedgeError:  # a model may refuse zeros as inputs
        return 0
    compiled = sum(sum(getattr(runner, "sizes", ())) for runner in served.runners)
    return (arena + sum(array.nbytes for array in zeros.values())) * max(1, compiled)
