"""A working-out that the prompt opens, then a solution in tags; the four tags are options. For any base model.

This is the format of Unsloth's GRPO notebooks. `chat_template` is the same prompt as a Jinja template, so that other
programs can use a checkpoint trained with it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, ClassVar

from qed.types import Problem


@dataclass(frozen=True)
class WorkingOut:
    """The prompt; its options are the tags."""

    reasoning_start: str = "<start_working_out>"
    reasoning_end: str = "<end_working_out>"
    solution_start: str = "<SOLUTION>"
    solution_end: str = "</SOLUTION>"

    CHAT: ClassVar[bool] = False
    REWARD: ClassVar[str] = "working_out"

    @property
    def STOP(self) -> tuple[str, ...]:
        """Return the stop strings."""
        return (self.solution_end,)

    @property
    def OPENS(self) -> tuple[str, ...]:
        """Return the tag at the end of the prompt."""
        return (self.reasoning_start,)

    @property
    def TAGS(self) -> tuple[str, ...]:
        """Return the tags of an answer."""
        return (self.reasoning_start, self.reasoning_end, self.solution_start, self.solution_end)

    @property
    def instruction(self) -> str:
        """Return the instruction at the start of the prompt."""
        return (
            f"Solve the problem below. Show how you work it out between {self.reasoning_start} and "
            f"{self.reasoning_end}, then write the result between {self.solution_start} and {self.solution_end}."
        )

    @property
    def chat_template(self) -> str:
        """Return a Jinja template whose generation prompt equals the output of `render`."""
        # Jinja reads an escaped character outside the Basic Multilingual Plane as two halves.
        instruction, start = (json.dumps(text, ensure_ascii=False) for text in (self.instruction, self.reasoning_start))
        return (
            f"{{{{ {instruction} }}}}{{% for message in messages %}}"
            "{% if message['role'] == 'assistant' %}{{ message['content'] + eos_token }}"
            "{% else %}{{ '\\n\\n' + message['content'] + '\\n' }}{% endif %}{% endfor %}"
            f"{{% if add_generation_prompt %}}{{{{ {start} }}}}{{% endif %}}"
        )

    def render(self, problem: Problem, tokenizer: Any) -> str:
        """Render the instruction and the question, with the working-out already opened."""
        return f"{self.instruction}\n\n{problem.question}\n{self.reasoning_start}"

    def demonstration(self, problem: Problem) -> str | None:
        """Return the solution and the answer in their tags; None without a worked solution or an answer."""
        if not (problem.solution and problem.answer):
            return None
        return (
            f"{self.reasoning_start}{problem.solution}{self.reasoning_end}"
            f"{self.solution_start}{problem.answer}{self.solution_end}"
        )


LEAF = WorkingOut()
CHAT, STOP, OPENS, TAGS, REWARD = LEAF.CHAT, LEAF.STOP, LEAF.OPENS, LEAF.TAGS, LEAF.REWARD
render, demonstration = LEAF.render, LEAF.demonstration
