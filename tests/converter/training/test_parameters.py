"""What can be trained, what globs pick, and running statistics."""

from __future__ import annotations

import pytest

from converter.errors import TrainingError
from converter.pass_lists import to_ir
from converter.training import Training, parameters, prepare
from tests.converter.training.models import cnn, mlp


def test_parameters_are_float_weights_that_the_loss_depends_on() -> None:
    model = to_ir(cnn())
    found = parameters.parameters(model, model.graph.outputs[0])
    assert "stem.conv.weight" in found and "stem.bn.weight" in found and "head.bias" in found
    assert not [name for name in found if "running" in name]
    other = model.graph.node(0)
    assert "head.bias" not in parameters.parameters(model, other.outputs[0])


def test_globs_pick_by_name_and_each_must_fit() -> None:
    model = to_ir(mlp())
    assert list(prepare(model, Training("head.*")).parameters) == ["head.weight", "head.bias"]
    with pytest.raises(TrainingError, match=r"matches 'tail\.\*'; there are 'body0.weight' \[8, 6\], .*'head.bias'"):
        prepare(to_ir(mlp()), Training(("head.*", "tail.*")))
    with pytest.raises(TrainingError, match="output: expected one of 'logits', got 'y'"):
        prepare(to_ir(mlp()), Training("*", output="y"))


def test_statistics_become_state_where_batch_norms_train() -> None:
    frozen = prepare(to_ir(cnn()), Training("*"))
    assert not frozen.statistics
    moved = prepare(to_ir(cnn()), Training(("stem.*", "head.*"), batch_norm="train"))
    assert moved.statistics == ("stem.bn.running_mean", "stem.bn.running_var")
    assert set(moved.state) == {*moved.parameters, *moved.statistics}
