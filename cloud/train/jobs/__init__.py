"""From a TOML file to a run: its keys, the model and data it names, and the resulting trainer."""

from __future__ import annotations
