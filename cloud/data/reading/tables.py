"""Tables by columns: Parquet files, and data sets of the library datasets. Rows are elements."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from cloud.data import ir
from cloud.data.columns import stack
from cloud.errors import DataError
from lite_runtime.errors import MissingExtraError

__all__ = ["Hosted", "open_parquet"]


@dataclass
class _Table:
    """Columns of pyarrow, held in its form. Pickled as its node: a worker reads the files again."""

    node: ir.Parquet
    table: Any

    def __len__(self) -> int:
        return int(self.table.num_rows)

    def __getitem__(self, number: int) -> dict[str, Any]:
        return self.__getitems__([int(number)])[0]

    def __getitems__(self, numbers: Sequence[int]) -> list[dict[str, Any]]:
        """Several rows."""
        taken = self.table.take(list(numbers))
        columns = {name: taken[name].to_pylist() for name in taken.column_names}
        kinds = {name: self._dtype(name) for name in columns}
        return [{name: _value(column[k], kinds[name]) for name, column in columns.items()} for k in range(len(numbers))]

    def take_rows(self, numbers: npt.NDArray[np.intp]) -> dict[str, Any]:
        """Columns of several rows: numbers at once, others by row."""
        taken = self.table.take(numbers)
        plain = {name: self._dtype(name) for name in taken.column_names}
        found: dict[str, Any] = {}
        for name, dtype in plain.items():
            column = taken[name].combine_chunks()
            if dtype is not None and dtype.kind in "biuf" and not _is_list(column.type):
                found[name] = np.ascontiguousarray(column.to_numpy(zero_copy_only=False)).astype(dtype, copy=False)
            elif dtype is not None and _is_fixed(column.type):
                values = column.flatten().to_numpy(zero_copy_only=False)
                found[name] = np.array(values, dtype).reshape(len(numbers), column.type.list_size)
            else:
                found[name] = stack([{name: _value(v, dtype)} for v in column.to_pylist()])[name]
        return found

    def _dtype(self, name: str) -> np.dtype[Any] | None:
        """The dtype of a column's numbers; None for strings and bytes."""
        kind = self.table.schema.field(name).type
        kind = kind.value_type if _is_list(kind) else kind
        try:
            dtype: np.dtype[Any] = np.dtype(kind.to_pandas_dtype())
        except NotImplementedError:
            dtype = np.dtype(object)
        if dtype.kind in "biuf":
            return dtype
        if str(kind) in ("string", "large_string", "binary", "large_binary"):
            return None
        raise DataError(
            f"{self.node.paths[0]!r}, column {name!r}: expected numbers, strings, bytes or lists of numbers, got "
            f"{kind}; leave it out: columns=[…]"
        )

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return open_parquet, (self.node,)


def _is_list(kind: Any) -> bool:
    return str(kind).startswith(("list<", "large_list<", "fixed_size_list<"))


def _is_fixed(kind: Any) -> bool:
    return str(kind).startswith("fixed_size_list<")


def _value(value: Any, dtype: np.dtype[Any] | None) -> Any:
    return value if dtype is None else np.asarray(value, dtype)


def open_parquet(node: ir.Parquet) -> _Table:
    """The rows of a node's files, whose columns are read whole. Raises DataError for files that cannot be read, other
    columns, rows without a value, and types that are no arrays."""
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError as error:
        raise MissingExtraError("pyarrow", "parquet", "Parquet files are read with it") from error
    tables = []
    for path in node.paths:
        try:
            with parquet.ParquetFile(path, memory_map=True) as file:
                names = file.schema_arrow.names
                if missing := [name for name in node.columns if name not in names]:
                    raise DataError(f"{path!r}: expected columns {list(node.columns)}, got {names}: no {missing}")
                tables.append(file.read(list(node.columns) or None))
        except (OSError, pyarrow.ArrowException) as problem:
            raise DataError(f"cannot read {path!r} as Parquet: {problem}") from problem
    try:
        whole = pyarrow.concat_tables(tables)
    except pyarrow.ArrowException as problem:
        raise DataError(f"the files {', '.join(node.paths)} have different columns: {problem}") from problem
    for name in whole.column_names:
        if whole[name].null_count:
            raise DataError(
                f"{node.paths[0]!r}, column {name!r}: {whole[name].null_count} of {whole.num_rows} rows have no value; "
                "fill them in, or leave the column out: columns=[…]"
            )
    if not whole.num_rows:
        raise DataError(f"{', '.join(node.paths)}: expected at least one row, got none")
    made = _Table(node, whole)
    for name in whole.column_names:
        made._dtype(name)
    return made


@dataclass
class Hosted:
    """A `datasets.Dataset` as a source: its columns as NumPy arrays, several rows at once."""

    dataset: Any
    columns: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, number: int) -> dict[str, Any]:
        return self.__getitems__([int(number)])[0]

    def __getitems__(self, numbers: Sequence[int]) -> list[dict[str, Any]]:
        """Several rows."""
        found: Mapping[str, Any] = self.dataset[[int(n) for n in numbers]]
        return [{name: _plain(column[k]) for name, column in found.items()} for k in range(len(numbers))]


def _plain(value: Any) -> Any:
    """Texts of NumPy as Python's."""
    return str(value) if isinstance(value, np.str_) else value
