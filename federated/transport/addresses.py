"""Addresses of servers: their parts, and whether only this machine reaches them."""

from __future__ import annotations

from ipaddress import ip_address

__all__ = ["host_and_port", "is_here"]


def host_and_port(address: str) -> tuple[str, int] | None:
    """The parts of HOST:PORT; None for anything else. An address of IPv6 may have brackets."""
    host, mark, port = address.rpartition(":")
    if mark and "/" not in address and port.isascii() and port.isdigit() and len(port) < 6 and int(port) < 1 << 16:
        return host.strip("[]"), int(port)
    return None


def is_here(host: str) -> bool:
    """Whether a host is this machine alone."""
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False
