"""Show a model's samples and their rewards: the first thing to check when rewards have no variance."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from statistics import fmean, pstdev
from typing import Any

from qed.config.phases import Settings
from qed.console.live import Console
from qed.data.splits import load_problems, resolve_prompt_name, resolve_reward_names
from qed.models import threads
from qed.models.load import check_name, pick_device
from qed.rollout.agreement import require_sampler
from qed.rollout.grader import load_grader
from qed.rollout.policy import load_policy, report_handover
from qed.rollout.sampler_check import Options
from qed.rollout.stages import flatten, grade, sample
from qed.runs.run import describe_turns
from qed.sampling.base import build_sampling
from qed.types import Group, Request, Rollout

TAG = re.compile(r"</?[A-Za-z_][A-Za-z0-9_]{0,39}>|\\boxed|####")
MAX_SHOWN = 600  # characters shown of an answer's start and of its end
# The figures that are shares; the others are counts and means.
SHARES = ("right", "in_format", "cut_off", "groups_without_signal", "distinct_texts", "distinct_answers")
TRUNCATED_SHARE, SAME_SHARE = 0.5, 0.5  # thresholds for advice


@threads.restore_threads()
def debug_generations(settings: Settings, answers: int, whole: bool, json: bool) -> dict[str, Any]:
    """Sample answers to a few training problems as in training, grade and print them.

    Args:
        settings: `sampling.problems_per_step` problems are answered.
        answers: number of answers per problem.
        whole: print complete answers instead of their start and end.
        json: reserve stdout for the JSON result.

    Returns:
        the answers with their verdicts, and figures over them.
    """
    check_name(settings.model.name)
    console = Console(json)
    threads.set_threads(settings.run.threads, settings.run.matmul_precision)
    loaded = load_problems(settings.data, settings.evaluation, settings.run.seed)
    policy = load_policy(settings, loaded.problems, pick_device(settings.model.device), None)
    report_handover(policy.sampler, console.say)
    problems = [problem for problem in loaded.problems if problem.answer][: settings.sampling.problems_per_step]
    sampling = build_sampling(settings.sampling, policy.template.stop)
    compared = require_sampler(policy, policy.template, problems, sampling, settings, console, Options())
    address = (settings.run.seed, "debug")
    grader = load_grader(settings.data, settings.sampling.max_tokens)
    groups = sample(
        [Request(problem, answers) for problem in problems],
        policy.sampler,
        policy.template,
        sampling,
        address,
        grader=grader,
    )
    grade(groups, grader)
    console.say(
        f"{settings.model.name}, prompt {resolve_prompt_name(settings.data)}, "
        f"reward {' + '.join(resolve_reward_names(settings.data))}, "
        f"temperature {sampling.temperature:g}, at most {sampling.max_tokens} tokens"
    )
    for group in groups:
        show_group(console, group, whole)
    console.say()
    figures = compute_diversity(groups)
    console.table(
        "Over all answers",
        ("", "value"),
        [(name.replace("_", " "), _format_figure(name, value)) for name, value in figures.items()],
    )
    for line in list_advice(groups, figures):
        console.say(line)
    # Replaces the number of answers.
    return {**figures, "answers": [build_row(rollout) for rollout in flatten(groups)], "sampler_check": compared}


def build_row(rollout: Rollout) -> dict[str, Any]:
    """Build the row of an answer with its verdict, tags and reward."""
    verdict = rollout.grade
    return {
        "problem": rollout.problem.id,
        "sample": rollout.index,
        "gold": rollout.problem.answer,
        "text": rollout.text,
        "turns": describe_turns(rollout),
        "tokens": rollout.trained_count,
        "stop_reason": rollout.stop_reason,
        "tags": count_tags(rollout.text),
        "extracted": verdict.extracted if verdict else None,
        "reward": rollout.reward if rollout.has_reward else None,
        "parts": dict(verdict.parts) if verdict else {},
        "correct": verdict.correct if verdict else False,
        "format_ok": verdict.format_ok if verdict else False,
        "tier": verdict.tier if verdict else "",
        "reason": verdict.reason if verdict else "",
    }


def count_tags(text: str) -> dict[str, int]:
    """Count the tags and boxes in a text."""
    return dict(Counter(TAG.findall(text)))


def show_group(console: Console, group: Group, whole: bool) -> None:
    """Print a problem and its answers."""
    problem = group[0].problem
    console.say(f"\n── {problem.id}, gold {problem.answer}\n{_shorten(problem.question, whole)}")
    for row in map(build_row, group):
        parts = "  ".join(f"{name} {value:g}" for name, value in row["parts"].items())
        tags = " ".join(f"{name}×{count}" if count > 1 else name for name, count in row["tags"].items())
        console.say(
            f"\n[{row['sample']}] reward {_format_reward(row['reward'])}  {'right' if row['correct'] else 'wrong'}"
            f"{'' if row['format_ok'] else ', format broken'}  {row['tokens']} tokens"
            f"{', cut off' if row['stop_reason'] == 'length' else ''}\n"
            f"    parts {parts or 'none'}\n    tags {tags or 'none'}\n"
            f"    extracted {row['extracted']!r}: {row['reason']}"
        )
        for turn in row["turns"]:
            console.say("    " + _shorten(turn["text"], whole).replace("\n", "\n    "))
            console.say("    environment: " + _shorten(turn["reply"], whole).replace("\n", "\n    "))
        console.say("    " + _shorten(row["text"], whole).replace("\n", "\n    "))


def compute_diversity(groups: Sequence[Group]) -> dict[str, float]:
    """Compute how much the answers of a group differ in their text and in their reward."""
    rollouts = flatten(groups)
    rewards = [[rollout.reward for rollout in group if rollout.has_reward] for group in groups]
    earned = [reward for own in rewards for reward in own]
    return {
        "problems": len(groups),
        "answers": len(rollouts),
        "right": fmean(bool(rollout.grade and rollout.grade.correct) for rollout in rollouts),
        "in_format": fmean(bool(rollout.grade and rollout.grade.format_ok) for rollout in rollouts),
        "cut_off": fmean(rollout.stop_reason == "length" for rollout in rollouts),
        "mean_tokens": fmean(rollout.trained_count for rollout in rollouts),
        "mean_turns": fmean(len(rollout.turns) + 1 for rollout in rollouts),
        **({"mean_reward": fmean(earned)} if earned else {}),
        "without_reward": len(rollouts) - len(earned),
        "reward_std_in_a_group": fmean(pstdev(own) if own else 0.0 for own in rewards),
        "groups_without_signal": fmean(len(set(own)) < 2 for own in rewards),
        "distinct_texts": fmean(len({rollout.text for rollout in group}) / len(group) for group in groups),
        "distinct_answers": fmean(
            len({_find_extracted(rollout) for rollout in group}) / len(group) for group in groups
        ),
    }


def list_advice(groups: Sequence[Group], figures: dict[str, float]) -> list[str]:
    """List likely reasons for equal rewards within a group."""
    if not figures["groups_without_signal"]:
        return ["The rewards differ within every group, so each one has a gradient."]
    advice = [f"{figures['groups_without_signal']:.0%} of the groups have equal rewards, and so no gradient."]
    if figures["cut_off"] >= TRUNCATED_SHARE:
        advice.append("Most answers are cut off before they end: raise sampling.max_tokens.")
    if figures.get("without_reward"):
        advice.append(
            f"{figures['without_reward']:,} answers have no reward: no reward function applies to them, or it failed."
        )
    if not figures["in_format"]:
        tags = Counter(tag for rollout in flatten(groups) for tag in count_tags(rollout.text))
        common = ", ".join(f"{tag} ({count})" for tag, count in tags.most_common(4)) or "none at all"
        advice.append(f"No answer has the reward's format; tags found: {common}. Try another --prompt, or SFT first.")
    elif not figures["right"]:
        advice.append("No answer is right: try an easier task, SFT first, or demonstrations.")
    elif figures["right"] == 1:
        advice.append("Every answer is right: try a harder task.")
    if figures["distinct_texts"] <= SAME_SHARE:
        advice.append("Most answers of a group are the same text: raise sampling.temperature.")
    return advice


def _format_reward(reward: float | None) -> str:
    return "none" if reward is None else f"{reward:g}"


def _find_extracted(rollout: Rollout) -> str | None:
    return rollout.grade.extracted if rollout.grade else None


def _shorten(text: str, whole: bool) -> str:
    if whole or len(text) <= 2 * MAX_SHOWN:
        return text
    return f"{text[:MAX_SHOWN]}\n… {len(text) - 2 * MAX_SHOWN:,} characters …\n{text[-MAX_SHOWN:]}"


def _format_figure(name: str, value: float) -> str:
    return f"{value:.1%}" if name in SHARES else f"{value:,.3f}".rstrip("0").rstrip(".")
