"""Talk to a model in the terminal, loaded here or behind a server: answers appear as they are sampled."""
# ruff: noqa: PLC0415 -- the model is loaded after the options are parsed

from __future__ import annotations

import argparse
import io
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

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

if TYPE_CHECKING:
    from qed.cli.chat_session import Partner
    from qed.console.live import Console

IN_EACH_RANK = True  # it uses the terminal in which it was started
ABOUT = """Talk to a model in the terminal.

Answers appear as they are sampled. A run is asked with its own prompt and tags; any other model with its chat
template. With a chat template the conversation is remembered; with a plain prompt such as r1_zero every question is
asked on its own. Without a terminal, every line of the input is a question.

With --url no model is loaded here: a server answers (`qed serve`, vLLM or any other with OpenAI's chat route), and
MODEL is the model's name there."""
EPILOG = """in the conversation:
  /reset  /thinking  /save FILE  /help  /exit
  Ctrl-C stops an answer, Ctrl-D leaves

examples:
  qed chat runs/first
  qed chat Qwen/Qwen2.5-0.5B-Instruct --temperature 0.7 --max-tokens 1024
  echo "What is 6 times 7?" | qed chat runs/first --temperature 0
  qed chat --url http://127.0.0.1:8000
  qed chat gpt-4.1-mini --url https://api.openai.com/v1"""
# Options for a model that is loaded here, with the values that mean "not given".
LOCAL = {
    "checkpoint": "last",
    **dict.fromkeys(("prompt", "prompt_options", "revision", "device", "precision", "threads")),
    "sampler": "",
    "allow_user_code": False,
}


def run(arguments: Sequence[str]) -> int:
    """Answer questions until the input ends."""
    parser = Parser("chat", ABOUT, EPILOG)
    add_policy_options(parser, required=False)
    parser.add_argument("--system", default="", metavar="TEXT", help="a system message, in place of the prompt's own")
    parser.add_argument("--show-thinking", action="store_true", help="show the reasoning and all tags")
    parser.add_argument("--url", default="", metavar="URL", help="talk to a server, such as http://127.0.0.1:8000")
    parser.add_argument(
        "--key-variable", default="OPENAI_API_KEY", metavar="NAME", help="environment variable with the server's key"
    )
    args = parser.parse(arguments)
    check_numbers(args, "chat")
    from qed.cli.chat_session import ChatSession
    from qed.console.live import Console

    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(errors="replace")
    interactive = sys.stdin.isatty() and sys.stdout.isatty()
    console = Console(json=not interactive)  # stdout is for the answers alone
    partner = _ask_server(args, console, interactive) if args.url else _load(args, console, interactive)
    ChatSession(partner, args.show_thinking).run()
    return 0


def _load(args: argparse.Namespace, console: Console, interactive: bool) -> Partner:
    """Load the model, with the run's own prompt."""
    if args.model is None:
        raise UsageError("qed chat: name a model or a run, or a server by --url.")
    settings, name = resolve_policy_settings(args)
    from qed.cli.chat_policy import PolicyPartner
    from qed.data.splits import resolve_prompt_name
    from qed.rollout.conversation import Conversation

    policy = load_answering_policy(settings, console.say)
    conversation = Conversation(policy.template, args.system)
    if args.system and not conversation.has_memory:
        raise UsageError(f"--system needs a prompt with a chat template, and {settings.data.prompt} is plain text.")
    if interactive:
        memory = "remembers the conversation" if conversation.has_memory else "answers each question alone"
        console.say(f"{name}, prompt {resolve_prompt_name(settings.data)}, {memory}. /help lists the commands.")
    sampling = read_sampling(args, choose_max_tokens(args, settings, policy), policy.template.stop)
    return PolicyPartner(policy, conversation, sampling, settings.run.seed)


def _ask_server(args: argparse.Namespace, console: Console, interactive: bool) -> Partner:
    """Find the model at the server of --url."""
    from qed.cli.chat_server import connect

    given = [name for name, absent in LOCAL.items() if getattr(args, name) != absent]
    if given:
        option = given[0].replace("_", "-")
        raise UsageError(f"--{option} is for a model that is loaded here; the server of --url has loaded its own.")
    options = {"temperature": args.temperature, "top_p": args.top_p, "max_tokens": args.max_tokens}
    # OpenAI's own route does not know these two.
    options |= {"top_k": args.top_k or None, "min_p": args.min_p or None}
    seed = args.seed or "0"
    if not (seed.isascii() and seed.isdecimal()):
        raise UsageError(f"--seed takes a number, not '{seed}'.")
    chosen = {name: value for name, value in options.items() if value is not None}
    partner = connect(args.url, args.model or "", args.key_variable, chosen, args.system, int(seed))
    if interactive:
        console.say(f"{partner.model} at {args.url}, remembers the conversation. /help lists the commands.")
    return partner
