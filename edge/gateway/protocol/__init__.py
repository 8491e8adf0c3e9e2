"""Bytes of the Open Inference Protocol, as pure functions."""
