"""The help of qed as a whole. Nothing here imports the settings, so that it appears immediately."""

from __future__ import annotations

import qed
from qed.config import plugins
from qed.config.screens import format_heading, format_listing
from qed.config.training_commands import PIPELINES

EXAMPLES = (
    "qed quickstart",
    "qed grpo --model Qwen/Qwen2.5-0.5B --tasks train.jsonl --steps 100 --out runs/first",
    "qed grpo runs/first/settings.yaml --lr 5e-7 --out runs/second",
)


def format_overview() -> str:
    """Format the help of qed as a whole, on one screen."""
    methods = {name.replace("_", "-"): line for name, line in plugins.list_leaves("algorithms").items()}
    parts = [
        f"qed {qed.__version__}: trains language models to reason, and measures the improvement.",
        format_heading("Usage") + "\n  qed COMMAND [CONFIG…] [--section.setting VALUE …]",
        format_listing("Train", PIPELINES | methods),
        format_listing(
            "Look", {name.replace("_", "-"): line for name, line in plugins.list_leaves("commands").items()}
        ),
        format_heading("Examples") + "".join(f"\n  {example}" for example in EXAMPLES),
        "`qed COMMAND --help` explains a command, `qed COMMAND --help-all` lists all settings of one that trains.\n"
        "`qed --completion bash|zsh|fish` prints a script that completes commands, options and values.",
    ]
    return "\n\n".join(parts)
