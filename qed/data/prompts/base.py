"""Bind a prompt leaf to a tokenizer: convert problems to token ids, and demonstrations to rollouts.

A leaf has `render(problem, tokenizer) -> str`, `demonstration(problem) -> str | None`, the stop strings `STOP`, its
default reward `REWARD`, and `CHAT`, whether the tokenizer's chat template renders it. The optional `OPENS` are tags at
the end of the prompt's text that belong to the answer; the optional `THOUGHT` is the pair of tags around the reasoning,
where they are not among the usual ones. A leaf with options has a frozen dataclass instance with the
same members in `LEAF`; the options are its fields.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any

from qed.config import plugins
from qed.errors import ModelError, UsageError, suggest_nearest
from qed.models.chat_template import render_chat
from qed.types import Problem, Prompt, Rollout

THINK = "<think>"  # the tag that chat templates of reasoning models open
BATCH_SIZE = 1024  # texts that are tokenised together


class PromptTemplate:
    """A prompt for one model.

    Args:
        leaf: a prompt of the shelf, or the user's own module.
        tokenizer: the model's tokenizer.
        ends: the ids that end an answer; the first is appended to every demonstration and trained on.
    """

    def __init__(self, leaf: Any, tokenizer: Any, ends: tuple[int, ...]) -> None:
        if leaf.CHAT and not tokenizer.chat_template:
            name = getattr(leaf, "__name__", type(leaf).__module__).rpartition(".")[2]
            raise ModelError(
                f"The prompt {name} needs a chat template, and the model's tokenizer has none. "
                "Use a plain prompt, such as --prompt r1_zero."
            )
        self.leaf = leaf
        self.tokenizer = tokenizer
        self.end = ends[0]
        self.stop: tuple[str, ...] = leaf.STOP

    @property
    def thought_tags(self) -> tuple[str, str] | None:
        """Return the tags that the prompt puts around the reasoning, if it names them."""
        tags: tuple[str, str] | None = getattr(self.leaf, "THOUGHT", None)
        return tags

    def prompt(self, problem: Problem) -> Prompt:
        """Render a problem as the model reads it."""
        text: str = self.leaf.render(problem, self.tokenizer)
        bare = text.rstrip()
        tags = (THINK, *getattr(self.leaf, "OPENS", ()))
        opened = next((tag for tag in tags if bare.endswith(tag)), "")
        return Prompt(text, text[len(bare) - len(opened) :] if opened else "")

    def tokens(self, prompt: Prompt) -> tuple[int, ...]:
        """Return the token ids of a prompt; only a plain prompt gets the tokenizer's BOS token."""
        return tuple(self._ids([prompt.text])[0])

    def lengths(self, problems: Sequence[Problem]) -> list[int]:
        """Return the number of tokens of each problem's prompt; tokenising in batches is much faster."""
        parts = (problems[start : start + BATCH_SIZE] for start in range(0, len(problems), BATCH_SIZE))
        return [len(ids) for part in parts for ids in self._ids([self.prompt(problem).text for problem in part])]

    def _ids(self, texts: list[str]) -> list[list[int]]:
        plain = not self.leaf.CHAT
        rows = self.tokenizer(texts, add_special_tokens=plain, return_attention_mask=False)["input_ids"]
        # Some tokenizers append EOS to every text, but a prompt is continued.
        return [ids[:-1] if plain and ids and ids[-1] == self.tokenizer.eos_token_id else ids for ids in rows]

    def read(self, prompt: Prompt, output: tuple[int, ...]) -> str:
        """Return the text of an answer: the tag that the prompt opened, then the sampled text up to a stop string."""
        text: str = self.tokenizer.decode(output, skip_special_tokens=True)
        ends = [start + len(stop) for stop in self.stop if (start := text.find(stop)) >= 0]
        return prompt.opened + text[: min(ends, default=len(text))]

    def stops(self, output: tuple[int, ...]) -> bool:
        """Return whether an answer contains a stop string."""
        text = self.tokenizer.decode(output, skip_special_tokens=True) if self.stop else ""
        return any(stop in text for stop in self.stop)

    def demonstration(self, problem: Problem) -> Rollout | None:
        """Return a problem's demonstration as a rollout, end token included; None if it has none."""
        return next(iter(self.demonstrations(problem)), None)

    def has_demonstration(self, problem: Problem) -> bool:
        """Return whether a problem has a demonstration."""
        return bool(find_demonstration(self.leaf, problem) or any(problem.meta.get("traces", ())))

    def demonstrations(self, problem: Problem) -> list[Rollout]:
        """Return all distinct demonstrations of a problem as rollouts, in the order of the data.

        The first one gets the data's token probabilities under the model that wrote it, but only if there is one per
        token; with a different tokenizer their number differs.
        """
        first = find_demonstration(self.leaf, problem)
        texts = dict.fromkeys(text for text in (first, *problem.meta.get("traces", ())) if text)
        rollouts = [self.build_rollout(problem, text) for text in texts]
        logps = tuple(_log_probability(probability) for probability in problem.meta.get("trace_probabilities", ()))
        if rollouts and len(logps) == len(rollouts[0].output):
            rollouts[0] = replace(rollouts[0], behaviour=logps)
        return rollouts

    def build_rollout(self, problem: Problem, text: str) -> Rollout:
        """Build a rollout with a text as the answer to a problem, end token included."""
        prompt = self.prompt(problem)
        # The tag that the prompt opened is not part of the output tokens, and not trained on.
        opened = prompt.opened
        added = text.removeprefix(opened if text.startswith(opened) else opened.strip())
        output = (*self.tokenizer(added, add_special_tokens=False)["input_ids"], self.end)
        return Rollout(
            problem, self.tokens(prompt), output, (), opened + added, "stop", "demonstration", prompt_text=prompt.text
        )


def _log_probability(probability: float) -> float:
    """Return the logarithm of a probability; NaN for a negative one, which means unknown."""
    if probability < 0:
        return math.nan
    return math.log(probability) if probability else -math.inf


def load_leaf(name: str, options: Sequence[str] = ()) -> Any:
    """Load the leaf of a prompt by its name.

    Args:
        name: name on the shelf, or of user code.
        options: NAME.FIELD=VALUE, such as working_out.reasoning_start=<think>; those of other prompts are ignored.

    Raises:
        UsageError: the prompt does not exist, or has no such option.
    """
    module = plugins.load_leaf("prompts", name)
    given = {}
    for option in options:
        key, equals, value = option.partition("=")
        owner, dot, field = key.rpartition(".")
        if not equals or not dot:
            raise UsageError(f"A prompt's option must be NAME.FIELD=VALUE, not '{option}'.")
        if owner.replace("-", "_") == name.replace("-", "_"):
            given[field] = value
    names = [field.name for field in fields(module.LEAF)] if hasattr(module, "LEAF") else []
    if unknown := [field for field in given if field not in names]:
        raise UsageError(
            f"The prompt {name} has no option '{unknown[0]}'.{suggest_nearest(unknown[0], names)} "
            f"There are: {', '.join(names) or 'none'}."
        )
    return replace(module.LEAF, **given) if given else module


def find_demonstration(leaf: Any, problem: Problem) -> str | None:
    """Return a problem's demonstration: the data's completion, or the prompt's from solution and answer.

    A completion that is None means that the problem has no demonstration, even if the prompt could build one.
    """
    completion: str | None = problem.meta.get("completion", "")
    if completion is None:
        return None
    return completion or leaf.demonstration(problem)


def build_boxed_solution(problem: Problem) -> str | None:
    """Return the solution with its answer in a box, which MATH's solutions already have; None without a solution."""
    if not problem.solution:
        return None
    if "\\boxed{" in problem.solution:
        return problem.solution
    return f"{problem.solution}\n\nThe answer is \\boxed{{{problem.answer}}}."


def apply_chat_template(question: str, tokenizer: Any, system: str = "") -> str:
    """Render a question with the tokenizer's chat template, up to the start of the answer."""
    messages = [{"role": "system", "content": system}] if system else []
    messages.append({"role": "user", "content": question})
    return render_chat(messages, tokenizer, add_generation_prompt=True)
