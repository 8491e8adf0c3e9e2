"""Processes that read requests and write replies for one that computes: `msedge serve --workers`."""
