"""Addresses of clients, as text."""

from __future__ import annotations

import ipaddress

__all__ = ["is_loopback", "network"]


def is_loopback(text: str) -> bool:
    """Whether an address is this machine's own."""
    address = _address(text)
    return address is not None and address.is_loopback


def network(peer: str) -> str:
    """What identifies a client's owner: of IPv6 addresses the first 64 bits, as a client usually owns the rest."""
    address = _address(peer)
    if isinstance(address, ipaddress.IPv6Address):
        return address.packed[:8].hex()
    return str(address or peer)


def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return None
    return getattr(address, "ipv4_mapped", None) or address
