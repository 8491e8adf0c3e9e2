"""One recipe: its model trained, converted, and compared with what the cloud engine computes."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_ir as ir

from benchmarks.recipes.figures import figure_of
from benchmarks.recipes.writing import TASKS, Run, beside, scored, written_of
from cloud.zoo.build import parameter_count
from lite_runtime.graph import Array

if TYPE_CHECKING:
    from cloud.train.jobs.config import Config
    from cloud.train.jobs.job import Job

__all__ = ["ALLOWED", "HERE", "Row", "digest", "measured", "unchanged"]

HERE = Path(__file__).parent
_CALIBRATION, _BATCH, _TIMED = 256, 100, 30
ALLOWED = 1e-4
"""The largest difference of a float32 bundle, relative to an output's range, as of `msedge verify`."""


@dataclass(frozen=True, slots=True)
class Row:
    """What came of a recipe. `examples`: of training and test; `seconds`: CPU time of the training, with compilation;
    `cloud`, `float32`, `int8`: the figure of the engine and of both bundles; `worst`: the largest difference of the
    float32 bundle from the engine over the whole test, relative to the range of an output; `flips`: the
    largest share of an output's whole numbers that differ; `sizes` in bytes and `milliseconds` of a run of one row on
    one thread: of the float32 and the int8 bundle; `more`: further figures of the float32 bundle by name, and of what
    needs no model."""

    recipe: str
    data: str
    examples: tuple[int, int]
    parameters: int
    seconds: float
    unit: str
    cloud: float
    float32: float
    int8: float
    worst: float
    flips: float
    sizes: tuple[int, int]
    milliseconds: tuple[float, float]
    more: Mapping[str, float] = field(default_factory=dict)

    @property
    def same(self) -> bool:
        """Whether the float32 bundle computes what the engine does."""
        return self.worst <= ALLOWED and self.flips <= _MAY_FLIP


_MAY_FLIP = 1e-3
"""Classes of boxes where two are equally likely but for rounding."""


def digest(recipe: str) -> str:
    """Of a recipe's file."""
    return hashlib.sha256((HERE / f"{recipe}.toml").read_bytes()).hexdigest()


def measured(recipe: str, data: Path, bundles: Path | None = None) -> Row:
    """Train and measure a recipe with the data sets of a folder; `bundles`: where both bundles are kept. Raises
    MsedgeError for what cannot be read or trained."""
    import lite_runtime
    from cloud.train.jobs.config import read
    from cloud.train.jobs.job import job_of
    from converter import convert
    from edge.measuring.parity import compare_all

    path = HERE / f"{recipe}.toml"
    plain = read(path)
    changes = [f'data.options.folder="{data.resolve()}"'] if "folder" in plain.data.options else []
    config = read(path, changes)
    job = job_of(config)
    began = time.process_time()
    job.fit()
    seconds = time.process_time() - began
    assert job.examples.validation is not None
    inputs, labels = job.examples.validation
    model = job.trainer.export()
    source, known = ir.to_proto(model), unchanged(config, job, model)
    rows = np.sort(np.random.default_rng(0).permutation(_count(known))[:_CALIBRATION])
    given = {name: array[rows] for name, array in known.items()}
    made = {
        "float32": convert(source).bundle, "int8": convert(source, quantize="int8", calibration=given).bundle
    }  # fmt: skip
    loaded = {name: lite_runtime.load(bundle, threads=1) for name, bundle in made.items()}
    if bundles is not None:
        bundles.mkdir(parents=True, exist_ok=True)
        for name, bundle in made.items():
            (bundles / f"{recipe}.{name}.mslite").write_bytes(bundle)
    runs: dict[str, Run] = {
        "cloud": lambda given: _named(job.trainer.predict(given, _BATCH), model),
        **{name: partial(_ran, one) for name, one in loaded.items()},
    }
    found = {name: run(inputs) for name, run in runs.items()}
    compared = compare_all(found["float32"], found["cloud"])
    unit, figures, more = _figures(recipe, data, runs, found, inputs, labels)
    return Row(
        recipe, config.data.function.partition(":")[2], (_count(known), _count(inputs)), parameter_count(model),
        seconds, unit, *figures,
        max(d.significant for d in compared if not d.unequal),
        max(d.unequal for d in compared), _pair(len(made[name]) for name in made),
        _pair(_milliseconds(one, inputs) for one in loaded.values()), more,
    )  # fmt: skip


def _figures(
    recipe: str, data: Path, runs: Mapping[str, Run], found: Mapping[str, Mapping[str, Array]],
    inputs: Mapping[str, Array], labels: Any,
) -> tuple[str, tuple[float, float, float], dict[str, float]]:  # fmt: skip
    """The figure's name, its values of the engine and of both bundles, and further ones."""
    if recipe not in TASKS:
        figure = figure_of(recipe)
        cloud, plain, narrow = (figure.of(found[name], labels) for name in ("cloud", "float32", "int8"))
        return figure.unit, (cloud, plain, narrow), {}
    made = {name: written_of(recipe, data, run, inputs, labels) for name, run in runs.items()}
    cloud, plain, narrow = (scored(recipe, data, made[name], labels) for name in ("cloud", "float32", "int8"))
    return TASKS[recipe].unit, (cloud, plain, narrow), beside(recipe, data, inputs, labels, made["float32"])


def unchanged(config: Config, job: Job, model: ir.Model) -> Mapping[str, Array]:
    """The inputs of training by name, as they are before `[[data.augment]]`."""
    from cloud.train.jobs.sources import examples_of

    inputs: Mapping[str, Array] = (examples_of(config, model) if config.data.augment else job.examples).train[0]
    return inputs


def _pair(values: Any) -> Any:
    one, other = values
    return one, other


def _count(inputs: Mapping[str, Array]) -> int:
    return len(next(iter(inputs.values())))


def _named(outputs: Any, model: ir.Model) -> dict[str, Array]:
    """By name, in the dtypes that the model declares: the engine counts in 32 bits."""
    declared = {str(value.name): value.dtype for value in model.graph.outputs}
    named = outputs if isinstance(outputs, Mapping) else {next(iter(declared)): outputs}
    return {name: named[name].astype(dtype.numpy()) for name, dtype in declared.items() if dtype is not None}


def _ran(model: Any, inputs: Mapping[str, Array]) -> dict[str, Array]:
    """All rows, in batches."""
    parts = [
        model.run({name: array[at : at + _BATCH] for name, array in inputs.items()})
        for at in range(0, _count(inputs), _BATCH)
    ]
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def _milliseconds(model: Any, inputs: Mapping[str, Array]) -> float:
    """The median time of a run of one row."""
    times = []
    for at in range(3 + _TIMED):
        row = {name: array[at % len(array)][None] for name, array in inputs.items()}
        began = time.perf_counter()
        model.run(row)
        times.append(time.perf_counter() - began)
    return float(np.median(times[3:])) * 1e3
