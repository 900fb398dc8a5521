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
    """Refuse options that have no meaning for log-likelihoods, and those that have one only there.

    Raises:
        UsageError: one is given.
    """
    if (args.shots or 0) < 0:
        raise UsageError("qed evaluate: --shots must not be negative.")
    if args.scoring == "sampled":
        if args.prompt and (args.exemplars or args.shots is not None):
            raise UsageError("qed evaluate: --shots and --exemplars bring their own prompt; leave --prompt out.")
        return
    given = {
        "--greedy": args.greedy,
        "--samples": args.samples not in (None, 1),
        "--max-tokens": args.max_tokens,
        "--prompt": args.prompt,
        "--exemplars": args.exemplars,
        "--system-prompt": args.system_prompt,
        "--reward": args.reward,
        "--policy": args.policy != "math",
        "--also-grade": args.also_grade,
    }
    wrong = [name for name, value in given.items() if value]
    if wrong:
        raise UsageError(
            f"--scoring likelihood samples and grades no text: it compares the log-probs of the choices. Leave out "
            f"{', '.join(wrong)}."
        )
