"""A search from its file to a bundle: the reference, plain models, the supernet, evolution, finalists; a folder that
keeps all of it.

Everything that was done is in the folder after each phase, during training of the supernet and during evolution, so
that a search that was interrupted goes on with `resume` and ends with the same result. Only the limit of time, and
timings themselves, differ from run to run.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import onnx
import onnx_ir as ir

import converter
import lite_runtime
from cloud._folders import holding
from cloud.errors import SearchError
from cloud.search.cost import Cost, Measured, Oracle, latencies, oracle_of, program_of
from cloud.search.data import Data, data_of
from cloud.search.evolve import Candidate, beyond, evolve, front, ranked
from cloud.search.finish import augment_for, figure_of, finished, trained
from cloud.search.goal import told
from cloud.search.linear import linear
from cloud.search.networks import reference_name, reference_of, space_of
from cloud.search.space import Choice, Space
from cloud.search.supernet import Supernet
from cloud.search.task import File, SearchTable, read
from cloud.search.trees import trees
from cloud.search.verdict import merit, unreachable, verdict
from cloud.track.digests import digest_of_file
from cloud.track.facts import environment, git_state
from cloud.track.runs import Artifact
from cloud.track.store import Store
from lite_runtime._arrays import load_arrays, packed_arrays
from lite_runtime._files import write_atomically

__all__ = ["STATE", "Outcome", "search"]

STATE, _WEIGHTS = "search.json", "supernet.npz"
_FREE = ("minutes",), ("folder",)
"""Keys of [budget] and [search] that may differ when a search is continued."""
_SAVE_SECONDS = 20.0
_OF_PLAIN, _OF_SUPERNET, _OF_EVOLUTION = 0.25, 0.5, 0.75
"""Shares of the time after which no further plain models are trained, and training of the supernet and evolution end,
so that finalists can be trained."""


@dataclass(frozen=True)
class Outcome:
    """A finished search. `body`: all of it as JSON data, which the page shows; `bundle`, `onnx`: the found network."""

    folder: str
    bundle: str
    onnx: str
    run: str
    body: Mapping[str, Any]


def search(
    path: str | os.PathLike[str], device: str = "host", *, resume: bool = False,
    store: str | os.PathLike[str] | None = None, say: Callable[[str], None] = lambda text: None,
) -> Outcome:  # fmt: skip
    """Search as the file at `path` says, for `device`: "host" or the name of a target. `store`: where the run is
    recorded, None: nowhere. `say` is called with lines of progress. Raises SearchError, also for a budget that no
    network meets, with how near the nearest comes and what binds."""
    file = read(path)
    oracle = oracle_of(device)
    folder = file.path(file.words.search.folder).absolute()
    with holding(folder, "search", STATE, resume, "search.folder", SearchError):
        data = data_of(file)
        say(f"{len(data.train[1])}, {len(data.validation[1])} and {len(data.test[1])} examples; {data.goal.figure}")
        return _Search(file, oracle, data, folder, say).run(store)


@dataclass
class _Search:
    file: File
    oracle: Oracle
    data: Data
    folder: Path
    say: Callable[[str], None]
    body: dict[str, Any] = field(default_factory=dict)
    begun: float = field(default_factory=time.monotonic)
    before: float = 0.0
    saved: float = 0.0

    def run(self, store: str | os.PathLike[str] | None) -> Outcome:
        """All phases that are not done yet."""
        words = self.file.words
        self._load()
        space = space_of(self.file, self.data)
        if isinstance(self.oracle, Measured) and "found" not in self.body:
            count = self.oracle.warm(space, words.search.warm, words.search.seed)
            self.say(f"measured {count} networks, {len(self.oracle.steps)} steps")
        reference = self._reference()
        limits = self._limits()
        if "found" not in self.body:
            self._plain(limits)
            self._found(space, limits, reference)
        return self._published(store)

    # --- phases

    def _reference(self) -> ir.Model:
        target = self.folder / "reference.onnx"
        if "reference" not in self.body or not target.exists():
            said, seed = self.file.words.train, self.file.words.search.seed
            name = reference_name(self.file)
            self.say(f"reference {name}: {said.epochs} epochs")
            made = trained(
                reference_of(self.file, self.data), self.data, said, self.folder / "training-reference", seed=seed,
                augment=self._augment(),
            )  # fmt: skip
            row = self._measured("reference", *self._quantised(made.model, None), made.model, made.seconds)
            self.body["reference"] = {"name": name, **row}
            self._save()
            self.say(f"reference: {self._line(row)}")
        return ir.from_proto(onnx.load(target))

    def _limits(self) -> dict[str, float]:
        said, cost = self.file.words.budget, self.body["reference"]["cost"]
        share = said.share or (1.0 if self.file.words.task.kind in ("table", "forecast") else 0.5)
        seconds = said.milliseconds / 1000 if said.milliseconds else share * cost["seconds"]
        limits = {"seconds": seconds, "file_bytes": said.file_bytes, "arena_bytes": said.arena_bytes}
        self.body["limits"] = {name: value for name, value in limits.items() if value}
        return dict(self.body["limits"])

    def _plain(self, limits: Mapping[str, float]) -> None:
        """Boosted trees or a linear forecast, as floats; with a shortage of time the first of them alone."""
        words = self.file.words
        if not words.search.plain or "plain" in self.body:
            return

        def fits(model: ir.Model) -> bool:
            return not beyond(self.oracle.of_bundle(converter.convert(model.clone()).bundle), limits)

        late, rows = words.budget.minutes * 60 * _OF_PLAIN, list[dict[str, Any]]()
        start = time.monotonic()
        for text, model in self._plain_models(fits, lambda: self._spent() > late):
            row = self._measured(f"plain-{len(rows)}", model, {}, model, time.monotonic() - start)
            rows.append({"text": text, **row})
            self.say(f"{text}: {self._line(row)}")
            start = time.monotonic()
        self.body["plain"] = rows
        self._save()

    def _plain_models(
        self, fits: Callable[[ir.Model], bool], until: Callable[[], bool]
    ) -> Iterator[tuple[str, ir.Model]]:
        kind = self.file.words.task.kind
        if kind in ("table", "series"):
            yield from trees(self.data, fits, until)
        elif kind == "forecast":
            yield linear(self.data)

    def _found(self, space: Space, limits: Mapping[str, float], reference: ir.Model) -> None:
        words = self.file.words.search
        smallest = Candidate(space.smallest, 0.0, self.oracle.cost(space, space.smallest))
        plain = [row for row in self.body.get("plain", []) if not beyond(Cost(**row["cost"]), limits)]
        self.body["supernet"] = {"steps": 0, "networks": space.size}
        for key in ("front", "candidates", "finalists"):
            self.body.setdefault(key, [])
        if over := beyond(smallest.cost, limits):
            if not plain:
                raise SearchError(unreachable(smallest, limits))
            self.say(f"no network meets the budget: the smallest has {max(over.values()):.2f} times a limit")
        else:
            nearest = self._searched(space, limits, reference, words)
            if nearest is not None and not plain:
                raise SearchError(unreachable(nearest, limits))
        top = self._best(self.body["finalists"], plain, limits)
        self._compare(top)
        self.body["verdict"] = verdict(top, self.body, limits, self.data.goal.figure)
        self._save()

    def _searched(
        self, space: Space, limits: Mapping[str, float], reference: ir.Model, words: SearchTable
    ) -> Candidate | None:
        """The supernet, evolution, and finalists; the candidate that is nearest to the budget, if none meets it."""
        net = Supernet(
            space, self.data, steps=words.steps, batch=words.batch, rate=words.rate, seed=words.seed,
            augment=self._augment(),
        )  # fmt: skip
        self._train(net)
        candidates = self._evolved(space, net, limits)
        within = [c for c in candidates if not beyond(c.cost, limits)]
        if not within:
            return ranked(candidates, limits)[0]
        best = front(within, limits)
        self.body["front"] = [c.choice.as_data() for c in best]
        rest = [c for c in sorted(within, key=lambda c: (-c.accuracy, c.cost.seconds)) if c not in best]
        chosen = [*sorted(best, key=lambda c: (-c.accuracy, c.cost.seconds)), *rest][: words.finalists]
        self._finalists(net, chosen, reference)
        return None

    def _best(
        self, finalists: list[dict[str, Any]], plain: list[dict[str, Any]], limits: Mapping[str, float]
    ) -> dict[str, Any]:
        """The most accurate finalist or plain model whose bundle meets the budget, by the validation part; of equally
        accurate ones the faster."""
        within = [*plain, *(row for row in finalists if not beyond(Cost(**row["cost"]), limits))]
        if not within:
            nearest = [Candidate(Choice.of_data(row), row["validation"], Cost(**row["cost"])) for row in finalists]
            raise SearchError(unreachable(ranked(nearest, limits)[0], limits))
        top = max(within, key=merit)
        loss, allowed = self.body["reference"]["validation"] - top["validation"], self.file.words.budget.accuracy_loss
        if loss > allowed:
            figure = self.data.goal.figure
            raise SearchError(
                f"budget.accuracy_loss: the best within the other limits, {top['text']}, has {figure} "
                f"{top['validation']:.4f} on the validation part, {loss:.4f} below the reference; {allowed:.4f} is "
                "allowed: raise it or the limits, or search longer"
            )
        return top

    def _train(self, net: Supernet) -> None:
        held = self.folder / _WEIGHTS
        if held.exists():
            net.restore(load_arrays(held))
        self.say(f"supernet: {net.space.size} networks, steps {net.steps} to {net.total}")
        late = self.file.words.budget.minutes * 60 * _OF_SUPERNET
        net.train(until=lambda: self._spent() > late, every=lambda: self._keep(net))
        self._keep(net, always=True)
        self.body["supernet"] = {"steps": net.steps, "networks": net.space.size}
        self._save()

    def _keep(self, net: Supernet, *, always: bool = False) -> None:
        if not always and time.monotonic() - self.saved < _SAVE_SECONDS:
            return
        write_atomically(self.folder / _WEIGHTS, packed_arrays(net.saved()), SearchError)
        self._save()

    def _evolved(self, space: Space, net: Supernet, limits: Mapping[str, float]) -> list[Candidate]:
        words = self.file.words
        rows = self.body.setdefault("candidates", [])
        known = {c.choice: c for c in map(_candidate, rows)}
        late = words.budget.minutes * 60 * _OF_EVOLUTION

        def evaluate(choice: Choice) -> Candidate:
            if choice not in known:
                made = Candidate(choice, net.accuracy(choice), self.oracle.cost(space, choice))
                known[choice] = made
                rows.append({**choice.as_data(), "accuracy": made.accuracy, "cost": made.cost._asdict()})
                if time.monotonic() - self.saved > _SAVE_SECONDS:
                    self._save()
            return known[choice]

        found = evolve(
            space, evaluate, limits, population=words.search.population, generations=words.search.generations,
            seed=words.search.seed, stop=lambda: self._spent() > late and len(known) > 0,
        )  # fmt: skip
        self._save()
        if isinstance(self.oracle, Measured):
            self.oracle.save()
        within = sum(not beyond(c.cost, limits) for c in found)
        self.say(f"evolution: {len(found)} networks, {within} within the budget")
        return found

    def _finalists(self, net: Supernet, chosen: list[Candidate], reference: ir.Model) -> None:
        words, rows = self.file.words, self.body.setdefault("finalists", [])
        largest = net.space.largest
        taught = net.network(largest) if net.accuracy(largest) >= self.body["reference"]["floats"] else reference
        limit, last = words.budget.minutes * 60, 0.0
        for i, one in enumerate(chosen):
            if i < len(rows):
                continue
            if rows and self._spent() + last > limit:
                self.say(f"time: {len(rows)} of {len(chosen)} finalists")
                break
            start = time.monotonic()
            made = trained(
                net.network(one.choice), self.data, words.train, self.folder / f"training-{i}", seed=words.search.seed,
                augment=self._augment(), teacher=taught,
            )  # fmt: skip
            made_of = self._quantised(made.model, one.choice)
            row = self._measured(f"finalist-{i}", *made_of, made.model, made.seconds)
            rows.append({**one.choice.as_data(), "text": one.choice.text, "shared": one.accuracy, **row})
            last = time.monotonic() - start
            self._save()
            self.say(f"finalist {one.choice.text}: {self._line(row)}")

    def _quantised(self, model: ir.Model, choice: Choice | None) -> tuple[ir.Model, dict[str, Any]]:
        """What a network is converted from, and how."""
        words = self.file.words
        if choice is None and set(words.search.bits) == {32}:
            return model, {}
        return finished(model, self.data, choice, words.train, words.search.seed)

    def _measured(
        self, name: str, source: ir.Model, given: Mapping[str, Any], model: ir.Model, seconds: float
    ) -> dict[str, Any]:
        """Write a trained model and its bundle; figures in floats (of `model`) and as deployed, and the predicted
        cost."""
        paths = {kind: self.folder / f"{name}.{kind}" for kind in ("onnx", "mslite", "float.mslite")}
        write_atomically(paths["onnx"], _serialized(source), SearchError)
        made = converter.convert(os.fspath(paths["onnx"]), output=paths["mslite"], **given).bundle
        plain = converter.convert(model.clone(), output=paths["float.mslite"]).bundle
        return {
            "files": name, "floats": figure_of(plain, self.data, self.data.validation),
            "validation": figure_of(made, self.data, self.data.validation),
            "cost": self.oracle.of_bundle(made)._asdict(),
            "training_seconds": seconds,
        }  # fmt: skip

    def _compare(self, top: dict[str, Any]) -> None:
        """The reference, what was found, and the best of the other kind on the test part, timed in turns where they run
        here."""
        others = self.body["finalists" if top in self.body.get("plain", []) else "plain"] if self._both() else []
        pair = (self.body["reference"], top, *sorted(others, key=merit)[-1:])
        for row in pair:
            for key, kind in (("test", "mslite"), ("test_floats", "float.mslite")):
                made = (self.folder / f"{row['files']}.{kind}").read_bytes()
                row[key] = figure_of(made, self.data, self.data.test)
            row["facts"] = self.data.goal.facts(row["test"], self.data.test)
        if isinstance(self.oracle, Measured):
            for key, kind in (("measured", "mslite"), ("measured_floats", "float.mslite")):
                loaded = [program_of((self.folder / f"{row['files']}.{kind}").read_bytes())[:2] for row in pair]
                for row, seconds in zip(pair, latencies(loaded), strict=True):
                    row[key] = seconds
        self.body["found"] = dict(top)

    def _both(self) -> bool:
        """Whether networks and plain models were compared."""
        return bool(self.body["finalists"] and self.body.get("plain"))

    def _line(self, row: Mapping[str, Any]) -> str:
        cost, figure = row["cost"], self.data.goal.figure
        return (
            f"{told(figure, row['validation'])} on validation ({told(figure, row['floats'])} in floats), "
            f"{cost['seconds'] * 1e6:.3g} µs, {cost['file_bytes']} bytes, trained in {row['training_seconds']:.0f} s"
        )

    # --- what is kept

    def _augment(self) -> Any:
        words = self.file.words
        return augment_for(words.task.kind, self.data) if words.train.augment else None

    def _spent(self) -> float:
        return self.before + time.monotonic() - self.begun

    def _load(self) -> None:
        source = {key: dict(value) for key, value in self.file.source.items()}
        for section, keys in zip(("budget", "search"), _FREE, strict=True):
            source[section] = {k: v for k, v in source.get(section, {}).items() if k not in keys}
        mine = {"file": source, "device": self.oracle.device, "data": self.data.digest}
        also = {"figure": self.data.goal.figure, "naive": dict(self.data.naive)}
        path = self.folder / STATE
        if not path.exists():
            self.body = {**mine, **also, "seconds": 0.0}
            return
        try:
            self.body = {**also, **json.loads(path.read_bytes())}
            self.before = float(self.body["seconds"])
            differ = [key for key in mine if self.body[key] != mine[key]]
            list(map(_candidate, self.body.get("candidates", [])))
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise SearchError(f"{str(path)!r} is not a search's state: {error}; name another search.folder") from error
        if differ:
            raise SearchError(
                f"{str(self.folder)!r} is a search with another {differ[0]}; set it back, or name another search.folder"
            )

    def _save(self) -> None:
        self.saved = time.monotonic()
        self.body["seconds"] = self._spent()
        write_atomically(self.folder / STATE, json.dumps(self.body, indent=1).encode(), SearchError)

    def _published(self, store: str | os.PathLike[str] | None) -> Outcome:
        """Copy the best finalist to "found", and record the run."""
        row = self.body["found"]
        paths = {kind: self.folder / f"found.{kind}" for kind in ("onnx", "mslite")}
        for kind, target in paths.items():
            write_atomically(target, (self.folder / f"{row['files']}.{kind}").read_bytes(), SearchError)
        run = self.body.get("run", "")
        if store is not None and not run:
            run = self.body["run"] = self._recorded(Path(store), paths)
        self._save()
        return Outcome(os.fspath(self.folder), os.fspath(paths["mslite"]), os.fspath(paths["onnx"]), run, self.body)

    def _recorded(self, store: Path, paths: Mapping[str, Path]) -> str:
        digest, made = digest_of_file(paths["onnx"]), lite_runtime.load(paths["mslite"]).bundle
        with Store(store, create=True) as held:
            run = held.start(
                name=f"search on {self.oracle.device}", config=self.file.source, seed=self.file.words.search.seed,
                data=self.data.digest, environment=environment(), git=git_state(Path.cwd()),
            )  # fmt: skip
            for kind, own, source in (("onnx", digest, ""), ("bundle", made.digest, digest)):
                path = paths["onnx" if kind == "onnx" else "mslite"]
                size = path.stat().st_size
                held.add_artifact(run, Artifact(kind, os.fspath(path), own, size, time.time(), source))
            keys = ("device", "limits", "figure", "naive", "reference", "found", "plain", "verdict")
            held.add_document(run, "search", {key: self.body[key] for key in keys if key in self.body})
            held.end(run, "finished")
        return run


def _serialized(model: ir.Model) -> bytes:
    return bytes(ir.to_proto(model).SerializeToString(deterministic=True))


def _candidate(row: Mapping[str, Any]) -> Candidate:
    return Candidate(Choice.of_data(row), float(row["accuracy"]), Cost(**row["cost"]))
