"""A working-out that the prompt opens, then a marked solution; the four tags can be chosen. Works on any base model.

The form of Unsloth's GRPO notebooks. `chat_template` is the same prompt as a Jinja template, so that a checkpoint can
be asked in this form by any program.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, ClassVar

from qed.types import Problem


@dataclass(frozen=True)
class WorkingOut:
    """The prompt with its tags, which are its options."""

    reasoning_start: str = "<start_working_out>"
    reasoning_end: str = "<end_working_out>"
    solution_start: str = "<SOLUTION>"
    solution_end: str = "</SOLUTION>"

    CHAT: ClassVar[bool] = False
    REWARD: ClassVar[str] = "working_out"

    @property
    def STOP(self) -> tuple[str, ...]:
        """What ends an answer."""
        return (self.solution_end,)

    @property
    def OPENS(self) -> tuple[str, ...]:
        """The tag at the prompt's end."""
        return (self.reasoning_start,)

    @property
    def instruction(self) -> str:
        """What the model is told."""
        return (
            f"Solve the problem below. Show how you work it out between {self.reasoning_start} and "
            f"{self.reasoning_end}, then write the result between {self.solution_start} and {self.solution_end}."
        )

    @property
    def chat_template(self) -> str:
        """A Jinja template whose generation prompt is what `render` writes."""
        return (
            f"{{{{ {json.dumps(self.instruction)} }}}}{{% for message in messages %}}"
            "{% if message['role'] == 'assistant' %}{{ message['content'] + eos_token }}"
            "{% else %}{{ '\\n\\n' + message['content'] + '\\n' }}{% endif %}{% endfor %}"
            f"{{% if add_generation_prompt %}}{{{{ {json.dumps(self.reasoning_start)} }}}}{{% endif %}}"
        )

    def render(self, problem: Problem, tokenizer: Any) -> str:
        """The instruction, the question, and the working-out already opened."""
        return f"{self.instruction}\n\n{problem.question}\n{self.reasoning_start}"

    def demonstration(self, problem: Problem) -> str | None:
        """The solution in its tags, then the answer in its own; None for a problem without a worked solution."""
        if not problem.solution:
            return None
        return (
            f"{self.reasoning_start}{problem.solution}{self.reasoning_end}"
            f"{self.solution_start}{problem.answer}{self.solution_end}"
        )


LEAF = WorkingOut()
CHAT, STOP, OPENS, REWARD = LEAF.CHAT, LEAF.STOP, LEAF.OPENS, LEAF.REWARD
render, demonstration = LEAF.render, LEAF.demonstration
