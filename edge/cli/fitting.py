"""A table that is printed row by row where it does not fit into the terminal, instead of being cut off."""

from __future__ import annotations

from collections.abc import Iterator

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

__all__ = ["Fitting"]

LEAST = 12
"""Fewest characters of a column that may wrap."""
BETWEEN = 2
"""Characters between two columns, and at the sides together."""


class Fitting(Table):
    """A table of strings. Columns with `no_wrap` keep their whole width."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """The table, or its rows as lists."""
        needed = 0
        for column in self.columns:
            natural = max(map(_width, (column.header, *column.cells)))
            column.min_width = natural if column.no_wrap else min(natural, LEAST)
            needed += column.min_width + BETWEEN
        if self.title:
            yield Text(str(self.title), style=self.title_style or "")
        if needed <= options.max_width:
            yield from self._as_table(console, options)
        else:
            yield from self._as_lists()
        if self.caption:
            yield Text(str(self.caption), style="dim")

    def _as_table(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Without title and caption, which rich would wrap at the table's width."""
        around = self.title, self.caption
        self.title = self.caption = None
        yield from super().__rich_console__(console, options)
        self.title, self.caption = around

    def _as_lists(self) -> Iterator[Table | Text]:
        for cells in zip(*(column.cells for column in self.columns), strict=True):
            row = Table.grid(padding=(0, 2), pad_edge=False)
            row.add_column(style="dim")
            row.add_column(overflow="fold")
            for column, cell in zip(self.columns, cells, strict=True):
                if str(cell):
                    row.add_row(str(column.header), str(cell))
            yield row
            yield Text()


def _width(cell: object) -> int:
    return max(map(cell_len, str(cell).split("\n")), default=0)
