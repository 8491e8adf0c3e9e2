"""Batches of real models: every row has the result that it has alone."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from threading import Thread

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from converter import convert
from edge.gateway.batching.gather import deal
from edge.gateway.batching.runner import ModelRunner
from edge.gateway.errors import GatewayError
from edge.gateway.job import Job
from edge.gateway.ports import ports_of
from lite_runtime import Model, load

MODELS = {
    "mlp": """<ir_version: 8, opset_import: ["" : 17]>
mlp (float[n, 8] x) => (float[n, 16] y, float[n, 8] z)
<float[8, 16] w> { h = MatMul(x, w)  y = Relu(h)  z = Neg(x) }""",
    "table": """<ir_version: 8, opset_import: ["" : 17]>
table (int64[n, 2] i) => (float[n, 2, 4] y) <float[10, 4] w> { y = Gather<axis = 0>(w, i) }""",
    "mixing": """<ir_version: 8, opset_import: ["" : 17]>
mixing (float[n, 8] x) => (float[n, 8] y) { m = ReduceMean<axes = [0], keepdims = 1>(x)  y = Sub(x, m) }""",
    "fixed": """<ir_version: 8, opset_import: ["" : 17]>
fixed (float[2, 8] x) => (float[2, 8] y) { y = Exp(x) }""",
    "words": """<ir_version: 8, opset_import: ["" : 17, "ai.onnx.ml" : 3]>
words (string[n, 1] x) => (int64[n, 1] y)
{ y = ai.onnx.ml.LabelEncoder<keys_strings = ["a", "b"], values_int64s = [1, 2], default_int64 = -1>(x) }""",
    "sequence": """<ir_version: 8, opset_import: ["" : 17]>
sequence (float[n, steps, 4] x, float[n, 4] s) => (float[n, steps, 4] y)
{ a = Constant<value_ints = [1]>()  u = Unsqueeze(s, a)  y = Mul(x, u) }""",
}
WEIGHTS = {"mlp": (8, 16), "table": (10, 4)}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Model]:
    folder, rng = tmp_path_factory.mktemp("models"), np.random.default_rng(3)
    made = {}
    for name, text in MODELS.items():
        model = onnx.parser.parse_model(text)
        if name in WEIGHTS:
            weight = rng.standard_normal(WEIGHTS[name]).astype(np.float32)
            model.graph.initializer.append(onnx.numpy_helper.from_array(weight, "w"))
        path: Path = folder / f"{name}.mslite"
        onnx.save(model, path.with_suffix(".onnx"))
        convert(path.with_suffix(".onnx"), output=path)
        made[name] = load(path)
    return made


def runner_of(model: Model, limit: int = 16, steps: int = 3) -> ModelRunner:
    ports = ports_of(model)
    shapes = {
        name: tuple(d if isinstance(d, int) else steps for d in (port.shape or ())[1 if ports.batched else 0 :])
        for name, port in ports.inputs.items()
    }
    return ModelRunner(model, "predict", ports, shapes, name="m", version="1", limit=limit)


def jobs_of(model: Model, rows: Sequence[int], seed: int = 0) -> list[Job]:
    rng = np.random.default_rng(seed)
    jobs = []
    for n in rows:
        inputs = {}
        for name, port in ports_of(model).inputs.items():
            shape = tuple(d if isinstance(d, int) else (n if d == "n" else 3) for d in port.shape or ())
            if port.datatype == "BYTES":
                inputs[name] = rng.choice(np.array(["a", "b", "c"], object), shape)
            else:
                inputs[name] = (4 * rng.random(shape)).astype(port.dtype)
        jobs.append(Job(inputs, n, lambda job: None, arrived=0.0))
    return jobs


def check(model: Model, jobs: Sequence[Job]) -> None:
    for job in jobs:
        assert job.error is None, job.error
        assert job.outputs is not None
        expected = model.run(job.inputs)
        assert list(job.outputs) == list(expected)
        for name, array in expected.items():
            assert job.outputs[name].dtype == array.dtype
            assert job.outputs[name].base is None
            if array.dtype.kind == "f":
                np.testing.assert_allclose(job.outputs[name], array, rtol=1e-5, atol=1e-6)
            else:
                assert np.array_equal(job.outputs[name], array)
        assert 0 < job.begun <= job.begun + job.input_seconds <= job.computed <= job.done
        assert job.batch >= 1


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("warm", [True, False])
def test_rows_in_a_batch_equal_single_rows(models: dict[str, Model], name: str, warm: bool) -> None:
    model = models[name]
    runner = runner_of(model)
    if warm:
        runner.warm()
    if name == "fixed":
        jobs = jobs_of(model, [1, 1, 1])
        runner.run(jobs)
        check(model, jobs)
        return
    for rows in ([1], [3], [1, 1, 1], [2, 5, 1, 7], [40, 1, 16], [16]):
        jobs = jobs_of(model, rows, seed=len(rows))
        runner.run(jobs)
        check(model, jobs)
    assert runner.sizes[0] == 1


def test_which_batch_sizes_are_compiled(models: dict[str, Model]) -> None:
    runner = runner_of(models["mlp"], limit=12)
    assert runner.key == "m/1/predict/x[8]" and runner.sizes == ()
    runner.run(jobs_of(models["mlp"], [1]))
    assert runner.sizes == (1,)
    runner.run(jobs_of(models["mlp"], [5]))
    assert runner.sizes == (1, 2, 4)
    runner.warm()
    assert set(runner.sizes) <= {1, 2, 4, 8, 12} and runner.cost.sizes == runner.sizes
    assert sum(runner.cost.cover(12)) >= 12


def test_memory_bounds_what_is_compiled(models: dict[str, Model]) -> None:
    ports = ports_of(models["mlp"])
    runner = ModelRunner(models["mlp"], "predict", ports, {"x": (8,)}, memory=600)
    runner.warm()
    assert runner.sizes == (1, 2, 4)


def test_rows_that_depend_on_one_another_are_not_batched(models: dict[str, Model]) -> None:
    runner = runner_of(models["mixing"])
    jobs = jobs_of(models["mixing"], [1, 1, 4, 2])
    runner.run(jobs)
    check(models["mixing"], jobs)
    assert [job.batch for job in jobs] == [1, 1, 4, 2]
    assert runner.limit == 1


def test_only_the_invalid_job_fails(models: dict[str, Model]) -> None:
    runner = runner_of(models["table"], limit=4)
    runner.warm()
    jobs = jobs_of(models["table"], [1, 2, 1, 1, 9])
    jobs[2].inputs = {"i": np.array([[0, 10]])}
    jobs[4].inputs["i"][7, 1] = -11  # type: ignore[index]
    runner.run(jobs)
    guilty = [jobs[2], jobs[4]]
    for job in guilty:
        assert isinstance(job.error, GatewayError) and job.error.status == 400
        assert job.outputs is None
        assert "outside" in str(job.error)
    check(models["table"], [job for job in jobs if job not in guilty])
    after = jobs_of(models["table"], [3])  # padded with a row that stood where a bad one was
    runner.run(after)
    check(models["table"], after)


def test_a_model_that_cannot_be_run_fails_every_job(models: dict[str, Model]) -> None:
    model = models["sequence"]
    runner = ModelRunner(model, "predict", ports_of(model), {"x": (3, 4), "s": (5,)})
    jobs = jobs_of(model, [1, 1])
    runner.run(jobs)
    assert all(isinstance(job.error, GatewayError) and job.error.status == 400 for job in jobs)
    with pytest.raises(Exception, match="s: float32"):
        runner.warm()


@given(st.lists(st.integers(1, 9), min_size=1, max_size=9), st.lists(st.integers(1, 8), min_size=1, max_size=9))
def test_rows_are_dealt_in_order(rows: list[int], sizes: list[int]) -> None:
    sizes = sizes + [8] * (-(-max(0, sum(rows) - sum(sizes)) // 8))
    jobs = [Job({}, n, lambda job: None, arrived=0.0) for n in rows]
    dealt = list(deal(jobs, sizes))
    placed = [
        (job, row) for _, segments in dealt for s in segments for job in [s.job] for row in range(s.begin, s.end)
    ]  # fmt: skip
    assert placed == [(job, row) for job in jobs for row in range(job.rows)]
    for size, segments in dealt:
        ends = [s.at + s.end - s.begin for s in segments]
        assert [s.at for s in segments] == [0, *ends[:-1]] and ends[-1] <= size


def test_sizes_that_must_be_compiled_first_are_not_predicted(models: dict[str, Model]) -> None:
    runner = runner_of(models["mlp"], limit=8)
    assert runner.cost.predict(1) is None
    runner.run(jobs_of(models["mlp"], [1]))
    assert runner.cost.predict(1) is not None and runner.cost.predict(2) is None
    runner.warm()
    assert runner.cost.predict(1000) is not None


def test_warm_up_during_traffic(models: dict[str, Model]) -> None:
    runner = runner_of(models["mlp"], limit=64)
    warming = Thread(target=runner.warm)
    warming.start()
    for turn in range(30):
        jobs = jobs_of(models["mlp"], [1, 2, turn + 1], seed=turn)
        runner.run(jobs)
        check(models["mlp"], jobs)
    warming.join()
    assert runner.cost.predict(1000) is not None
