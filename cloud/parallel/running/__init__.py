"""Running a plan: the same equations emitted again, every value sharded as planned."""

from __future__ import annotations
