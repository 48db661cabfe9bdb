"""A progress bar on standard error. Loaded for terminals only: `rich` takes long to load."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import Progress, TextColumn

from lakebed.cli import layout


@contextmanager
def bar(title: str) -> Iterator[Callable[[Any], None]]:
    """Show a bar while the block runs. The callback takes a state with done and total counts."""
    # A title contains names of files and tables, in which [bold] and :smile: are not markup.
    name = TextColumn("{task.description}", markup=False)
    columns = (name, *Progress.get_default_columns()[1:])
    with Progress(*columns, console=Console(stderr=True), transient=True) as bars:
        task = bars.add_task(layout.visible(title), total=None)

        def advance(state: Any) -> None:
            bars.update(task, completed=state.done_count, total=state.total_count)

        yield advance
