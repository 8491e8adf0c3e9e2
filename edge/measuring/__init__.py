"""Measuring and comparing models: speed, memory, accuracy and where two runs of a model differ."""
