"""Dropout whose form (training or inference) is known only at run time."""

from __future__ import annotations

import numpy as np
import pytest

from converter.ir import build
from converter.ir.grad import differentiate
from converter.lowering import lower
from converter.pass_lists import to_ir
from lite_runtime import reference
from tests.converter.support import Builder


@pytest.mark.parametrize("ratio", [0.0, 0.4, None])
@pytest.mark.parametrize("training", [True, False])
def test_a_flag_that_is_an_input(training: bool, ratio: float | None) -> None:
    b = Builder()
    given = "" if ratio is None else b.const(np.float32(ratio))
    flag = b.input("training", (), np.bool_)
    y = b("Dropout", b.input("x", (50,)), given, flag, seed=3)
    model = to_ir(b.model(b("ReduceSum", b("Mul", y, y), keepdims=0)))
    build.adopt(model)
    graph = model.graph
    dropped = next(node.outputs[0] for node in graph if node.op_type == "Dropout")
    slope = differentiate(model, graph.outputs[0], [v for v in graph.inputs if v.name == "x"])["x"]
    slope.name = "slope"
    graph.outputs.extend([dropped, slope])
    x = np.linspace(1, 2, 50, dtype=np.float32)
    found = reference.run(lower(model), {"x": x, "training": np.array(training)})
    kept = found[dropped.name or ""]
    share = (0.5 if ratio is None else ratio) if training else 0.0
    assert (0 < (kept == 0).sum() < 50) == bool(share)
    np.testing.assert_allclose(found["slope"], np.where(kept == 0, 0, 2 * kept / (1 - share)), rtol=1e-5)
