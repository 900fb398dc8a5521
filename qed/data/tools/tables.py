"""What the data commands found, as tables and lines for a person."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from qed.console.live import Console
from qed.data.tools.inspect import GROUPS, MOST_COUNTED, pick_samples
from qed.data.tools.prompting import PromptView
from qed.data.tools.validate import MOST, FileCheck, group_issues
from qed.types import Problem

LONGEST_SHOWN = 90  # characters of a question in a list


def show_figures(console: Console, found: Mapping[str, Any]) -> None:
    """The figures of a task or file."""
    problems = found["problems"]
    kinds = ", ".join(f"{name} ({count:,})" for name, count in found["schemas"].items())
    console.say(f"\n{found['name']}, split {found['split']}: {kinds or 'made by the task itself'}")
    counts = [
        ("rows", found["rows"]),
        ("problems", problems),
        ("distinct problems", found["distinct_problems"]),
        ("distinct questions", found["distinct_questions"]),
        ("with an answer", found["answers"]),
        ("with a worked solution", found["solutions"]),
        ("with a demonstration", found["demonstrations"]),
        ("with an answer that the grader cannot read", found["unreadable_answers"]),
        *((f"left out: {reason}", count) for reason, count in found["left_out"].items() if count),
    ]
    console.table("", ("", "n", "of problems"), [(name, f"{n:,}", f"{n / problems:.1%}") for name, n in counts])
    for answer, reason in found["unreadable_examples"].items():
        console.say(f"  cannot be read: {shorten(answer)} ({reason})")
    if found["columns"]:
        console.say("columns: " + ", ".join(_add_counts(found["columns"], problems)))
    lengths = {name: spread for name, spread in found["lengths"].items() if spread}
    names = list(next(iter(lengths.values())))
    console.table(
        "lengths", ("", *names), [(name, *(f"{spread[key]:,.0f}" for key in names)) for name, spread in lengths.items()]
    )
    for group in GROUPS:
        _show_group(console, f"{group}s", found[f"{group}s"])


def _add_counts(columns: Mapping[str, int], problems: int) -> list[str]:
    """The columns; with how many rows have it, where not all do."""
    return [name if count >= problems else f"{name} ({count:,})" for name, count in columns.items()]


def _show_group(console: Console, title: str, counts: Mapping[str, int]) -> None:
    if counts:
        first = [f"{name} {count:,}" for name, count in list(counts.items())[:MOST_COUNTED]]
        more = f", and {len(counts) - MOST_COUNTED:,} more" if len(counts) > MOST_COUNTED else ""
        console.say(f"{title} ({len(counts):,}): {', '.join(first)}{more}")


def show_samples(console: Console, prompt: str, asked: PromptView, problems: Sequence[Problem]) -> None:
    """Three samples with the trained part marked."""
    how = "with its end token" if asked.template else "without a model, as text"
    console.say(f"\nSamples as the prompt {prompt} asks them; what is trained is marked, {how}.")
    for problem in pick_samples(problems):
        given, trained = asked.sample(problem)
        console.say(f"\n--- {problem.id}, answer: {problem.answer or '(none)'}")
        console.marked(given, trained)
        if not trained:
            console.say("(no demonstration: the model writes what follows)")


def show_left_out(console: Console, counts: Mapping[str, int]) -> None:
    """What was left out and why."""
    for reason, count in counts.items():
        console.say(f"  left out {count:,}: {reason}")


def show_converted(console: Console, found: Mapping[str, Any]) -> None:
    """What was written."""
    for path, count in found["written"].items():
        console.say(f"{count:,} of {found['read']:,} rows to {path}, as {found['schema']}.")
    show_left_out(console, found["left_out"])
    if found["schema"] in ("luffy", "trl") and found["without_demonstration"]:
        console.say(f"  {found['without_demonstration']:,} have no demonstration, so their target is null.")


def show_prepared(console: Console, manifest: Mapping[str, Any], folder: str) -> None:
    """What a snapshot holds and how to read it."""
    rows = [(entry["task"], f"{entry['problems']:,}", entry["read_with"]) for entry in manifest["tasks"]]
    console.table(f"snapshot {folder}", ("task", "problems", "read with --tasks"), rows)
    told: set[str] = set()
    for entry in manifest["tasks"]:
        name = entry["from"]["name"]
        if name not in told and entry["left_out"]:
            console.say(f"{name} (lengths in {entry['lengths_in']}):")
            show_left_out(console, entry["left_out"])
        told.add(name)
    for name, found in manifest["contamination"].items():
        show_overlap(console, name, found)


def show_overlap(console: Console, name: str, found: Mapping[str, Any]) -> None:
    """How training problems overlap with benchmarks."""
    console.table(
        f"{name} against benchmarks, runs of {found['words']} words: {found['contaminated']:,} of "
        f"{found['problems']:,} problems overlap, {found['same_question']:,} as a whole question",
        ("benchmark", "problems", "touched", "there as a whole"),
        [
            (bench, f"{one['problems']:,}", f"{one['touched']:,}", f"{one['same_question']:,}")
            for bench, one in found["benchmarks"].items()
        ],
    )
    for example in found["examples"]:
        console.say(f"  {shorten(example['question'])}")
        console.say(f"    {example['benchmark']}: {shorten(example['benchmark_question'])}")
        console.say(f"    shared: {shorten(example['shared'])}")


def show_checked(console: Console, found: FileCheck) -> None:
    """What is wrong with a file."""
    kinds = ", ".join(f"{name} ({count:,})" for name, count in found.schemas.items()) or "no schema"
    console.say(
        f"{found.file}: {found.rows:,} rows, {kinds}; {len(found.errors):,} errors, {len(found.remarks):,} remarks, "
        f"{found.unreadable:,} answers that the grader cannot read."
    )
    for kind, lines in (("error", found.errors), ("remark", found.remarks)):
        listed = group_issues(lines)
        for line in listed[:MOST]:
            console.say(f"  {kind}: {line}")
        if len(listed) > MOST:
            console.say(f"  and {len(listed) - MOST:,} more {kind}s of other rows")
    show_left_out(console, found.left_out)


def shorten(text: str) -> str:
    """A text on one line, cut where it is long."""
    line = " ".join(text.split())
    return line if len(line) <= LONGEST_SHOWN else f"{line[: LONGEST_SHOWN - 1]}…"
