"""Autoencoders."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from cloud.zoo.build import BATCH, Builder

__all__ = ["autoencoder"]


def autoencoder(
    features: int = 640, code: int = 8, seed: int = 0, *, hidden: Sequence[int] = (128, 128, 128, 128)
) -> ir.Model:
    """MLPerf Tiny's anomaly detector (Koizumi et al., DCASE 2020 task 2; Banbury et al., 2021): `x` [batch, features]
    -> `reconstruction` [batch, features]; 267,928 trained parameters.

    Dense layers with batch norm and ReLU to `code` numbers and, in reverse order, back. What it was trained on is
    reconstructed well; the mean squared error of an example is its anomaly score.
    """
    b = Builder("autoencoder", seed)
    y = b.input("x", (BATCH, features))
    for i, units in enumerate((*hidden, code, *reversed(hidden))):
        y = b.relu(b.batch_norm(b.dense(y, units, name=f"layer{i}"), name=f"layer{i}.bn"))
    return b.model(reconstruction=b.dense(y, features, name="head"))
