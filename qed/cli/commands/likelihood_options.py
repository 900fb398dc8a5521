"""The options of `qed evaluate` for multiple choice by log-likelihood."""

from __future__ import annotations

import argparse
from typing import Any

from qed.errors import UsageError

SCORINGS = ("sampled", "likelihood")


def add_likelihood_options(add: Any) -> None:
    """Add `--scoring`, `--shots` and `--exemplars`."""
    add(
        "--scoring",
        choices=SCORINGS,
        default="sampled",
        help="sampled: answers that the model writes (default); likelihood: the most likely choice of multiple-choice "
        "questions, in the formats of lm-eval",
    )
    add(
        "--shots",
        type=int,
        metavar="N",
        help="worked examples before a question: the standard ones of gsm8k, math, mmlu, sat_math, or of --exemplars",
    )
    add(
        "--exemplars",
        default="",
        metavar="NAME[@PATH]",
        help="worked examples by name: gsm8k (rows of its train split), gsm8k_cot, minerva_math, mmlu, or "
        "Qwen2.5-Math's: qwen_gsm8k, qwen_math, qwen_choices, qwen_choices_cot, qwen_aqua",
    )


def check_likelihood(args: argparse.Namespace) -> None:
    """Check the options of worked examples.

    Raises:
        UsageError: their number is negative, or --prompt is given too although they have their own prompt.
    """
    if (args.shots or 0) < 0:
        raise UsageError("qed evaluate: --shots must not be negative.")
    if args.scoring == "sampled" and args.prompt and (args.exemplars or args.shots is not None):
        raise UsageError("qed evaluate: --shots and --exemplars use their own prompt; leave --prompt out.")
