"""Calibration: data, observed ranges, and scales from ranges."""
