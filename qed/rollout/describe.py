"""The metrics of a step's rollouts: rewards, accuracy, format, lengths, truncation, groups without signal."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from statistics import fmean

from qed.algorithms.parts.guidance import is_right_trace
from qed.rollout.stages import flatten
from qed.types import UNGRADED, Grade, Group, Groups, Rollout


def describe_groups(groups: Groups) -> dict[str, float]:
    """Compute the metrics of a step's rollouts: rewards, accuracy, format, lengths, truncation, groups without signal.

    Metrics of answers cover only on-policy answers if there are any, so demonstrations and replayed answers do not
    count. A length is a number of trained tokens, so tool results do not count.
    """
    greedy = [answer.reward for group in groups for answer in group if answer.source == "greedy" and answer.has_reward]
    groups = [[rollout for rollout in group if rollout.source != "greedy"] for group in groups]
    everything = flatten(groups)
    if not everything:
        return {}
    rollouts = [rollout for rollout in everything if rollout.is_on_policy] or everything
    verdicts = [verdict for rollout in rollouts if (verdict := _find_verdict(rollout)) is not None]
    on_policy = [[rollout for rollout in group if rollout.is_on_policy] for group in groups]
    inverted = compute_inverted_share(on_policy)
    turns = [len(rollout.turn_rewards) + 1 for rollout in rollouts]
    return {
        # Answers that no grader could judge are counted below and excluded from all other statistics of grades.
        **_describe_mean("reward/mean", [rollout.reward for rollout in rollouts if rollout.has_reward]),
        **_describe_parts(verdicts),
        **_describe_mean("reward/greedy", greedy),
        **({"reward/inverted": inverted} if inverted is not None else {}),
        **_describe_mean("accuracy", [verdict.correct for verdict in verdicts]),
        **_describe_mean("format", [verdict.format_ok for verdict in verdicts]),
        **_describe_signal(groups, on_policy),
        **_count_ungraded(everything),
        **_describe_lengths(rollouts),
        **({"turns/mean": fmean(turns)} if max(turns) > 1 else {}),
        **_describe_demonstrations([rollout for rollout in everything if rollout.source == "expert"]),
    }


def compute_inverted_share(groups: Groups) -> float | None:
    """Compute the share of (correct, wrong) pairs of answers to a problem in which the wrong one earns more.

    Args:
        groups: the answers to each problem, with their grades.

    Returns:
        The share over all pairs of all groups; None if no group has both a correct and a wrong answer with a reward.
    """
    pairs = inverted = 0
    for group in groups:
        graded = [(one.grade.correct, one.reward) for one in group if one.grade is not None and one.has_reward]
        right = sorted(reward for correct, reward in graded if correct)
        wrong = [reward for correct, reward in graded if not correct]
        pairs += len(right) * len(wrong)
        # Count the correct answers that earn less than each wrong one.
        inverted += sum(bisect_left(right, reward) for reward in wrong)
    return inverted / pairs if pairs else None


def _describe_mean(name: str, values: Sequence[float]) -> dict[str, float]:
    """Return the mean as a metric of this name, or nothing without values."""
    return {name: fmean(values)} if values else {}


def _describe_parts(verdicts: Sequence[Grade]) -> dict[str, float]:
    """Return the mean of each part of the reward; an answer lacks the parts that do not apply to it."""
    parts = [verdict.parts for verdict in verdicts if verdict.has_reward]
    names = sorted({name for own in parts for name in own})
    return {f"reward/{name}/mean": fmean(own[name] for own in parts if name in own) for name in names}


def _describe_signal(groups: Groups, on_policy: Groups) -> dict[str, float]:
    """Return the shares of groups with equal rewards, and with all of the policy's answers correct or wrong.

    Args:
        groups: all answers to each problem.
        on_policy: the policy's own answers to each problem.
    """
    distinct_rewards = [{rollout.reward for rollout in group if rollout.has_reward} for group in groups]
    verdicts = list(filter(None, map(_list_verdicts, on_policy)))
    return {
        "groups/zero_std": fmean(len(values) < 2 for values in distinct_rewards),
        "groups/all_right": fmean(map(all, verdicts)) if verdicts else 0.0,
        "groups/all_wrong": fmean(not any(group) for group in verdicts) if verdicts else 0.0,
    }


def _count_ungraded(rollouts: Sequence[Rollout]) -> dict[str, float]:
    """Count the answers that no grader could judge, by reason; skip replayed ones, graded in an earlier step."""
    tiers = Counter(one.grade.tier for one in rollouts if one.grade is not None and one.source != "replay")
    without_reward = sum(one.grade is not None and not one.grade.has_reward for one in rollouts)
    return {**{f"grading/{tier}s": tiers[tier] for tier in UNGRADED}, "grading/without_reward": without_reward}


def _describe_lengths(rollouts: Sequence[Rollout]) -> dict[str, float]:
    lengths = [rollout.trained_count for rollout in rollouts]
    graded = [
        (verdict.correct, length)
        for rollout, length in zip(rollouts, lengths, strict=True)
        if (verdict := _find_verdict(rollout)) is not None
    ]
    return {
        "length/total": sum(lengths),
        "length/mean": fmean(lengths),
        **_describe_mean("length/right_mean", [length for correct, length in graded if correct]),
        **_describe_mean("length/wrong_mean", [length for correct, length in graded if not correct]),
        "length/truncated_frac": fmean(rollout.stop_reason == "length" for rollout in rollouts),
    }


def _describe_demonstrations(rollouts: Sequence[Rollout]) -> dict[str, float]:
    if not rollouts:
        return {}
    rewarded = [rollout for rollout in rollouts if rollout.has_reward]
    wrong = sum(not is_right_trace(rollout) for rollout in rewarded)
    return {
        **_describe_mean("guidance/trace_reward", [rollout.reward for rollout in rewarded]),
        "guidance/wrong_traces": wrong,
    }


def _list_verdicts(group: Group) -> list[bool]:
    """Return whether each answer of a group is correct, for those that a grader could judge."""
    return [verdict.correct for one in group if (verdict := _find_verdict(one)) is not None]


def _find_verdict(rollout: Rollout) -> Grade | None:
    """Return the grade of an answer; None if there is none, or if no grader could decide."""
    grade = rollout.grade
    return None if grade is None or grade.tier in UNGRADED else grade
