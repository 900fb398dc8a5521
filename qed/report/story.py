"""Describe a run's figures in sentences: only measured facts, and always the control's result."""

from __future__ import annotations

import re
from collections.abc import Mapping

from qed.report.adjusted import AdjustedTest
from qed.report.numbers import (
    format_decimal,
    format_duration,
    format_interval,
    format_percent,
    format_plain,
    read_number,
)
from qed.report.panel_list import LOSS, PREFERRED
from qed.report.record import Record
from qed.report.stages import Comparison, ControlComparison, find_stages
from qed.runs.run import Row

THOUGHT = re.compile(r"<think>(.*?)(?:</think>|$)", re.DOTALL)
LONGER, MORE_THOUGHT, NEARLY = 1.2, 0.1, 0.05
SAME_TIME = 0.1
UNPAIRED = "Both have no stored answers to the same problems, so no paired test is possible."


def write_title(record: Record) -> str:
    """Return the heading: the run's name, its phases and its tasks."""
    steps = ", then ".join(phase.label for phase in record.phases) or "evaluation"
    trained = [record.get_setting(f"{section}.tasks") for section in ("data", "sft.data", "rl.data")]
    named = [task for some in trained if isinstance(some, list) for task in some]
    tasks = ", ".join(dict.fromkeys(map(str, named or record.all_tasks)))
    return f"{record.name}: {steps}{f' on {tasks}' if tasks else ''}"


def list_alarms(record: Record) -> list[str]:
    """Return the alarms of the run in the order of the events."""
    alarms = [event for event in record.events if event.get("event") == "alarm"]
    return [f"Step {event.get('step')} ({event.get('phase')}): {event.get('told')}" for event in alarms]


def write_headline(record: Record, task: str) -> str:
    """Return a sentence about the change in greedy accuracy and in answer length."""
    stages = find_stages(record, task)
    if not stages:
        return f"Greedy accuracy on {task} was not measured."
    after = stages[-1]
    figures = after.greedy
    where = f"Greedy accuracy on {figures['n']:,} held-out problems of {task}"
    if len(stages) == 1:
        return f"{where}: {format_interval(figures)} {after.label}. There is no other evaluation to compare it with."
    before = stages[-2]
    earlier = before.greedy
    size = "" if earlier["n"] == figures["n"] else f" (of {earlier['n']:,} problems)"
    return (
        f"{where}: {format_interval(earlier)}{size} {before.label} → {format_interval(figures)} {after.label}"
        f"{_describe_lengths(read_number(earlier.get('mean_tokens')), read_number(figures.get('mean_tokens')))}."
    )


def describe_validation(record: Record) -> str:
    """Describe how validation pairs or demonstrations fared from the first measurement to the last; "" without any."""
    for key, what, write in (
        (PREFERRED, "share of validation pairs ranked right", format_percent),
        (LOSS, "loss on the validation demonstrations, in nats per token,", format_plain),
    ):
        values = [
            (row["step"], value) for row in record.validations if (value := read_number(row.get(key))) is not None
        ]
        if len(values) > 1:
            (first, before), (last, after) = values[0], values[-1]
            return (
                f" The {what} was {write(before)} at step {first:,} and {write(after)} at step {last:,}; the best "
                "checkpoint is chosen by it, so it is not a held-out result."
            )
    return ""


def describe_change(tests: Mapping[str, AdjustedTest]) -> str:
    """Describe how many answers changed, with the paired test of each decoding."""
    sentences = []
    for decoding, adjusted in tests.items():
        test = adjusted.test
        if decoding == "greedy":
            moves = f"{len(test.gained):,} went from wrong to right and {len(test.lost):,} from right to wrong"
            sentences.append(f"Of {test.n:,} problems {moves}: {adjusted.describe()}.")
        else:
            moves = f"{len(test.gained):,} were answered better and {len(test.lost):,} worse"
            sentences.append(f"With {decoding} answers {moves}: {adjusted.describe()}.")
    return " ".join(sentences)


def describe_control(comparison: ControlComparison) -> list[str]:
    """Describe what SFT alone reached in the time that RL took, whichever is better."""
    reached = (
        f"{_describe_duration(comparison)} reached {format_interval(comparison.control.greedy)} with greedy answers"
    )
    if not comparison.finished:
        return [f"{reached}. One of the two is not finished, so they cannot be compared yet."]
    sentences = [f"{reached}. {_describe_standing(comparison, 'greedy')}"]
    if all("sampled" in stage.figures for stage in (comparison.control, comparison.run)):
        sampled = format_interval(comparison.control.figures["sampled"])
        sentences.append(
            f"With sampled answers the control reached {sampled}. {_describe_standing(comparison, 'sampled')}"
        )
    return sentences


def describe_worked_steps(comparison: Comparison) -> str | None:
    """Describe the role of worked steps in a gain; None unless accuracy and known lengths rose together."""
    before, after, pairs = comparison.before, comparison.after, comparison.pairs
    earlier, later = before.greedy, after.greedy
    length, length_later = (read_number(figures.get("mean_tokens")) for figures in (earlier, later))
    if length is None or length_later is None or length_later < LONGER * length:
        return None
    if later["accuracy"] <= earlier["accuracy"]:
        return None
    test = comparison.tests.get("greedy")
    doubt = "" if test is not None and test.is_established else " (no more than chance may explain)"
    gain = (
        f"Accuracy rose{doubt} together with length: the mean greedy answer has "
        f"{format_decimal(length_later)} tokens {after.label}, {format_decimal(length)} {before.label}."
    )
    old = [(_has_steps(row), bool(row["correct"])) for row, _ in pairs]
    new = [_has_steps(row) for _, row in pairs]
    if all(steps is None for steps, _ in old) or all(steps is None for steps in new):
        return gain
    share, share_later = sum(bool(steps) for steps, _ in old) / len(old), sum(map(bool, new)) / len(new)
    went = f"went from {format_percent(share)} to {format_percent(share_later)}"
    stayed = f"stayed at {format_percent(share)}"
    return (
        f"{gain} The share of answers with worked steps (a thought that is not empty) "
        f"{stayed if format_percent(share) == format_percent(share_later) else went}."
    ) + _explain_choice(
        [right for steps, right in old if steps],
        [right for steps, right in old if not steps],
        later,
        share_later - share,
    )


def _has_steps(row: Row) -> bool | None:
    """Return whether an answer has worked steps; None without tags for them."""
    thought = extract_thought(str(row.get("text", "")))
    # The evaluation also knows the prompt's own tags.
    return bool(thought) if thought is not None else bool(row.get("reasoning_chars")) or None


def extract_thought(answer: str) -> str | None:
    """Return the text between the thinking tags of an answer; None without tags."""
    match = THOUGHT.search(answer)
    return match[1].strip() if match else None


def describe_trouble(record: Record) -> str | None:
    """Describe how an unfinished run ended; None for a finished one."""
    ending, planned = record.ending, record.planned_steps
    where = f"step {record.last_step:,}" + (f" of {planned:,}" if planned else "")
    if ending is None:
        return f"The record stops at {where} without an ending: the run is still going, or it was killed."
    if ending["event"] == "finished":
        return None
    how = "was interrupted" if ending["event"] == "interrupted" else ending["event"]
    reason = str(ending.get("reason") or "").strip()
    if ending["event"] == "hung":
        duration = format_duration(read_number(ending.get("seconds")) or 0.0)
        reason = f"no progress for {duration} in stage '{ending.get('stage', '')}'."
    return f"This run {how} at {where}." + (f" Reason: {reason}" if reason else "")


def _explain_choice(with_steps: list[bool], without: list[bool], later: Row, rise: float) -> str:
    """Describe whether choosing worked steps explains the gain; empty unless both kinds of answers existed before."""
    if not with_steps or not without or rise < MORE_THOUGHT:
        return ""
    right, bare = sum(with_steps) / len(with_steps), sum(without) / len(without)
    content = (
        f" Before, answers with worked steps were right in {format_percent(right)} of {len(with_steps):,} cases, those "
        f"without in {format_percent(bare)} of {len(without):,}."
    )
    if right >= later["accuracy"] - NEARLY and right > bare:
        content += " So what was learned here is largely to choose worked steps, which the policy could already write."
    return content


def _describe_lengths(before: float | None, after: float | None) -> str:
    if before is None or after is None:
        return ""
    if round(before, 1) == round(after, 1):
        return f"; the mean answer stayed at {format_decimal(after)} tokens"
    verb = "grew" if after > before else "shrank"
    return f"; the mean answer {verb} from {format_decimal(before)} to {format_decimal(after)} tokens"


def _describe_duration(comparison: ControlComparison) -> str:
    """Describe how long the control trained, compared with RL."""
    ours, label = comparison.phase.compute_total("time/step"), comparison.phase.label
    if not comparison.seconds or not ours:
        return f"SFT continued for {comparison.control.step:,} steps"
    duration = format_duration(comparison.seconds)
    if abs(comparison.seconds / ours - 1) <= SAME_TIME:
        return f"SFT continued for the same time ({duration}; {label} took {format_duration(ours)})"
    return f"SFT continued for {duration}, where {label} took {format_duration(ours)},"


def _describe_standing(comparison: ControlComparison, decoding: str) -> str:
    """Describe the difference from the control by the paired test on the problems that both answered."""
    label, adjusted = comparison.phase.label, comparison.tests.get(decoding)
    if adjusted is None:
        return f"{UNPAIRED} A difference is not established."
    test = adjusted.test
    gained, lost = f"{len(test.gained):,}", f"{len(test.lost):,}"
    moves = (
        f"{label} alone is right on {gained}, the control alone on {lost}"
        if decoding == "greedy"
        else f"{label} is better on {gained}, the control on {lost}"
    )
    return f"Of the {test.n:,} problems that both answered, {moves}: {adjusted.describe()}."
