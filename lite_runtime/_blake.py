"""BLAKE2b without importing hashlib, which loads OpenSSL: that takes as long as reading a small bundle, a tenth of a
cold start.
"""

from __future__ import annotations

try:
    from _blake2 import blake2b
except ImportError:  # a Python without its own implementation
    from hashlib import blake2b

__all__ = ["blake2b"]
