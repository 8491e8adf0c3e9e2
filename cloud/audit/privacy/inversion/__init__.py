"""Gradient inversion: what the messages of a federated round show of a device's examples. A paper a file.

taps = recorded_rounds(model, data)            or `record` of a bundle, or Tap(device) around any device of a run
seen = observe(model, *taps[name].trained[0])  or `observe_mean` of what a secure sum opens
found = invert(seen)                           reconstructions
compare(found, examples, others)               decibels beside those of chance
"""

from __future__ import annotations

from cloud.audit.privacy.inversion.dense import dense_inputs, first_dense
from cloud.audit.privacy.inversion.dlg import dlg
from cloud.audit.privacy.inversion.geiping import geiping
from cloud.audit.privacy.inversion.invert import invert
from cloud.audit.privacy.inversion.labels import labels_of
from cloud.audit.privacy.inversion.observe import Observed, Tap, observe, observe_change, observe_mean
from cloud.audit.privacy.inversion.pictures import Recovered, compare, psnr, ssim
from cloud.audit.privacy.inversion.recording import Recorded, record, recorded_rounds
from cloud.audit.privacy.inversion.trained import trained_function

__all__ = [
    "Observed", "Recorded", "Recovered", "Tap", "compare", "dense_inputs", "dlg", "first_dense", "geiping", "invert",
    "labels_of", "observe", "observe_change", "observe_mean", "psnr", "record", "recorded_rounds", "ssim",
    "trained_function",
]  # fmt: skip
