"""What a run's figures say, in sentences: nothing that was not measured, and what the control says, whatever it is."""

from __future__ import annotations

import re
from collections.abc import Mapping

from qed.evaluation.intervals import compute_mcnemar_p
from qed.report.numbers import (
    format_decimal,
    format_duration,
    format_interval,
    format_p_value,
    format_percent,
    format_points,
    read_number,
)
from qed.report.record import Record
from qed.report.stages import Arms, Comparison, count_transitions, do_overlap, find_stages
from qed.runs.run import Row

THOUGHT = re.compile(r"<think>(.*?)(?:</think>|$)", re.DOTALL)
LONGER, MORE_THOUGHT, NEARLY = 1.2, 0.1, 0.05
SAME_TIME = 0.1
SIGNIFICANT = 0.05


def write_title(record: Record) -> str:
    """The run's name and what was done, as the heading."""
    steps = ", then ".join(phase.label for phase in record.phases) or "evaluation"
    trained = record.setting("data.tasks")
    tasks = ", ".join(map(str, trained)) if isinstance(trained, list) and trained else ", ".join(record.every_task)
    return f"{record.name}: {steps}{f' on {tasks}' if tasks else ''}"


def list_alarms(record: Record) -> list[str]:
    """What was alarming while the run went, in the order in which it was seen."""
    found = [event for event in record.events if event.get("event") == "alarm"]
    return [f"Step {event.get('step')} ({event.get('phase')}): {event.get('told')}" for event in found]


def write_headline(record: Record, task: str) -> str:
    """One sentence of measured figures: what became of the greedy accuracy, and of the answers' length."""
    known = find_stages(record, task)
    if not known:
        return f"Greedy accuracy on {task} was not measured."
    after = known[-1]
    figures = after.greedy
    where = f"Greedy accuracy on {figures['n']:,} held-out problems of {task}"
    if len(known) == 1:
        return f"{where}: {format_interval(figures)} {after.label}. There is no other evaluation to compare it with."
    before = known[-2]
    earlier = before.greedy
    size = "" if earlier["n"] == figures["n"] else f" (of {earlier['n']:,} problems)"
    return (
        f"{where}: {format_interval(earlier)}{size} {before.label} → {format_interval(figures)} {after.label}"
        f"{_describe_lengths(read_number(earlier.get('mean_tokens')), read_number(figures.get('mean_tokens')))}."
    )


def describe_change(counts: Mapping[tuple[bool, bool], int]) -> str:
    """What the paired answers say about the change."""
    gained, lost = counts.get((False, True), 0), counts.get((True, False), 0)
    chance = compute_mcnemar_p(gained, lost)
    verdict = "more than chance explains" if chance < SIGNIFICANT else "no more than chance may explain"
    return (
        f"Of {sum(counts.values()):,} problems {gained:,} went from wrong to right and {lost:,} from right to wrong: "
        f"{verdict} (exact McNemar test, {format_p_value(chance)})."
    )


def describe_control(arms: Arms) -> list[str]:
    """What the control says: where SFT alone came in the time that RL took, whichever of the two it speaks for."""
    reached = f"{_describe_duration(arms)} reached {format_interval(arms.control.greedy)} with greedy answers"
    if not arms.finished:
        return [f"{reached}. One of the two is not finished, so they cannot be compared yet."]
    said = [f"{reached}; {_describe_standing(arms, 'greedy')}.{_describe_paired(arms)}"]
    if all("sampled" in stage.figures for stage in (arms.control, arms.run)):
        sampled = format_interval(arms.control.figures["sampled"])
        said.append(f"With sampled answers the control reached {sampled}; {_describe_standing(arms, 'sampled')}.")
    return said


def describe_worked_steps(found: Comparison) -> str | None:
    """An honest word where accuracy rose together with the length of answers: what part the worked steps have in it."""
    before, after, pairs = found.before, found.after, found.pairs
    earlier, later = before.greedy, after.greedy
    if later["accuracy"] <= earlier["accuracy"] or later["mean_tokens"] < LONGER * earlier["mean_tokens"]:
        return None
    grown = (
        f"Accuracy rose together with length: the mean greedy answer has {format_decimal(later['mean_tokens'])} tokens "
        f"{after.label}, {format_decimal(earlier['mean_tokens'])} {before.label}."
    )
    old = [(extract_thought(str(row.get("text", ""))), bool(row["correct"])) for row, _ in pairs]
    new = [extract_thought(str(row.get("text", ""))) for _, row in pairs]
    if all(steps is None for steps, _ in old) or all(steps is None for steps in new):
        return grown
    share, share_later = sum(bool(steps) for steps, _ in old) / len(old), sum(map(bool, new)) / len(new)
    went = f"went from {format_percent(share)} to {format_percent(share_later)}"
    stayed = f"stayed at {format_percent(share)}"
    return (
        f"{grown} The share of answers with worked steps (a thought that is not empty) "
        f"{stayed if format_percent(share) == format_percent(share_later) else went}."
    ) + _explain_choice(
        [right for steps, right in old if steps],
        [right for steps, right in old if not steps],
        later,
        share_later - share,
    )


def extract_thought(answer: str) -> str | None:
    """What stands between the thinking tags of an answer; None where there are none."""
    found = THOUGHT.search(answer)
    return found[1].strip() if found else None


def describe_trouble(record: Record) -> str | None:
    """How a run that is not whole came to its end."""
    ending, planned = record.ending, record.planned
    where = f"step {record.last:,}" + (f" of {planned:,}" if planned else "")
    if ending is None:
        return f"The record stops at {where} without an ending: the run is still going, or it was killed."
    if ending["event"] == "finished":
        return None
    how = "failed" if ending["event"] == "failed" else "was interrupted"
    reason = str(ending.get("reason") or "").strip()
    return f"This run {how} at {where}." + (f" Reason: {reason}" if reason else "")


def _explain_choice(with_steps: list[bool], without: list[bool], later: Row, rise: float) -> str:
    """Whether choosing worked steps explains the new accuracy; only where both kinds had been there before."""
    if not with_steps or not without or rise < MORE_THOUGHT:
        return ""
    right, bare = sum(with_steps) / len(with_steps), sum(without) / len(without)
    told = (
        f" Before, answers with worked steps were right in {format_percent(right)} of {len(with_steps):,} cases, those "
        f"without in {format_percent(bare)} of {len(without):,}."
    )
    if right >= later["accuracy"] - NEARLY and right > bare:
        told += " So what was learned here is largely to choose worked steps, which the policy could already write."
    return told


def _describe_lengths(before: float | None, after: float | None) -> str:
    if before is None or after is None:
        return ""
    if round(before, 1) == round(after, 1):
        return f"; the mean answer stayed at {format_decimal(after)} tokens"
    verb = "grew" if after > before else "shrank"
    return f"; the mean answer {verb} from {format_decimal(before)} to {format_decimal(after)} tokens"


def _describe_duration(arms: Arms) -> str:
    """For how long SFT went on, and how that compares."""
    ours, label = arms.phase.total("time/step"), arms.phase.label
    if not arms.seconds or not ours:
        return f"SFT continued for {arms.control.step:,} steps"
    if abs(arms.seconds / ours - 1) <= SAME_TIME:
        return (
            f"SFT continued for the same time ({format_duration(arms.seconds)}; {label} took {format_duration(ours)})"
        )
    return f"SFT continued for {format_duration(arms.seconds)}, where {label} took {format_duration(ours)},"


def _describe_standing(arms: Arms, decoding: str) -> str:
    ours, theirs = arms.run.figures[decoding], arms.control.figures[decoding]
    difference, label = ours["accuracy"] - theirs["accuracy"], arms.phase.label
    side = f"stands {format_points(abs(difference))[1:]} points {'above' if difference > 0 else 'below'} it"
    said = f"{label} {side if difference else 'reached the same'}"
    if do_overlap(ours, theirs):
        return f"{said}, and the intervals overlap, so {'the' if difference else 'a'} difference is not established"
    return f"{said}, and the intervals do not overlap"


def _describe_paired(arms: Arms) -> str:
    """The sharper comparison of the two, on the same problems."""
    if not arms.pairs:
        return ""
    counts = count_transitions(arms.pairs)
    gained, lost = counts[False, True], counts[True, False]
    chance = compute_mcnemar_p(gained, lost)
    yet = do_overlap(arms.run.greedy, arms.control.greedy) and chance < SIGNIFICANT
    return (
        f" {'Yet problem' if yet else 'Problem'} by problem, {arms.phase.label} alone is right on {gained:,} and the "
        f"control alone on {lost:,} of {len(arms.pairs):,} (exact McNemar test, {format_p_value(chance)})."
    )
