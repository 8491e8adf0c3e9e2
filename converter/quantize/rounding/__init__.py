"""Weights as integers: equalisation, rounding, bias correction."""
