"""Show problems as a model sees them, and measure lengths: in tokens with a model, otherwise in characters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from qed.data.prompts.base import PromptTemplate, make_prompt, remove_opened, render_prompt
from qed.data.prompts.base import load_leaf as find_prompt
from qed.data.prompts.checking import require_text
from qed.data.prompts.demonstrations import iterate_demonstrations
from qed.errors import UsageError
from qed.types import Problem

END = "<end of answer>"  # shown for the end token if no model is given


class _Messages:
    """Stands in for a tokenizer; its chat template collects the messages and returns a placeholder."""

    MARK = "\0messages\0"
    chat_template = "messages"

    def __init__(self) -> None:
        self.collected: list[dict[str, str]] = []

    def apply_chat_template(self, messages: list[dict[str, str]], **_: Any) -> str:
        self.collected = messages
        return self.MARK


@dataclass(frozen=True)
class PromptView:
    """A prompt, bound to a model's tokenizer if a model is given."""

    leaf: Any
    template: PromptTemplate | None = None

    @property
    def unit(self) -> str:
        """Return the unit of lengths."""
        return "characters" if self.template is None else "tokens"

    def measure_lengths(self, problem: Problem, text: str | None) -> tuple[int, int]:
        """Return the lengths of the prompt and of a demonstration, including the end token; 0 without a demonstration.

        Without a tokenizer, these are the lengths of the bare question and of the demonstration's text.
        """
        if self.template is None:
            return len(problem.question), len(text or "")
        if not text:
            return len(self.template.tokens(self.template.prompt(problem))), 0
        rollout = self.template.build_rollout(problem, text)
        return len(rollout.prompt), len(rollout.output)

    def demonstration(self, problem: Problem) -> str | None:
        """Return the text of the first demonstration, or None."""
        return next(iterate_demonstrations(self.leaf, problem), None)

    def sample(self, problem: Problem) -> tuple[str, str]:
        """Return the prompt and the trained text; the latter is empty without a demonstration."""
        if self.template is None:
            prompt = (
                _show_messages(*_render_messages(self.leaf, problem))
                if self.leaf.CHAT and "rendered" not in problem.meta
                else render_prompt(self.leaf, problem, None)
            )
            text = self.demonstration(problem)
            return prompt, "" if text is None else remove_opened(text, make_prompt(self.leaf, prompt)) + END
        rollout = self.template.demonstration(problem)
        if rollout is None:
            return self.template.prompt(problem).text, ""
        decode = self.template.tokenizer.decode
        return decode(list(rollout.prompt)), decode(list(rollout.output))


def build_messages(leaf: Any, problem: Problem) -> list[dict[str, str]]:
    """Return a problem as the messages that a chat prompt passes to the chat template.

    Raises:
        UsageError: the prompt adds its own text to the template's output.
    """
    before, messages, behind = _render_messages(leaf, problem)
    if added := (before + behind).strip():
        raise UsageError(
            f"The prompt adds {added!r} to the output of the chat template, which messages cannot express. Use another "
            "prompt, such as --prompt chat."
        )
    return messages


def _render_messages(leaf: Any, problem: Problem) -> tuple[str, list[dict[str, str]], str]:
    """Return the text that a chat prompt writes before its messages, the messages, and the text after them."""
    tokenizer = _Messages()
    rendered = require_text("The prompt's render", leaf.render(problem, tokenizer))
    before, mark, behind = rendered.partition(_Messages.MARK)
    return (before, tokenizer.collected, behind) if mark else (rendered, [], "")


def _show_messages(before: str, messages: Sequence[dict[str, str]], behind: str) -> str:
    shown = "".join(f"[{message['role']}]\n{message['content']}\n" for message in messages)
    return f"{before}{shown}[assistant]\n{behind}" if messages else before


def load_prompt_view(prompt: str, options: Sequence[str], model: str, problems: Sequence[Problem]) -> PromptView:
    """Load a prompt, bound to the tokenizer of a model if one is given.

    Args:
        prompt: name of the prompt.
        options: options of the prompt, NAME.FIELD=VALUE.
        model: a folder, a run, a hub name, `new:SIZE` for a tokenizer trained on the problems' text, or empty.
        problems: problems whose text a new tokenizer is trained on.
    """
    leaf = find_prompt(prompt, options)
    if not model:
        return PromptView(leaf)
    from qed.data.splits import list_training_texts  # noqa: PLC0415
    from qed.models import load as models  # noqa: PLC0415 -- torch and transformers, needed only with a model

    models.check_name(model)
    if models.is_new(model):
        size = models.SIZES[model.removeprefix("new:")]
        tokenizer = models.build_tokenizer(list_training_texts(problems, leaf), size.vocabulary)
        return PromptView(leaf, PromptTemplate(leaf, tokenizer, (tokenizer.eos_token_id,)))
    folder = Path(model) / "final" / "hf" if (Path(model) / "settings.yaml").is_file() else model
    tokenizer, configurations = models.load_tokenizer(str(folder))
    if hasattr(leaf, "chat_template"):
        tokenizer.chat_template = leaf.chat_template
    return PromptView(leaf, PromptTemplate(leaf, tokenizer, models.find_end_ids(configurations, tokenizer, leaf.CHAT)))


def check_chat(name: str, leaf: Any, schema: str) -> None:
    """Raise if a plain prompt is used for a schema with messages."""
    if not leaf.CHAT:
        raise UsageError(
            f"The prompt {name} is plain text, but rows of {schema} are messages that a trainer renders with its "
            "model's chat template. Use --prompt chat for the bare question, or boxed, luffy, simplerl."
        )
