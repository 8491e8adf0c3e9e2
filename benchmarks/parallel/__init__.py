"""Comparison of plans: the models, the compilers, predictions and compiled programs."""
