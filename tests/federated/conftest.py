"""Importing Flower causes a deprecation warning from click, which does not concern our code."""

from __future__ import annotations

import warnings

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import flwr.app
    import flwr.clientapp
    import flwr.serverapp  # noqa: F401
