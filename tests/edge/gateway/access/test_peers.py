"""Whose address counts: nobody but a trusted proxy may name another."""

from __future__ import annotations

import pytest

from edge.gateway.access.peers import Peers
from edge.gateway.errors import GatewayError


@pytest.mark.parametrize(
    "peer, forwarded, client",
    [
        ("10.0.0.1", None, "10.0.0.1"),
        ("10.0.0.1", "1.2.3.4", "1.2.3.4"),
        ("10.0.0.1", "6.6.6.6, 1.2.3.4", "1.2.3.4"),  # the first one is what the client claims
        ("10.0.0.1", "1.2.3.4, 10.0.0.9", "1.2.3.4"),  # two proxies in a row
        ("10.0.0.1", "10.0.0.8, 10.0.0.9", "10.0.0.8"),
        ("10.0.0.1", "1.2.3.4:5678", "1.2.3.4"),
        ("10.0.0.1", "[2001:db8::1]:99", "2001:db8::1"),
        ("10.0.0.1", "for=1.2.3.4;proto=https, for=10.0.0.3", "1.2.3.4"),
        ("10.0.0.1", 'for="[2001:db8::1]:99"', "2001:db8::1"),
        ("10.0.0.1", "unknown", "10.0.0.1"),
        ("10.0.0.1", "1.2.3.4, _hidden", "10.0.0.1"),
        ("10.0.0.1", "", "10.0.0.1"),
        ("9.9.9.9", "1.2.3.4", "9.9.9.9"),
        ("::ffff:10.0.0.1", "1.2.3.4", "1.2.3.4"),
        ("fd00::1", "1.2.3.4", "1.2.3.4"),
        ("", "1.2.3.4", ""),
    ],
)
def test_the_client_s_address(peer: str, forwarded: str | None, client: str) -> None:
    assert Peers(["10.0.0.0/8", "fd00::1"]).of(peer, forwarded) == client


def test_without_proxies_nobody_is_believed() -> None:
    assert Peers([]).of("127.0.0.1", "1.2.3.4") == "127.0.0.1"


@pytest.mark.parametrize("text", ["", "proxy", "10.0.0.0/33", "10.0.0.1:80"])
def test_invalid_networks(text: str) -> None:
    with pytest.raises(GatewayError, match=r"access\.proxies: expected addresses or networks"):
        Peers([text])
