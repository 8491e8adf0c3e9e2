"""What an audit reads, checked: examples, limits, and the subject from a bundle, its float twin and the examples."""

from __future__ import annotations

from cloud.audit.files.limits import Limit, parsed_limit, read_limits
from cloud.audit.files.opening import Settings, open_subject

__all__ = ["Limit", "Settings", "open_subject", "parsed_limit", "read_limits"]
