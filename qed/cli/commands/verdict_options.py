"""Options about verdicts that several commands share: what counts as the same answer, and second graders."""
# ruff: noqa: PLC0415 -- the graders are imported after the options are parsed

from __future__ import annotations

import argparse
from typing import Any

from qed.config.values import split_items
from qed.errors import UsageError
from qed.grading.policy import NAMES


def add_policy_option(add: Any) -> None:
    """Add `--policy`."""
    add(
        "--policy",
        choices=NAMES,
        default="math",
        help="what counts as the same answer: math (default), qwen (also times 100, divided by 100 or within 1e-4, as "
        "Qwen2.5-Math accepts), or strict (no optional convention)",
    )


def add_also_option(add: Any) -> None:
    """Add `--also-grade`."""
    add(
        "--also-grade",
        default="",
        metavar="NAME,…",
        help="a second verdict on every answer, by a policy, a reward such as math_verify, or a reward with an option "
        "such as question_only.grader=slow",
    )


def read_rewards(args: argparse.Namespace) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the names of `--reward`, and the options of `--reward-options`."""
    names = tuple(name.strip() for name in args.reward.split(",")) if args.reward else ()
    return names, tuple(item.text for item in split_items(args.reward_options or ""))


def check_reward_options(args: argparse.Namespace) -> None:
    """Require that the options about the reward of stored answers have an effect.

    Raises:
        UsageError: options of a reward without a reward, or a way to extract the answer that the reward does not use.
    """
    if args.reward_options and not args.reward:
        raise UsageError("--reward-options has no effect without --reward: name the reward, or leave it out.")
    # A reward grades the last line too.
    if args.reward and args.extract not in ("flexible", "last-line"):
        raise UsageError(
            f"--extract {args.extract} has no effect with --reward: a reward finds the answer itself. Leave it out, or "
            "set the reward's own option, such as --reward accuracy --reward-options accuracy.mode=strict."
        )


def read_also(text: str) -> tuple[str, ...]:
    """Return the names of `--also-grade`; see `split_names` for the errors."""
    if not text:
        return ()
    from qed.evaluation.verdicts import split_names

    return split_names(text)
