"""Batches for training: arrays, pipelines, augmentation."""
