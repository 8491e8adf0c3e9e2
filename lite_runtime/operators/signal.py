"""Windows, spectra and filters."""

from __future__ import annotations

from functools import partial

from lite_runtime.operators.record import Operator

__all__ = ["RECORDS"]

_op = partial(Operator, reference="signal")

RECORDS: tuple[Operator, ...] = (
    _op("BlackmanWindow", since=17, attrs="output_datatype:i periodic:i"),
    _op("DFT", since=17, inputs=(1, 3), attrs="inverse:i onesided:i", traits=("wide",)),
    _op("HammingWindow", since=17, attrs="output_datatype:i periodic:i"),
    _op("HannWindow", since=17, attrs="output_datatype:i periodic:i"),
    _op("MelWeightMatrix", since=17, inputs=(5, 5), attrs="output_datatype:i"),
    _op("STFT", since=17, inputs=(2, 4), attrs="onesided:i", traits=("wide",)),
)
