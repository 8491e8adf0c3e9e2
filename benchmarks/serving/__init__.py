"""Comparison of HTTP servers with the same model and the same load."""
