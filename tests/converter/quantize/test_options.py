"""Options refuse invalid values, and the errors name the allowed ones."""

from __future__ import annotations

import pytest

from converter.errors import ConvertError, QuantizeError
from converter.quantize.options import METHODS, MODES, Options, matches


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("method", METHODS)
def test_every_mode_takes_every_method(mode, method):
    assert Options(mode=mode, method=method).static is (mode in ("int8", "int16x8"))


@pytest.mark.parametrize(
    "wrong, allowed",
    [
        ({"mode": "int4"}, "one of none, fp16"),
        ({"method": "best"}, "minmax"),
        ({"percentile": 50}, "above 50"),
        ({"percentile": 101}, "at most 100"),
        ({"percentile": "high"}, "a number"),
        ({"block_size": 33}, "32"),
        ({"block_size": True}, "one of"),
        ({"equalize": 1}, "True or False"),
        ({"keep_float": 3}, "globs"),
        ({"keep_float": ("",)}, "globs"),
        ({"io": "uint8"}, "float32, int8"),
        ({"io": "int8", "mode": "w8"}, "mode 'int8'"),
    ],
)
def test_wrong_values_are_refused(wrong, allowed):
    with pytest.raises(QuantizeError, match=allowed) as caught:
        Options(**wrong)
    assert isinstance(caught.value, ConvertError)


def test_blocks_follow_the_mode():
    assert Options(mode="w4").block == 32 and Options(mode="w4").weight_bits == 4
    assert Options(mode="w8").block == 0 and Options(mode="w8").weight_bits == 8
    assert Options(mode="w4", block_size=128).block == 128
    assert Options(mode="w4", block_size=0).block == 0


def test_globs():
    assert Options(keep_float="Conv").keep_float == ("Conv",)
    assert Options(keep_float=["a", "b*"]).keep_float == ("a", "b*")
    assert matches(("head*",), "body", "head.1") and not matches(("Head*",), "head.1", None)
    assert not matches((), "x")
