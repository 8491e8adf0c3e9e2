"""Automatic parallelism: a step written for one device, planned for many, and checked against compiled programs."""

from __future__ import annotations
