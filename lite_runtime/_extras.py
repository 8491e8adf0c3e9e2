"""How to install an optional dependency: the packages of others, never msedge by its name.

msedge is installed from a wheel or a checkout. Nobody owns its name on a package index, so a line such as `pip install
msedge[cloud]` would install whatever somebody puts there.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

__all__ = ["install_line", "requirements"]

_OWN = "msedge"


def install_line(extra: str, packages: Sequence[str] = ()) -> str:
    """The command that installs what an extra lacks, or where it is described.

    packages: names on the index of the extra's packages, for a runtime whose metadata do not list them.
    """
    wanted = [one for one in requirements(extra) if not _is_here(one)] or requirements(extra) or list(packages)
    if not wanted:
        return f"the extra {extra!r} of the wheel or checkout that msedge was installed from (docs/install.md)"
    return "pip install " + " ".join(one if re.fullmatch(r"[\w.-]+", one) else f"'{one}'" for one in wanted)


def requirements(extra: str) -> list[str]:
    """The packages of others that an extra names, with their versions, as the installed metadata say; without metadata,
    none."""
    from importlib import metadata

    try:
        listed = metadata.requires(_OWN) or []
    except metadata.PackageNotFoundError:
        return []
    return list(dict.fromkeys(_requirements(extra, listed)))


def _requirements(extra: str, listed: Sequence[str]) -> Iterator[str]:
    for line in listed:
        wanted, _, marker = line.partition(";")
        if not re.search(rf"""\bextra\s*==\s*['"]{re.escape(extra)}['"]""", marker):
            continue
        own = re.match(rf"{_OWN}\[([^\]]*)\]", wanted)
        if own is None:
            yield wanted.strip().replace("(", "").replace(")", "")
        else:
            for other in own[1].split(","):
                yield from _requirements(other.strip(), listed)


def _is_here(requirement: str) -> bool:
    """Whether some version of a package is installed."""
    from importlib import metadata

    try:
        metadata.version(re.split(r"[\s\[<>=~!]", requirement, maxsplit=1)[0])
    except metadata.PackageNotFoundError:
        return False
    return True
