"""A fused activation is the operator of its name applied afterwards."""

from __future__ import annotations

import numpy as np
import pytest

from lite_runtime.errors import UnsupportedOpError
from lite_runtime.reference.activation import ACTIVATIONS, activate
from tests.lite_runtime.reference.oracle import floats, ours

PARAMETERS = {"Clip": {"activation_min": -0.5, "activation_max": 1.25}, "LeakyRelu": {"activation_alpha": 0.2}}
PARAMETERS |= {"HardSigmoid": {"activation_alpha": 0.3, "activation_beta": 0.4}, "Elu": {"activation_alpha": 0.7}}


@pytest.mark.parametrize("name", [n for n in ACTIVATIONS if n])
def test_equals_the_operator(name: str) -> None:
    x, parameters = floats(4, 50), PARAMETERS.get(name, {})
    attrs = {k.removeprefix("activation_"): v for k, v in parameters.items()}
    op, inputs = name, [x]
    if name == "Clip":
        inputs, attrs = [x, np.array(attrs["min"], np.float32), np.array(attrs["max"], np.float32)], {}
    if name == "GeluTanh":
        op, attrs = "Gelu", {"approximate": "tanh"}
    np.testing.assert_array_equal(activate(x, name, **parameters), ours(op, inputs, attrs)[0])


def test_no_activation() -> None:
    x = floats(3)
    assert activate(x) is x


def test_unknown_activation_is_refused() -> None:
    with pytest.raises(UnsupportedOpError, match="Quick"):
        activate(floats(3), "Quick")


def test_stray_parameter_is_refused() -> None:
    with pytest.raises(UnsupportedOpError, match="dilatations"):
        ours("Conv", [floats(1, 2, 5, 5), floats(3, 2, 3, 3)], {"dilatations": (1, 1)})
