"""Checkpoints: everything that a step changes, and the run's position and facts; written while training continues.

One folder per checkpoint, "step-000000000120": arrays as orbax writes them (each process writes the parts that it
holds, so that they can be read onto other devices), `about.json`, and a manifest with digests of both. It is written
under a hidden name and renamed when complete, so that every visible checkpoint is complete.
"""

from __future__ import annotations

import os
import shutil
import threading
import warnings
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from cloud._jax import said_by_first, shaped
from cloud.errors import CheckpointError
from cloud.train.keeping.about import ABOUT, About, alike, as_about, filled, named, said_by, score_of, written
from cloud.train.keeping.manifest import NAME, problem_of, seal, step_of
from cloud.train.stepping.step import TrainState
from lite_runtime._files import write_atomically

__all__ = ["Checkpoints", "Restored"]

_ARRAYS = "arrays"


class Restored(NamedTuple):
    """The restored state and its description."""

    state: TrainState
    about: About
    path: Path


class Checkpoints:
    """The checkpoints of one run, in `folder`, which is created if missing; processes that train together must all have
    access to it.

    `steps`, `seconds`: the interval between checkpoints; with neither, at the end of each epoch. `keep`: the number of
    newest checkpoints that are kept. `best`: the checkpoint with the best validation value of that name is kept too:
    "loss" or a metric, the largest unless less of it is better. `facts`: JSON data about the run to store, such as
    configuration and plan.
    """

    def __init__(
        self, folder: str | os.PathLike[str], *, steps: int | None = None, seconds: float | None = None, keep: int = 3,
        best: str = "", facts: Mapping[str, Any] | None = None,
    ) -> None:  # fmt: skip
        for name, value, least in (("steps", steps, 1), ("seconds", seconds, 0), ("keep", keep, 1)):
            if value is not None and not value >= least:
                raise CheckpointError(f"expected {name} of at least {least}, got {value}")
        self.folder = Path(os.path.abspath(folder))
        self.steps, self.seconds, self.keep, self.best = steps, seconds, keep, best
        self.facts: dict[str, Any] = dict(facts or {})
        self.restored: Mapping[str, Any] = {}
        """The facts of the checkpoint that was restored last."""
        self._writer: Any = None
        self._thread: threading.Thread | None = None
        self._done: list[Path] = []
        self._failures: list[CheckpointError] = []

    def there(self) -> list[Path]:
        """Complete checkpoints, oldest first."""
        try:
            found = [(step_of(path.name), path) for path in self.folder.iterdir()]
        except OSError:
            return []
        return [path for step, path in sorted(found) if step >= 0]

    def save(self, state: TrainState, about: About) -> None:
        """Begin to write a checkpoint; `state` may be donated as soon as this returns. All processes call it.

        It waits for the previous one. Raises CheckpointError if writing cannot begin; see `wait` for later errors.
        """
        self.settle()
        target = self.folder / f"{NAME}{about.place.steps:012d}"
        part = self.folder / f".{target.name}.part"
        arrays = dict(named(state))
        if jax.process_index() == 0:
            self._begin(part, about, arrays)
        try:
            self._async().save(part / _ARRAYS, args=_saving(filled(arrays)), force=True)
        except Exception as error:  # library: orbax and tensorstore promise no type
            raise CheckpointError(f"cannot write the checkpoint {str(part)!r}: {_line(error)}") from error
        self._thread = threading.Thread(target=self._finish, args=(part, target))
        self._thread.start()

    def wait(self) -> list[Path]:
        """Wait until nothing is being written; see `finished`. Raises CheckpointError for a checkpoint that failed."""
        self.settle()
        if self._failures:
            raise self._failures.pop()
        return self.finished()

    def settle(self) -> None:
        """Wait until nothing is being written; failures are not raised."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def finished(self) -> list[Path]:
        """Checkpoints completed since the last call; failures become warnings."""
        while self._failures:
            warnings.warn(str(self._failures.pop(0)), RuntimeWarning, stacklevel=2)
        done, self._done = self._done, []
        return done

    def restore(self, like: TrainState | Callable[[Mapping[str, Any]], TrainState], *, best: bool = False) -> Restored:
        """The newest (or best) intact checkpoint, bit by bit as it was saved, its arrays placed like those of `like`, a
        state or a function that makes it from the checkpoint's facts. All processes call it.

        Damaged ones are skipped with a warning. Raises CheckpointError if none can be read, and for one of another
        model or optimiser.
        """
        self.settle()
        step = self._chosen(best) if jax.process_index() == 0 else -1
        step = said_by_first(step)
        while step >= 0:
            path = self.folder / f"{NAME}{step:012d}"
            about, problem = said_by(path)
            if not problem:
                wanted = like(about["facts"]) if callable(like) else like
                arrays = dict(named(wanted))
                alike(about["arrays"], arrays, path)
                try:
                    state, self.restored = self._read(path, wanted, arrays), about["facts"]
                    return Restored(state, as_about(about), path)
                except Exception as error:  # library: orbax and tensorstore promise no type
                    problem = _line(error)
            warnings.warn(f"checkpoint {path.name} cannot be read: {problem}", RuntimeWarning, stacklevel=2)
            step = said_by_first(self._chosen(False, step) if jax.process_index() == 0 else -1)
        raise CheckpointError(
            f"expected a checkpoint in {str(self.folder)!r}; none there can be read: start without resuming"
        )

    def _chosen(self, best: bool, below: int | None = None) -> int:
        """The step of the newest intact checkpoint, or the best; -1 if there is none."""
        there = [path for path in self.there() if below is None or step_of(path.name) < below]
        order = sorted(there, key=lambda path: (score_of(path) if best else 0.0, step_of(path.name)), reverse=True)
        for path in order:
            problem = problem_of(path) or said_by(path)[1]
            if not problem:
                return step_of(path.name)
            warnings.warn(f"skipped checkpoint {path.name}: {problem}", RuntimeWarning, stacklevel=3)
        return -1

    def _read(self, path: Path, like: TrainState, arrays: Mapping[str, Any]) -> TrainState:
        import orbax.checkpoint as ocp

        shapes = {number: shaped(a.shape, a.dtype, a.sharding) for number, a in filled(arrays).items()}
        ways = ocp.checkpoint_utils.construct_restore_args(shapes)
        with ocp.Checkpointer(ocp.PyTreeCheckpointHandler()) as reader:
            found = reader.restore(path / _ARRAYS, args=ocp.args.PyTreeRestore(item=shapes, restore_args=ways))
        leaves = [_lying(found.get(str(i), leaf), leaf) for i, leaf in enumerate(arrays.values())]
        restored: TrainState = jax.tree.unflatten(jax.tree.structure(like), leaves)
        return restored

    def _begin(self, part: Path, about: About, arrays: Mapping[str, Any]) -> None:
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            for left in self.folder.glob(f".{NAME}*"):  # left by a process that was killed
                shutil.rmtree(left)
            part.mkdir()
        except OSError as error:
            raise CheckpointError(f"cannot write checkpoints to {str(self.folder)!r}: {error.strerror}") from error
        write_atomically(part / ABOUT, written(about, arrays), CheckpointError)

    def _finish(self, part: Path, target: Path) -> None:
        """In a thread: when the arrays are written, give the checkpoint its name."""
        try:
            self._writer.wait_until_finished()
            if jax.process_index() == 0:
                seal(part)
                _retire([target] if target.exists() else [])
                os.replace(part, target)
                self._done.append(target)
                self._retain()
        except CheckpointError as error:
            self._failures.append(error)
        except Exception as error:  # library: orbax and tensorstore promise no type
            self._failures.append(CheckpointError(f"checkpoint {str(target)!r} was not written: {_line(error)}"))

    def _retain(self) -> None:
        there = self.there()
        kept = set(there[-self.keep :])
        scored = [path for path in there if score_of(path) > -float("inf")] if self.best else []
        if scored:
            kept.add(max(scored, key=score_of))
        _retire([path for path in there if path not in kept])

    def _async(self) -> Any:
        if self._writer is None:
            import orbax.checkpoint as ocp

            self._writer = ocp.AsyncCheckpointer(ocp.PyTreeCheckpointHandler())
        return self._writer


def _saving(arrays: Mapping[str, Any]) -> Any:
    import orbax.checkpoint as ocp

    return ocp.args.PyTreeSave(dict(arrays))


def _lying(array: Any, like: Any) -> Any:
    """Not committed to a device if `like` is not, so that it can be moved to any device, also of other processes."""
    return array if like.committed else jnp.array(np.asarray(array))


def _retire(paths: Iterable[Path]) -> None:
    """Delete them; each is hidden first, so that a half-deleted one is never visible."""
    for path in paths:
        hidden = path.with_name(f".{path.name}.gone")
        os.replace(path, hidden)
        shutil.rmtree(hidden)


def _line(error: BaseException) -> str:
    return (str(error) or type(error).__name__).splitlines()[0][:300]
