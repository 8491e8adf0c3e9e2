"""What is attested of the conversions that a release carries: in-toto statements with SLSA's provenance, signed.

One line for each bundle (in-toto's format `.intoto.jsonl`): an envelope (DSSE 1.0.2) around a statement (in-toto
Statement v1) whose predicate is a provenance (SLSA v1). The application's key signs it. So it says what the owner of
this key states of the conversion, and not what a build platform has watched; `builder` names a platform that ran it.

    subject                     the bundle: its name in the release, its SHA-256, its own digest
    buildDefinition             which conversion was asked for: application, version, options, what people added
      resolvedDependencies      the model (BLAKE2b, 256 bits, of its files), calibration data, the bundle it was made of
    runDetails                  who ran it, by which version of msedge
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from securesystemslib.dsse import Envelope
from securesystemslib.exceptions import FormatError, VerificationError
from securesystemslib.signer import Key, Signer

from cloud.hub.errors import HubError
from cloud.hub.repository.origin import FACTS
from lite_runtime.bundle.refusal import show
from lite_runtime.bundle.strict import parsed
from lite_runtime.errors import BundleError
from lite_runtime.updates.release import MAX_BYTES, Release

__all__ = ["BUILD_TYPE", "OWNER", "PAYLOAD", "PREDICATE", "STATEMENT", "Attestation", "opened", "sealed", "statement"]

PAYLOAD = "application/vnd.in-toto+json"
STATEMENT = "https://in-toto.io/Statement/v1"
PREDICATE = "https://slsa.dev/provenance/v1"
BUILD_TYPE = "msedge:conversion/v1"
"""The conversion of a model to a bundle, with the parameters that `statement` writes."""
OWNER = "msedge:owner"
"""The builder, unless another is named: whoever has the application's key, on a machine of theirs."""


class Attestation(NamedTuple):
    """A statement that was read, and which of the keys that count have signed it: their identifiers."""

    statement: Mapping[str, Any]
    signed: tuple[str, ...]

    @property
    def name(self) -> str:
        """The file of the release that it is about."""
        return str(self.statement["subject"][0]["name"])


def statement(release: Release, name: str, provenance: Mapping[str, Any], builder: str = "") -> dict[str, Any]:
    """What is stated of the bundle `name` of a release. provenance: as the bundle has it. builder: a URI of the
    platform that converted it; "": OWNER."""
    file = release.files[name]
    found = {f"{each}.{fact}" for each in release.files for fact in FACTS}
    added = {key: text for key, text in release.lineage.items() if key not in found}
    asked = {"application": release.application, "version": release.version, "options": provenance.get("options", {})}
    made = {key: provenance[key] for key in ("integers", "source_opset") if key in provenance}
    return {
        "_type": STATEMENT,
        "subject": [{"name": name, "digest": {"sha256": file.sha256}, "annotations": {"bundle": file.digest}}],
        "predicateType": PREDICATE,
        "predicate": {
            "buildDefinition": {
                "buildType": BUILD_TYPE,
                "externalParameters": {**asked, "lineage": added},
                "internalParameters": made,
                "resolvedDependencies": list(_dependencies(provenance, release.lineage.get(f"{name}.run", ""))),
            },
            "runDetails": {
                "builder": {
                    "id": builder or f"{OWNER}/{release.application}",
                    "version": {"msedge": str(provenance.get("converter", "unknown"))},
                },
            },
        },
    }


def _dependencies(provenance: Mapping[str, Any], run: str) -> Iterable[dict[str, Any]]:
    """What the conversion read, as far as the bundle and the release say."""
    if digest := provenance.get("source_digest"):
        yield {"name": str(provenance.get("source") or "model"), "digest": {"blake2b_256": str(digest)}}
    if digest := provenance.get("calibration_digest"):
        yield {"name": "calibration", "digest": {"blake2b_256": str(digest)}}
    if digest := provenance.get("parent"):
        yield {"name": "parent", "uri": f"msedge:bundle/{digest}"}
    if run:
        yield {"name": "training", "uri": f"msedge:run/{run}"}


def sealed(statements: Sequence[Mapping[str, Any]], signers: Sequence[Signer]) -> bytes:
    """The statements as signed lines. Raises HubError if they are more than a device would read."""
    lines = []
    for one in statements:
        envelope = Envelope(json.dumps(one, sort_keys=True, separators=(",", ":")).encode(), PAYLOAD, {})
        for signer in signers:
            envelope.sign(signer)
        lines.append(json.dumps(envelope.to_dict(), sort_keys=True, separators=(",", ":")).encode() + b"\n")
    raw = b"".join(lines)
    if len(raw) > MAX_BYTES:
        raise HubError(f"attestation: expected at most {MAX_BYTES} bytes, got {len(raw)}; shorten --lineage")
    return raw


def opened(raw: bytes, release: Release, keys: Sequence[Key]) -> list[Attestation]:
    """The attestations of a release's bundles, in the order of its files. keys: those that count now.

    Raises HubError unless there is one statement for each bundle, about these very bytes. A signature by a key that
    does not count any more is no error: `Attestation.signed` leaves it out.
    """
    found = [_opened(line, keys) for line in raw.splitlines()]
    names = [one.name for one in found]
    if sorted(names) != sorted(release.files):
        raise _wrong(f"statements about {', '.join(release.files)}", f"about {', '.join(names) or 'nothing'}")
    for one in found:
        digest, wanted = one.statement["subject"][0]["digest"].get("sha256"), release.files[one.name].sha256
        if digest != wanted:
            raise _wrong(f"a statement about {one.name!r} {wanted[:16]}…", f"about {show(digest)}")
    return sorted(found, key=lambda one: list(release.files).index(one.name))


def _opened(line: bytes, keys: Sequence[Key]) -> Attestation:
    try:
        envelope = Envelope.from_dict(parsed(line, "attestation"))
        said = parsed(envelope.payload, "attestation, payload")
    except BundleError as problem:
        raise HubError(str(problem)) from None
    except (KeyError, TypeError, ValueError, AttributeError, FormatError) as problem:
        raise _wrong("a DSSE envelope", f"another object ({type(problem).__name__}: {problem})") from None
    if type(said) is not dict:
        raise _wrong("a statement", show(said))
    types = envelope.payload_type, said.get("_type"), said.get("predicateType")
    if types != (PAYLOAD, STATEMENT, PREDICATE):
        raise _wrong(f"{PAYLOAD}, {STATEMENT}, {PREDICATE}", ", ".join(map(show, types)))
    subject = said.get("subject")
    if not (isinstance(subject, list) and len(subject) == 1 and isinstance(subject[0], dict)
            and isinstance(subject[0].get("name"), str) and isinstance(subject[0].get("digest"), dict)):  # fmt: skip
        raise _wrong("one subject with a name and a digest", show(subject))
    return Attestation(said, tuple(key.keyid for key in keys if _verified(envelope, key)))


def _verified(envelope: Envelope, key: Key) -> bool:
    try:
        envelope.verify([key], 1)
    except VerificationError:
        return False
    return True


def _wrong(expected: str, got: str) -> HubError:
    return HubError(f"attestation: expected {expected}, got {got}; add the version again, with the application's key")
