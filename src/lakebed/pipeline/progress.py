"""The display of a run's progress: a bar on a terminal, short plain lines elsewhere, or nothing.

Owns: the `Progress` protocol and what is printed. Invariants: no control codes are printed when the output is not a
terminal; the run does not depend on its progress.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Protocol

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as RichBar

from lakebed.pipeline.model import Plan, PlannedStep, RunSummary, StepRecord
from lakebed.pipeline.steps import KINDS
from lakebed.texts import format_count


class Progress(Protocol):
    """Receives the events of a run: `run_began`; for each step `step_started` and `step_finished`; then `run_ended`."""

    def run_began(self, plan: Plan, *, run_id: str, steps_done: int) -> None:
        """A run began. `steps_done` of its steps are already in the ledger."""
        return

    def spark_starting(self) -> None:
        """A Spark session is being started, which takes seconds."""
        return

    def step_started(self, step: PlannedStep) -> None:
        """A step began."""
        return

    def step_finished(self, step: PlannedStep, record: StepRecord) -> None:
        """A step is done and in the ledger."""
        return

    def run_ended(self, summary: RunSummary | None) -> None:
        """The run ended. None: it failed."""
        return


class SilentProgress(Progress):
    """Shows nothing."""


class LineProgress(Progress):
    """Prints one line for each group of steps (or step outside of loops), for logs."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._group = ""
        self._records: list[StepRecord] = []

    def run_began(self, plan: Plan, *, run_id: str, steps_done: int) -> None:
        done_text = f", {steps_done:,} done already" if steps_done else ""
        self._print(f"pipeline {plan.pipeline}: run {run_id}, {len(plan.steps):,} steps{done_text}")

    def spark_starting(self) -> None:
        self._print("  starting Spark")

    def step_started(self, step: PlannedStep) -> None:
        """End the previous group if this step does not belong to it."""
        if step.group != self._group:
            self._close_group()
            self._group = step.group

    def step_finished(self, step: PlannedStep, record: StepRecord) -> None:
        """Print the step, or keep it for its group's line."""
        if step.group:
            self._records.append(record)
        else:
            self._print(f"  {step.name}: {describe(record)}, {record.seconds:.1f} s")

    def run_ended(self, summary: RunSummary | None) -> None:
        self._close_group()
        if summary is not None:
            self._print(f"  {ending(summary)}")

    def _close_group(self) -> None:
        if self._records:
            verbs = Counter(record.verb for record in self._records)
            seconds = sum(record.seconds for record in self._records)
            counts = ", ".join(f"{count} {verb}" for verb, count in verbs.items())
            tags = [describe(record) for record in self._records if "checksum" in record.metrics]
            parts = [f"  {self._group}: {counts}", *_rows_of_group(self._records)]
            self._print("; ".join([f"{'; '.join(parts)}, {seconds:.1f} s", *tags]))
        self._group = ""
        self._records = []

    def _print(self, line: str) -> None:
        self._console.print(line, highlight=False, markup=False, soft_wrap=True)


class BarProgress(Progress):
    """A bar with the running step, for terminals."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._bar = RichBar(
            TextColumn("[bold]{task.fields[pipeline]}"),
            BarColumn(bar_width=28),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(compact=True),
            TextColumn("[dim]{task.description}"),
            console=console,
            transient=True,
        )
        self._task = self._bar.add_task("", total=None, pipeline="", start=True)

    def run_began(self, plan: Plan, *, run_id: str, steps_done: int) -> None:
        self._console.print(f"[bold]{escape(plan.pipeline)}[/] · run {escape(run_id)} · {len(plan.steps):,} steps")
        self._bar.update(self._task, total=len(plan.steps), completed=steps_done, pipeline=escape(plan.pipeline))
        self._bar.start()

    def spark_starting(self) -> None:
        self._bar.update(self._task, description="starting Spark")

    def step_started(self, step: PlannedStep) -> None:
        self._bar.update(self._task, description=escape(step.name))

    def step_finished(self, step: PlannedStep, record: StepRecord) -> None:
        """Advance the bar. Print a line above it for a milestone, a step outside of loops, or one that dropped rows."""
        self._bar.advance(self._task)
        if not step.group or KINDS[step.kind].is_milestone or record.metrics.get("rows_dropped"):
            self._bar.console.print(f"  [green]✓[/] {escape(step.name)} [dim]{escape(describe(record))}[/]")

    def run_ended(self, summary: RunSummary | None) -> None:
        self._bar.stop()
        if summary is not None:
            self._console.print(f"  {escape(ending(summary))}")


def console_progress(console: Console) -> Progress:
    """Return a progress bar if the console is a terminal, otherwise plain lines."""
    return BarProgress(console) if console.is_terminal else LineProgress(console)


def describe(record: StepRecord) -> str:
    """Return what a step did, in a few words."""
    kind = KINDS.get(record.verb)
    words = [] if kind is None else kind.describe(record.metrics)
    return ", ".join(words) or "done"


def _rows_of_group(records: Sequence[StepRecord]) -> list[str]:
    """Return what the steps of a group wrote and left out. Leave out zeros."""
    written_counts = Counter[str]()
    for record in records:
        if record.verb in ("merge", "ingest") and "table" in record.metrics:  # an ingest as a view writes nothing
            written_counts[record.verb] += int(record.metrics.get("rows", 0))
    dropped_count = sum(int(record.metrics.get("rows_dropped", 0)) for record in records)
    parts = (
        (written_counts["merge"], "row", "merged"),
        (written_counts["ingest"], "row", "ingested"),
        (dropped_count, "bad row", "dropped"),
    )
    return [f"{format_count(number, noun)} {verb}" for number, noun, verb in parts if number]


def ending(summary: RunSummary) -> str:
    """Return the result of a run in one line."""
    if summary.steps_run == 0:
        changed_inputs = summary.inputs_changed
        more_text = f" and {format_count(len(changed_inputs) - 1, 'more step')}" if len(changed_inputs) > 1 else ""
        news = f"The input of '{changed_inputs[0]}'{more_text} has changed since. " if changed_inputs else ""
        return (
            f"run {summary.run_id} was complete already: nothing to do. {news}"
            "To run steps once more, name them: --replay STEP."
        )
    skipped_text = f", {summary.steps_skipped:,} were done before" if summary.steps_skipped else ""
    if summary.steps_carried:
        skipped_text += f" ({summary.steps_carried:,} of them by runs of another definition)"
    return f"{format_count(summary.steps_run, 'step')} in {summary.seconds:.1f} s{skipped_text}"
