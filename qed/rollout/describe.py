"""The metrics of a step's rollouts: rewards, accuracy, format, lengths, truncation, groups without signal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from statistics import fmean

from qed.algorithms.parts.guidance import is_right_trace
from qed.rollout.inversions import compute_inverted_share
from qed.rollout.stages import flatten
from qed.types import UNGRADED, Grade, Group, Groups, Rollout


def describe_groups(groups: Groups) -> dict[str, float]:
    """Compute the metrics of a step's rollouts: rewards, accuracy, format, lengths, truncation, groups without signal.

    Metrics of answers are over on-policy answers, if there are any, so demonstrations and replayed answers do not
    count. A length is the number of trained tokens, so tool results do not count.
    """
    greedy = [answer.reward for group in groups for answer in group if answer.source == "greedy" and answer.has_reward]
    groups = [[rollout for rollout in group if rollout.source != "greedy"] for group in groups]
    everything = flatten(groups)
    if not everything:
        return {}
    rollouts = [rollout for rollout in everything if rollout.is_on_policy] or everything
    demonstrations = [rollout for rollout in everything if rollout.source == "expert"]
    demonstration_rewards = [rollout.reward for rollout in demonstrations if rollout.has_reward]
    wrong_traces = sum(rollout.has_reward and not is_right_trace(rollout) for rollout in demonstrations)
    # Replayed answers were graded in an earlier step.
    tiers = Counter(one.grade.tier for one in everything if one.grade is not None and one.source != "replay")
    graded = [(rollout, verdict) for rollout in rollouts if (verdict := _find_verdict(rollout)) is not None]
    rewards = [rollout.reward for rollout in rollouts if rollout.has_reward]
    own = [[one for one in group if one.is_on_policy] for group in groups]
    inverted = compute_inverted_share(own)
    verdicts = list(filter(None, map(_list_verdicts, own)))
    distinct_rewards = [{rollout.reward for rollout in group if rollout.has_reward} for group in groups]
    right = [r.trained_count for r, verdict in graded if verdict.correct]
    wrong = [r.trained_count for r, verdict in graded if not verdict.correct]
    turns = [len(rollout.turn_rewards) + 1 for rollout in rollouts]
    parts = [verdict.parts for _, verdict in graded if verdict.has_reward]
    names = sorted({name for own in parts for name in own})
    return {
        # Answers that no grader could judge are counted below and are in no other statistic of grades.
        **({"reward/mean": fmean(rewards)} if rewards else {}),
        # An answer lacks the parts that do not apply to it.
        **{f"reward/{name}/mean": fmean(own[name] for own in parts if name in own) for name in names},
        **({"reward/greedy": fmean(greedy)} if greedy else {}),
        **({"reward/inverted": inverted} if inverted is not None else {}),
        **_describe_verdicts([verdict for _, verdict in graded]),
        "groups/zero_std": fmean(len(values) < 2 for values in distinct_rewards),
        "groups/all_right": fmean(map(all, verdicts)) if verdicts else 0.0,
        "groups/all_wrong": fmean(not any(group) for group in verdicts) if verdicts else 0.0,
        **{f"grading/{tier}s": tiers[tier] for tier in UNGRADED},
        "grading/without_reward": sum(one.grade is not None and not one.grade.has_reward for one in everything),
        "length/total": sum(rollout.trained_count for rollout in rollouts),
        "length/mean": fmean(rollout.trained_count for rollout in rollouts),
        **({"length/right_mean": fmean(right)} if right else {}),
        **({"length/wrong_mean": fmean(wrong)} if wrong else {}),
        "length/truncated_frac": fmean(rollout.stop_reason == "length" for rollout in rollouts),
        **({"turns/mean": fmean(turns)} if max(turns) > 1 else {}),
        **({"guidance/trace_reward": fmean(demonstration_rewards)} if demonstration_rewards else {}),
        **({"guidance/wrong_traces": wrong_traces} if demonstrations else {}),
    }


def _describe_verdicts(verdicts: Sequence[Grade]) -> dict[str, float]:
    if not verdicts:
        return {}
    return {"accuracy": fmean(one.correct for one in verdicts), "format": fmean(one.format_ok for one in verdicts)}


def _list_verdicts(group: Group) -> list[bool]:
    """Return whether each answer of a group is right, of those that a grader could judge."""
    return [verdict.correct for one in group if (verdict := _find_verdict(one)) is not None]


def _find_verdict(rollout: Rollout) -> Grade | None:
    """Return the grade of an answer; None if there is none, or if no grader could decide."""
    grade = rollout.grade
    return None if grade is None or grade.tier in UNGRADED else grade
