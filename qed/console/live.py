"""The output of a run: a live progress line on a terminal and in a notebook, plain lines elsewhere, and tables."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Console as RichConsole
from rich.live import Live
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from qed.console.unread import drop_unread
from qed.guards.redaction import redact, strip_control

LINES_A_PHASE = 20
PIPE_WIDTH = 140  # columns
REFRESHES = 8  # refreshes of the live line per second
TRAINED = ("⟦", "⟧")  # mark trained tokens where bold is not available


class NotebookLine:
    """A line in the output of a notebook cell, updated in place."""

    def __init__(self) -> None:
        from IPython.display import display  # noqa: PLC0415 -- it is there in a notebook, and only there

        self._shown = time.perf_counter()
        self._text = Text("")
        self._handle = display({"text/plain": ""}, raw=True, display_id=True)

    def update(self, text: Text) -> None:
        """Show another text, at most eight times a second."""
        self._text = text
        if time.perf_counter() - self._shown >= 1 / REFRESHES:
            self.stop()

    def stop(self) -> None:
        """Show the last text."""
        self._shown = time.perf_counter()
        self._handle.update({"text/plain": self._text.plain}, raw=True)


class LastingConsole(RichConsole):
    """A console that survives a broken pipe, where rich would end the process in the middle of its work."""

    def on_broken_pipe(self) -> None:
        """Stop printing."""
        self.quiet = True
        drop_unread(self.file)


class Console:
    """Prints to stdout, or to stderr if stdout is for JSON.

    Args:
        json: whether stdout is reserved for JSON.
        log_every: steps between two progress lines without a terminal; 0 prints about 20 lines per phase.
        quiet: print nothing, and only write to the log.
    """

    def __init__(self, json: bool = False, log_every: int = 0, quiet: bool = False) -> None:
        file = sys.stderr if json else sys.stdout
        # A file or a pipe has no width; its tables should not be truncated to rich's default.
        width = None if file.isatty() else PIPE_WIDTH
        self.rich = LastingConsole(file=file, highlight=False, soft_wrap=True, emoji=False, width=width, quiet=quiet)
        self.log_every = log_every
        self.log: Callable[[str], None] | None = None  # receives every printed line, and a line for every step
        self.live: Live | NotebookLine | None = None
        self.began, self.first, self.shown, self.unit = 0.0, 0, 0, "step"

    def say(self, text: str = "") -> None:
        """Print a line verbatim, without markup, with control characters removed and API keys redacted."""
        line = strip_control(redact(text))
        self.rich.print(escape(line))
        self._write_log(line)

    def phase(self, title: str, first: int, unit: str = "step") -> None:
        """Start a phase of steps or other units; the remaining time is estimated from here on."""
        self.end_phase()
        if title:
            self.say(title)
        self.began, self.first, self.shown, self.unit = time.perf_counter(), first, first, unit
        if self.rich.quiet:
            return
        if self.rich.is_jupyter:
            self.live = NotebookLine()
        elif self.rich.is_terminal:
            self.live = Live(Text(""), console=self.rich, refresh_per_second=REFRESHES, transient=False)
            self.live.start()

    def step(self, step: int, last: int, metrics: Mapping[str, float]) -> None:
        """Show a step on the live line, or print a line every few steps."""
        line = self._format_line(step, last, metrics)
        self._write_log(line)
        every = self.log_every or max(1, (last - self.first) // LINES_A_PHASE)
        if self.live is not None:
            self.live.update(Text(line))
        elif step - self.shown >= every or step == last:
            self.rich.print(line, markup=False)
            self.shown = step

    def end_phase(self) -> None:
        """Stop updating the live line."""
        if self.live is not None:
            self.live.stop()
            self.live = None

    def table(self, title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        """Print a table with the first column left-aligned and the others right-aligned."""
        table = Table(title=escape(strip_control(title)), title_justify="left", title_style="bold", box=SIMPLE_HEAD)
        for number, column in enumerate(columns):
            table.add_column(escape(strip_control(column)), justify="left" if number == 0 else "right", no_wrap=True)
        for row in rows:
            table.add_row(*(escape(strip_control(cell)) for cell in row))
        self.rich.print(table)
        for row in ([title], columns, *rows):
            self._write_log("  ".join(map(strip_control, row)))

    def marked(self, prefix: str, trained: str) -> None:
        """Print a text whose last part is trained: bold on a terminal, in brackets elsewhere."""
        prefix, trained = strip_control(prefix), strip_control(trained)
        if self.rich.is_terminal:
            self.rich.print(Text.assemble((prefix, "dim"), (trained, "bold")))
        else:
            self.rich.print(f"{prefix}{TRAINED[0]}{trained}{TRAINED[1]}" if trained else prefix, markup=False)

    def _write_log(self, line: str) -> None:
        if self.log is not None:
            self.log(line)

    def _format_line(self, step: int, last: int, metrics: Mapping[str, float]) -> str:
        figures = [
            ("loss", "train/loss", "{:.4f}", "accuracy" not in metrics),
            ("reward", "reward/mean", "{:.3f}", True),
            ("accuracy", "accuracy", "{:.1%}", True),
            ("length", "length/mean", "{:.1f}", True),
            ("truncated", "length/truncated_frac", "{:.1%}", True),
            ("tokens/s", "perf/tokens_per_s", "{:,.0f}", True),
        ]
        parts = [
            f"{label} {form.format(metrics[key])}" for label, key, form, shown in figures if shown and key in metrics
        ]
        done = step - self.first
        left = (time.perf_counter() - self.began) / max(1, done) * (last - step)
        return "  ".join([f"{self.unit} {step}/{last}", *parts, f"left {format_duration(left)}"])


def format_duration(seconds: float) -> str:
    """Format seconds as hours, minutes and seconds, such as 1h05m."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h{minutes:02d}m" if hours else f"{minutes}m{rest:02d}s" if minutes else f"{rest}s"
