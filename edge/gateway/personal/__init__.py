"""Rows of many devices in one batch, each by its own version of the model."""
