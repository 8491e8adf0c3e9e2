"""What there is to choose: options of operators, groups that decide together, moments with their memory."""

from __future__ import annotations
