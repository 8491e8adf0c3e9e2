"""Training, data, trials and prediction on a Ray cluster; needs the extra `ray`."""

from __future__ import annotations

from cloud.train.many.ray.batches import RayBatches
from cloud.train.many.ray.predicting import Predictor, predict
from cloud.train.many.ray.training import ray_trainer

__all__ = ["Predictor", "RayBatches", "predict", "ray_trainer"]
