"""Measure a model on benchmarks, or score answers that something else has generated, with honest intervals."""
# ruff: noqa: PLC0415, T201 -- what samples is imported once the options are read, and this prints results

from __future__ import annotations

import argparse
import json
import secrets
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from qed.cli.commands.base import Parser
from qed.config.layers import read_method
from qed.config.phases import PipelineSettings, Settings
from qed.config.resolve import resolve_settings
from qed.errors import DataError, ModelError, UsageError
from qed.runs import manifest

ABOUT = """Measure a model on benchmarks: avg@k, pass@k and maj@k with 95 % intervals, format × answer, lengths.

Every answer is written to OUT/eval/step_N/TASK.jsonl, the figures to summary.json beside it. The same command with the
same --out goes on where an interrupted one stopped. With --responses, answers from a file are scored instead."""
EPILOG = """examples:
  qed evaluate --model runs/first
  qed evaluate --model Qwen/Qwen2.5-0.5B --tasks math:test500,gsm8k:test --prompt boxed --limit 100
  qed evaluate --model new:small --tasks test.jsonl --greedy --max-tokens 64
  qed evaluate --responses answers.jsonl --gold-key answer --response-key completion"""
MODES = ("strict", "flexible", "lenient", "last-line")
# Options that are settings of a run, each with its setting's name.
PASSED = {
    "prompt": "data.prompt",
    "prompt_options": "data.prompt_options",
    "reward": "data.reward",
    "reward_options": "data.reward_options",
    "map": "data.map",
    "device": "model.device",
    "precision": "model.precision",
    "revision": "model.revision",
    "rows_per_batch": "sampling.rows_per_batch",
    "seed": "run.seed",
    "threads": "run.threads",
    "sampler": "sampling.sampler",
    "watchdog": "run.watchdog",
    "preflight": "run.preflight",
}


def run(arguments: Sequence[str]) -> int:
    """Evaluate a model, or stored answers."""
    asked = _build_parser().parse(arguments)
    if (asked.model is None) == (asked.responses is None):
        raise UsageError("qed evaluate needs either --model with --tasks, or --responses with a file of answers.")
    result = _score_responses(asked) if asked.responses else _evaluate_model(asked, arguments)
    if asked.json:
        print(json.dumps(result))
    return 0


def _build_parser() -> Parser:
    parser = Parser("evaluate", ABOUT, EPILOG)
    _add_model_options(parser.add_argument_group("a model").add_argument)
    _add_stored_options(parser.add_argument_group("stored answers").add_argument)
    add = parser.add_argument_group("both").add_argument
    add("--reward", metavar="NAME,…", help="grade by this reward (default: the run's, or the one that fits the prompt)")
    add("--reward-options", metavar="NAME.FIELD=VALUE,…", help="settings of the rewards")
    add("--out", type=Path, metavar="DIR", help="where answers go (default: the run's folder, or a fresh one)")
    add("--json", action="store_true", help="print the figures as one line of JSON, the last of stdout")
    return parser


def _add_model_options(add: Any) -> None:
    add("--model", metavar="MODEL", help="a run's folder, a Hugging Face folder or hub name, or new:small")
    add("--step", type=int, metavar="N", help="of a run: the checkpoint after step N (default: the final one)")
    add(
        "--tasks", default="", metavar="NAME[:split][@PATH],…", help="benchmarks or files (default: the run's held-out)"
    )
    add("--samples", type=int, metavar="K", help="answers to each problem (default: the field's, such as 32 for AIME)")
    add("--prompt", metavar="NAME", help="how problems are asked (default: the run's, or the task's own)")
    add("--prompt-options", metavar="NAME.FIELD=VALUE,…", help="settings of the prompt")
    add("--sampler", default="", metavar="NAME", help="what generates (default: native)")
    add("--greedy", action="store_true", help="always the likeliest token, one answer to each problem")
    add("--temperature", type=float, default=0.6, metavar="T", help="divides the logits (default: 0.6)")
    add("--top-p", type=float, default=0.95, metavar="P", help="draw from the likeliest tokens that reach P (0.95)")
    add("--top-k", type=int, default=0, metavar="K", help="draw from the K likeliest tokens (default: all)")
    add("--min-p", type=float, default=0.0, metavar="P", help="leave out tokens below P times the likeliest one")
    add(
        "--max-tokens",
        type=int,
        metavar="N",
        help="longest answer (default: the run's, else 2048 as the window allows)",
    )
    add("--limit", type=int, default=0, metavar="N", help="only the first N problems of each task")
    add("--seed", metavar="N", help="of every draw (default: 0, or the run's)")
    add("--map", metavar="OURS=THEIRS,…", help="renamed columns of data files, for example question=problem")
    add("--revision", metavar="REV", help="the hub revision of the model")
    add("--device", metavar="NAME", help="auto, cpu, cuda, cuda:N or mps")
    add("--precision", metavar="NAME", help="float32 or bfloat16")
    add("--rows-per-batch", metavar="N", help="answers generated side by side (default: 128)")
    add("--threads", metavar="N", help="CPU threads")
    add("--watchdog", metavar="SECONDS", help="without progress end with exit code 75 (default: 1800; 0 never)")
    add("--preflight", metavar="BOOL", help="false does not compare the sampler with the model's forward pass first")
    add("--resume", action="store_true", help="insist on going on with what --out holds")
    add("--overwrite", action="store_true", help="replace the same tasks' answers in --out")
    add("--allow-user-code", action="store_true", help="let the run's settings name code outside of qed")


def _add_stored_options(add: Any) -> None:
    add("--responses", type=Path, metavar="FILE", help="score these answers: jsonl, json, csv or parquet")
    add("--gold-key", default="", metavar="COLUMN", help="the right answer (default: the first known column)")
    add("--response-key", default="", metavar="COLUMN,…", help="the answers; several columns are scored one by one")
    add("--id-key", default="", metavar="COLUMN", help="what tells problems apart (default: id, else the question)")
    add("--extract", choices=MODES, default="flexible", help="how an answer is looked for (default: flexible)")


def _evaluate_model(asked: argparse.Namespace, arguments: Sequence[str]) -> dict[str, Any]:
    _check_numbers(asked)
    run_folder = Path(asked.model) if (Path(asked.model) / "settings.yaml").is_file() else None
    model, step = _find_checkpoint(run_folder, asked.step) if run_folder else (asked.model, 0)
    if run_folder is None and asked.step is not None:
        step = asked.step
    settings = _resolve_settings(asked, run_folder, model)
    tasks = tuple(name.strip() for name in asked.tasks.split(",") if name.strip())
    if not tasks and run_folder is None:
        raise UsageError("qed evaluate needs --tasks, for example --tasks math:test500,gsm8k:test.")
    folder = _choose_folder(asked, run_folder)
    from qed.evaluation.run import EvaluationRequest, run_evaluation
    from qed.sampling.base import Sampling

    longest = asked.max_tokens or (settings.sampling.max_tokens if run_folder else 0)
    sampling = (
        Sampling(0.0, longest)
        if asked.greedy
        else Sampling(asked.temperature, longest, top_p=asked.top_p, top_k=asked.top_k, min_p=asked.min_p)
    )
    samples = 1 if asked.greedy else asked.samples or 0
    command = ("qed", "evaluate", *arguments)
    return run_evaluation(
        EvaluationRequest(
            settings,
            tasks,
            sampling,
            samples,
            asked.limit,
            folder,
            step,
            asked.model,
            asked.overwrite,
            command,
            asked.json,
        )
    )


def _check_numbers(asked: argparse.Namespace) -> None:
    """Refuse numbers that no evaluation can mean."""
    wanted = (
        (asked.samples is None or asked.samples >= 1, "--samples must be at least 1"),
        (
            not asked.greedy or asked.samples in (None, 1),
            "--greedy gives the same answer every time: leave --samples out",
        ),
        (asked.greedy or asked.temperature > 0, "--temperature must be above 0; for the likeliest answer say --greedy"),
        (0 < asked.top_p <= 1, "--top-p must be above 0 and at most 1"),
        (0 <= asked.min_p < 1, "--min-p must be at least 0 and below 1"),
        (asked.top_k >= 0, "--top-k must not be negative"),
        (asked.limit >= 0, "--limit must not be negative"),
        (asked.max_tokens is None or asked.max_tokens >= 1, "--max-tokens must be at least 1"),
        (asked.step is None or asked.step >= 0, "--step must not be negative"),
    )
    for fine, complaint in wanted:
        if not fine:
            raise UsageError(f"qed evaluate: {complaint}.")


def _find_checkpoint(run_folder: Path, step: int | None) -> tuple[str, int]:
    """The model of a run after a step, and the number of the step."""
    steps = sorted(step for step, folder in manifest.list_checkpoints(run_folder).items() if (folder / "hf").is_dir())
    final = run_folder / "final"
    if step is None and (final / "hf").is_dir():
        return str(final / "hf"), int(final.resolve().name.split("_")[1])
    if step is None or step not in steps:
        what = "no final model: it has not finished" if step is None else f"no checkpoint of step {step}"
        known = f"Its checkpoints are of step {', '.join(map(str, steps))}; name one with --step." if steps else ""
        raise ModelError(f"The run {run_folder} has {what}. {known or 'It has no checkpoint at all.'}")
    return str(run_folder / "checkpoints" / f"step_{step:06d}" / "hf"), step


def _resolve_settings(asked: argparse.Namespace, run_folder: Path | None, model: str) -> Settings:
    """The settings of a run with its own prompt and reward, or of a model with those of its tasks."""
    given = [
        part for name, key in PASSED.items() if getattr(asked, name) for part in (f"--{key}", getattr(asked, name))
    ]
    given += ["--evaluation.tasks", asked.tasks] if asked.tasks else []
    given += ["--allow-user-code"] if asked.allow_user_code else []
    if run_folder is None:
        return _require_single_phase(resolve_settings("grpo", ["--model", model, *given]).settings)
    saved = run_folder / "settings.yaml"
    found = _require_single_phase(resolve_settings(read_method(saved), [str(saved), "--model", model, *given]).settings)
    from qed.data.splits import resolve_prompt_name, resolve_reward_names

    # Another task must not change how the model is asked: `auto` means what it meant in training.
    data = replace(found.data, prompt=resolve_prompt_name(found.data))
    reward = ("auto",) if asked.prompt and not asked.reward else resolve_reward_names(data)
    # The run's options are those of its own prompt and reward.
    if (asked.prompt or asked.reward) and not asked.reward_options:
        data = replace(data, reward_options=())
    if asked.prompt and not asked.prompt_options:
        data = replace(data, prompt_options=())
    return replace(found, data=replace(data, reward=reward))


def _require_single_phase(settings: Settings | PipelineSettings) -> Settings:
    return settings.phase("rl") if isinstance(settings, PipelineSettings) else settings


def _choose_folder(asked: argparse.Namespace, run_folder: Path | None) -> Path:
    """Where the answers go."""
    folder: Path | None = asked.out or run_folder
    if asked.resume and (folder is None or not (folder / "eval").is_dir()):
        raise UsageError("--resume needs a folder that an evaluation has begun: add --out DIR.")
    if folder is None:
        label = asked.model.rstrip("/").split("/")[-1].replace(":", "-")
        return Path(f"runs/evaluate--{label}--{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(2)}")
    taken = folder.exists() and (not folder.is_dir() or any(folder.iterdir()))
    if taken and not any((folder / name).exists() for name in ("eval", "settings.yaml", "env.json")):
        raise UsageError(f"The folder {folder} already exists and holds no evaluation; choose another --out.")
    return folder


def _score_responses(asked: argparse.Namespace) -> dict[str, Any]:
    from qed.console.live import Console
    from qed.evaluation import stored
    from qed.evaluation.table import show_summary

    if not asked.responses.is_file():
        raise DataError(f"There is no file {asked.responses} to score.")
    if asked.out:
        _choose_folder(asked, None)
    keys = tuple(key.strip() for key in asked.response_key.split(","))
    scoring = stored.Scoring(asked.gold_key, keys, asked.id_key, asked.extract, _load_grader(asked))
    scored = stored.score_responses(asked.responses, scoring)
    figures = stored.summarize_columns(scored, scoring.grader)
    console = Console(asked.json)
    if scoring.grader is not None and scoring.grader.judge is None:
        console.say(f"{asked.reward} judges no answer: right is what the final answer says.")
    show_summary(console, figures)
    if asked.out:
        stored.write_scores(asked.out, scored, figures)
        console.say(f"Every verdict is in {asked.out / 'eval'}.")
    return stored.build_result(figures)


def _load_grader(asked: argparse.Namespace) -> Any:
    """What grades by the reward that was asked for; None grades by the final answer."""
    if not asked.reward:
        return None
    from qed.rewards import grader

    options = [option.strip() for option in (asked.reward_options or "").split(",") if option.strip()]
    return grader.make_grader([name.strip() for name in asked.reward.split(",")], options)
