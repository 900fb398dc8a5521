"""A chat partner whose model runs in this process: uses the run's own prompt and streams its answers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from qed.cli.chat_session import NoAnswerError, Reply
from qed.models.load import read_window
from qed.randomness import derive_seed
from qed.rollout.conversation import Conversation
from qed.rollout.policy import Policy
from qed.sampling.base import Sampler, Sampling
from qed.sampling.hf import HFSampler
from qed.sampling.text_stream import TextStream
from qed.types import Completion


class PolicyPartner:
    """A chat partner that answers with a policy.

    Args:
        policy: samples the answers.
        conversation: renders the questions, and remembers the conversation.
        sampling: the sampling parameters.
        seed: the seed of all answers; answers to the same question still differ from each other.
    """

    def __init__(self, policy: Policy, conversation: Conversation, sampling: Sampling, seed: int) -> None:
        self.policy, self.conversation, self.sampling, self.seed = policy, conversation, sampling, seed
        self.asked = 0

    @property
    def tags(self) -> tuple[str, ...]:
        """The tags of the policy's prompt."""
        tags: tuple[str, ...] = getattr(self.policy.template.leaf, "TAGS", ())
        return tags

    def ask(self, question: str, write: Callable[[str], None]) -> Reply:
        """Sample an answer; one that Ctrl-C stops is remembered up to that point.

        Raises:
            NoAnswerError: the model's context window is full.
        """
        template, prompt = self.policy.template, self.conversation.ask(question)
        tokens = template.tokens(prompt)
        room = read_window(self.policy.model) - len(tokens)
        if room < 1:
            self.conversation.forget_question()
            window = room + len(tokens)
            raise NoAnswerError(f"The model's window of {window} tokens is full: /reset begins a new conversation.")
        self.asked += 1
        sampling = replace(self.sampling, max_tokens=min(self.sampling.max_tokens, room))
        stream, output = TextStream(template.tokenizer, sampling.stop), list[int]()
        write(prompt.opened)

        def show(so_far: list[int]) -> None:
            output[:] = so_far
            write(stream.read(so_far))

        seed, remark, stopped = derive_seed(self.seed, "chat", self.asked), "", False
        try:
            completion = _sample(self.policy.sampler, tokens, seed, sampling, show)
            output[:] = completion.tokens
            if completion.stop_reason == "length":
                remark = f"cut off after {len(output)} tokens; --max-tokens allows more"
        except KeyboardInterrupt:
            remark, stopped = "stopped", True
        write(stream.read(output, last=True))
        text = template.read(prompt, tuple(output))
        self.conversation.answer(text)
        return Reply(text, remark, stopped)

    def reset(self) -> None:
        """Forget the conversation."""
        self.conversation.reset()


def _sample(
    sampler: Sampler, prompt: Sequence[int], seed: int, sampling: Sampling, show: Callable[[list[int]], None]
) -> Completion:
    """Sample one completion, streamed if the sampler supports it; a user-defined one may not."""
    if isinstance(sampler, HFSampler):
        return sampler.stream(prompt, seed, sampling, show)
    ((completion,),) = sampler.generate([prompt], [[seed]], sampling)
    return completion
