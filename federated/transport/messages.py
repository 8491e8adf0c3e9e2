"""Our bytes inside Flower's messages: one record with one array, which Flower does not interpret."""

from __future__ import annotations

from flwr.app import Array, ArrayRecord, Message, RecordDict

from federated.errors import FederatedError

__all__ = ["content", "read"]

RECORD, ARRAY = "msedge", "message"
FORM = "msedge.packed"


def content(data: bytes) -> RecordDict:
    """The content of a message."""
    record = ArrayRecord()  # entries passed to the constructor are copied: twice the time
    record[ARRAY] = Array("uint8", (len(data),), FORM, data)
    records = RecordDict()
    records[RECORD] = record
    return records


def read(message: Message) -> bytes:
    """The bytes of a message. Raises FederatedError for a message of another application."""
    record = message.content.get(RECORD)
    if isinstance(record, ArrayRecord) and list(record) == [ARRAY] and (array := record[ARRAY]).stype == FORM:
        return array.data
    raise FederatedError(f"expected a message with a record {RECORD!r}, got {', '.join(message.content) or 'none'}")
