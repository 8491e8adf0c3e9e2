"""The hub's database: the same on SQLite and PostgreSQL."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cloud.hub.database import audit, devices, rollouts, schema, tokens
from cloud.hub.database.engine import Cursor, Database
from cloud.hub.database.opening import opened
from cloud.hub.database.writing import Writer
from cloud.hub.errors import HubError
from cloud.hub.rollouts.rollout import Event, Rollout
from tests.conftest import ROOT

PLAN = {"application": "keys", "version": "2", "steps": [100], "soak": 0, "patience": 0}


@pytest.fixture
def database(address: str) -> Iterator[Database]:
    made = opened(address)
    yield made
    made.close()


def device(number: int) -> devices.Device:
    return devices.Device(f"d{number}", f"{number:064x}", "active", 1.5, 0, {"ring": "0"}, "", 0, 0, 0, "t")


def test_tables_are_made_once(address: str, database: Database) -> None:
    with database.transaction() as cursor:
        devices.add(cursor, device(1))
    again = opened(address)
    with again.transaction() as cursor:
        assert cursor.one("SELECT count(*) FROM devices") == (1,)
        assert cursor.rows("SELECT version FROM version") == [(len(schema.STEPS),)]
    again.close()


def test_tables_of_a_later_version_are_refused(address: str, database: Database) -> None:
    with database.transaction() as cursor:
        cursor.run("UPDATE version SET version = 99")
    with pytest.raises(HubError, match=f"version {len(schema.STEPS)} at most, got 99"):
        opened(address)


def test_tables_are_brought_up_to_date(address: str, database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    with database.transaction() as cursor:
        devices.add(cursor, device(1))
    later = (*schema.STEPS, "ALTER TABLE devices ADD COLUMN mood {text} NOT NULL DEFAULT 'good'")
    monkeypatch.setattr(schema, "STEPS", later)
    again = opened(address)
    with again.transaction() as cursor:
        assert cursor.one("SELECT id, mood FROM devices") == ("d1", "good")
    again.close()


def test_a_migration_that_fails_changes_nothing(address: str, database: Database, monkeypatch: Any) -> None:
    before = len(schema.STEPS)
    later = (*schema.STEPS, "CREATE TABLE half (id {text}); CREATE TABLE half (id {text})")
    monkeypatch.setattr(schema, "STEPS", later)
    with pytest.raises(HubError, match="half"):
        opened(address)
    with database.transaction() as cursor:
        assert cursor.rows("SELECT version FROM version") == [(before,)]
    with pytest.raises(HubError), database.transaction() as cursor:
        cursor.rows("SELECT * FROM half")


def test_a_transaction_that_raises_is_undone(database: Database) -> None:
    def fail() -> None:
        with database.transaction() as cursor:
            devices.add(cursor, device(1))
            raise KeyError("x")

    with pytest.raises(KeyError):
        fail()
    with database.transaction() as cursor:
        assert list(devices.all_of(cursor)) == []


def test_devices(database: Database) -> None:
    with database.transaction() as cursor:
        for number in range(5):
            devices.add(cursor, device(number))
        cursor.many(devices.SEEN, [(7.25, "{}", 3, "d2")])
        assert devices.mark(cursor, "d1", state="blocked", labels={"ring": "é"})
        assert not devices.mark(cursor, "d9", state="blocked")
        assert devices.by_key(cursor, f"{2:064x}") == device(2)._replace(seen=7.25, report="{}", received=3)
        found = devices.some(cursor, ["d2", "d1", "d9"])
        assert [(one.id, one.state, one.labels) for one in found] == [
            ("d1", "blocked", {"ring": "é"}), ("d2", "active", {"ring": "0"})
        ]  # fmt: skip
    with pytest.raises(HubError, match=r"cannot use"), database.transaction() as cursor:
        devices.add(cursor, device(7)._replace(key=f"{2:064x}"))


def test_events_are_stored_once(database: Database) -> None:
    rows = [("d1", n, 5.0, 10.0 * n, "trial", "keys", "2", "so") for n in (1, 2, 3, 2)]
    with database.transaction() as cursor:
        cursor.many(devices.EVENT, rows)
        cursor.many(devices.EVENT, rows)
        assert [one.serial for one in devices.events(cursor, "d1")] == [3, 2, 1]
        assert devices.prune(cursor, 25.0) == 2
        assert [one.serial for one in devices.events(cursor, "d1")] == [3]


def test_rollouts_are_replayed(database: Database) -> None:
    made = Rollout("r1", ())
    events = [
        Event("started", 1.0, by="ann", data=PLAN), Event("joined", 2.5, "d1", data={"before": "1"}),
        Event("ended", 3.0, "d1", text="é", data={"kind": "committed", "verdict": "good"}),
    ]  # fmt: skip
    for event in events:
        made.apply(event)
    with database.transaction() as cursor:
        cursor.many(rollouts.ADD, [rollouts.row("r1", n, event) for n, event in enumerate(events)])
        assert rollouts.decisions(cursor, "r1") == events[:1]
        found, count = rollouts.load(cursor)["r1"]
    assert (found.data(), count) == (made.data(), 3)


# -- tokens ------------------------------------------------------------------------------------------------------------


def test_a_token_is_known_by_its_secret_alone(database: Database) -> None:
    with database.transaction() as cursor:
        made = tokens.add(cursor, "ann", "operator", 100.0, 50.0, {})
        other = tokens.add(cursor, "bob", "viewer", 100.0, None, {})
        found = tokens.known(cursor, made, 149.0)
        assert found is not None
        assert (found.name, found.scope, found.uses) == ("ann", "operator", -1)
        assert tokens.known(cursor, made, 150.0) is None
        mixed = made[:17] + other[17:]
        for wrong in (mixed, made[:-1], made + "x", "", "hub_", made.upper(), "hub_000000000000_" + "x" * 43):
            assert tokens.known(cursor, wrong, 120.0) is None
        stored = cursor.rows("SELECT * FROM tokens")
    secret = made.rpartition("_")[2]
    assert not any(secret in str(row) for row in stored)


def test_a_device_token_works_once(database: Database) -> None:
    with database.transaction() as cursor:
        words = tokens.add(cursor, "new", "device", 1.0, None, {"region": "north"})
        token = tokens.known(cursor, words, 2.0)
        assert token is not None
        assert token.labels == {"region": "north"}
        assert [tokens.spend(cursor, token) for _ in range(3)] == [True, False, False]
        assert [one.uses for one in tokens.listed(cursor)] == [0]


WRONG = {
    "a scope": (lambda cursor: tokens.add(cursor, "x", "root", 0, None, {}), "expected one of operator"),
    "a name": (lambda cursor: tokens.add(cursor, "../x", "viewer", 0, None, {}), "up to 64 letters"),
    "a name that is taken": (lambda cursor: tokens.add(cursor, "ann", "viewer", 0, None, {}), "has a token already"),
    "an unknown one": (lambda cursor: tokens.revoke(cursor, "eve"), "no such token"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_tokens_are_refused(case: str, database: Database) -> None:
    call, message = WRONG[case]
    with database.transaction() as cursor:
        tokens.add(cursor, "ann", "viewer", 0, None, {})
    with pytest.raises(HubError, match=message), database.transaction() as cursor:
        call(cursor)


def test_a_revoked_token_is_not_known(database: Database) -> None:
    with database.transaction() as cursor:
        made = tokens.add(cursor, "ann", "viewer", 0, None, {})
        tokens.revoke(cursor, "ann")
        assert tokens.known(cursor, made, 0) is None


# -- audit log ---------------------------------------------------------------------------------------------------------


def fill(database: Database, count: int) -> list[audit.Entry]:
    with database.transaction() as cursor:
        for number in range(count):
            audit.add(cursor, 1.1 * number, "ann", "did", {"é": [number, 0.1]})
        return audit.entries(cursor)


def test_the_audit_log_is_a_chain(database: Database) -> None:
    found = fill(database, 5)
    assert audit.verified(found) == (5, found[-1].chain)
    assert audit.verified(found, found[2].chain) == (5, found[-1].chain)
    assert audit.verified([]) == (0, audit.START)
    exported = [audit.Entry(**json.loads(json.dumps(one._asdict()))) for one in found]
    assert audit.verified(exported) == (5, found[-1].chain)


TAMPERED: dict[str, Callable[[list[audit.Entry]], list[audit.Entry]]] = {
    "changed": lambda rows: [*rows[:2], rows[2]._replace(who="eve"), *rows[3:]],
    "data": lambda rows: [*rows[:2], rows[2]._replace(data={}), *rows[3:]],
    "removed": lambda rows: [*rows[:2], *rows[3:]],
    "the first removed": lambda rows: rows[1:],
    "renumbered": lambda rows: [*rows[:2], *(one._replace(number=one.number - 1) for one in rows[3:])],
    "swapped": lambda rows: [rows[1], rows[0], *rows[2:]],
    "twice": lambda rows: [*rows[:3], *rows[2:]],
}


@pytest.mark.parametrize("how", TAMPERED)
def test_a_changed_audit_log_is_found(how: str, database: Database) -> None:
    with pytest.raises(HubError, match="audit log, entry"):
        audit.verified(TAMPERED[how](fill(database, 5)))


def test_a_log_whose_end_was_cut_off_lacks_the_hash_that_was_kept(database: Database) -> None:
    found = fill(database, 5)
    with pytest.raises(HubError, match="its end was removed"):
        audit.verified(found[:3], found[-1].chain)


def test_two_processes_write_one_chain(address: str, database: Database) -> None:
    other = database.another()

    def write(through: Database) -> None:
        for number in range(30):
            with through.transaction() as cursor:
                audit.add(cursor, 1.0, "x", "did", {"n": number})

    threads = [threading.Thread(target=write, args=(each,)) for each in (database, other)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with database.transaction() as cursor:
        assert audit.verified(audit.entries(cursor))[0] == 60
    other.close()


# -- one writer --------------------------------------------------------------------------------------------------------


def test_what_waits_is_stored_together(database: Database) -> None:
    writer = Writer(database.another())
    gate = threading.Event()
    first = writer.run(lambda cursor: gate.wait(60))
    forget = ("DELETE FROM facts WHERE name = ?", ("x",))
    waiting = [writer.store([(devices.EVENT, ("d1", n, 1.0, 1.0, "x", "", "", "")), forget]) for n in range(1, 101)]
    gate.set()
    for each in waiting:
        each.result(60)
    assert first.result(60)
    assert writer.commits <= 2
    assert writer.run(lambda cursor: cursor.one("SELECT count(*) FROM events")).result(60) == (100,)
    writer.close()


def test_one_bad_change_fails_alone(database: Database) -> None:
    writer = Writer(database.another())
    gate = threading.Event()
    writer.run(lambda cursor: gate.wait(60))
    rows = [("d1", n, 1.0, 1.0, "x", "", "", "") for n in (1, 2, 3)]
    good = [writer.store([(devices.EVENT, row)]) for row in rows[:2]]
    bad = writer.store([(devices.EVENT, ("d1", 9, None, 1.0, "x", "", "", ""))])
    good.append(writer.store([(devices.EVENT, rows[2])]))
    gate.set()
    for each in good:
        each.result(60)
    with pytest.raises(HubError):
        bad.result(60)
    assert writer.run(lambda cursor: len(devices.events(cursor, "d1"))).result(60) == 3
    writer.close()


def test_calls_that_wait_share_a_transaction_and_fail_alone(database: Database) -> None:
    writer = Writer(database.another())
    gate = threading.Event()
    writer.run(lambda cursor: gate.wait(60))

    def add(number: int, *, fails: bool = False) -> Callable[[Cursor], int]:
        def call(cursor: Cursor) -> int:
            devices.add(cursor, device(number))
            if fails:
                raise KeyError(number)
            return number

        return call

    waiting = [writer.run(add(number, fails=number == 5)) for number in range(10)]
    twice = writer.run(add(3))
    gate.set()
    assert [each.result(60) for each in waiting[:5] + waiting[6:]] == [0, 1, 2, 3, 4, 6, 7, 8, 9]
    with pytest.raises(KeyError):
        waiting[5].result(60)
    with pytest.raises(Exception, match=r"(?i)unique"):
        twice.result(60)
    assert writer.commits <= 3
    found = writer.run(lambda cursor: sorted(one.id for one in devices.all_of(cursor))).result(60)
    assert found == [f"d{n}" for n in (0, 1, 2, 3, 4, 6, 7, 8, 9)]
    writer.close()


def test_what_waits_is_stored_before_the_end(database: Database) -> None:
    writer = Writer(database.another())
    waiting = [writer.store([(devices.EVENT, ("d1", n, 1.0, 1.0, "x", "", "", ""))]) for n in range(1, 51)]

    def fail(cursor: Cursor) -> None:
        raise KeyError("x")

    failed = writer.run(fail)
    writer.close()
    assert all(each.done() for each in waiting)
    with pytest.raises(KeyError):
        failed.result(0)
    with database.transaction() as cursor:
        assert len(devices.events(cursor, "d1")) == 50


def test_one_hub_serves_from_a_database(address: str, database: Database) -> None:
    database.serve()
    other = database.another()
    with pytest.raises(HubError, match="another hub serves"):
        other.serve()
    database.close()
    other.serve()
    other.close()


def test_a_call_that_is_cancelled_does_not_end_the_writer(database: Database) -> None:
    """As where a request, or the hub's own work, is ended while the database works for it."""
    writer = Writer(database.another())
    begun, gate = threading.Event(), threading.Event()

    def slow(cursor: Cursor) -> int:
        begun.set()
        gate.wait(60)
        return 1

    first = writer.run(slow)
    begun.wait(60)
    second = writer.run(lambda cursor: 2)
    assert not first.cancel() and second.cancel()
    gate.set()
    assert first.result(60) == 1
    assert writer.run(lambda cursor: 3).result(60) == 3
    writer.close()


def test_a_database_that_fails_in_a_call_loses_nothing_of_the_others(database: Database) -> None:
    """SQLite may undo the whole transaction then, and PostgreSQL takes no more of it: all is done again."""
    import psycopg

    writer = Writer(database.another())
    gate, failed = threading.Event(), []
    writer.run(lambda cursor: gate.wait(60))
    row = ("d1", 1, 1.0, 1.0, "x", "", "", "")
    before = writer.store([(devices.EVENT, row)])

    def full(cursor: Cursor) -> str:
        devices.add(cursor, device(1))
        if not failed:
            failed.append(1)
            raise (sqlite3.OperationalError if "sqlite" in database.shown else psycopg.OperationalError)("disk full")
        return "stored"

    call = writer.run(full)
    after = writer.store([(devices.EVENT, ("d1", 2, *row[2:]))])
    gate.set()
    assert (before.result(60), call.result(60), after.result(60)) == (None, "stored", None)
    assert writer.run(lambda cursor: [len(devices.events(cursor, "d1")), len(list(devices.all_of(cursor)))]).result(
        60
    ) == [2, 1]
    writer.close()


def test_who_reads_keeps_no_writer_waiting(database: Database) -> None:
    reader = database.another()
    with database.transaction() as cursor:
        devices.add(cursor, device(1))
    with reader.reading() as through:
        assert len(list(devices.all_of(through))) == 1
        with database.transaction() as cursor:
            devices.add(cursor, device(2))
        assert len(list(devices.all_of(through))) == 1  # what it reads is of one moment
    reader.close()


def test_the_first_ones_make_the_tables_together(address: str) -> None:
    found: list[Any] = []

    def first() -> None:
        try:
            opened(address).close()
            found.append(None)
        except HubError as problem:
            found.append(problem)

    some = [threading.Thread(target=first) for _ in range(6)]
    for one in some:
        one.start()
    for one in some:
        one.join()
    assert found == [None] * 6


def test_an_event_that_cannot_follow_is_left_out(database: Database) -> None:
    """The pause before it could not be stored."""
    with database.transaction() as cursor:
        for number, event in enumerate([Event("started", 1.0, data=PLAN), Event("resumed", 2.0), Event("paused", 3.0)]):
            cursor.run(rollouts.ADD, *rollouts.row("r1", number, event))
        cursor.run(rollouts.ADD, *rollouts.row("r2", 0, Event("started", 1.0, data={"application": "?"})))
    with database.transaction() as cursor:
        ((rollout, following),) = rollouts.load(cursor).values()
    assert (rollout.status, following) == ("paused", 3)


# -- PostgreSQL alone --------------------------------------------------------------------------------------------------


@pytest.fixture
def postgres(postgres_server: str, request: pytest.FixtureRequest) -> str:
    import psycopg

    with psycopg.connect(postgres_server, autocommit=True) as connection:
        connection.execute(b"DROP DATABASE IF EXISTS alone WITH (FORCE)")
        connection.execute(b"CREATE DATABASE alone")
    return postgres_server.replace("/postgres?", "/alone?")


def lost(address: str) -> None:
    """All connections break, as when the server is started anew."""
    import psycopg

    with psycopg.connect(address, autocommit=True) as connection:
        connection.execute(b"SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                           b" WHERE datname = current_database() AND pid <> pg_backend_pid()")  # fmt: skip


def test_a_hub_whose_connection_was_lost_still_has_its_lock(postgres: str) -> None:
    hub, other = opened(postgres), opened(postgres)
    hub.serve()
    writer = Writer(hub)
    lost(postgres)
    assert writer.run(lambda cursor: cursor.one("SELECT 1")).result(60) == (1,)
    other.close()
    other = opened(postgres)
    with pytest.raises(HubError, match="another hub serves"):
        other.serve()
    writer.close()
    other.serve()
    other.close()


def test_a_hub_that_lost_its_lock_to_another_writes_nothing_more(
    postgres: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from cloud.hub.database import postgres as module

    monkeypatch.setattr(module, "_MOMENT", 0.2)
    hub = opened(postgres)
    hub.serve()
    writer = Writer(hub)
    lost(postgres)
    other = opened(postgres)
    other.serve()
    with pytest.raises(HubError, match="another hub serves"):
        writer.run(lambda cursor: cursor.one("SELECT 1")).result(60)
    other.close()
    assert writer.run(lambda cursor: cursor.one("SELECT 1")).result(60) == (1,)
    writer.close()


def test_who_may_make_no_schema_uses_the_one_that_is_there(postgres: str) -> None:
    import psycopg

    opened(postgres).close()
    with psycopg.connect(postgres, autocommit=True) as connection:
        for words in (b"DROP ROLE IF EXISTS little", b"CREATE ROLE little LOGIN",
                      b"GRANT ALL ON SCHEMA msedge TO little",
                      b"GRANT ALL ON ALL TABLES IN SCHEMA msedge TO little"):  # fmt: skip
            connection.execute(words)
    made = opened(postgres.replace("msedge@", "little@"))
    with made.transaction() as cursor:
        devices.add(cursor, device(1))
    made.close()
    with psycopg.connect(postgres, autocommit=True) as connection:
        connection.execute(b"DROP OWNED BY little")
        connection.execute(b"DROP ROLE little")


@pytest.mark.parametrize("address", ["postgresql://ann:hush@[::1/hub", "postgresql://ann:hush@127.0.0.1:1/hub"])
def test_no_message_tells_a_password(address: str) -> None:
    pytest.importorskip("psycopg")
    with pytest.raises(HubError, match="cannot open PostgreSQL") as caught:
        opened(address)
    assert "hush" not in str(caught.value)


# -- SQLite alone ------------------------------------------------------------------------------------------------------


def test_a_database_is_its_owners_alone(tmp_path: Path) -> None:
    """With the files beside it, from the first byte on: they hold the key of sessions."""
    made = opened(str(tmp_path / "hub.sqlite"))
    assert {path.name for path in tmp_path.iterdir()} == {"hub.sqlite", "hub.sqlite-wal", "hub.sqlite-shm"}
    assert all(path.stat().st_mode & 0o077 == 0 for path in tmp_path.iterdir())
    made.close()
    os.chmod(tmp_path / "hub.sqlite", 0o644)
    opened(str(tmp_path / "hub.sqlite")).close()
    assert os.stat(tmp_path / "hub.sqlite").st_mode & 0o077 == 0


def test_a_process_that_looks_in_takes_nothing_away(tmp_path: Path) -> None:
    """Another process that opens the database and closes it must find that it is in use: as the last one it would
    remove the log that this process writes to. Locks end when a process closes any handle of the file."""
    path = str(tmp_path / "hub.sqlite")
    first = opened(path)
    second = first.another()
    code = f"from cloud.hub.database.opening import opened; opened({path!r}).close()"
    for number in (1, 2):
        subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)
        assert (tmp_path / "hub.sqlite-wal").exists()
        with second.transaction() as cursor:
            devices.add(cursor, device(number))
    first.close()
    second.close()
    again = opened(path)
    with again.reading() as cursor:
        assert len(list(devices.all_of(cursor))) == 2
    again.close()


def test_a_file_that_is_none_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "hub.sqlite"
    path.write_bytes(b"not a database, and long enough to be read as one" * 50)
    with pytest.raises(HubError, match="cannot"):
        opened(str(path))
    with pytest.raises(HubError, match="check the folder"):
        opened(str(tmp_path / "none" / "hub.sqlite"))


def test_every_commit_is_on_disk(tmp_path: Path) -> None:
    made = opened(str(tmp_path / "hub.sqlite"))
    connection: sqlite3.Connection = made._connection  # type: ignore[attr-defined]
    assert connection.execute("PRAGMA synchronous").fetchone() == (2,)
    assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    made.close()


def test_an_address_that_nothing_serves_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("psycopg")
    with pytest.raises(HubError, match="check the address and that the server runs"):
        opened(f"postgresql://me:secret@/x?host={tmp_path}")
