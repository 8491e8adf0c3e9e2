"""Who a client is, by address: behind trusted proxies, the address that they were asked from."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from functools import lru_cache

from edge.gateway.errors import GatewayError

__all__ = ["Peers"]

Network = ipaddress.IPv4Network | ipaddress.IPv6Network


class Peers:
    """proxies: addresses and networks (CIDR) of proxies that are trusted to say whom they forward for. Raises
    GatewayError for anything else."""

    def __init__(self, proxies: Iterable[str]) -> None:
        self._networks = [_network(text) for text in proxies]
        self.trusted = lru_cache(4096)(self._trusted)
        """Whether an address is a trusted proxy's."""

    def of(self, peer: str, forwarded: str | None) -> str:
        """The client's address. forwarded: the header X-Forwarded-For (addresses, the last one added by the proxy that
        is connected), or Forwarded (RFC 7239); it counts only if `peer` is a trusted proxy."""
        if forwarded is None or not self._networks or not self.trusted(peer):
            return peer
        for text in reversed(forwarded.split(",")):
            address = _bare(text)
            if address is None:
                return peer
            peer = address
            if not self.trusted(peer):
                break
        return peer

    def _trusted(self, peer: str) -> bool:
        address = _address(peer)
        return address is not None and any(address in network for network in self._networks)


def _network(text: str) -> Network:
    try:
        return ipaddress.ip_network(text, strict=False)
    except ValueError:
        raise GatewayError(
            500, f"access.proxies: expected addresses or networks such as 10.0.0.0/8, got {text!r:.80}"
        ) from None


def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return None
    return getattr(address, "ipv4_mapped", None) or address


def _bare(text: str) -> str | None:
    """The address in an element of either header, without a port; None if there is none."""
    word = text.strip()
    if "=" in word:
        pairs = dict(pair.strip().lower().partition("=")[::2] for pair in word.split(";"))
        word = pairs.get("for", "").strip('"')
    if word.startswith("["):
        word = word[1:].partition("]")[0]
    elif word.count(":") == 1:
        word = word.partition(":")[0]
    address = _address(word)
    return None if address is None else str(address)
