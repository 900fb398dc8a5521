"""Let a model judge outputs without correct answers: AlpacaEval's win rate, SimpleSafetyTests, or your own rubric."""
# ruff: noqa: PLC0415, T201 -- the judge is imported after the options are parsed, and this prints results

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qed.cli.commands.base import Parser
from qed.errors import UsageError

if TYPE_CHECKING:
    from qed.evaluation.judges import Ask

ABOUT = """Let a model judge outputs for which no correct answer exists.

`qed evaluate` writes such outputs for alpaca_eval and simple_safety_tests; any file with instructions and outputs will
do. The judge is a chat model behind an OpenAI-compatible endpoint (--url), or a model that qed loads. Its replies are
saved with the verdicts, so that an interrupted judgement resumes and a second one asks nothing twice."""
EPILOG = """examples:
  qed judge runs/x/eval/step_000100/alpaca_eval.outputs.json --url http://127.0.0.1:8000/v1 --model llama-70b
  qed judge simple_safety_tests.outputs.json --rubric safety --model Qwen/Qwen2.5-7B-Instruct
  qed judge answers.jsonl --rubric rubric.txt --url https://api.openai.com/v1 --model gpt-4.1-mini"""


def run(arguments: Sequence[str]) -> int:
    """Judge a file of outputs."""
    args = _build_parser().parse(arguments)
    _check_numbers(args)
    from qed.console.live import Console
    from qed.evaluation.judging import Judgement, judge_outputs
    from qed.evaluation.outputs import find_references
    from qed.evaluation.rubrics import PREFERENCE, SAFETY
    from qed.guards.signals import watch_signals

    default = find_references(args.outputs)
    references = args.references or (default if default.is_file() else None)
    rubric = args.rubric or (PREFERENCE if references else SAFETY)
    judgement = Judgement(args.outputs, references, rubric, args.out or args.outputs.parent, args.limit)
    with watch_signals():
        ask, identity = _load_judge(args)
        figures = judge_outputs(judgement, args.model, identity, ask, Console(args.json))
    if args.json:
        print(json.dumps(figures))
    return 0


def _build_parser() -> Parser:
    parser = Parser("judge", ABOUT, EPILOG)
    add = parser.add_argument
    add("outputs", type=Path, metavar="FILE", help="json or jsonl rows with an instruction and an output")
    add("--model", required=True, metavar="NAME", help="the judge: its name at the server, or a model that qed loads")
    add("--url", default="", metavar="URL", help="the server's address, such as http://127.0.0.1:8000/v1")
    add(
        "--rubric",
        default="",
        metavar="NAME",
        help="preference, safety or a text file (default: preference if there are references, otherwise safety)",
    )
    add("--references", type=Path, metavar="FILE", help="outputs to compare with (default: those of the task)")
    add("--out", type=Path, metavar="DIR", help="folder of the verdicts (default: that of FILE)")
    add("--limit", type=int, default=0, metavar="N", help="only the first N outputs")
    add("--key-variable", default="OPENAI_API_KEY", metavar="NAME", help="environment variable with the server's key")
    add("--concurrency", type=int, default=16, metavar="N", help="requests at the same time (default: 16)")
    add("--seconds", type=float, default=120.0, metavar="S", help="deadline of a request (default: 120)")
    add("--max-tokens", type=int, default=1024, metavar="N", help="longest reply of the judge (default: 1024)")
    add("--extra", default="{}", metavar="JSON", help="additional fields of each request, such as '{\"seed\": 1}'")
    add("--device", default="auto", metavar="NAME", help="device of a judge that qed loads")
    add("--json", action="store_true", help="print the figures as one line of JSON, as the last line of stdout")
    return parser


def _check_numbers(args: argparse.Namespace) -> None:
    """Refuse invalid values."""
    for name in ("concurrency", "seconds", "max_tokens"):
        if getattr(args, name) <= 0:
            raise UsageError(f"qed judge: --{name.replace('_', '-')} must be above 0.")
    if args.limit < 0:
        raise UsageError("qed judge: --limit must not be negative.")


def _load_judge(args: argparse.Namespace) -> tuple[Ask, list[Any]]:
    """Return a function that asks the judge, and what determines its replies besides the requests."""
    if not args.url:
        from qed.evaluation.judges import ask_local
        from qed.evaluation.weights import hash_weights
        from qed.rollout.trained import resolve_model_settings

        given = {"data.prompt": "chat", "model.device": args.device, "sampling.max_tokens": str(args.max_tokens)}
        settings = resolve_model_settings(None, args.model, given)
        name = settings.model.name
        return ask_local(settings), [name, hash_weights(Path(name)), args.max_tokens]
    from qed.evaluation.judges import ask_endpoint
    from qed.net.chat import ChatModel, complete_address
    from qed.net.endpoint import Endpoint

    try:
        extra = json.loads(args.extra)
    except ValueError as error:
        raise UsageError(f"qed judge: --extra is not JSON: {error}.") from error
    if not isinstance(extra, dict):
        raise UsageError('qed judge: --extra must be a JSON object such as {"seed": 1}.')
    endpoint = Endpoint(complete_address(args.url), args.key_variable, args.seconds)
    model = ChatModel(endpoint, args.model, args.max_tokens, extra)
    return ask_endpoint(model, args.concurrency), [endpoint.url, model.build_request([])]
