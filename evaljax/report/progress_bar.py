"""A progress bar with rate and remaining time, on the error stream."""

import contextlib
import sys
from collections.abc import Iterator

from evaljax.core import progress as progress_lib


@contextlib.contextmanager
def bar() -> Iterator[progress_lib.Progress]:
    """A `Progress` that draws one bar a label; on a stream that is no terminal it prints finished labels only.

    Nothing is drawn between two pieces of work, so that what is printed there stands as it is.
    """
    import rich.console
    import rich.progress

    console = rich.console.Console(file=sys.stderr)
    columns = (
        rich.progress.TextColumn("{task.description}"),
        rich.progress.BarColumn(),
        rich.progress.TextColumn("{task.completed:,.0f}/{task.total:,.0f} {task.fields[unit]}"),
        rich.progress.TextColumn("{task.fields[rate]}"),
        rich.progress.TimeElapsedColumn(),
        rich.progress.TextColumn("eta"),
        rich.progress.TimeRemainingColumn(),
    )
    drawn = rich.progress.Progress(*columns, console=console, disable=not console.is_terminal, redirect_stdout=False)
    rows: dict[str, rich.progress.TaskID] = {}

    def show(label: str, done: int, total: int, unit: str) -> None:
        if label not in rows:
            drawn.start()
            rows[label] = drawn.add_task(label, total=total, unit=unit, rate="")
        row = next(task for task in drawn.tasks if task.id == rows[label])
        rate = f"{row.speed:,.0f} {unit}/s" if row.speed else ""
        drawn.update(rows[label], completed=done, total=total, rate=rate)
        if done < total:
            return
        if drawn.finished:
            drawn.stop()
        if not console.is_terminal:
            print(f"{label}: {total:,} {unit}", file=sys.stderr)
        drawn.remove_task(rows.pop(label))

    try:
        yield show
    finally:
        drawn.stop()
