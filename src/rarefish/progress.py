"""Progress bars on standard error, shown only on a terminal."""

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TypeVar

T = TypeVar("T")


@contextmanager
def rounds_bar(title: str, shown: bool = True) -> Iterator[Callable[[str, int, int], None]]:
    """Yields a function (description, done, total) that updates a progress bar.

    Without a terminal, it prints a line at every tenth of the total and when the description changes.
    """
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    console = Console(stderr=True, quiet=not shown)
    columns = (
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("remaining"),
        TimeRemainingColumn(elapsed_when_finished=False),
    )
    last_line = [""]
    with Progress(
        TextColumn("{task.description:<40}"), *columns, console=console, disable=not console.is_terminal
    ) as bar:
        task = bar.add_task(title)

        def tell(what: str, done: int, total: int) -> None:
            bar.update(task, description=f"{title}: {what}", completed=done, total=total)
            line = f"{title}: {what}, {10 * done // max(total, 1) * 10} % of {total} rounds"
            if not console.is_terminal and line != last_line[0]:
                last_line[0] = line
                console.print(line, highlight=False)

        yield tell


def track(
    items: Iterable[T],
    *,
    total: int,
    title: str,
    step: Callable[[T], int] = lambda _: 1,
    shown: bool = True,
    unit: str = "",
) -> Iterator[T]:
    """Yields the items, with a progress bar that advances by `step(item)` toward the total.

    With a `unit`, such as "images", the bar also shows the number per second.
    """
    if not (shown and sys.stderr.isatty()):
        yield from items
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    speed = (TextColumn("{task.fields[speed]}"),) if unit else ()
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), *speed, TimeRemainingColumn())

    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(title, total=total, speed="")
        for item in items:
            yield item
            bar.advance(task, step(item))
            if unit:
                bar.update(task, speed=f"{bar.tasks[task].speed or 0:,.0f} {unit}/s")
