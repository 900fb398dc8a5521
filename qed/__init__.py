"""qed teaches language models to reason, and measures whether they got better.

The names below are the Python API (docs/python.md). Each is imported when it is first used, so `import qed` is fast and
starts nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from qed import errors, rewards
    from qed.api.evaluation import Estimate, Evaluation, evaluate
    from qed.api.grading import Verdict, grade
    from qed.api.runs import Run, load_run
    from qed.api.sampler import Sampler
    from qed.api.training import load_settings, train
    from qed.types import Grade, Problem, Rollout

__version__ = "0.1.0"
__all__ = [
    "Estimate",
    "Evaluation",
    "Grade",
    "Problem",
    "Rollout",
    "Run",
    "Sampler",
    "Verdict",
    "errors",
    "evaluate",
    "grade",
    "load_run",
    "load_settings",
    "rewards",
    "train",
]
_HOMES = {
    "qed.api.evaluation": ("Estimate", "Evaluation", "evaluate"),
    "qed.api.grading": ("Verdict", "grade"),
    "qed.api.runs": ("Run", "load_run"),
    "qed.api.sampler": ("Sampler",),
    "qed.api.training": ("load_settings", "train"),
    "qed.types": ("Grade", "Problem", "Rollout"),
}


if not TYPE_CHECKING:  # a type checker must find the names above, and refuse others

    def __getattr__(name: str) -> Any:
        if name in ("errors", "rewards"):
            return importlib.import_module(f"qed.{name}")
        for module, names in _HOMES.items():
            if name in names:
                return getattr(importlib.import_module(module), name)
        raise AttributeError(f"module 'qed' has no attribute '{name}'")


def __dir__() -> list[str]:
    return [*globals(), *__all__]
