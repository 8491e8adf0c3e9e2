"""A TOML file to a run: its keys, what it names, and the trainer that comes of it."""

from __future__ import annotations
