"""What grades the answers of a run, put together from its settings."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from qed.config.reward_names import AUTO
from qed.config.settings import DataSettings
from qed.data.splits import load_prompt, resolve_reward_names
from qed.grading.session import Limits
from qed.rewards import grader
from qed.rewards.base import FINAL_ANSWER
from qed.rewards.grader import Grader


def load_grader(data: DataSettings, max_tokens: int, log: Path | None = None) -> Grader:
    """What grades the answers of a run whose answers have at most `max_tokens` tokens; what rewards print goes to a
    log."""
    limits = Limits(data.reward_seconds, 6 * data.reward_seconds, int(data.reward_memory_gb * 2**30))
    conversational = load_prompt(data).CHAT
    names = resolve_reward_names(data)
    # The tags of a prompt are those that the reward of its name looks for, and need not be told twice.
    shared = [option for option in data.prompt_options if option.partition(".")[0] in names]
    options = (*shared, *data.reward_options)
    pool = grader.Pool(data.reward_workers, limits, log)
    return grader.make_grader(names, options, max_tokens, conversational, pool)


def load_evaluator(data: DataSettings, max_tokens: int, chosen: Grader) -> Grader:
    """What grades evaluations: the grader of the chosen reward, with the verdict of the prompt's own reward where the
    chosen one judges no answer, or of the final answer where that does not either."""
    if chosen.judge is not None:
        return chosen
    for name in (AUTO, FINAL_ANSWER):
        other = load_grader(replace(data, reward=(name,), reward_options=()), max_tokens)
        if other.judge is not None:
            break
        other.close()
    return grader.JudgingGrader(chosen, other)
