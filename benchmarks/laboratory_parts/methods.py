"""The methods compared in the laboratory, and the settings shared by all of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

RATES = (1e-4, 3e-4, 1e-3, 3e-3)
PILOT_RATE = 1e-3
MAX_TOKENS = 64
TEACHER = "TEACHER"  # placeholder for the folder of the task's teacher
SHARED: Mapping[str, Any] = {
    "data.prompt": "think_answer",
    "sampling.problems_per_step": 16,
    "sampling.group_size": 8,
    "sampling.max_tokens": MAX_TOKENS,
    "sampling.rows_per_batch": 512,
    "evaluation.at_start": False,
    "evaluation.problems": 1,
    "evaluation.samples": 0,
    "run.threads": 1,
    "run.save_rollouts": False,
    "run.save_token_stats": 0,
    "run.on_no_signal": "warn",
    "run.preflight": False,
}
LEARNER: Mapping[str, Any] = {"schedule": "linear", "betas": [0.9, 0.95]}
IMITATION: Mapping[str, Any] = {"batch_size": 32}


@dataclass(frozen=True)
class Method:
    """A method of the study.

    Attributes:
        name: name in the tables.
        leaf: command of qed that makes a run.
        kind: `control`, `guidance` or `distillation`.
        settings: settings besides those that all methods share.
        shares: shares of the compute, by phase; a run with one phase has the phase "".
        needs: algorithms without which the method is skipped.
    """

    name: str
    leaf: str
    kind: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    shares: Mapping[str, float] = field(default_factory=lambda: {"": 1.0})

    @property
    def needs(self) -> tuple[str, ...]:
        """Return the algorithms that the method requires."""
        return ("sft", "grpo") if self.leaf == "pipeline" else (self.leaf,)


METHODS = (
    Method("SFT", "sft", "control", {f"learner.{name}": value for name, value in IMITATION.items()}),
    Method("GRPO", "grpo", "control"),
    Method(
        "SFT → GRPO",
        "pipeline",
        "control",
        {f"sft.learner.{name}": value for name, value in IMITATION.items()} | {"rl.method": "grpo"},
        {"sft": 0.25, "rl": 0.75},
    ),
    Method("RL + SFT loss", "rl_sft", "control"),
    Method("LUFFY", "luffy", "control"),
    Method("HPT", "hpt", "guidance"),
    Method("SRFT", "srft", "guidance"),
    Method("CHORD", "chord", "guidance"),
    Method("CHORD-μ", "chord", "guidance", {"algorithm.phi": False}),
    Method("ReLIFT", "relift", "guidance"),
    Method("UFT", "uft", "guidance"),
    Method("Prefix-RFT", "prefix_rft", "guidance"),
    Method("OPD", "opd", "distillation", {"algorithm.teacher": TEACHER}),
    Method(
        "OPD over the vocabulary",
        "opd",
        "distillation",
        {"algorithm.teacher": TEACHER, "algorithm.distillation.divergence": "reverse_kl"},
    ),
    Method(
        "OPD + reward",
        "opd",
        "distillation",
        {"algorithm.teacher": TEACHER, "algorithm.distillation.reward": 1.0},
    ),
    Method("OPSD", "opsd", "distillation"),
)


def list_learner_settings(method: Method, steps: Mapping[str, int], rate: float) -> dict[str, Any]:
    """Return the optimizer settings of each phase of a run."""
    return {
        f"{phase}.learner.{name}".removeprefix("."): value
        for phase, count in steps.items()
        for name, value in {**LEARNER, "steps": count, "lr": rate}.items()
    }
