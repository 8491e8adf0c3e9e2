"""`msedge hub`: the signed repository from which a fleet updates itself."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer

from edge.cli.errors import CHECK_FAILED
from edge.cli.options import Json
from edge.cli.output import bytes_text, console, emit, say, table

if TYPE_CHECKING:
    from cloud.hub.repository.draft import Outcome
    from cloud.hub.repository.repository import Repository
    from cloud.hub.repository.status import Status

__all__ = ["COMMANDS"]

Where: TypeAlias = Annotated[str, typer.Argument(metavar="REPOSITORY", help="A folder, or s3://BUCKET/PREFIX.")]
App: TypeAlias = Annotated[str, typer.Argument(metavar="APP", help="The application.")]
Version: TypeAlias = Annotated[str, typer.Argument(metavar="VERSION", help="Its version, such as 1.4.0.")]
KeyFolders: TypeAlias = Annotated[
    list[Path] | None,
    typer.Option("--keys", metavar="DIR", help="A folder of keys, with its subfolders; repeatable. Default: keys."),
]
Passphrase: TypeAlias = Annotated[
    Path | None,
    typer.Option("--passphrase", metavar="FILE", help="A file with the keys' passphrase; default: you are asked."),
]
PublicKeys: TypeAlias = Annotated[
    list[Path] | None,
    typer.Option("--key", metavar="FILE.pub", help="The public key of somebody who signs; repeatable. Default: new."),
]


def _repository(where: str, keys: list[Path] | None, passphrase: Path | None, *, sealed: bool = False) -> Repository:
    """sealed: whether new keys are to be encrypted without a passphrase file too."""
    from cloud.hub.repository.keys import Keys
    from cloud.hub.repository.repository import Repository
    from cloud.hub.storage import storage_at
    from lite_runtime.bundle.keys import content

    def asked(path: str) -> bytes | None:
        if passphrase is not None:
            return content(passphrase).split(b"\n", 1)[0].rstrip(b"\r") or None
        if sys.stdin.isatty() and (sealed or os.path.exists(path)):
            return typer.prompt(f"passphrase of {path}", hide_input=True, err=True).encode() or None
        return None

    return Repository(storage_at(where), Keys(keys or [Path("keys")], asked))


def _told(where: str, outcome: Outcome, what: str, as_json: bool, **more: Any) -> None:
    """Say what became of a change."""
    if as_json:
        emit({"repository": where, "stored": outcome.stored, "waiting": outcome.waiting, **more})
        return
    say(what if not outcome.waiting else f"{what}; devices do not see it yet")
    for role, text in outcome.waiting.items():
        say(f"waiting: {role} has {text}")
    if outcome.waiting:
        staged = not outcome.stored
        say(f"next:  msedge hub {'sign' if staged else 'publish'} {where} --keys DIR, where the keys are")


def init(
    repository: Where,
    application: Annotated[
        list[str] | None, typer.Option("--application", metavar="APP", help="An application to begin with; repeatable.")
    ] = None,
    root_keys: Annotated[int, typer.Option("--root-keys", metavar="N", min=1, max=32, help="Keys of the root.")] = 1,
    root_threshold: Annotated[
        int, typer.Option("--root-threshold", metavar="N", min=1, max=32, help="How many of them must sign.")
    ] = 1,
    days: Annotated[
        list[str] | None,
        typer.Option("--days", metavar="ROLE=N", help="Days until a role's signature expires; repeatable."),
    ] = None,
    encrypt: Annotated[bool, typer.Option("--encrypt", help="Ask for a passphrase, and encrypt the keys.")] = False,
    keys: KeyFolders = None,
    passphrase: Passphrase = None,
    as_json: Json = False,
) -> None:
    """Make a repository and its keys. Keep KEYS/offline where no server reads it; the hub needs KEYS/online alone."""
    from cloud.hub.repository.repository import Signing

    periods = {name: _number(text) for name, text in _pairs(days, "--days").items()}
    made = _repository(repository, keys, passphrase, sealed=encrypt)
    outcome = made.init({"root": Signing(root_keys, root_threshold)}, periods, application or ())
    folder = made.keys.folders[0]
    root = f"{repository.rstrip('/')}/metadata/1.root.json"
    what = f"made {repository}, keys in {folder}; devices begin with {root}"
    _told(repository, outcome, what, as_json, keys=str(folder), root=root)


def delegate(
    repository: Where,
    application: App,
    key: PublicKeys = None,
    threshold: Annotated[int, typer.Option("--threshold", metavar="N", min=1, help="How many must sign.")] = 1,
    keys: KeyFolders = None,
    passphrase: Passphrase = None,
    as_json: Json = False,
) -> None:
    """Make an application, whose releases certain keys sign. Needs the keys of targets."""
    outcome = _repository(repository, keys, passphrase).delegate(application, key or (), threshold)
    _told(repository, outcome, f"made the application {application}", as_json)


def add(
    repository: Where,
    application: App,
    version: Version,
    files: Annotated[
        list[str],
        typer.Argument(metavar="[NAME=]FILE…", help="Bundles; NAME: as devices know it, default: the file's name."),
    ],
    memory: Annotated[
        int, typer.Option("--memory", metavar="BYTES", min=0, help="Memory that it may use at once; 0: any.")
    ] = 0,
    latency: Annotated[
        float, typer.Option("--latency", metavar="MS", min=0, help="Most milliseconds of a run; 0: any.")
    ] = 0.0,
    target: Annotated[
        list[str] | None, typer.Option("--target", metavar="NAME", help="A machine that may run it; repeatable.")
    ] = None,
    runtime: Annotated[
        str, typer.Option("--runtime", metavar="VERSION", help="The first version of msedge that can run it.")
    ] = "",
    lineage: Annotated[
        list[str] | None,
        typer.Option("--lineage", metavar="KEY=TEXT", help="Where it comes from, beside what the bundle says."),
    ] = None,
    runs: Annotated[
        Path | None, typer.Option("--runs", metavar="FILE", help="The store of training runs, to name the run.")
    ] = None,
    builder: Annotated[
        str, typer.Option("--builder", metavar="URI", help="The platform that converted it; default: the team itself.")
    ] = "",
    keys: KeyFolders = None,
    passphrase: Passphrase = None,
    as_json: Json = False,
) -> None:
    """Store and sign a version of an application, and where it comes from. Devices run it once it is promoted."""
    from cloud.hub.repository.origin import origin
    from cloud.hub.repository.releases import Releases
    from lite_runtime.updates.release import Requirements

    named = {name or Path(path).name: Path(path) for name, _, path in map(_split, files)}
    if len(named) != len(files):
        raise typer.BadParameter("two files have the same name; NAME=FILE gives one another", param_hint="FILE")
    said = origin(named, runs) | _pairs(lineage, "--lineage")
    needs = Requirements(memory, latency, tuple(target or ()), runtime)
    if builder and not re.match(r"[A-Za-z][A-Za-z0-9+.-]*:\S+$", builder):
        raise typer.BadParameter(f"expected a URI such as https://ci.example.org/release, got {builder!r}",
                                 param_hint="--builder")  # fmt: skip
    made = Releases(_repository(repository, keys, passphrase)).add(application, version, named, needs, said, builder)
    new = f"{made.pieces - made.shared} of {made.pieces} pieces are new, {bytes_text(made.size - made.saved)}"
    by = f"attested by {', '.join(made.attested)}" if made.attested else "not attested, as no key of it is here"
    _told(
        repository, made.outcome, f"added {application} {version}: {new}; {by}", as_json, application=application,
        version=version, pieces=made.pieces, shared=made.shared, bytes=made.size, saved=made.saved, lineage=said,
        attested=made.attested,
    )  # fmt: skip


def provenance(
    repository: Where,
    application: App,
    version: Version,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE", help="Write the signed lines (.intoto.jsonl) for other tools."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Show what is attested of a version: what its bundles were made of, how and by whom. Exit code 1: no key that
    counts has signed that."""
    from cloud.hub.repository.releases import Releases
    from lite_runtime._files import write_atomically

    releases = Releases(_repository(repository, [], None))
    found = [(one, releases.signers(one)) for one in releases.attestations(application, version)]
    if output is not None:
        write_atomically(output, releases.envelopes(application, version))
    if as_json:
        rows = [{"statement": one.statement, "signed_by": names} for one, names in found]
        emit({"repository": repository, "application": application, "version": version, "attestations": rows})
    else:
        for one, names in found:
            _show_attestation(one.statement, names)
    if not found or not all(names for _, names in found):
        say(f"warning: {application} {version} is not attested by a key that counts; msedge hub add once more")
        raise typer.Exit(CHECK_FAILED)


def _show_attestation(statement: Mapping[str, Any], names: tuple[str, ...]) -> None:
    subject, predicate = statement["subject"][0], statement["predicate"]
    definition, run = predicate["buildDefinition"], predicate["runDetails"]
    print(f"{subject['name']}  sha256 {subject['digest']['sha256']}")
    print(f"  signed by {', '.join(names) or 'no key that counts'}; {definition['buildType']}")
    print(f"  made by {run['builder']['id']} with msedge {run['builder'].get('version', {}).get('msedge', 'unknown')}")
    for one in definition.get("resolvedDependencies", ()):
        digest = ", ".join(f"{kind} {value}" for kind, value in one.get("digest", {}).items())
        print(f"  of {one.get('name', 'something')}: {digest or one.get('uri', '')}")
    for key, value in definition["externalParameters"].items():
        print(f"  {key}: {json.dumps(value, sort_keys=True) if isinstance(value, dict) else value}")


def promote(
    repository: Where,
    application: App,
    version: Version,
    channel: Annotated[str, typer.Option("--channel", metavar="NAME", help="The channel.")] = "stable",
    withdraw: Annotated[bool, typer.Option("--withdraw", help="Instead, take it out: no device may run it.")] = False,
    keys: KeyFolders = None,
    passphrase: Passphrase = None,
    as_json: Json = False,
) -> None:
    """Let devices of a channel run a version, or withdraw it."""
    from cloud.hub.repository.releases import Releases

    releases = Releases(_repository(repository, keys, passphrase))
    now, outcome = releases.promote(application, version, channel, withdraw=withdraw)
    versions = ", ".join(now.versions) or "no version"
    _told(
        repository, outcome, f"{channel} of {application}: {versions}", as_json, application=application,
        channel=channel, versions=now.versions, serial=now.serial,
    )  # fmt: skip


def deltas(
    repository: Where,
    application: App,
    version: Version,
    before: Annotated[
        list[str] | None,
        typer.Option(
            "--from", metavar="VERSION", help="One that devices have; repeatable. Default: all of channels."
        ),
    ] = None,
    keys: KeyFolders = None,
    passphrase: Passphrase = None,
    as_json: Json = False,
) -> None:
    """Make deltas, by which devices get a version from the one that they have. Needs the hub's keys."""
    from cloud.hub.repository.releases import Releases

    made = Releases(_repository(repository, keys, passphrase)).make_deltas(application, version, before or ())
    size = bytes_text(sum(made.deltas.values()))
    what = f"made {len(made.deltas)} deltas to {application} {version}, {size}; {made.useless} would save nothing"
    rows = [{"from": old, "to": new, "bytes": count} for (old, new), count in made.deltas.items()]
    _told(repository, made.outcome, what, as_json, application=application, version=version, deltas=rows,
          useless=made.useless)  # fmt: skip


def remove(
    repository: Where,
    application: App,
    version: Version,
    keys: KeyFolders = None,
    passphrase: Passphrase = None,
    as_json: Json = False,
) -> None:
    """Take a version out of the repository that is in no channel. `msedge hub prune` frees its space."""
    from cloud.hub.repository.releases import Releases

    outcome = Releases(_repository(repository, keys, passphrase)).remove(application, version)
    _told(repository, outcome, f"removed {application} {version}", as_json)


def prune(
    repository: Where,
    older: Annotated[
        float, typer.Option("--older", metavar="DAYS", min=0, help="Keep what was written within so many days.")
    ] = 1.0,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would be deleted.")] = False,
    keys: KeyFolders = None,
    passphrase: Passphrase = None,
    as_json: Json = False,
) -> None:
    """Delete pieces and documents that no release refers to, and metadata that newer ones replaced."""
    from cloud.hub.repository.releases import Releases

    done = Releases(_repository(repository, keys, passphrase)).prune(older * 86_400, dry=dry_run)
    if as_json:
        emit({"repository": repository, "files": done.files, "bytes": done.size, "deleted": not dry_run})
    else:
        say(f"{'would delete' if dry_run else 'deleted'} {len(done.files)} files, {bytes_text(done.size)}")


def rotate(
    repository: Where,
    role: Annotated[
        str, typer.Argument(metavar="ROLE", help="root, targets, snapshot, timestamp, deltas, or an application.")
    ],
    key: PublicKeys = None,
    revoke: Annotated[
        list[str] | None,
        typer.Option("--revoke", metavar="NAME", help="A key that goes; repeatable. Default: all of the role."),
    ] = None,
    threshold: Annotated[
        int, typer.Option("--threshold", metavar="N", min=0, help="How many must sign; default: as many as before.")
    ] = 0,
    keys: KeyFolders = None,
    passphrase: Passphrase = None,
    as_json: Json = False,
) -> None:
    """Exchange the keys of a role. Devices follow without being touched, however old their root is."""
    outcome = _repository(repository, keys, passphrase).rotate(role, key or (), revoke or (), threshold)
    _told(repository, outcome, f"exchanged the keys of {role}", as_json)


def sign(
    repository: Where,
    discard: Annotated[bool, typer.Option("--discard", help="Instead, throw away what waits.")] = False,
    keys: KeyFolders = None,
    passphrase: Passphrase = None,
    as_json: Json = False,
) -> None:
    """Sign what waits for more signatures, with the keys at hand."""
    made = _repository(repository, keys, passphrase)
    if discard:
        gone = made.discard()
        if as_json:
            emit({"repository": repository, "discarded": gone})
        else:
            say(f"threw away the changes of {', '.join(gone) or 'nothing'}")
        return
    outcome = made.sign()
    _told(repository, outcome, f"signed {', '.join([*outcome.stored, *outcome.waiting])}", as_json)


def publish(repository: Where, keys: KeyFolders = None, passphrase: Passphrase = None, as_json: Json = False) -> None:
    """Show devices what waits for the hub's keys, and sign again what lives only half of its time longer."""
    outcome = _repository(repository, keys, passphrase).publish()
    done = ", ".join(f"{role} {version}" for role, version in outcome.stored.items())
    _told(repository, outcome, f"published {done or 'nothing: all is up to date'}", as_json)


def renew(
    repository: Where,
    within: Annotated[
        float, typer.Option("--within", metavar="DAYS", min=0, help="Sign again what expires within so many days.")
    ] = 30.0,
    keys: KeyFolders = None,
    passphrase: Passphrase = None,
    as_json: Json = False,
) -> None:
    """Sign roles again before their signatures expire."""
    outcome = _repository(repository, keys, passphrase).renew(within)
    _told(repository, outcome, f"renewed {', '.join(outcome.stored) or 'nothing'}", as_json)


def status(
    repository: Where,
    within: Annotated[
        float | None,
        typer.Option("--days", metavar="N", min=0, help="Warn of all that expires within N days. Default: 30 days for"
                     " what people sign, a quarter of its time for what the hub signs."),
    ] = None,
    check: Annotated[bool, typer.Option("--check", help="Read all pieces, and check their digests.")] = False,
    as_json: Json = False,
) -> None:  # fmt: skip
    """Show roles, keys, versions and channels. Exit code 1: something expires soon, is damaged or waits."""
    from cloud.hub.repository.status import status as looked

    found = looked(_repository(repository, [], None), within, content=check)
    if as_json:
        emit(found._asdict() | {"roles": [role._asdict() for role in found.roles]})
    else:
        _show(found)
    if found.expiring or found.problems or found.waiting:
        raise typer.Exit(CHECK_FAILED)


def _show(found: Status) -> None:
    rows = table(found.repository, "role", "version", "signed by", "expires", "days", right=("version", "days"))
    for role in found.roles:
        seen = str(role.version) if role.published == role.version else f"{role.version} (devices: {role.published})"
        rows.add_row(role.role, seen, f"{role.threshold} of {', '.join(role.keys)}", role.expires, f"{role.left:.1f}")
    out = console()
    out.print(rows)
    for name, about in found.applications.items():
        held = "; ".join(f"{channel}: {', '.join(each) or 'none'}" for channel, each in about["channels"].items())
        out.print(f"{name}: versions {', '.join(about['versions']) or 'none'}; {held or 'no channels'}")
        if bare := [version for version, names in about["attested"].items() if not names]:
            out.print(f"{name}: not attested: {', '.join(bare)}")
    for role_name in found.expiring:
        say(f"warning: {role_name} expires soon or has expired; msedge hub renew, or publish for the hub's roles")
    for role_name, text in found.waiting.items():
        say(f"waiting: {role_name} has {text}")
    for text in found.problems:
        say(f"problem: {text}")


def mirror(
    repository: Where,
    application: App,
    version: Version,
    address: Annotated[
        str, typer.Argument(metavar="ADDRESS", help="oci://HOST/PATH[:TAG]; the tag is the version by default.")
    ],
    file: Annotated[str, typer.Option("--file", metavar="NAME", help="The file of a release that has several.")] = "",
    serve_as: Annotated[
        int, typer.Option("--serve-as", metavar="N", min=0, help="The number of the version for `msedge serve`.")
    ] = 0,
    credentials: Annotated[
        Path | None, typer.Option("--credentials", metavar="FILE", help="As repository.credentials of a gateway.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Store a release's bundle in an OCI registry, from which gateways, KServe and Docker take it."""
    import tempfile

    from cloud.hub.errors import HubError
    from cloud.hub.repository.releases import Releases
    from edge.gateway.sources.credentials import Credentials
    from edge.gateway.sources.oci import Reference
    from edge.gateway.sources.publishing import push

    releases = Releases(_repository(repository, [], None))
    release = releases.release(application, version)
    name = file or next(iter(release.files))
    if name not in release.files or (not file and len(release.files) > 1):
        raise HubError(f"{application} {version} has the files {', '.join(release.files)}; --file NAME says which")
    full = address if Reference.of(address).tag else f"{address}:{version}"
    with tempfile.TemporaryDirectory(prefix="msedge-") as folder:
        path = releases.write_file(release.files[name], Path(folder, "model.mslite"))
        done = push(path, full, version=serve_as, credentials=Credentials.of_file(credentials or ""))
    if as_json:
        emit({"repository": repository, "application": application, "version": version, "file": name, **done})
    else:
        say(f"stored {name} of {application} {version} at {full} as {done['manifest']}")


def _split(text: str) -> tuple[str, str, str]:
    """NAME=FILE; a path may have an equals sign of its own if it has a slash before it."""
    name, equals, path = text.partition("=")
    return (name, equals, path) if equals and "/" not in name else ("", "", text)


def _pairs(texts: list[str] | None, option: str) -> dict[str, str]:
    found = {}
    for text in texts or ():
        key, equals, value = text.partition("=")
        if not equals or not key or not value:
            raise typer.BadParameter(f"expected NAME=VALUE, got {text!r}", param_hint=option)
        found[key] = value
    return found


def _number(text: str) -> int:
    if not text.isdecimal() or not 0 < int(text) <= 36_500:
        raise typer.BadParameter(f"expected days from 1 to 36500, got {text!r}", param_hint="--days")
    return int(text)


COMMANDS: Mapping[str, Any] = {
    "init": init,
    "delegate": delegate,
    "add": add,
    "deltas": deltas,
    "promote": promote,
    "provenance": provenance,
    "remove": remove,
    "rotate": rotate,
    "sign": sign,
    "publish": publish,
    "renew": renew,
    "status": status,
    "prune": prune,
    "mirror": mirror,
}
"""The commands of `msedge hub`."""
