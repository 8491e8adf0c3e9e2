"""Our bytes inside Flower's messages: one record with one array, which Flower does not interpret."""

from __future__ import annotations

from flwr.app import Array, ArrayRecord, Message, RecordDict

from federated.errors import FederatedError

__all__ = ["content", "read"]

RECORD, ARRAY = "msedge", "message"
FORM = "msedge.packed"


def content(data: bytes) -> RecordDict:
    """The content of a message."""
    array = Array(dtype="uint8", shape=(len(data),), stype=FORM, data=data)
    return RecordDict({RECORD: ArrayRecord({ARRAY: array})})


def read(message: Message) -> bytes:
    """The bytes of a message. Raises FederatedError for a message of another application."""
    record = message.content.get(RECORD)
    if isinstance(record, ArrayRecord) and list(record) == [ARRAY] and record[ARRAY].stype == FORM:
        return record[ARRAY].data
    raise FederatedError(f"expected a message with a record {RECORD!r}, got {', '.join(message.content) or 'none'}")
