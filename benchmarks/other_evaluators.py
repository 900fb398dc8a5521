"""Compare qed's evaluation with lm-eval 0.4.13 and with Qwen2.5-Math's evaluator: the same model, the same answers.

    python benchmarks/other_evaluators.py --model FOLDER --lm-eval PYTHON [--qwen PYTHON --qwen-folder EVALUATION]
        [--data ../shared/data] [--limit 300] [--only stored]

Needs a Hugging Face folder of a small model (preferably trained on `Question: …\\nAnswer: …` of GSM8K, so that some
answers are right), a Python with lm-eval 0.4.13 and torch, and for Qwen's evaluator a copy of the folder `evaluation`
of github.com/QwenLM/Qwen2.5-Math and a Python with the packages that it imports (sympy, antlr4-python3-runtime 4.11,
latex2sympy, regex, word2number). It makes three comparisons, and lists the differences case by case:

1. Log-likelihoods of choices, in the formats of MMLU (0 and 5 worked examples), ARC and GPQA.
2. Greedy answers to GSM8K without worked examples: the texts, and the verdicts `strict-match` and `flexible-extract`.
3. Stored answers of four published models to GSM8K's test questions, judged by all evaluators; pairs of numbers under
the policy
   qwen.

Prints a summary; the last line is JSON.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from other_parts import tasks
from results import add_json, print_result

from qed.cli.commands import evaluate
from qed.data.tasks import load_task
from qed.evaluation.choice_formats import find_format
from qed.grading.equal import equal
from qed.grading.extract import extract_final_answer
from qed.grading.policy import QWEN, find_policy
from qed.types import Problem

HERE = Path(__file__).parent / "other_parts"
SHOTS = 5
CLOSE = 1e-3  # nats; float32 with different batches and kernels
MAX_TOKENS = 256
SHOWN = 12
MODELS = ("6b_finetuning", "6b_verification", "175b_finetuning", "175b_verification")


def main() -> None:
    """Compare, print the summary, then one line of JSON."""
    asked = _parse()
    asked.out.mkdir(parents=True, exist_ok=True)
    figures: dict[str, Any] = {}
    comparisons = {"likelihood": compare_choices, "greedy": compare_greedy, "stored": compare_stored}
    if unknown := set(asked.only.split(",")) - set(comparisons):
        raise SystemExit(f"unknown comparisons: {', '.join(sorted(unknown))}; there are {', '.join(comparisons)}")
    for name in asked.only.split(","):
        figures[name] = comparisons[name](asked)
    print_result(figures, asked.json)


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_json(parser)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--lm-eval", required=True, help="a Python with lm-eval 0.4.13")
    parser.add_argument("--qwen", default="", help="a Python with the packages that Qwen's evaluator imports")
    parser.add_argument("--qwen-folder", default="", help="the folder evaluation of Qwen2.5-Math")
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument("--limit", type=int, default=300)
    parser.add_argument(
        "--trained", type=int, default=0, help="also use this many questions that the model was trained on"
    )
    parser.add_argument("--only", default="likelihood,greedy,stored", help="some of the three comparisons")
    parser.add_argument("--out", type=Path, default=Path("other_evaluators"))
    return parser.parse_args()


def say(text: str) -> None:
    """Print a line of the summary."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def run_other(python: str, side: str, *arguments: object, path: str = "") -> None:
    """Run a side in another evaluator's environment."""
    environment = {**os.environ, "PYTHONPATH": path, "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    command = [python, str(HERE / side), *map(str, arguments)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} ended with {done.returncode}:\n{done.stderr[-3000:]}")


def run_qed(out: Path, *options: object) -> dict[str, list[dict[str, Any]]]:
    """Evaluate with qed, and return the rows of each task by its label."""
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        evaluate.run([*map(str, options), "--threads", "2", "--overwrite", "--out", str(out)])
    files = sorted((out / "eval" / "step_000000").glob("*.jsonl"))
    return {file.stem: [json.loads(line) for line in file.read_text().splitlines()] for file in files}


# 1. Choices


def compare_choices(asked: argparse.Namespace) -> dict[str, Any]:
    """Compare log-probs, greedy flags and accuracies of choices."""
    mmlu = _spread(_load(f"mmlu:test@{asked.data / 'mmlu'}"), asked.limit)
    dev = _load(f"mmlu:dev@{asked.data / 'mmlu'}")
    arc = _load(f"arc_c:test@{asked.data / 'luffy' / 'valid.arc_c.parquet'}")[: asked.limit]
    four = [problem for problem in mmlu if len(problem.meta["choices"]) == 4]
    own: dict[str, Callable[[Path], list[str]]] = {
        "mmlu": lambda folder: tasks.write_mmlu(folder, mmlu, dev),
        "arc_c": lambda folder: tasks.write_arc(folder, arc),
        "gpqa": lambda folder: tasks.write_gpqa(folder, four),
    }
    figures = {}
    for label, shots in (("mmlu", 0), ("mmlu", SHOTS), ("arc_c", 0), ("gpqa", 0)):
        folder = asked.out / f"{label}-{shots}"
        folder.mkdir(exist_ok=True)
        names = own[label](folder)
        run_other(
            asked.lm_eval, "lm_eval_side.py", "tasks", asked.model, folder, ",".join(names), shots, folder / "out.json"
        )
        theirs = {
            document["id"]: document
            for task in json.loads((folder / "out.json").read_text()).values()
            for document in task["documents"]
        }
        problems = {"mmlu": mmlu, "arc_c": arc, "gpqa": four}[label]
        ours = _score(asked, label, problems, dev, shots)
        figures[f"{label}, {shots} shots"] = _compare_scores(f"{label}, {shots} shots", ours, theirs)
    return figures


def _load(name: str) -> list[Problem]:
    split = name.partition(":")[2].partition("@")[0]
    return load_task(name, split, (), Counter(), {})


def _spread(problems: Sequence[Problem], limit: int) -> list[Problem]:
    """Return about `limit` problems: the first ones of each subject."""
    by_subject: dict[str, list[Problem]] = {}
    for problem in problems:
        by_subject.setdefault(problem.meta["subject"], []).append(problem)
    each = max(1, limit // len(by_subject))
    return [problem for own in by_subject.values() for problem in own[:each]]


def _score(
    asked: argparse.Namespace, label: str, problems: Sequence[Problem], dev: Sequence[Problem], shots: int
) -> dict[str, dict[str, Any]]:
    """Score choices with qed: the scorer of `qed evaluate --scoring likelihood`, on exactly these problems."""
    import torch  # noqa: PLC0415

    from qed.config.settings import ModelSettings  # noqa: PLC0415
    from qed.evaluation.choice_formats import build_items  # noqa: PLC0415
    from qed.evaluation.likelihood import ChoiceScorer  # noqa: PLC0415
    from qed.models.load import load_model, read_window  # noqa: PLC0415

    torch.set_num_threads(2)
    model, tokenizer = load_model(ModelSettings(name=str(asked.model)))
    items = build_items(label, problems, dev, shots)
    say(f"{label}: format {find_format(label).name}, {len(items)} questions")
    answers = ChoiceScorer(model, tokenizer, read_window(model), torch.float32, 16).answer(items, 0)
    return {
        item.problem.id: {"context": item.context, "correct": answer.grade.correct, **answer.describe()}
        for item, answer in zip(items, answers, strict=True)
    }


def _compare_scores(name: str, ours: dict[str, Any], theirs: dict[str, Any]) -> dict[str, Any]:
    """Print and return how scores of the same questions differ."""
    contexts = logps = greedy = 0
    largest, verdicts = 0.0, []
    for problem, mine in ours.items():
        other = theirs[problem]
        pairs = [response[0] for response in other["responses"]]
        gaps = [abs(mine["choice_logps"][at] - float(pair[0])) for at, pair in enumerate(pairs)]
        contexts += mine["context"] != other["context"]
        logps += max(gaps) > CLOSE
        largest = max(largest, *gaps)
        greedy += mine["choice_greedy"] != [str(pair[1]) == "True" for pair in pairs]
        for key, column in (("acc", "correct"), ("acc_norm", "correct_norm")):
            if key in other and bool(other[key]) != mine[column]:
                verdicts.append((problem, key, mine["choice_logps"], [pair[0] for pair in pairs]))
    figures: dict[str, Any] = {
        "n": len(ours),
        "contexts differ": contexts,
        "log-probs differ": logps,
        "greedy differs": greedy,
    }
    figures |= {"largest difference, nats": largest, "verdicts differ": len(verdicts)}
    for key, column in (("acc", "correct"), ("acc_norm", "correct_norm")):
        if all(key in other for other in theirs.values()):
            shares = sum(mine[column] for mine in ours.values()), sum(other[key] for other in theirs.values())
            figures[key] = [share / len(ours) for share in shares]
    say(f"{name}: " + ", ".join(f"{key} {value}" for key, value in figures.items()))
    for verdict in verdicts[:SHOWN]:
        say(f"  {verdict}")
    return figures


# 2. Greedy answers


def compare_greedy(asked: argparse.Namespace) -> dict[str, Any]:
    """Compare greedy answers to GSM8K, and their verdicts."""
    rows = []
    for split, count in (("test", asked.limit), ("train", asked.trained)):
        lines = (asked.data / "gsm8k" / f"{split}.jsonl").read_text().splitlines()[:count]
        rows += [{"id": f"{split}-{number}", **json.loads(line)} for number, line in enumerate(lines)]
    folder = asked.out / "gsm8k"
    folder.mkdir(exist_ok=True)
    names = tasks.write_gsm8k(folder, rows, MAX_TOKENS)
    run_other(asked.lm_eval, "lm_eval_side.py", "tasks", asked.model, folder, names[0], 0, folder / "out.json")
    documents = json.loads((folder / "out.json").read_text())["gsm8k"]["documents"]
    theirs: dict[str, dict[str, Any]] = {}
    for document in documents:
        own = theirs.setdefault(document["id"], {"text": document["responses"][0][0]})
        own[document["filter"]] = (bool(document["exact_match"]), document["filtered"][0])
    asked_rows = [{**row, "question": f"Question: {row['question']}\nAnswer:"} for row in rows]
    file = tasks.write_rows(folder / "asked.jsonl", asked_rows)
    options = ("--model", asked.model, "--tasks", file, "--prompt", "question_only", "--reward", "accuracy")
    answered = run_qed(folder / "qed", *options, "--greedy", "--max-tokens", MAX_TOKENS)["asked"]
    ours = {row["id"]: answer for row, answer in zip(rows, answered, strict=True)}
    return _compare_texts(rows, ours, theirs)


def _compare_texts(rows: Sequence[dict[str, Any]], ours: dict[str, Any], theirs: dict[str, Any]) -> dict[str, Any]:
    figures: dict[str, Any] = {"n": len(rows), "texts differ": 0}
    differing = []
    for row in rows:
        mine, other = ours[row["id"]], theirs[row["id"]]
        cut = mine["text"].partition("Question:")[0]
        figures["texts differ"] += cut.rstrip() != other["text"].rstrip()
        for column, name in (("strict", "strict-match"), ("flexible", "flexible-extract")):
            if mine[column] != other[name][0]:
                found = extract_final_answer(mine["text"], column)
                answer = found.answer if found else None
                differing.append(
                    f"{row['id']} {name}: lm-eval {other[name]}, qed {mine[column]} {answer!r}, gold {mine['gold']}"
                )
                differing.append(f"    … {mine['text'][-90:]!r}")
    for column, name in (("strict", "strict-match"), ("flexible", "flexible-extract")):
        right = sum(ours[row["id"]][column] for row in rows), sum(theirs[row["id"]][name][0] for row in rows)
        figures[name] = [count / len(rows) for count in right]
    say("gsm8k, greedy: " + ", ".join(f"{key} {value}" for key, value in figures.items()))
    for line in differing[: 2 * SHOWN]:
        say(f"  {line}")
    return {**figures, "verdicts differ": len(differing) // 2}


# 3. Stored answers


def compare_stored(asked: argparse.Namespace) -> dict[str, Any]:
    """Compare verdicts on the published answers of four models to GSM8K, and on pairs of numbers."""
    lines = (asked.data / "gsm8k" / "example_model_solutions.jsonl").read_text().splitlines()
    answers = []
    for number, line in enumerate(lines):
        row = json.loads(line)
        for model in MODELS:
            gold = str(row["ground_truth"]).rpartition("\nA:")[2].strip().replace(",", "")
            about = {"id": f"{model}-{number}", "model": model, "gold": gold, "solution": f"#### {gold}"}
            answers.append({**about, "text": row[model]["solution"], "said": bool(row[model]["is_correct"])})
    file = Path(tasks.write_rows(asked.out / "stored.jsonl", answers))
    run_other(asked.lm_eval, "lm_eval_side.py", "filter", file, asked.out / "stored-lm-eval.json")
    judged = {
        "lm-eval, flexible-extract": [
            each["flexible"] for each in json.loads((asked.out / "stored-lm-eval.json").read_text())
        ]
    }
    if asked.qwen:
        run_other(asked.qwen, "qwen_side.py", "answers", file, asked.out / "stored-qwen.json", path=asked.qwen_folder)
        judged["Qwen2.5-Math"] = [each["correct"] for each in json.loads((asked.out / "stored-qwen.json").read_text())]
    judged["published"] = [each["said"] for each in answers]
    found = [extract_final_answer(each["text"]) for each in answers]
    for policy in ("math", "qwen"):
        judged[f"qed, {policy}"] = [
            each is not None and equal(answer["gold"], each.answer, find_policy(policy)).correct
            for each, answer in zip(found, answers, strict=True)
        ]
    figures = {name: _share_by_model(answers, verdicts) for name, verdicts in judged.items()}
    for name, shares in figures.items():
        say(f"stored answers, {name}: " + ", ".join(f"{model} {share:.4f}" for model, share in shares.items()))
    for name, verdicts in judged.items():
        _show_differences(answers, found, judged["qed, qwen" if "Qwen" in name else "qed, math"], verdicts, name)
    return {**figures, **(_compare_pairs(asked) if asked.qwen else {})}


def _share_by_model(answers: Sequence[dict[str, Any]], verdicts: Sequence[bool]) -> dict[str, float]:
    return {
        model: sum(right for row, right in zip(answers, verdicts, strict=True) if row["model"] == model)
        / sum(row["model"] == model for row in answers)
        for model in MODELS
    }


def _show_differences(
    answers: Sequence[dict[str, Any]], found: Sequence[Any], ours: Sequence[bool], theirs: Sequence[bool], name: str
) -> None:
    different = [at for at, (mine, other) in enumerate(zip(ours, theirs, strict=True)) if mine != other]
    say(f"qed and {name} differ on {len(different)} of {len(answers)} stored answers")
    for at in different[:SHOWN]:
        answer = found[at].answer if found[at] else None
        row = answers[at]
        say(f"  {row['id']}: qed {ours[at]} {answer!r}, gold {row['gold']}, … {row['text'][-60:]!r}")


def _compare_pairs(asked: argparse.Namespace) -> dict[str, Any]:
    """Compare the policy qwen with `math_equal` on pairs of numbers that are equal, close, or off by powers of ten."""
    draw = random.Random(0)
    pairs = []
    for number in range(600):
        gold = draw.choice(
            [
                str(draw.randint(-500, 500)),
                f"{draw.uniform(-90, 90):.3f}",
                rf"\frac{{{draw.randint(1, 30)}}}{{{draw.randint(2, 30)}}}",
            ]
        )
        value = draw.choice([1, 100, 0.01, 10, 1.00005, 0.99995, 1.0002, 0.9998, 1.001, -1])
        base = eval_fraction(gold)
        pairs.append({"id": number, "gold": gold, "answer": f"{base * value:.8f}".rstrip("0").rstrip(".")})
    file = tasks.write_rows(asked.out / "pairs.jsonl", pairs)
    run_other(asked.qwen, "qwen_side.py", "pairs", file, asked.out / "pairs-qwen.json", path=asked.qwen_folder)
    theirs = [each["correct"] for each in json.loads((asked.out / "pairs-qwen.json").read_text())]
    ours = [equal(pair["gold"], pair["answer"], QWEN).correct for pair in pairs]
    different = [(pair, other) for pair, mine, other in zip(pairs, ours, theirs, strict=True) if mine != other]
    say(f"pairs: math_equal accepts {sum(theirs)} of {len(pairs)} numbers; the policy qwen differs on {len(different)}")
    for pair, other in different[:SHOWN]:
        say(f"  {pair} math_equal {other}")
    return {"pairs": len(pairs), "pairs accepted": sum(theirs), "pairs differ": len(different)}


def eval_fraction(text: str) -> float:
    """Return the value of a decimal or of a LaTeX fraction."""
    above, _, below = text.removeprefix(r"\frac{").removesuffix("}").partition("}{")
    return float(above) / float(below or 1)


if __name__ == "__main__":
    main()
