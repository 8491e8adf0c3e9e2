"""The tables of a hub, as steps from each version to the next."""

from __future__ import annotations

from collections.abc import Sequence

from cloud.hub.database.engine import Database
from cloud.hub.errors import HubError

__all__ = ["STEPS", "migrate"]

STEPS: Sequence[str] = (
    """
CREATE TABLE facts (name {text} PRIMARY KEY, value {text} NOT NULL);
CREATE TABLE devices (
    id {text} PRIMARY KEY, key {text} NOT NULL UNIQUE, state {text} NOT NULL, created {real} NOT NULL,
    seen {real} NOT NULL, labels {text} NOT NULL, report {text} NOT NULL, received {whole} NOT NULL,
    batch {whole} NOT NULL, certified {real} NOT NULL, token {text} NOT NULL
);
CREATE TABLE events (
    device {text} NOT NULL, serial {whole} NOT NULL, time {real} NOT NULL, stored {real} NOT NULL, kind {text} NOT NULL,
    application {text} NOT NULL, version {text} NOT NULL, words {text} NOT NULL, PRIMARY KEY (device, serial)
);
CREATE INDEX events_by_time ON events (stored);
CREATE TABLE rollouts (
    rollout {text} NOT NULL, number {whole} NOT NULL, time {real} NOT NULL, kind {text} NOT NULL,
    device {text} NOT NULL, who {text} NOT NULL, words {text} NOT NULL, data {text} NOT NULL,
    PRIMARY KEY (rollout, number)
);
CREATE TABLE tokens (
    id {text} PRIMARY KEY, name {text} NOT NULL UNIQUE, scope {text} NOT NULL, digest {text} NOT NULL,
    created {real} NOT NULL, expires {real}, uses {whole} NOT NULL, labels {text} NOT NULL
);
CREATE TABLE audit (
    number {whole} PRIMARY KEY, time {real} NOT NULL, who {text} NOT NULL, what {text} NOT NULL, data {text} NOT NULL,
    chain {text} NOT NULL
);
CREATE TABLE telemetry (
    application {text} NOT NULL, version {text} NOT NULL, day {whole} NOT NULL, name {text} NOT NULL,
    data {text} NOT NULL, PRIMARY KEY (application, version, day, name)
)""",
    """
CREATE TABLE loops (
    loop {text} NOT NULL, number {whole} NOT NULL, time {real} NOT NULL, kind {text} NOT NULL, step {text} NOT NULL,
    who {text} NOT NULL, words {text} NOT NULL, data {text} NOT NULL, PRIMARY KEY (loop, number)
)""",
)
"""Statements of each step; {text}, {whole} and {real} stand for the database's types. A step is never changed after a
release: a newer version adds another."""


def migrate(database: Database) -> None:
    """Bring the tables to this version, in one transaction. Raises HubError for tables of a later one."""
    with database.transaction() as cursor:
        types = database.kinds
        cursor.alone("version")
        cursor.run("CREATE TABLE IF NOT EXISTS version (version {whole} NOT NULL)".format(**types))
        found = cursor.one("SELECT version FROM version")
        at = int(found[0]) if found else 0
        if at > len(STEPS):
            raise HubError(
                f"{database.shown}: expected a hub's database of version {len(STEPS)} at most, got {at}; "
                "use the msedge that wrote it, or a newer one"
            )
        if at == len(STEPS):
            return
        for step in STEPS[at:]:
            for statement in step.split(";"):
                cursor.run(statement.format(**types))
        cursor.run("DELETE FROM version")
        cursor.run("INSERT INTO version VALUES (?)", len(STEPS))
