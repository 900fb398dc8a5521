"""Answer a file of prompts with a model, one row per answer: resumable, with the run's own prompt and tags."""
# ruff: noqa: PLC0415, T201 -- the model is loaded after the options are parsed, and this prints results

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qed.cli.commands.base import Parser
from qed.cli.commands.endpoint_options import (
    add_addresses,
    add_endpoint_options,
    load_endpoint_policy,
    read_endpoint,
    resolve_endpoint_settings,
)
from qed.cli.commands.policy_options import (
    DEFAULT_TOKENS,
    add_policy_options,
    check_numbers,
    choose_max_tokens,
    load_answering_policy,
    read_sampling,
    resolve_policy_settings,
)
from qed.data.sources.explain import use_column_option
from qed.errors import DataError, Interrupted, UsageError, find_exit_code

if TYPE_CHECKING:
    from qed.config.phases import Settings
    from qed.console.live import Console
    from qed.evaluation.endpoint.ask import EndpointPolicy
    from qed.evaluation.endpoint.model import EndpointSettings
    from qed.rollout.policy import Policy
    from qed.sampling.base import Sampling

ABOUT = """Answer the prompts of a file with a model.

FILE is a text file with a prompt in each line, or any data file that qed reads. Every question is asked with the run's
own prompt, or the model's chat template; --prompt question_only sends it verbatim. Every answer is a row of OUT, with
the columns of its prompt's row. The same command resumes after an interruption, and a larger --n adds answers."""
EPILOG = """examples:
  qed generate runs/first prompts.txt
  qed generate runs/first test.jsonl --n 4 --out answers.jsonl
  qed generate openai:gpt-4.1-mini prompts.txt --url https://api.openai.com/v1
  qed evaluate --responses answers.jsonl --response-key completion"""


def run(arguments: Sequence[str]) -> int:
    """Answer the prompts, and print where the answers are."""
    parser = Parser("generate", ABOUT, EPILOG)
    add = parser.add_argument
    add_policy_options(parser)
    add("file", type=Path, metavar="FILE", help="the prompts: txt, jsonl, json, csv or parquet")
    add("--out", type=Path, metavar="FILE", help="the answers, a .jsonl file (default: NAME.completions.jsonl, here)")
    add("--n", type=int, default=1, metavar="N", help="answers to each prompt (default: 1)")
    add("--question-key", default="", metavar="COLUMN", help="column of the question (default: a known one)")
    add("--limit", type=int, default=0, metavar="N", help="only the first N prompts")
    add("--rows-per-batch", metavar="N", help="maximum answers generated at the same time (default: 128)")
    add_endpoint_options(parser.add_argument_group("servers").add_argument)
    add("--overwrite", action="store_true", help="start again if OUT has answers")
    add("--json", action="store_true", help="print a summary as one line of JSON, as the last line of stdout")
    args = parser.parse(arguments)
    check_numbers(args, "generate")
    if args.n < 1 or args.limit < 0:
        raise UsageError("qed generate: --n must be at least 1, and --limit must not be negative.")
    result = _generate(args, _choose_output(args))
    if args.json:
        print(json.dumps(result))
    return 0


def _choose_output(args: argparse.Namespace) -> Path:
    out: Path = args.out or Path(f"{args.file.name.split('.')[0]}.completions.jsonl")
    if out.suffix != ".jsonl":
        raise UsageError(f"--out must be a .jsonl file, not {out}.")
    if out.exists() and args.file.exists() and out.samefile(args.file):
        raise UsageError(f"--out {out} is the prompt file itself; choose another name.")
    return out


def _generate(args: argparse.Namespace, out: Path) -> dict[str, Any]:
    left_out: Counter[str] = Counter()
    from qed.data.sources.schemas import GENERATED
    from qed.evaluation.generate import read_questions

    with use_column_option("--question-key", pairs=False):
        questions = read_questions(args.file, args.question_key, left_out)
    questions = questions[: args.limit or None]
    endpoint = read_endpoint(args, "generate")
    resolve = resolve_policy_settings if endpoint is None else resolve_endpoint_settings
    settings, name = resolve(args)
    from qed.console.live import Console
    from qed.evaluation.endpoint.generate import generate_at_endpoint
    from qed.evaluation.generate import Output, generate
    from qed.guards.signals import watch_signals
    from qed.rollout.policy import Policy

    console = Console(args.json)
    replaced = sorted({column for question in questions for column in question.row} & {*GENERATED} - {"prompt"})
    if replaced:
        console.say(f"Columns of {args.file} replaced by those of the answers: {', '.join(replaced)}.")
    policy, sampling = _load_policy(args, endpoint, settings, console)
    about = {} if endpoint is None else {"endpoint": endpoint.describe()}
    output = Output(out, _describe(args, settings, sampling) | about, args.overwrite)
    _announce(console, name, settings, sampling, len(questions) * args.n)
    try:
        with watch_signals():
            answer: Any = generate if endpoint is None else generate_at_endpoint
            left_out += answer(policy, questions, output, sampling, args.n, settings.run.seed, console)
    except (Interrupted, KeyboardInterrupt) as stopped:
        hint = f"The finished answers are in {out}; the same command continues."
        raise Interrupted(f"Interrupted. {hint}", find_exit_code(stopped)) from stopped
    finally:
        console.end_phase()
    if not output.prompts and isinstance(policy, Policy):
        raise DataError(
            f"No prompt of {args.file} fits: with {sampling.max_tokens} tokens for the answer, the model's window has "
            f"space for {max(0, policy.max_prompt_tokens(sampling.max_tokens))}. Use a smaller --max-tokens."
        )
    for reason, count in left_out.items():
        console.say(f"Left out {count} {reason}.")
    console.say(f"{len(output.prompts)} answers are in {out}.")
    return {"out": str(out), "answers": len(output.prompts), "left_out": dict(left_out)}


def _load_policy(
    args: argparse.Namespace, endpoint: EndpointSettings | None, settings: Settings, console: Console
) -> tuple[Policy | EndpointPolicy, Sampling]:
    """Return the policy and its sampling parameters."""
    if endpoint is not None:
        asked = load_endpoint_policy(endpoint, settings)
        return asked, read_sampling(args, args.max_tokens or DEFAULT_TOKENS, asked.template.stop)
    policy = load_answering_policy(add_addresses(args, settings), console.say)
    return policy, read_sampling(args, choose_max_tokens(args, settings, policy), policy.template.stop)


def _describe(args: argparse.Namespace, settings: Settings, sampling: Sampling) -> dict[str, Any]:
    """Describe everything that determines the answers besides the prompts."""
    from dataclasses import asdict

    from qed.data.splits import resolve_prompt_name
    from qed.evaluation.weights import hash_weights

    return {
        "model": settings.model.name,
        "weights": hash_weights(Path(settings.model.name)),
        "revision": settings.model.revision,
        "precision": settings.model.precision,
        "prompt": resolve_prompt_name(settings.data),
        "prompt_options": list(settings.data.prompt_options),
        **asdict(sampling),
        "question_key": args.question_key,
        "sampler": settings.sampling.sampler,
        "seed": settings.run.seed,
    }


def _announce(console: Console, name: str, settings: Settings, sampling: Sampling, total: int) -> None:
    from qed.data.splits import resolve_prompt_name

    console.say(
        f"{name}: {total} answers, prompt {resolve_prompt_name(settings.data)}, temperature {sampling.temperature:g}, "
        f"top-p {sampling.top_p:g}, at most {sampling.max_tokens} tokens, seed {settings.run.seed}"
    )
