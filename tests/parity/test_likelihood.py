"""Log-likelihoods of choices: formats and tokens of lm-eval 0.4.13, scores of a plain forward pass, files, errors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from qed.cli.commands import evaluate, merge
from qed.errors import DataError, ModelError, UsageError
from qed.evaluation.choice_formats import ARC, GPQA, MMLU, build_items, find_format, require_choices
from qed.evaluation.likelihood import ChoiceScore, ChoiceScorer, Continuation, build_rollout, encode_pair
from qed.models.load import build_model
from qed.types import Problem

OPTIONS = ("four", "five", "six", "seven or more")


def build_problem(number: int, answer: str = "B", subject: str = "number_theory", **meta: Any) -> Problem:
    question = f"What is {number}+3?"
    listed = "\n".join(f"{letter}) {option}" for letter, option in zip("ABCD", OPTIONS, strict=True))
    about = {"choices": OPTIONS, "options": "ABCD", "subject": subject, **meta}
    return Problem(f"p{number}", f"{question}\n\n{listed}", answer, meta=about)


@pytest.fixture(scope="module")
def model() -> tuple[Any, Any]:
    texts = [f"Question: What is {number}+3?\nAnswer: four five six seven or more" for number in range(30)]
    network, tokenizer = build_model("new:tiny", texts, 0)
    return network, tokenizer


# The texts are those that lm-eval 0.4.13 sends for the same rows (tasks mmlu, arc_easy, gpqa_main_zeroshot).
def test_the_formats_are_those_of_lm_eval() -> None:
    (item,) = build_items("mmlu", [build_problem(2)], [], 0)
    assert item.context == (
        "The following are multiple choice questions (with answers) about number theory.\n\n"
        "What is 2+3?\nA. four\nB. five\nC. six\nD. seven or more\nAnswer:"
    )
    assert (item.choices, item.gold) == (("A", "B", "C", "D"), 1)
    (item,) = build_items("arc_c", [build_problem(2)], [], 0)
    assert (item.context, item.choices) == ("Question: What is 2+3?\nAnswer:", OPTIONS)
    (item,) = build_items("gpqa:diamond", [build_problem(2, stem="What is 2+3?\n ")], [], 0)
    assert item.context == (
        "What is the correct answer to this question:What is 2+3?\n \nChoices:\n"
        "(A) four\n(B) five\n(C) six\n(D) seven or more\nAnswer:"
    )
    assert item.choices == ("(A)", "(B)", "(C)", "(D)")
    assert [find_format(task) for task in ("arc_e", "gpqa", "mmlu:test@x", "own.jsonl")] == [ARC, GPQA, MMLU, MMLU]


def test_worked_examples_are_of_the_same_subject() -> None:
    examples = [build_problem(1, "A", "law"), build_problem(5), build_problem(6, "C"), build_problem(7)]
    (item,) = build_items("mmlu", [build_problem(2)], examples, 2)
    shown = "A. four\nB. five\nC. six\nD. seven or more\nAnswer:"
    assert item.context == (
        "The following are multiple choice questions (with answers) about number theory.\n\n"
        f"What is 5+3?\n{shown} B\n\nWhat is 6+3?\n{shown} C\n\nWhat is 2+3?\n{shown}"
    )
    with pytest.raises(DataError, match="1 worked examples of law"):
        build_items("mmlu", [build_problem(2, subject="law")], examples, 2)
    with pytest.raises(UsageError, match="takes none"):
        build_items("arc_c", [build_problem(2)], examples, 2)


def test_an_option_may_end_in_white_space() -> None:
    options = ("one ", "two ")
    problem = Problem("p", "Which?\n\nA) one \nB) two", "B", meta={"choices": options, "options": "AB"})
    (item,) = build_items("mmlu", [problem], [], 0)
    assert item.context.endswith("(with answers).\n\nWhich?\nA. one \nB. two \nAnswer:")


def test_labels_may_be_digits() -> None:
    listed = "\n".join(f"{number}) {option}" for number, option in enumerate(OPTIONS, 1))
    problem = Problem("p", f"Which?\n\n{listed}", "3", meta={"choices": OPTIONS, "options": "1234"})
    require_choices("arc_c", [problem])
    (item,) = build_items("arc_c", [problem], [], 0)
    assert (item.context, item.gold) == ("Question: Which?\nAnswer:", 2)


def test_a_task_without_options_is_refused() -> None:
    with pytest.raises(UsageError, match="problem p of gsm8k has no options"):
        require_choices("gsm8k", [Problem("p", "What is 2+3?", "5")])


def test_tokens_are_split_where_the_context_ends(model: tuple[Any, Any]) -> None:
    _, tokenizer = model
    pair = encode_pair(tokenizer, "Answer:", " five", 100)
    whole = tokenizer.encode("Answer: five")
    assert (*pair.context, *pair.choice) == tuple(whole)
    assert pair.context == tuple(tokenizer.encode("Answer:"))
    assert encode_pair(tokenizer, "Answer: ", "five", 100) == pair, "spaces that end the context go to the choice"
    long = encode_pair(tokenizer, "Question: what? Answer:", " five", len(pair.choice) + 2)
    assert (len(long.context), long.cut) == (3, len(tokenizer.encode("Question: what? Answer:")) - 3)
    with pytest.raises(DataError, match="has 0 tokens of its own"):
        encode_pair(tokenizer, "Answer:", "", 100)


def test_scores_are_those_of_a_plain_forward_pass(model: tuple[Any, Any]) -> None:
    network, tokenizer = model
    items = [
        item
        for task in ("mmlu", "arc_c")
        for item in build_items(task, [build_problem(number, "ABCD"[number % 4]) for number in range(7)], [], 0)
    ]
    answers = ChoiceScorer(network, tokenizer, 512, torch.float32, 4).answer(items, 0)
    for item, rollout in zip(items, answers, strict=True):
        totals, greedy = [], []
        for choice in item.choices:
            pair = encode_pair(tokenizer, item.context, f" {choice}", 512)
            with torch.no_grad():
                logits = network(torch.tensor([[*pair.context, *pair.choice]])).logits[0].log_softmax(-1)
            own = range(len(pair.context) - 1, len(pair.context) + len(pair.choice) - 1)
            totals.append(sum(float(logits[at, token]) for at, token in zip(own, pair.choice, strict=True)))
            greedy.append(all(int(logits[at].argmax()) == token for at, token in zip(own, pair.choice, strict=True)))
        columns = rollout.describe()
        assert columns["choice_logps"] == pytest.approx(totals, abs=2e-5)
        assert columns["choice_greedy"] == greedy
        assert rollout.grade is not None
        assert rollout.grade.correct == (totals.index(max(totals)) == item.gold)
        norm = [total / len(choice) for total, choice in zip(totals, item.choices, strict=True)]
        assert columns["correct_norm"] == (norm.index(max(norm)) == item.gold)


@pytest.fixture
def choices(tmp_path: Path) -> str:
    rows = [{"question": f"What is {n}+3?", "choices": OPTIONS, "answer": n % 4} for n in range(12)]
    file = tmp_path / "choices.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(file)


def evaluate_choices(capsys: pytest.CaptureFixture[str], *options: str) -> Any:
    common = ["--model", "new:tiny", "--scoring", "likelihood", "--threads", "1", "--rows-per-batch", "1", "--json"]
    assert evaluate.run([*common, *options]) == 0
    return json.loads(capsys.readouterr().out.splitlines()[-1])


def test_an_evaluation_by_likelihood(choices: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "one"
    whole = evaluate_choices(capsys, "--tasks", choices, "--out", str(out))
    figures = whole["tasks"]["choices"]
    rows = [json.loads(line) for line in (out / "eval/step_000000/choices.jsonl").read_text().splitlines()]
    assert (figures["n"], figures["k"], figures["judged_by"]) == (12, 1, "likelihood")
    assert figures["settings"]["scoring"] == "likelihood"
    assert figures["accuracy"] == sum(row["correct"] for row in rows) / 12
    assert figures["acc_norm"]["accuracy"] == sum(row["correct_norm"] for row in rows) / 12
    assert {row["decoding"] for row in rows} == {"likelihood"}
    assert all(len(row["choice_logps"]) == len(row["choice_greedy"]) == 4 for row in rows)
    again = evaluate_choices(capsys, "--tasks", choices, "--out", str(out))
    assert again["tasks"] == whole["tasks"]
    many = tmp_path / "many"
    for shard in ("1/2", "2/2"):
        evaluate_choices(capsys, "--tasks", choices, "--out", str(many), "--shard", shard)
    assert merge.run([str(many), "--json"]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["tasks"]["choices"]["acc_norm"] == figures["acc_norm"]
    written = [folder / "eval/step_000000/choices.jsonl" for folder in (out, many)]
    assert written[0].read_bytes() == written[1].read_bytes()


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["--greedy"], "Leave out --greedy"),
        (["--samples", "4"], "Leave out --samples"),
        (["--prompt", "boxed", "--policy", "qwen"], "Leave out --prompt, --policy"),
        (["--shots", "-1"], "must not be negative"),
        (["--shots", "1"], "needs a split dev"),
        (["--sampler", "server", "--url", "http://127.0.0.1:9"], "only sample"),
    ],
)
def test_what_does_not_fit_is_refused(choices: str, options: list[str], reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        evaluate.run(["--model", "new:tiny", "--tasks", choices, "--scoring", "likelihood", *options])


def test_an_endpoint_is_refused(choices: str) -> None:
    options = ["--model", "openai:x", "--url", "http://127.0.0.1:9/v1", "--tasks", choices, "--scoring", "likelihood"]
    with pytest.raises(UsageError, match="only sample"):
        evaluate.run(options)


def test_a_score_that_is_no_number_chooses_nothing() -> None:
    (item,) = build_items("mmlu", [build_problem(1)], [], 0)
    texts = [Continuation((1,), (2,))] * 4
    scores = [ChoiceScore((value,), False) for value in (-1.0, float("-inf"), -2.0, -3.0)]
    assert build_rollout(item, texts, scores, 0).grade.extracted == "A"  # type: ignore[union-attr]
    with pytest.raises(ModelError, match="of a choice of problem p1 is NaN"):
        build_rollout(item, texts, [*scores[:3], ChoiceScore((float("nan"),), False)], 0)
