"""Builds the graders of a run from its settings."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from qed.config.reward_names import AUTO, MODEL, parse_reward
from qed.config.settings import DataSettings
from qed.data.prompts.with_reward import list_shared_options
from qed.data.splits import load_prompt, resolve_reward_names
from qed.environments.base import SINGLE, load_environment
from qed.grading.session import Limits
from qed.rewards import grader
from qed.rewards.base import FINAL_ANSWER
from qed.rewards.grader import Grader
from qed.rollout.turns import TurnGrader


def load_grader(data: DataSettings, max_tokens: int, log: Path | None = None) -> Grader:
    """Load the grader of a run's answers.

    Args:
        data: names the rewards and their options.
        max_tokens: limit of an answer, for rewards that depend on length.
        log: file for the output that rewards print.
    """
    limits = Limits(data.reward_seconds, 6 * data.reward_seconds, int(data.reward_memory_gb * 2**30))
    conversational = load_prompt(data).CHAT
    names = resolve_reward_names(data)
    options = (*list_shared_options(data.prompt_options, names), *data.reward_options)
    pool = grader.Pool(data.reward_workers, limits, log)
    made = grader.make_grader(names, options, max_tokens, conversational, pool)
    if made.judge is None and any(parse_reward(name).source == MODEL for name in names):
        made = load_evaluator(data, max_tokens, made)  # so that a policy that exploits the reward model is noticed
    environment = load_environment(data.environment, data.environment_options)
    return made if environment == SINGLE else TurnGrader(made, environment)


def load_evaluator(data: DataSettings, max_tokens: int, chosen: Grader) -> Grader:
    """Load the grader of evaluations: the run's grader, with another one's verdicts if it judges no answers.

    The other one is the prompt's own reward or, if that judges no answers either, a comparison of final answers.
    """
    if chosen.judge is not None:
        return chosen
    for name in (AUTO, FINAL_ANSWER):
        other = load_grader(replace(data, reward=(name,), reward_options=()), max_tokens)
        if other.judge is not None:
            break
        other.close()
    return grader.JudgingGrader(chosen, other)
