"""Where a repository is stored: in a folder, or in a bucket of S3-compatible storage."""

from __future__ import annotations

from pathlib import Path

from cloud.hub.storage.interface import CHUNK, Data, Storage

__all__ = ["CHUNK", "Data", "Storage", "storage_at"]


def storage_at(address: str | Path) -> Storage:
    """The storage at s3://BUCKET/PREFIX, or in a folder. Raises StorageError."""
    text = str(address)
    if text.startswith("s3://"):
        from cloud.hub.storage.s3 import Bucket

        return Bucket(text)
    from cloud.hub.storage.folder import Folder

    return Folder(Path(text))
