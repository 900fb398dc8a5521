"""Writes run folders to look at: finished, hung, failed, stopped and live ones, runs to compare, and hostile ones.

    python tests/viewer/making_views.py FOLDER

All of them are written by the run's own writers. Numbers depend on the names of runs alone.
"""

from __future__ import annotations

import json
import math
import os
import random
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache
from pathlib import Path
from typing import Any

from hostile_texts import PAYLOADS
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from qed.evaluation.intervals import compute_wilson_interval
from qed.evaluation.summary import summarize
from qed.runs.run import Row, Run, build_row, write_evaluation
from qed.runs.step_file import name_step_file
from qed.runs.token_stats import encode_stats, name_stats
from qed.types import Grade, Problem, Rollout

SUBJECTS = ("algebra", "geometry", "number theory")
SFT_STEPS, STEPS = 4, 12
GROUPS, ANSWERS = 6, 6
TOP = 3
END = "<|end|>"
PROMPT = "<|user|>{question}<|assistant|><think>"


@dataclass(frozen=True)
class Plan:
    """What a run is like: its settings, how good it gets, and how it ends."""

    name: str
    seed: int = 0
    lr: float = 1e-3
    skill: float = 0.75  # the share of right answers at the end
    steps: int = STEPS
    groups: int = GROUPS
    answers: int = ANSWERS
    ending: str = "finished"
    method: str = "grpo"
    stats: bool = True


@lru_cache
def build_tokenizer() -> Tokenizer:
    """A small byte-level tokenizer, trained on answers as these runs write them."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=480,
        special_tokens=[END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    rng = random.Random(0)
    texts = [write_text(problem, True, rng) for problem in map(build_problem, range(60))]
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def build_problem(number: int, prefix: str = "train") -> Problem:
    """A sum of two fractions."""
    rng = random.Random(f"{prefix}-{number}")
    first, second = (Fraction(rng.randint(1, 7), rng.randint(2, 9)) for _ in range(2))
    question = f"What is ${_draw(first)} + {_draw(second)}$? (problem {number + 1})"
    meta = {"level": 1 + number % 3, "subject": SUBJECTS[number % 3], "source": "fractions"}
    solution = f"<think>Both over {first.denominator * second.denominator}.</think> \\boxed{{{_draw(first + second)}}}"
    return Problem(f"{prefix}-{number:03d}", question, _draw(first + second), solution, meta=meta)


def _draw(value: Fraction) -> str:
    return f"\\frac{{{value.numerator}}}{{{value.denominator}}}" if value.denominator > 1 else str(value.numerator)


def write_text(problem: Problem, right: bool, rng: random.Random) -> str:
    """An answer with a thought and a formula."""
    ways = ("Bring both to one denominator.", "Cross-multiply, then simplify.", "Add the numerators with care.")
    answer = problem.answer if right else f"\\frac{{{rng.randint(2, 40)}}}{{{rng.randint(41, 99)}}}"
    doubt = " Wait, let me check this again." * rng.randint(0, 2)
    return (
        f"<think>{rng.choice(ways)}{doubt} So $\\frac{{a}}{{b}} + \\frac{{c}}{{d}} = \\frac{{ad + bc}}{{bd}}$ gives "
        f"${answer}$.</think> The sum is \\boxed{{{answer}}}."
    )


def build_group(plan: Plan, step: int, number: int) -> list[Rollout]:
    """The answers to one problem in a step, with the cases that a viewer must show among them."""
    rng = random.Random(f"{plan.name}-{plan.seed}-{step}-{number}")
    problem = build_problem((step * 2 + number) % 10)
    share = plan.skill * (step - SFT_STEPS) / max(1, plan.steps - SFT_STEPS)
    rollouts = []
    for index in range(plan.answers):
        right = {3: False, 4: True}.get(number, rng.random() < share)  # groups 3 and 4 have no spread
        rollouts.append(_build_answer(problem, step, number, index, right, rng))
    rewards = [rollout.reward for rollout in rollouts]
    mean = sum(rewards) / len(rewards)
    spread = math.sqrt(sum((reward - mean) ** 2 for reward in rewards) / len(rewards)) + 1e-6
    for rollout in rollouts:
        rollout.advantage = 0.0 if rollout.source == "greedy" else (rollout.reward - mean) / spread
    return rollouts


def _build_answer(problem: Problem, step: int, group: int, index: int, right: bool, rng: random.Random) -> Rollout:
    """One answer; the last ones of some groups are special."""
    text, stop, tier, reason = write_text(problem, right, rng), "stop", "string", "the same string"
    case = (group, index)
    if case == (0, 5):  # cut off at the limit
        text, right, stop = text[: text.index("</think>")] + " and so on", False, "length"
    elif case == (1, 5):  # a loop
        text, right = "<think>" + "Let me think again. " * 14 + "</think> I do not know.", False
    elif case == (2, 5):  # garbled
        text, right = "<think>" + "".join(rng.choice("qzxjvkwy#%~^") for _ in range(60)) + "</think>", False
    elif case == (2, 4):  # the grader's time-out
        right, tier, reason = False, "timeout", "the grader took longer than 10 s"
    has_answer = "\\boxed" in text
    extracted = text.rpartition("\\boxed{")[2].rpartition("}")[0] if has_answer else None
    if tier == "string" and not right:
        tier, reason = ("typed", "another value") if has_answer else ("extract", "no answer found")
    paid = 0.9 if case == (1, 4) else float(right)  # a reward without correctness
    parts = {"correct": paid, "format": 0.1 * has_answer}
    grade = Grade(paid + 0.1 * has_answer, right, has_answer or case == (1, 5), extracted, parts, tier, reason)
    return _tokenize(problem, step, case, text, stop, grade, rng)


def _tokenize(
    problem: Problem, step: int, case: tuple[int, int], text: str, stop: str, grade: Grade, rng: random.Random
) -> Rollout:
    """A rollout with token ids, log-probs and masks."""
    tokenizer = build_tokenizer()
    output = [*tokenizer.encode(text).ids, *([tokenizer.token_to_id(END)] if stop == "stop" else [])]
    low = -7.0 if case == (2, 5) else -1.2
    logps = [min(-1e-4, rng.gauss(low / 3, abs(low) / 3)) for _ in output]
    given = {(0, 4): len(output), (4, 5): len(output) // 3}.get(case, 0)
    source: Any = {(0, 4): "expert", (3, 5): "replay", (5, 5): "greedy", (5, 4): "demonstration"}.get(case, "policy")
    return Rollout(
        problem=problem,
        prompt=tokenizer.encode(PROMPT.format(question=problem.question)).ids,
        output=output,
        logps=[0.0] * given + logps[given:],
        text=text,
        stop_reason=stop,  # type: ignore[arg-type]
        source=source,
        version=max(0, step - 1 - (3 if source == "replay" else case[0] % 2)),
        index=case[1],
        prompt_text=PROMPT.format(question=problem.question),
        sampled_mask=[False] * given + [True] * (len(output) - given) if given else (),
        loss_mask=[False] * len(output) if source == "greedy" else (),
        grade=grade,
    )


def build_stats(groups: Sequence[Sequence[Rollout]], rows: Sequence[tuple[int, int]]) -> list[Row]:
    """The learner's values of some answers, as `run.save_token_stats` writes them."""
    found = []
    for group, answer in rows:
        rollout = groups[group][answer]
        rng = random.Random(f"stats-{group}-{answer}-{len(rollout.output)}")
        learner = [round(value + rng.gauss(0, 0.01), 5) for value in rollout.logps]
        row: Row = {"group": group, "answer": answer, "learner_logps": learner}
        row["entropy"] = [round(abs(value) * 0.8 + 0.05, 5) for value in rollout.logps]
        row["updated_logps"] = [round(value + rng.gauss(0, 0.08), 5) for value in learner]
        row["ref_logps"] = [round(value + rng.gauss(0, 0.2), 5) for value in learner]
        row["top"] = [
            [[(token + 7 * place) % 480, round(logp - place, 4)] for place in range(TOP)]
            for token, logp in zip(rollout.output, learner, strict=True)
        ]
        found.append(row)
    return found


def write_stats(run: Run, step: int, rows: Sequence[Row]) -> None:
    """Write the learner's values beside the answers of a step."""
    run.write(name_stats(Path(name_step_file(step))).as_posix(), encode_stats(rows))


def build_settings(plan: Plan) -> tuple[bytes, bytes]:
    """The settings of two phases and their origins; JSON is YAML."""
    settings = {
        "sft": {"method": "sft", "learner": {"steps": SFT_STEPS, "batch_size": 32, "lr": 0.002}},
        "rl": {
            "method": plan.method,
            "data": {"tasks": ["fractions"], "reward": ["boxed"]},
            "learner": {"steps": plan.steps - SFT_STEPS, "lr": plan.lr, "clip_norm": 1.0},
        },
        "model": {"name": "new:tiny", "precision": "float32", "lora_rank": 0},
        "sampling": {"problems_per_step": plan.groups, "group_size": plan.answers, "max_tokens": 128},
        "evaluation": {"tasks": ["maths"], "every": 4, "samples": 4},
        "run": {"seed": plan.seed, "save_rollouts": True, "save_token_stats": 4, "save_top_logps": TOP},
    }
    origins = {"rl.learner.lr": "the command line", "run.seed": "the command line", "model.name": "default"}
    return json.dumps(settings, indent=1).encode(), json.dumps(origins, indent=1).encode()


def build_metrics(plan: Plan, step: int, groups: Sequence[Sequence[Rollout]] = ()) -> Row:
    """A line of metrics.jsonl."""
    rng = random.Random(f"metrics-{plan.name}-{plan.seed}-{step}")
    common = {
        "train/loss": round(3 / step + rng.gauss(0, 0.05), 4),
        "optim/lr": plan.lr * (1 - step / (plan.steps + 1)),
        "optim/grad_norm": round(0.5 + rng.random(), 4),
        "time/update": 0.4,
        "time/step": 1.5,
        "train/tokens": 4000.0,
        "perf/tokens_per_s": 2000.0 + 10 * rng.random(),
        "policy/entropy": round(2.2 / (1 + step / 4), 4),
    }
    if not groups:
        return {"step": step, "phase": "sft", **common}
    rollouts = [rollout for group in groups for rollout in group]
    right = sum(bool(rollout.grade and rollout.grade.correct) for rollout in rollouts) / len(rollouts)
    online = {
        "reward/mean": sum(rollout.reward for rollout in rollouts) / len(rollouts),
        "accuracy": right,
        "format": 0.9,
        "groups/zero_std": 2 / len(groups),
        "length/mean": sum(len(rollout.output) for rollout in rollouts) / len(rollouts),
        "length/truncated_frac": 1 / len(rollouts),
        "kl/old": 1e-3 * rng.random(),
        "ratio/log_max": 0.2,
        "mismatch/kl": 1e-4,
        "time/sample": 0.8,
        "time/grade": 0.1,
        "time/score": 0.15,
        "time/sync": 0.05,
    }
    return {"step": step, "phase": plan.method, **online, **common}


def build_evaluation(plan: Plan, step: int, decoding: str, problems: int = 12, prefix: str = "maths") -> list[Row]:
    """The rows of one decoding of an evaluation."""
    share = plan.skill * step / plan.steps
    rows = []
    for number in range(problems):
        problem = build_problem(number, prefix)
        for index in range(1 if decoding == "greedy" else 4):
            rng = random.Random(f"{plan.name}-{plan.seed}-{step}-{decoding}-{number}-{index}")
            right = rng.random() < share
            text = write_text(problem, right, rng)
            extracted = text.rpartition("\\boxed{")[2].rpartition("}")[0]
            grade = Grade(float(right), right, True, extracted, {"correct": float(right)}, "typed", "another value")
            own = _tokenize(problem, step, (9, index), text, "stop", grade, rng)
            own.version = step
            marks = {"strict": right, "flexible": right, "string": right, "class": f"fmt1_ans{int(right)}"}
            rows.append({"decoding": decoding, **build_row(own, step), **marks, "reasoning_chars": 80})
    return rows


def evaluate(run: Run, plan: Plan, step: int) -> Row:
    """Write an evaluation of two tasks, one of them on problems of the training; the line of metrics."""
    line: Row = {"step": step, "phase": plan.method if step > SFT_STEPS else "sft", "time/evaluate": 2.0}
    for task, prefix, count in (("maths", "maths", 12), ("seen", "train", 6)):
        rows = {decoding: build_evaluation(plan, step, decoding, count, prefix) for decoding in ("greedy", "sampled")}
        summary = {decoding: summarize(own) for decoding, own in rows.items()}
        run.evaluation(step, task, [*rows["greedy"], *rows["sampled"]], summary)
        for decoding, figures in summary.items():
            name = f"eval/{task}/{decoding}"
            line |= {f"{name}/avg@{figures['k']}": figures["accuracy"], f"{name}/ci_lo": figures["ci_lo"]}
            line |= {f"{name}/ci_hi": figures["ci_hi"], f"{name}/length/mean": figures["mean_tokens"]}
    return line


def open_run(parent: Path, plan: Plan) -> Run:
    """A run with everything that is written before its first step."""
    folder = parent / plan.name
    folder.mkdir(parents=True)
    run = Run(folder)
    settings, origins = build_settings(plan)
    run.write("settings.yaml", settings)
    run.write("settings.origin.json", origins)
    run.write("env.json", json.dumps({"qed": "0.1.0", "python": "3.11.7", "device": "cpu"}, indent=1).encode())
    run.write("command.txt", f"qed pipeline fractions.yaml --rl.learner.lr {plan.lr} --run.seed {plan.seed}".encode())
    run.write("tokenizer.json", build_tokenizer().to_str().encode())
    run.event("data", tasks=["fractions"], prompt="boxed", training=10, held_out={"maths": 12})
    run.event("sampler_check", phase="sft", step=0, passed=True, logp_diff_max=1.9e-6)
    run.log_line(f"{plan.name}: new:tiny (0.55 M parameters, cpu), 10 training problems, 12 held out (maths)")
    run.log.with_name("rank_1.log").write_text("rank 1 waits for rank 0\n\x1b[32mgreen\x1b[0m\n", encoding="utf-8")
    run.metrics(evaluate(run, plan, 0))
    return run


def write_step(run: Run, plan: Plan, step: int) -> None:
    """Write one training step: answers, values of tokens, metrics, and what belongs to it."""
    groups = [build_group(plan, step, number) for number in range(plan.groups)] if step > SFT_STEPS else []
    if groups:
        run.rollouts(step, groups)
        if plan.stats:
            write_stats(run, step, build_stats(groups, [(0, 0), (0, 4), (1, 1), (2, 5)]))
    run.metrics(build_metrics(plan, step, groups))
    run.log_line(f"step {step}: loss {3 / step:.3f}")
    if step == SFT_STEPS + 3:
        told = "The mean reward rose, and the accuracy on held-out problems did not."
        run.event("alarm", name="reward_without_accuracy", step=step, phase=plan.method, told=told)
    if step % 4 == 0:
        run.metrics(evaluate(run, plan, step))


def beat(folder: Path, step: int, ago: float = 0.0) -> None:
    """Write the heartbeat of a run, as its watchdog does."""
    state = {"process": os.getpid(), "step": step, "stage": "sample", "idle_s": 0.0, "time": time.time() - ago}
    (folder / "heartbeat.json").write_text(json.dumps(state) + "\n", encoding="utf-8")


def make_view(parent: Path, plan: Plan) -> Path:
    """A whole run."""
    run = open_run(parent, plan)
    for step in range(1, plan.steps + 1):
        write_step(run, plan, step)
    run.write("checkpoints/BEST", f"step_{plan.steps:06d}\n".encode())
    endings: dict[str, Callable[[], None]] = {
        "finished": lambda: run.event("finished", step=plan.steps),
        "failed": lambda: run.event("failed", reason="OutOfMemoryError: tried to allocate 2 GiB", exit_code=1),
        "stopped": lambda: run.event("interrupted", reason="stopped by SIGTERM", exit_code=130),
        "hung": lambda: run.event("hung", step=plan.steps, stage="sample", seconds=1800.0, stacks="hang.txt"),
    }
    beat(run.folder, plan.steps, ago=7200.0)
    if plan.ending in endings:
        endings[plan.ending]()
    return run.folder


FIRST = Plan("first", seed=0)
SECOND = Plan("second-seed", seed=1, skill=0.8)
FASTER = Plan("faster", seed=0, lr=3e-3, skill=0.95)
SHORT = {"steps": 6, "stats": False}
ENDINGS = tuple(replace(Plan(f"a-{ending}-run", ending=ending), **SHORT) for ending in ("failed", "stopped", "hung"))


def make_views(parent: Path) -> dict[str, Path]:
    """Runs of every kind but live ones, and an evaluation alone, by name."""
    found = {plan.name: make_view(parent, plan) for plan in (FIRST, SECOND, FASTER, *ENDINGS)}
    rows = build_evaluation(FASTER, FASTER.steps, "greedy")
    write_evaluation(parent / "evaluated", 0, "maths", rows, {"greedy": summarize(rows)})
    return found | {"evaluated": parent / "evaluated"}


class LiveRun:
    """A run that is written while it is looked at.

    `advance` writes a step; as a context manager a thread does, one every `seconds`.
    """

    def __init__(self, parent: Path, name: str = "live", seconds: float = 0.5) -> None:
        self.plan = Plan(name, steps=400)
        self.run = open_run(parent, self.plan)
        self.folder, self.step, self.seconds = self.run.folder, 0, seconds
        self._done = threading.Event()
        for _ in range(SFT_STEPS + 1):
            self.advance()

    def advance(self) -> int:
        """Write one more step, and its number."""
        self.step += 1
        write_step(self.run, self.plan, self.step)
        beat(self.folder, self.step)
        return self.step

    def tear(self) -> None:
        """Leave a line half written, as a run that is killed does."""
        with (self.folder / "metrics.jsonl").open("a", encoding="utf-8") as file:
            file.write('{"step": 99999, "phase": "gr')

    def finish(self) -> None:
        """End the run."""
        self.run.event("finished", step=self.step)

    def __enter__(self) -> LiveRun:
        self._thread = threading.Thread(target=self._write, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._done.set()
        self._thread.join()

    def _write(self) -> None:
        while not self._done.wait(self.seconds):
            self.advance()


def _named(payload: str) -> str:
    """A payload as a file's name: without what no file system takes."""
    return payload.replace("/", "∕").replace("\x00", "").encode("utf-8", "replace").decode()[:60] or "empty"


def make_hostile_run(parent: Path, name: str = "hostile") -> Path:
    """A run with every payload in every text field."""
    run = open_run(parent, Plan(name))
    settings = {"method": PAYLOADS[0], "model": {"name": PAYLOADS[1]}, "run": {"seed": 0, "tags": list(PAYLOADS)}}
    settings["own"] = {f"key {place} {payload[:80]}": payload for place, payload in enumerate(PAYLOADS)}
    run.write("settings.yaml", json.dumps(settings).encode())
    run.write("settings.origin.json", json.dumps({f"own.key {n} {p[:80]}": p for n, p in enumerate(PAYLOADS)}).encode())
    run.write("env.json", json.dumps({payload: payload for payload in PAYLOADS}).encode())
    run.write("command.txt", "\n".join(PAYLOADS).encode("utf-8", "replace"))
    for payload in PAYLOADS:
        run.event(payload[:100], step=5, phase=payload, reason=payload, **{payload[:50] or "empty": payload})
        run.event("alarm", name=payload[:100], step=5, phase=payload[:100], told=payload)
        run.log_line(payload.encode("utf-8", "replace").decode())
    marked = {f"{payload[:80]}/mean": 0.5 for payload in PAYLOADS}
    for step in (5, 6):
        groups = [list(_hostile_group(step, place)) for place in range(len(PAYLOADS))]
        run.rollouts(step, groups)
        write_stats(run, step, build_stats(groups, [(0, 0), (1, 0)]))
        run.metrics({**build_metrics(FIRST, step, groups), "phase": PAYLOADS[10], **marked})
    for task in (PAYLOADS[0], PAYLOADS[10], PAYLOADS[22], PAYLOADS[72], "plain"):
        rows = list(_hostile_rows())
        write_evaluation(run.folder, 6, _named(task), rows, {"greedy": summarize(rows), PAYLOADS[11]: summarize(rows)})
    run.event("failed", reason=PAYLOADS[0], exit_code=1)
    return run.folder


def _hostile_group(step: int, place: int) -> Iterator[Rollout]:
    payload, tokenizer = PAYLOADS[place], build_tokenizer()
    meta = {"subject": payload, "level": payload, "source": payload}
    problem = Problem(f"{place}-{payload[:80]}", payload, payload, payload, meta=meta)
    for index in range(2):
        parts = {payload[:40] or "empty": 0.5, "correct": float(index)}
        grade = Grade(0.5 + index, bool(index), True, payload, parts, payload[:40], payload)
        safe = payload.encode("utf-8", "replace").decode()
        output = tokenizer.encode(safe).ids[:400] or [0]
        logps = [-0.5] * len(output)
        text = f"<think>{payload}</think>{payload}" if index else payload
        yield Rollout(problem, (1,), output, logps, text, "stop", index=index, grade=grade, prompt_text=payload)


def _hostile_rows() -> Iterator[Row]:
    for place in range(len(PAYLOADS)):
        (rollout, _) = _hostile_group(6, place)
        marks = {"strict": True, "flexible": False, "string": True, "class": "fmt1_ans0", "reasoning_chars": 1}
        yield {"decoding": "greedy", **build_row(rollout, 6), **marks}


def make_hostile_names(parent: Path, most: int = 12) -> list[Path]:
    """Small runs whose folders have hostile names."""
    names = dict.fromkeys(_named(payload) for payload in PAYLOADS)
    small = [name for name in names if name.strip() and not name.startswith(".")][:most]
    found = []
    for name in small:
        low, high = compute_wilson_interval(1, 2)
        folder = parent / name
        folder.mkdir(parents=True)
        run = Run(folder)
        run.write("settings.yaml", json.dumps({"method": "grpo", "model": {"name": name}}).encode())
        run.metrics({"step": 1, "phase": "grpo", "reward/mean": low, "eval/x/greedy/avg@1": high})
        run.event("finished", step=1)
        found.append(folder)
    return found


if __name__ == "__main__":
    place = Path(sys.argv[1])
    make_views(place)
    make_hostile_run(place)
    make_hostile_names(place / "names")
    LiveRun(place)
