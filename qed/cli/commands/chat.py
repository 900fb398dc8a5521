"""Talk to a model in the terminal: answers appear as they are sampled, asked with the run's own prompt and tags."""
# ruff: noqa: PLC0415 -- the model is loaded after the options are parsed

from __future__ import annotations

import io
import sys
from collections.abc import Sequence

from qed.cli.commands.base import Parser
from qed.cli.commands.policy_options import (
    add_policy_options,
    check_numbers,
    choose_max_tokens,
    load_answering_policy,
    read_sampling,
    resolve_policy_settings,
)
from qed.errors import UsageError

ABOUT = """Talk to a model in the terminal.

Answers appear as they are sampled. A run is asked with its own prompt and tags; any other model with its chat
template. A prompt with a chat template remembers the conversation, a plain one such as r1_zero gets every question
alone. Without a terminal, every line of the input is a question."""
EPILOG = """in the conversation:
  /reset  /thinking  /save FILE  /help  /exit
  Ctrl-C stops an answer, Ctrl-D leaves

examples:
  qed chat runs/first
  qed chat Qwen/Qwen2.5-0.5B-Instruct --temperature 0.7 --max-tokens 1024
  echo "What is 6 times 7?" | qed chat runs/first --temperature 0"""


def run(arguments: Sequence[str]) -> int:
    """Answer questions until the input ends."""
    parser = Parser("chat", ABOUT, EPILOG)
    add_policy_options(parser)
    parser.add_argument("--system", default="", metavar="TEXT", help="a system message, in place of the prompt's own")
    parser.add_argument("--show-thinking", action="store_true", help="show the reasoning and all tags")
    args = parser.parse(arguments)
    check_numbers(args, "chat")
    settings, name = resolve_policy_settings(args)
    from qed.cli.chat_session import ChatSession
    from qed.console.live import Console
    from qed.data.splits import resolve_prompt_name
    from qed.rollout.conversation import Conversation

    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(errors="replace")
    interactive = sys.stdin.isatty() and sys.stdout.isatty()
    console = Console(json=not interactive)  # stdout is for the answers alone
    policy = load_answering_policy(settings, console.say)
    conversation = Conversation(policy.template, args.system)
    if args.system and not conversation.has_memory:
        raise UsageError(f"--system needs a prompt with a chat template, and {settings.data.prompt} is plain text.")
    if interactive:
        memory = "remembers the conversation" if conversation.has_memory else "answers each question alone"
        console.say(f"{name}, prompt {resolve_prompt_name(settings.data)}, {memory}. /help lists the commands.")
    sampling = read_sampling(args, choose_max_tokens(args, settings, policy), policy.template.stop)
    ChatSession(policy, conversation, sampling, settings.run.seed, args.show_thinking).run()
    return 0
