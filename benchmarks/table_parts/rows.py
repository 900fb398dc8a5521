"""The rows of the table of docs/performance.md: each is a run of a script, with the figures to read and their goals."""

from __future__ import annotations

from dataclasses import dataclass

from qed.models.rounded_products import lacks_bfloat16

# Units of figures; for the last ones, less is better.
TIMES, SHARE, RATE = "times", "share", "rate"
LESS = SECONDS, MIB, PART = "seconds", "MiB", "part"


@dataclass(frozen=True)
class Figure:
    """A number of a script's result.

    Args:
        label: description.
        path: its path in the JSON, with names separated by slashes.
        goal: goal to reach; None if there is none.
        unit: its unit.
    """

    label: str
    path: str
    goal: float | None = None
    unit: str = TIMES

    def is_reached(self, value: float | None) -> bool | None:
        """Return whether a value reaches the goal; None without a value or a goal."""
        if value is None or self.goal is None:
            return None
        return value <= self.goal if self.unit in LESS else value >= self.goal


@dataclass(frozen=True)
class Row:
    """A row of the table.

    Args:
        name: name of the row, for --only.
        what: description of the measurement.
        command: script and its arguments.
        figures: figures to read from its result.
        quick: arguments to append with --quick; None runs the row only with --full.
        needs: rivals that must be installed (trl, lm-eval, lm-eval-vllm, vllm), or files or folders, with a slash.
        memory: GiB of memory that must be free.
    """

    name: str
    what: str
    command: str
    figures: tuple[Figure, ...]
    quick: str | None = None
    needs: tuple[str, ...] = ()
    memory: int = 0


def _compare(goal: float | None = None, share: float | None = None) -> tuple[Figure, ...]:
    """Return the figures against a rival, and qed's share of the floor; the goal applies to CPU time and wall time."""
    return (
        Figure("processor time", "ratio", goal),
        Figure("by the clock", "ratio_wall", goal),
        Figure("for each token", "ratio_per_token"),
        Figure("floor / qed", "floor/share", share, SHARE),
    )


def _per_token(goal: float) -> tuple[Figure, ...]:
    return (Figure("for each token", "ratio_per_token", goal), *(_compare()[place] for place in (0, 1, 3)))


def _command(name: str, goal: float) -> tuple[Figure, ...]:
    times = f"commands/{name}"
    return Figure("whole", f"{times}/wall", goal, SECONDS), Figure("of the processor", f"{times}/cpu", None, SECONDS)


# Larger rows use bfloat16 if the CPU has instructions for it; without them, TRL takes minutes for a step.
PRECISION = "float32" if lacks_bfloat16() else "bfloat16"
HUNDRED = f"--model new:large --precision {PRECISION}"
HALF = f"--model new:qwen2.5-0.5b --precision {PRECISION} --problems 8 --group 8 --tokens 256 --lengths even"
LONG = f"--model new:long --precision {PRECISION} --problems 2 --group 8 --tokens 4096 --lengths even"
SMALL = "--model new:small --problems 8 --tokens 128"
FEW = "--rounds 2"
RESPONSES, GSM8K = "../shared/grading/realistic.jsonl.gz", "../shared/data/gsm8k/test.jsonl"
TRL, GENERATE = "--against trl", "--against generate"
LM_EVAL = "evaluation.py --against lm-eval --python {lm_eval} --model new:large --problems 200"

STEPS = (
    Row(
        "step-tiny",
        "GRPO step, built-in default, all rows, float32",
        f"step.py {TRL}",
        _compare(5),
        "--rounds 3 --taught 100",
        ("trl",),
    ),
    Row(
        "step-tiny-bf16",
        "the same, bfloat16",
        f"step.py {TRL} --precision bfloat16",
        _compare(4.5),
        "--rounds 3 --taught 100",
        ("trl",),
    ),
    Row(
        "step-tiny-live",
        "in mid-training, rows without a gradient not computed",
        f"step.py {TRL} --live-only --improved 60",
        _compare(3),
        needs=("trl",),
    ),
    Row(
        "step-small-uneven",
        "GRPO step, new:small, uneven",
        f"step.py {TRL} {SMALL} --lengths uneven",
        _compare(4.5),
        f"{FEW} --problems 4",
        ("trl",),
    ),
    Row(
        "step-small-even",
        "the same, even",
        f"step.py {TRL} {SMALL} --lengths even",
        _compare(2),
        f"{FEW} --problems 2",
        ("trl",),
    ),
    Row(
        "step-large",
        f"GRPO step, new:large (120 M, vocabulary 32k), {PRECISION}, uneven",
        f"step.py {TRL} {HUNDRED} --problems 4 --lengths uneven",
        _per_token(5),
        "--rounds 1 --problems 2 --group 4 --tokens 24",
        ("trl",),
        10,
    ),
)


def _sample(size: str, lengths: str, goal: float) -> Row:
    """Return a row of the sampler against `model.generate`; at 120 M in `PRECISION`, with a goal for its floor."""
    large = size == "large"
    more = f"--tokens 64 --precision {PRECISION}" if large else "--tokens 96"
    return Row(
        f"sampler-{size}-{lengths}",
        f"sampler, new:{size}, {f'{PRECISION}, ' if large else ''}{lengths}",
        f"sampler.py {GENERATE} --model new:{size} --lengths {lengths} {more}",
        _compare(goal, 0.65 if large else None),
        {"tiny": "--rounds 3", "small": f"{FEW} --problems 8", "large": "--rounds 1 --problems 2 --tokens 16"}[size],
        memory=4 if large else 0,
    )


SAMPLERS = (
    _sample("tiny", "uneven", 5),
    _sample("small", "uneven", 5),
    _sample("large", "uneven", 4),
    _sample("tiny", "even", 3),
    _sample("small", "even", 2.5),
    _sample("large", "even", 1.5),
    Row(
        "sampler-0.5b",
        f"sampler, Qwen2.5-0.5B's shape, {PRECISION}, 64 answers of 256 tokens, beside vLLM",
        f"sampler.py --against vllm --python {{vllm}} {HALF} --rounds 3",
        _compare(1, 0.65),
        needs=("vllm",),
        memory=10,
    ),
    Row(
        "sampler-long",
        f"sampler, 120 M, 16 answers of 4,096 tokens, {PRECISION}",
        f"sampler.py {GENERATE} {LONG} --rounds 3",
        _compare(3),
        memory=8,
    ),
)
UPDATES = (
    Row("update-tiny", "update alone, new:tiny, uneven", f"learner.py {TRL}", _compare(), "--rounds 3", ("trl",)),
    Row(
        "update-small",
        "update alone, new:small, uneven",
        f"learner.py {TRL} {SMALL} --lengths uneven",
        _compare(),
        f"{FEW} --problems 4 --sides qed,trl",
        ("trl",),
    ),
    Row(
        "update-large",
        f"update alone, new:large, {PRECISION}, uneven",
        f"learner.py {TRL} {HUNDRED} --problems 4 --tokens 64 --sides qed,trl",
        _compare(None, 0.65),
        needs=("trl",),
        memory=10,
    ),
    Row(
        "update-0.5b",
        f"update, Qwen2.5-0.5B's shape, {PRECISION}, 16 × 512 tokens",
        # One micro-batch of all rows needs 22 GiB.
        f"learner.py {TRL} {HALF} --problems 2 --tokens 512 --sides qed,trl --micro 2 --apart"
        " --set learner.tokens_per_microbatch=4096",
        _compare(2.5, 0.65),
        needs=("trl",),
        memory=14,
    ),
    Row(
        "update-long",
        f"update, 120 M, 16 × 4,096 tokens, {PRECISION}",
        f"learner.py {TRL} {LONG} --sides qed,trl --micro 1 --apart --rounds 3",
        _compare(3),
        needs=("trl",),
        memory=16,
    ),
    Row(
        "logps",
        "log-probs and backward, vocabulary 151,936, 2,048 tokens: memory beyond weight and gradient",
        f"logps.py {TRL}",
        (
            Figure("qed", "ways/qed/extra_mib", None, MIB),
            Figure("of TRL's selective_log_softmax", "ours_over/trl selective_log_softmax/extra_mib", 1 / 6, PART),
            Figure("of TRL's fused loss", "ours_over/trl fused/extra_mib", 1, PART),
        ),
        needs=("trl",),
        memory=10,
    ),
)


def _compare_sft(padded: float | None, packed: float | None, plain: float | None) -> tuple[Figure, ...]:
    return (
        Figure("TRL padded", "ratio", padded),
        Figure("TRL packed", "ratio_packed", packed),
        Figure("plain loop, packed", "ratio_plain", plain),
        Figure("floor / qed", "floor/share", None, SHARE),
    )


SFT = (
    Row(
        "sft",
        "SFT, new:small, uneven, tokens for each CPU second",
        f"sft.py {TRL}",
        _compare_sft(4, 4, 1.3),
        f"{FEW} --rows 16 --longest 256",
        ("trl",),
    ),
    Row(
        "sft-32k",
        f"the same, vocabulary 32,000, {PRECISION}",
        f"sft.py {TRL} --vocabulary 32000 --precision {PRECISION}",
        _compare_sft(4, 4, 1.3),
        needs=("trl",),
        memory=8,
    ),
)
EVALUATE_ROUNDED = Row(
    "evaluate-hf-bf16",
    "`qed evaluate` beside lm-eval with transformers, in bfloat16",
    f"{LM_EVAL} --batches 128 --precision bfloat16",
    (
        Figure("by the clock", "ratio/lm-eval, batches of 128"),
        Figure("processor time", "ratio_cpu/lm-eval, batches of 128"),
    ),
    needs=("lm-eval", GSM8K),
)
GRADING = (
    Row(
        "grade",
        "`qed grade`, two processes, realistic responses",
        "commands.py --only grade --cores 2",
        (Figure("rows / second", "commands/grade/rows_per_s", 40_000, RATE),),
        "--rounds 2 --rows 10000",
        (RESPONSES,),
    ),
    Row(
        "grading",
        "verdicts beside math-verify, realistic responses",
        "grading.py",
        (Figure("by the clock", "ratio"), Figure("processor time", "ratio_cpu")),
        needs=(RESPONSES,),
    ),
    Row(
        "scoring",
        "`qed evaluate --responses` beside math-verify alone",
        "evaluation.py",
        (Figure("by the clock", "ratio/math-verify"), Figure("processor time", "ratio_cpu/math-verify")),
        "--rounds 2 --count 2000",
        ("../shared/data/gsm8k/example_model_solutions.jsonl",),
    ),
    Row(
        "evaluate-hf",
        "`qed evaluate` beside lm-eval with transformers, new:large, 200 problems",
        f"{LM_EVAL} --batches 128",
        (
            Figure("by the clock", "ratio/lm-eval, batches of 128", 6),
            Figure("processor time", "ratio_cpu/lm-eval, batches of 128", 6),
        ),
        "--rounds 1 --problems 8 --model new:small",
        ("lm-eval", GSM8K),
    ),
    *((EVALUATE_ROUNDED,) if PRECISION == "bfloat16" else ()),
    Row(
        "evaluate-vllm",
        "`qed evaluate` beside lm-eval with vLLM",
        f"{LM_EVAL} --backend vllm --batches auto",
        (
            Figure("by the clock", "ratio/lm-eval, batches of auto", 1),
            Figure("processor time", "ratio_cpu/lm-eval, batches of auto"),
        ),
        needs=("lm-eval-vllm", GSM8K),
    ),
)
COMMANDS = (
    Row("help", "`qed --help`", "commands.py --only help --cores 2", _command("help", 0.15), "--rounds 3"),
    Row(
        "one-step",
        "`qed grpo arithmetic-rl --steps 1`, from start to end",
        "commands.py --only step --cores 2",
        _command("step", 6),
        "--rounds 1",
    ),
    Row(
        "quickstart",
        "`qed quickstart`, whole",
        "commands.py --only quickstart --cores 2 --rounds 1",
        _command("quickstart", 90),
    ),
    Row(
        "tests",
        "the test suite",
        "commands.py --only tests --cores 2 --rounds 1",
        _command("tests", 360),
        needs=("tests/",),
    ),
)
ROWS = (*STEPS, *SAMPLERS, *UPDATES, *SFT, *GRADING, *COMMANDS)
