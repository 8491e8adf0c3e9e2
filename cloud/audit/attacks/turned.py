"""A model with its inputs as the Square attack's patches need them: (channels, height, width)."""

from __future__ import annotations

import numpy as np

from cloud.audit.corruptions.runs import arranged
from cloud.audit.subject import Subject
from cloud.audit.victim import Victim
from lite_runtime.graph import Array

__all__ = ["ChannelsFirst"]


class ChannelsFirst(Victim):
    """The deployed file with inputs as (channels, height, width), whose patches the Square attack moves."""

    def __init__(self, subject: Subject) -> None:
        model, kind = subject.model, subject.kind
        order, sizes = arranged(model.shape, kind)
        self._model = model
        if kind == "image":
            self._axes, shape = (order[2], order[0], order[1]) if len(order) == 3 else order, (sizes[2], *sizes[:2])
        elif kind == "table":
            self._axes, shape = order, model.shape
        else:
            self._axes, shape = order, (1, *sizes) if kind == "spectrogram" else (sizes[0], 1, sizes[1])
        super().__init__(model.name, tuple(shape), model.classes)
        self.rounds = model.rounds

    def arranged(self, x: Array) -> Array:
        """(rows, *model.shape) to (rows, *shape)."""
        turned = np.transpose(x, (0, *(axis + 1 for axis in self._axes)))
        return np.ascontiguousarray(turned).reshape(len(x), *self.shape)

    def back(self, x: Array) -> Array:
        """(rows, *shape) to (rows, *model.shape)."""
        sizes = [self._model.shape[axis] for axis in self._axes]
        return np.transpose(x.reshape(len(x), *sizes), (0, *(axis + 1 for axis in np.argsort(self._axes))))

    def _scores(self, x: Array) -> Array:
        return self._model.logits(self.back(x))
