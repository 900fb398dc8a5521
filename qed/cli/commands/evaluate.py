"""Evaluate a model on benchmarks, or score answers from a file, with confidence intervals."""
# ruff: noqa: PLC0415, T201 -- the sampler is imported after the options are parsed, and this prints results

from __future__ import annotations

import argparse
import json
import secrets
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from qed.cli.commands import policy_options
from qed.cli.commands.base import Parser, add_extract_option, add_lists_option, split_words
from qed.cli.commands.endpoint_options import add_endpoint_options, find_served, is_endpoint, read_endpoint
from qed.cli.commands.evaluate_modes import check_greedy, check_modes, list_given
from qed.cli.commands.evaluate_sweep import add_sweep_option, run_sweep
from qed.cli.commands.likelihood_options import add_likelihood_options, check_likelihood
from qed.cli.commands.policy_options import add_chat_option, add_sampling_options
from qed.cli.commands.verdict_options import add_also_option, add_policy_option, read_also, read_rewards
from qed.cli.evaluation_file import pick_own_options, read_options, report_training_sampling
from qed.cli.sharing import add_sharing_options, check_sharing, run_shared
from qed.config.phases import Settings
from qed.config.settings import can_sample_at
from qed.data.sources.explain import use_column_option
from qed.errors import UsageError
from qed.runs.choose import FINAL, choose_checkpoint, is_run, suggest_run

ABOUT = """Evaluate a model on benchmarks: avg@k, pass@k and maj@k with 95 % intervals, format × answer, lengths.

All answers are written to OUT/eval/step_N/TASK.jsonl, the metrics to summary.json in the same folder. The same command
with the same --out continues an interrupted evaluation. With --responses, answers from a file are scored instead."""
EPILOG = """examples:
  qed evaluate --model runs/first
  qed evaluate --model Qwen/Qwen2.5-0.5B --tasks math:test500,gsm8k:test --prompt boxed --limit 100
  qed evaluate --model new:small --tasks test.jsonl --greedy --max-tokens 64
  qed evaluate --tasks math:test500 --sweep model=runs/a,runs/b --sweep temperature=0,0.6 --out runs/sweep
  qed evaluate --model Qwen/Qwen2.5-0.5B --tasks mmlu,arc_c --scoring likelihood
  qed evaluate evaluation.yaml --limit 50
  qed evaluate --sampler server --url http://127.0.0.1:8000 --tasks gsm8k:test
  qed evaluate --model openai:gpt-4.1-mini --url https://api.openai.com/v1 --tasks gsm8k:test --prompt boxed
  qed evaluate --responses answers.jsonl --gold-key answer --response-key completion"""
TIES = ("split", "first", "lowest")
MODES = ("strict", "flexible", "lenient", "last-line")
# Maps options that are settings of a run to the name of the setting.
PASSED = policy_options.PASSED | {
    "system_prompt": "data.system_prompt",
    "environment": "data.environment",
    "environment_options": "data.environment_options",
    "stop": "sampling.stop",
    "reward": "data.reward",
    "reward_options": "data.reward_options",
    "map": "data.map",
    "watchdog": "run.watchdog",
    "preflight": "run.preflight",
    "url": "sampling.url",
    "request_seconds": "sampling.request_seconds",
}


def run(arguments: Sequence[str]) -> int:
    """Evaluate a model, or score stored answers."""
    parser = _build_parser()
    args = parser.parse(arguments)
    written, chosen = list(arguments), list(arguments)
    if args.config:
        from_file = read_options(args.config, parser, PASSED, args.allow_user_code)
        # The command line comes after the file, so it takes precedence.
        written, chosen = [*from_file, *arguments], [*pick_own_options(args.config, from_file), *arguments]
        args = parser.parse(written, layered=True)
        report_training_sampling(args, [action.dest for _, action in parser.list_given(written)])
    given = list_given(parser, args, chosen)
    check_greedy(parser, args, arguments, chosen)
    if args.sweep:
        return run_sweep(parser, written, partial(_check_cell, parser=parser, given=given), _evaluate)
    check_modes(parser, args, given)
    result = _evaluate(args, arguments)
    if args.json:
        print(json.dumps(result))
    return 0


def _evaluate(args: argparse.Namespace, arguments: Sequence[str]) -> dict[str, Any]:
    """Evaluate a model or stored answers by the options; `arguments` are recorded as the command."""
    check_sharing(args, args.model is not None and is_run(Path(args.model)))
    if args.model is None and args.responses is None:
        find_served(args)
    if (args.model is None) == (args.responses is None):
        raise UsageError("qed evaluate needs either --model with --tasks, or --responses with a file of answers.")
    return _score_responses(args) if args.responses else _evaluate_model(args, arguments)


def _check_cell(args: argparse.Namespace, parser: Parser, given: Sequence[str]) -> None:
    """Check the options of one evaluation of a sweep before the first starts; `given` are those of its command."""
    check_modes(parser, args, given)
    if args.responses is None and args.model is not None:
        _check_numbers(args)
        run_folder, model, _ = _choose_model(args)
        _resolve_settings(args, run_folder, model)


def _build_parser() -> Parser:
    parser = Parser("evaluate", ABOUT, EPILOG)
    parser.add_argument(
        "config", nargs="?", metavar="CONFIG", help="a YAML file of these options, or of the settings of a run"
    )
    _add_model_options(parser.add_argument_group("a model").add_argument)
    add_endpoint_options(parser.add_argument_group("servers").add_argument)
    _add_stored_options(parser.add_argument_group("stored answers").add_argument)
    add = parser.add_argument_group("both").add_argument
    add("--reward", metavar="NAME,…", help="grade by this reward (default: the run's, or the prompt's default)")
    add("--reward-options", metavar="NAME.FIELD=VALUE,…", help="options of the rewards")
    add("--ties", choices=TIES, default="split", help="break a tie in maj@k: split, first or lowest answer")
    add_policy_option(add)
    add_also_option(add)
    add("--out", type=Path, metavar="DIR", help="folder of the answers (default: the run's folder, or a new one)")
    add_sharing_options(parser)
    add_sweep_option(parser)
    add("--json", action="store_true", help="print the metrics as one line of JSON, as the last line of stdout")
    return parser


def _add_model_options(add: Any) -> None:
    add("--model", metavar="MODEL", help="a run's folder, a Hugging Face folder or hub name, new:small, or openai:NAME")
    add("--step", type=int, metavar="N", help="for a run: the checkpoint after step N (default: the final one)")
    add("--tasks", default="", metavar="NAME[:split][@PATH],…", help="benchmarks or files (default: those of the run)")
    add("--samples", type=int, metavar="K", help="answers per problem (default: the usual number, such as 32 for AIME)")
    add("--prompt", metavar="NAME", help="prompt by name (default: the run's, or the task's default)")
    add("--prompt-options", metavar="NAME.FIELD=VALUE,…", help="options of the prompt")
    add("--system-prompt", metavar="TEXT", help="system message in place of the prompt's own")
    add_chat_option(add)
    add("--environment", metavar="NAME", help="what replies after each turn (default: the run's)")
    add("--environment-options", metavar="NAME.FIELD=VALUE,…", help="options of the environment")
    add("--stop", metavar="TEXT,…", help="stop strings besides the prompt's own; a list in brackets if one has a comma")
    add("--sampler", default="", metavar="NAME", help="sampler by name (default: native)")
    add_likelihood_options(add)
    add("--greedy", action="store_true", help="greedy decoding, one answer per problem")
    add_sampling_options(add, "sampling temperature (default: 0.6)")
    add("--max-tokens", type=int, metavar="N", help="longest answer (default: the run's, or up to 2048; AIME: 32768)")
    add(
        "--limit",
        type=int,
        default=0,
        metavar="N",
        help="only N problems of each task, drawn by the seed and stratified by subject and level",
    )
    add("--seed", metavar="N", help="random seed (default: 0, or the run's)")
    add("--map", metavar="OURS=THEIRS,…", help="columns of data files to rename, for example question=problem")
    add("--revision", metavar="REV", help="the hub revision of the model")
    add("--device", metavar="NAME", help="auto, cpu, cuda, cuda:N or mps")
    add("--precision", metavar="NAME", help="float32, bfloat16 or float64")
    add("--attention", metavar="NAME", help="auto, sdpa, flash_attention_2 or eager")
    add("--rows-per-batch", metavar="N", help="maximum answers generated at the same time (default: 128)")
    add("--threads", metavar="N", help="CPU threads")
    add("--watchdog", metavar="SECONDS", help="exit with code 75 after this time without progress (1800; 0 never)")
    add("--preflight", metavar="BOOL", help="false skips the check of the sampler against the model's forward pass")
    add("--resume", action="store_true", help="require that --out contains an evaluation, and continue it")
    add("--overwrite", action="store_true", help="replace the same tasks' answers in --out")
    add("--allow-user-code", action="store_true", help="allow the run's settings to name code outside of qed")


def _add_stored_options(add: Any) -> None:
    add("--responses", type=Path, metavar="FILE", help="the answers to score: jsonl, json, csv or parquet")
    add("--gold-key", default="", metavar="COLUMN", help="the correct answer (default: the first known column)")
    add("--response-key", default="", metavar="COLUMN,…", help="the columns of the answers, each scored separately")
    add("--id-key", default="", metavar="COLUMN", help="identifies a problem (default: id, or else the question)")
    add_lists_option(add)
    add_extract_option(add, MODES)


@use_column_option("--map")
def _evaluate_model(args: argparse.Namespace, arguments: Sequence[str]) -> dict[str, Any]:
    _check_numbers(args)
    endpoint = read_endpoint(args, "evaluate")
    run_folder, model, step = _choose_model(args)
    settings = _resolve_settings(args, run_folder, model)
    tasks = split_words(args.tasks)
    if not tasks and run_folder is None:
        known = f"Only a run has default tasks, and {args.model} is not a run.{suggest_run(Path(args.model))}"
        raise UsageError(f"qed evaluate needs --tasks, for example --tasks math:test500,gsm8k:test. {known}")
    folder = _choose_folder(args, run_folder)
    from qed.evaluation.request import EvaluationRequest
    from qed.evaluation.run import run_evaluation
    from qed.evaluation.shards import parse_shard
    from qed.sampling.base import Sampling

    max_tokens = args.max_tokens or (settings.sampling.max_tokens if run_folder else 0)
    sampling = (
        Sampling(0.0, max_tokens)
        if args.greedy
        else Sampling(args.temperature, max_tokens, top_p=args.top_p, top_k=args.top_k, min_p=args.min_p)
    )
    samples = 1 if args.greedy else args.samples or 0
    command = ("qed", "evaluate", *arguments)
    request = EvaluationRequest(
        settings,
        tasks,
        sampling,
        samples,
        args.limit,
        folder,
        step,
        args.model,
        args.overwrite,
        command,
        args.json,
        endpoint,
        policy=args.policy,
        also=read_also(args.also_grade),
        scoring=args.scoring,
        shots=args.shots,
        ties=args.ties,
        exemplars=args.exemplars,
        subset_seed=settings.run.seed if args.seed else 0,
    )
    if args.cluster:
        from qed.cluster.evaluation import evaluate_on_cluster

        return evaluate_on_cluster(request, args.cluster)
    return run_evaluation(request, parse_shard(args.shard) if args.shard else None)


def _choose_model(args: argparse.Namespace) -> tuple[Path | None, str, int]:
    """Return the run's folder (None if the model is not a run), the model's name or folder, and its step."""
    if not is_run(Path(args.model)):
        return None, args.model, args.step or 0
    checkpoint, step = choose_checkpoint(Path(args.model), FINAL if args.step is None else str(args.step))
    return Path(args.model), str(checkpoint / "hf"), step


def _check_numbers(args: argparse.Namespace) -> None:
    """Refuse invalid values."""
    check_likelihood(args)
    checks = (
        (args.samples is None or args.samples >= 1, "--samples must be at least 1"),
        (
            not args.greedy or args.samples in (None, 1),
            "--greedy gives the same answer every time: leave --samples out",
        ),
        (args.greedy or can_sample_at(args.temperature), "--temperature must be finite, above 0; or use --greedy"),
        (0 < args.top_p <= 1, "--top-p must be above 0 and at most 1"),
        (0 <= args.min_p < 1, "--min-p must be at least 0 and below 1"),
        (args.top_k >= 0, "--top-k must not be negative"),
        (args.limit >= 0, "--limit must not be negative"),
        (args.max_tokens is None or args.max_tokens >= 1, "--max-tokens must be at least 1"),
        (args.step is None or args.step >= 0, "--step must not be negative"),
    )
    for valid, message in checks:
        if not valid:
            raise UsageError(f"qed evaluate: {message}.")


def _resolve_settings(args: argparse.Namespace, run_folder: Path | None, model: str, grades: bool = True) -> Settings:
    """Return the settings of a run or model with the command line's options; `grades` says if the reward is needed."""
    from qed.rollout.trained import UNGRADED, resolve_model_settings

    asked = ("url", "request_seconds") if is_endpoint(args.model) else ()
    options = {key: text for name, key in PASSED.items() if (text := getattr(args, name, None)) and name not in asked}
    options |= {"evaluation.tasks": args.tasks} if args.tasks else {}
    options |= {} if grades else UNGRADED
    return resolve_model_settings(run_folder, model, options, args.allow_user_code)


def _choose_folder(args: argparse.Namespace, run_folder: Path | None) -> Path:
    """Return the folder of the answers."""
    folder: Path | None = args.out or run_folder
    if args.resume and (folder is None or not any((folder / name).is_dir() for name in ("eval", "shards"))):
        raise UsageError("--resume needs the folder of an evaluation: add --out DIR.")
    if folder is None:
        label = args.model.rstrip("/").split("/")[-1].replace(":", "-")
        return Path(f"runs/evaluate--{label}--{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(2)}")
    from qed.evaluation.finish import require_evaluations

    require_evaluations(folder)
    return folder


def _score_responses(args: argparse.Namespace) -> dict[str, Any]:
    from qed.console.live import Console
    from qed.data.sources.local import require_file
    from qed.evaluation.score_run import ScoreJob
    from qed.evaluation.stored import Scoring

    require_file(args.responses, "to score", one_of=True)
    if args.out or args.resume:
        _choose_folder(args, None)
    keys = tuple(key.strip() for key in args.response_key.split(","))
    scoring = Scoring(args.gold_key, keys, args.id_key, args.extract, lists=args.lists, policy=args.policy)
    scoring = replace(scoring, ties=args.ties, also=read_also(args.also_grade))
    job = ScoreJob(str(args.responses), scoring, *read_rewards(args))
    console = Console(args.json)
    if not (args.shard or args.cluster):
        return job.score(args.out, console)
    from qed.evaluation.shards import find_shard_folder

    return run_shared(args, job, find_shard_folder(args.out, is_file=False) / "responses", console)


def evaluate_model(options: Sequence[str]) -> dict[str, Any]:
    """Evaluate a model by options of the command line; see `run_evaluation` for the result.

    Raises:
        UsageError: an option is unknown or invalid, or belongs to stored answers.
    """
    parser = _build_parser()
    args = parser.parse(options)
    check_greedy(parser, args, options)
    if args.sweep:
        raise UsageError("--sweep is for the command line; in Python, call evaluate once per value.")
    if args.responses is not None:
        raise UsageError(
            "qed.evaluate evaluates a model; the command line scores stored answers: qed evaluate --responses FILE."
        )
    check_modes(parser, args, list_given(parser, args, options))
    if args.model is None:
        find_served(args)
    if args.model is None:
        raise UsageError("There is no model to evaluate: name one, or give sampler='server' and the url of its server.")
    return _evaluate_model(args, options)


def is_switch(option: str) -> bool:
    """Return whether an option takes no value."""
    return any(option in action.option_strings and action.nargs == 0 for action in _build_parser()._actions)


def resolve_model(options: Sequence[str]) -> tuple[Settings, int]:
    """Return the settings of `--model` for sampling without grading, and the step of its checkpoint."""
    args = _build_parser().parse(options)
    run_folder, model, step = _choose_model(args)
    return _resolve_settings(args, run_folder, model, grades=False), step
