"""open-r1's recipes: TRL's arguments, with the rewards and benchmarks of open-r1."""

from __future__ import annotations

from qed.config.imports.rules import absent
from qed.config.imports.trl import DEFAULTS, choose_method, derive
from qed.config.imports.trl import RULES as TRL_RULES

__all__ = ["DEFAULTS", "RULES", "TITLE", "choose_method", "derive"]

TITLE = "open-r1"
RULES = (
    absent(
        "set the options of qed's rewards by data.reward_options",
        "cosine_min_value_wrong cosine_max_value_wrong cosine_min_value_correct cosine_max_value_correct",
        "cosine_max_len repetition_n_grams repetition_max_penalty",
    ),
    absent(
        "rewards that run code are your own files: --reward FILE.py",
        "code_language code_eval_test_batch_size code_eval_scoring_mode parallel_code_exec_per_proc",
        "code_provider e2b_router_url morph_router_url ioi_provider piston_endpoint",
    ),
    *TRL_RULES,
)  # fmt: skip
