"""Which user a client on this machine is."""

from __future__ import annotations

import ipaddress
import sys

__all__ = ["user_of"]

_ESTABLISHED = "01"
_TABLES = ("/proc/net/tcp", "/proc/net/tcp6")


def user_of(address: str, port: int) -> int | None:
    """The user that owns the client's end of a connection from this machine, as the kernel tells; None if it tells
    none, or several. address, port: of the client."""
    wanted = {f"{text}:{port:04X}" for text in _written(address)}
    users = set()
    for table in _TABLES:
        try:
            with open(table, encoding="ascii") as file:
                rows = [line.split() for line in file.readlines()[1:]]
        except OSError:
            continue
        users |= {int(row[7]) for row in rows if row[1] in wanted and row[3] == _ESTABLISHED}
    return users.pop() if len(users) == 1 else None


def _written(address: str) -> list[str]:
    """An address as the kernel's tables have it: 32-bit words in the machine's byte order; an IPv4 address also as an
    IPv6 socket has it."""
    parsed = ipaddress.ip_address(address.partition("%")[0])
    forms = [parsed.packed]
    if isinstance(parsed, ipaddress.IPv4Address):
        forms.append(bytes(10) + b"\xff\xff" + parsed.packed)
    elif parsed.ipv4_mapped is not None:
        forms.append(parsed.ipv4_mapped.packed)
    words = [[int.from_bytes(form[i : i + 4], sys.byteorder) for i in range(0, len(form), 4)] for form in forms]
    return ["".join(f"{word:08X}" for word in of) for of in words]
