"""Bind a prompt leaf to a tokenizer: convert problems to token ids, and demonstrations to rollouts.

A leaf has `render(problem, tokenizer) -> str`, `demonstration(problem) -> str | None`, the stop strings `STOP`, the
default reward `REWARD`, and `CHAT`, whether it uses the tokenizer's chat template. The optional `OPENS` are tags at the
end of the prompt's text that belong to the answer. The optional `TAGS` are all tags of an answer, in order: two around
the reasoning, then two around the result if it is tagged; no tag is part of another. `REPLY` formats a later message,
`{text}`, up to the start of the next answer. A leaf with options has in `LEAF` a frozen dataclass instance with the
same members, whose fields are the options.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import fields, replace
from typing import Any

from qed.config import plugins
from qed.data.prompts.checking import check_prompt, require_text
from qed.data.prompts.demonstrations import (
    cut_at_stop,
    find_demonstration,
    is_same_answer,
    list_demonstrations,
    list_traces,
)
from qed.data.prompts.in_environment import encode_between, mask_replies, render_between, split_replies
from qed.data.sources.finished import is_chat_text
from qed.environments.base import SINGLE, Environment, Reply
from qed.errors import ModelError, UsageError, suggest_nearest
from qed.grading.extract import find_last_boxed
from qed.models.chat_template import render_chat
from qed.types import Problem, Prompt, Rollout

THINK = "<think>"  # the tag that chat templates of reasoning models open
BATCH_SIZE = 1024  # texts tokenised together
SPECIAL_TOKENS = 16  # maximum that a tokenizer adds to a text
KEPT = 4096  # prompts whose token ids are cached: each evaluation needs those of all held-out problems twice


class PromptTemplate:
    """A prompt for one model.

    Args:
        leaf: a built-in or user-defined prompt module.
        tokenizer: the model's tokenizer.
        ends: the ids that end an answer; the first is appended to every demonstration and trained on.
        stop: the user's stop strings, in addition to the leaf's.
    """

    def __init__(self, leaf: Any, tokenizer: Any, ends: tuple[int, ...], stop: Sequence[str] = ()) -> None:
        if leaf.CHAT and not tokenizer.chat_template:
            name = getattr(leaf, "__name__", type(leaf).__module__).rpartition(".")[2]
            raise ModelError(
                f"The prompt {name} needs a chat template, and the model's tokenizer has none. "
                "Use a plain prompt, such as --prompt r1_zero, or question_only for the question alone."
            )
        self.leaf = leaf
        self.tokenizer = tokenizer
        self.end, self.ends = ends[0], ends
        self._kept: dict[str, tuple[int, ...]] = {}
        self.environment: Environment = getattr(leaf, "environment", SINGLE)
        self.ending: tuple[str, ...] = tuple(dict.fromkeys((*leaf.STOP, *stop)))  # strings that end an answer
        self.stop: tuple[str, ...] = tuple(dict.fromkeys((*self.ending, *self.environment.stop)))  # or a turn

    @property
    def tags(self) -> tuple[str, ...]:
        """Return the tags of an answer to the prompt: two around the reasoning, then two around the result, if any."""
        return tuple(getattr(self.leaf, "TAGS", ()))

    @property
    def thought_tags(self) -> tuple[str, str] | None:
        """Return the tags that the prompt puts around the reasoning, if it defines them."""
        return (self.tags[0], self.tags[1]) if self.tags else None

    def prompt(self, problem: Problem) -> Prompt:
        """Render a problem for the model; a prompt already rendered in the data is used unchanged."""
        return self.make_prompt(render_prompt(self.leaf, problem, self.tokenizer))

    def make_prompt(self, text: str) -> Prompt:
        """Build a prompt from its text, with the tag that it opens."""
        return make_prompt(self.leaf, text)

    def tokens(self, prompt: Prompt) -> tuple[int, ...]:
        """Return the token ids of a prompt; the tokenizer's BOS token is added only to a plain prompt."""
        ids = self._kept.get(prompt.text)
        if ids is None:
            if len(self._kept) >= KEPT:
                self._kept.clear()
            ids = self._kept[prompt.text] = tuple(self._ids([prompt.text])[0])
        return ids

    def lengths(self, problems: Sequence[Problem]) -> list[int]:
        """Return the number of tokens of each problem's prompt."""
        return self._count_tokens([self.prompt(problem).text for problem in problems])

    def check_lengths(self, problems: Sequence[Problem], limit: int) -> list[bool]:
        """Return whether each problem's prompt has at most `limit` tokens, tokenising only those in doubt."""
        texts = [self.prompt(problem).text for problem in problems]
        # A token has at least one character of an ASCII text, which no normalizer lengthens.
        sure = [text.isascii() and len(text) + SPECIAL_TOKENS <= limit for text in texts]
        counts = iter(self._count_tokens([text for text, fits in zip(texts, sure, strict=True) if not fits]))
        return [fits or next(counts) <= limit for fits in sure]

    def _count_tokens(self, texts: list[str]) -> list[int]:
        """Return the number of tokens of each text; tokenising in batches is much faster."""
        parts = (texts[start : start + BATCH_SIZE] for start in range(0, len(texts), BATCH_SIZE))
        return [len(ids) for part in parts for ids in self._ids(part)]

    def _ids(self, texts: list[str]) -> list[list[int]]:
        if not self.leaf.CHAT and any(map(is_chat_text, texts)):
            # Data with both kinds: text rendered by a chat template already has its special tokens.
            return [ids for text in texts for ids in self._tokenize([text], not is_chat_text(text))]
        return self._tokenize(texts, not self.leaf.CHAT)

    def _tokenize(self, texts: list[str], plain: bool) -> list[list[int]]:
        rows = self.tokenizer(texts, add_special_tokens=plain, return_attention_mask=False)["input_ids"]
        # Some tokenizers append EOS to every text, but a prompt is to be continued.
        return [ids[:-1] if plain and ids and ids[-1] == self.tokenizer.eos_token_id else ids for ids in rows]

    def read(self, prompt: Prompt, output: Sequence[int], min_tokens: int = 0) -> str:
        """Return the text of an answer: the tag that the prompt opened, then the sampled text up to a stop string.

        A stop string completed within the first `min_tokens` tokens does not end the answer.
        """
        text: str = self.tokenizer.decode(list(output), skip_special_tokens=True)
        early = len(self.tokenizer.decode(list(output[:min_tokens]), skip_special_tokens=True)) if min_tokens else 0
        return prompt.opened + cut_at_stop(text, self.ending, early)

    def encode_reply(self, reply: Reply, prompt: Prompt, output: Sequence[int]) -> list[int]:
        """Return the token ids of an environment's reply to an output, up to the start of the next turn."""
        text = render_between(self.leaf, reply, self.tokenizer, prompt.opened)
        return encode_between(text, output, self.tokenizer, reply.message)

    def stops(self, output: Sequence[int]) -> bool:
        """Return whether an answer contains a stop string."""
        text = self.tokenizer.decode(list(output), skip_special_tokens=True) if self.stop else ""
        return any(stop in text for stop in self.stop)

    def demonstration(self, problem: Problem) -> Rollout | None:
        """Return a problem's demonstration as a rollout, including the end token; None if it has none."""
        return next(iter(self.demonstrations(problem)), None)

    def has_demonstration(self, problem: Problem) -> bool:
        """Return whether a problem has a demonstration."""
        return bool(find_demonstration(self.leaf, problem) or any(list_traces(problem)))

    def demonstrations(self, problem: Problem) -> list[Rollout]:
        """Return all distinct demonstrations of a problem as rollouts, in the order of the data.

        The first one gets the data's token probabilities under the model that wrote it, if it is verbatim and there is
        one per token; with a different tokenizer their number differs.
        """
        texts = list_demonstrations(self.leaf, problem)
        rollouts = [self.build_rollout(problem, text) for text in texts]
        if texts[:1] == [problem.meta.get("completion")]:
            rollouts[0] = replace(rollouts[0], behaviour=read_author_logps(problem, len(rollouts[0].output)))
        return rollouts

    def build_rollout(self, problem: Problem, text: str) -> Rollout:
        """Build a rollout with a text as the answer to a problem, including the end token."""
        return self.build_rollouts([(problem, text)])[0]

    def build_rollouts(self, answers: Sequence[tuple[Problem, str]]) -> list[Rollout]:
        """Build rollouts as `build_rollout` does, tokenising all texts together."""
        written = [self.write(problem, text) for problem, text in answers]
        return [
            Rollout(
                problem,
                ids,
                output,
                (),
                prompt.opened + added,
                "stop",
                "demonstration",
                prompt_text=prompt.text,
                loss_mask=self.mask_replies(output),
            )
            for (problem, _), (prompt, added), (ids, output) in zip(answers, written, self.encode(written), strict=True)
        ]

    def mask_replies(self, output: Sequence[int]) -> tuple[bool, ...]:
        """Return which tokens of a demonstration are trained on: all but the environment's; empty if all are."""
        return mask_replies(output, self.environment.reply_tags, self.tokenizer)

    def write(self, problem: Problem, text: str) -> tuple[Prompt, str]:
        """Return a problem's prompt, and the text that an answer appends to it."""
        prompt = self.prompt(problem)
        added = remove_opened(text, prompt)
        # Some data has the end-of-turn token as text, which must be trained on only once.
        written_end = self.tokenizer.decode([self.end], skip_special_tokens=False)
        if len(written_end) > 1 and added.rstrip().endswith(written_end):
            added = added.rstrip().removesuffix(written_end)
        return prompt, added

    def encode(self, written: Sequence[tuple[Prompt, str]]) -> list[tuple[list[int], list[int]]]:
        """Return the token ids of prompts and of the texts appended to them, including the end token.

        Several replies to one prompt share its token ids.
        """
        asked = list(dict.fromkeys(prompt.text for prompt, _ in written))
        prompts = dict(zip(asked, self._ids(asked), strict=True))
        texts = [split_replies(text, self.environment.reply_tags) for _, text in written]
        parts = self.tokenizer(
            [part for text in texts for part in text], add_special_tokens=False, return_attention_mask=False
        )
        ids = iter(parts["input_ids"])
        added = [[token for _ in text for token in next(ids)] for text in texts]
        return [(prompts[prompt.text], [*own, self.end]) for (prompt, _), own in zip(written, added, strict=True)]


def make_prompt(leaf: Any, text: str) -> Prompt:
    """Build a prompt from its text, with the tag that it opens."""
    bare = text.rstrip()
    tags = (THINK, *getattr(leaf, "OPENS", ()))
    opened = next((tag for tag in tags if bare.endswith(tag)), "")
    return Prompt(text, text[len(bare) - len(opened) :] if opened else "")


def remove_opened(text: str, prompt: Prompt) -> str:
    """Remove from a demonstration the tag that its prompt opened, which is not trained on."""
    return text.removeprefix(prompt.opened if text.startswith(prompt.opened) else prompt.opened.strip())


def read_author_logps(problem: Problem, length: int) -> tuple[float, ...]:
    """Return the log-probs of a verbatim demonstration under its author model; () unless there is one per token."""
    probabilities = problem.meta.get("trace_probabilities", ())
    return tuple(map(_log_probability, probabilities)) if len(probabilities) == length else ()


def _log_probability(probability: float) -> float:
    """Return the logarithm of a probability; NaN if it is negative, which means unknown."""
    if probability < 0:
        return math.nan
    return math.log(probability) if probability else -math.inf


def load_leaf(name: str, options: Sequence[str] = ()) -> Any:
    """Load the leaf of a prompt by its name.

    Args:
        name: name of a built-in or user-defined prompt.
        options: NAME.FIELD=VALUE, such as working_out.reasoning_start=<think>; those of other prompts are ignored.

    Raises:
        UsageError: the prompt does not exist, lacks the option, or is invalid; or an option names a prompt that does
            not exist.
    """
    module = plugins.load_leaf("prompts", name)
    given = dict(_read_own_options(name, options))
    names = [field.name for field in fields(module.LEAF)] if hasattr(module, "LEAF") else []
    if unknown := [field for field in given if field not in names]:
        raise UsageError(
            f"The prompt {name} has no option '{unknown[0]}'.{suggest_nearest(unknown[0], names)} "
            f"There are: {', '.join(names) or 'none'}."
        )
    alone = hasattr(module, "LEAF") and not hasattr(module, "render")
    leaf = replace(module.LEAF, **given) if given else module.LEAF if alone else module
    check_prompt(name, leaf)
    return leaf


def _read_own_options(name: str, options: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield field and value of the options of a prompt, skipping those of other existing prompts."""
    for option in options:
        key, equals, value = option.partition("=")
        owner, dot, field = key.strip().rpartition(".")
        if not equals or not dot:
            raise UsageError(f"A prompt's option must be NAME.FIELD=VALUE, not '{option}'.")
        if owner.replace("-", "_") == name.replace("-", "_"):
            yield field, value
            continue
        if plugins.is_users_own(owner):  # its file may have moved
            continue
        try:
            plugins.check_leaf("prompts", owner)
        except UsageError as error:
            raise UsageError(f"The prompt option '{option}': {error}") from None


def render_prompt(leaf: Any, problem: Problem, tokenizer: Any) -> str:
    """Return the text of a problem's prompt: as rendered in the data, else by the leaf."""
    rendered: str = problem.meta.get("rendered", "")
    return rendered or require_text("The prompt's render", leaf.render(problem, tokenizer))


def build_boxed_solution(problem: Problem) -> str | None:
    """Return the solution with its answer boxed, as MATH's solutions already are; None without solution or answer."""
    if not problem.solution:
        return None
    boxed = find_last_boxed(problem.solution)
    if boxed is not None and (not problem.answer or is_same_answer(problem.answer, boxed)):
        return problem.solution
    if not problem.answer:
        return None
    return f"{problem.solution}\n\nThe answer is \\boxed{{{problem.answer}}}."


def apply_chat_template(question: str, tokenizer: Any, system: str = "") -> str:
    """Render a question with the tokenizer's chat template, up to the start of the answer."""
    messages = [{"role": "system", "content": system}] if system else []
    messages.append({"role": "user", "content": question})
    return render_chat(messages, tokenizer, add_generation_prompt=True)
