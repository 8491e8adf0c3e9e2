"""Calibrated confidence and out-of-distribution scores of a classifier: what a bundle holds for them, and their values.

`description` is the bundle's section, `scores` the arithmetic, `confidence` both applied to a run's outputs. What fits
them is `cloud.audit.calibration`.
"""
