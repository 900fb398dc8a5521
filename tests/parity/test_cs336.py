"""The adapters of CS336's tests: every recorded case, and their contract on a tokenizer made here."""

from __future__ import annotations

import importlib.util
import json
import math
import random
import re
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from making import make_model
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from qed.data.prompts import alpaca
from qed.models.load import build_tokenizer
from qed.training.scoring import compute_label_logps

HOME = Path(__file__).resolve().parents[2]
PLACE = importlib.util.spec_from_file_location("cs336_adapters", HOME / "examples" / "cs336_adapters.py")
assert PLACE is not None
assert PLACE.loader is not None
adapters: Any = importlib.util.module_from_spec(PLACE)
PLACE.loader.exec_module(adapters)

TIGHT = {"rtol": 1e-5, "atol": 1e-6}


class Case:
    """A recorded case: its inputs, its other arguments, what came out."""

    def __init__(self, shared: Path, name: str) -> None:
        vectors = np.load(shared / "vectors" / "cs336_a5.npz")
        columns = {key.removeprefix(f"{name}::"): vectors[key] for key in vectors.files if key.startswith(f"{name}::")}
        self.inputs = {key[4:]: torch.tensor(value) for key, value in columns.items() if key.startswith("in::")}
        self.arguments = json.loads(str(columns["args"]))
        self.expected = {key[5:]: value for key, value in columns.items() if key.startswith("out::")}
        self.expected |= json.loads(str(columns["scalars"]))

    def check(self, **found: Tensor) -> None:
        assert set(found) == set(self.expected)
        for name, value in found.items():
            np.testing.assert_allclose(value.detach().numpy(), self.expected[name], **TIGHT)


def all_cases() -> set[str]:
    path = HOME.parent / "shared" / "vectors" / "cs336_a5.npz"
    return set(json.loads(str(np.load(path)["__cases__"])))


STATISTICS = [f"masked_{name}_dim{dim}" for name in ("mean", "normalize") for dim in ("0", "1", "last", "None")]
TOKEN_LOSSES = {
    "naive_policy_gradient_loss": "run_compute_naive_policy_gradient_loss",
    "grpo_clip_loss_large": "run_compute_grpo_clip_loss",
    "grpo_clip_loss_small": "run_compute_grpo_clip_loss",
    "policy_gradient_loss_no_baseline": "run_compute_policy_gradient_loss",
    "policy_gradient_loss_reinforce_with_baseline": "run_compute_policy_gradient_loss",
    "policy_gradient_loss_grpo_clip": "run_compute_policy_gradient_loss",
}
STEPS = {
    "grpo_microbatch_step": "run_grpo_microbatch_train_step",
    "grpo_microbatch_10_steps_accumulated": "run_grpo_microbatch_train_step",
    "sft_microbatch_step": "run_sft_microbatch_train_step",
    "sft_microbatch_step_normalize": "run_sft_microbatch_train_step",
}
REWARDS = ["group_rewards_normalize_by_std", "group_rewards_no_normalize_by_std"]


def test_every_recorded_case_is_tested(shared: Path) -> None:
    assert all_cases() == {*STATISTICS, *TOKEN_LOSSES, *STEPS, *REWARDS, "entropy"}


def test_what_the_page_says_that_they_call_exists() -> None:
    page = (HOME / "docs" / "cs336.md").read_text(encoding="utf-8")
    named = re.findall(r"`(\w+/[\w/]+)\.(?!py`)(\w+)`", page.partition("## The experiments")[0])
    assert len(named) >= 8
    source = (HOME / "examples" / "cs336_adapters.py").read_text(encoding="utf-8")
    for module, name in named:
        assert hasattr(importlib.import_module(f"qed.{module.replace('/', '.')}"), name), (module, name)
        assert re.search(rf"\b{name}\b", source), (module, name)


@pytest.mark.parametrize("name", STATISTICS)
def test_recorded_statistics(shared: Path, name: str) -> None:
    case = Case(shared, name)
    run = adapters.run_masked_mean if "mean" in name else adapters.run_masked_normalize
    case.check(out=run(**case.inputs, **case.arguments))


@pytest.mark.parametrize("name", TOKEN_LOSSES)
def test_recorded_token_losses(shared: Path, name: str) -> None:
    case = Case(shared, name)
    found = getattr(adapters, TOKEN_LOSSES[name])(**case.inputs, **case.arguments)
    loss, metadata = found if isinstance(found, tuple) else (found, {})
    case.check(loss=loss)
    assert ("clip_fraction" in metadata) is ("clip" in name)


@pytest.mark.parametrize("name", STEPS)
def test_recorded_steps(shared: Path, name: str) -> None:
    case = Case(shared, name)
    calls = case.arguments.pop("calls", None)
    logps = case.inputs.pop("policy_log_probs").requires_grad_()
    done = [
        getattr(adapters, STEPS[name])(policy_log_probs=logps, **case.inputs, **case.arguments)
        for _ in range(calls or 1)
    ]
    losses = [loss for loss, _ in done]
    assert logps.grad is not None
    case.check(loss=torch.stack(losses) if calls else losses[0], policy_log_probs_grad=logps.grad)


@pytest.mark.parametrize("name", REWARDS)
def test_recorded_rewards(shared: Path, name: str) -> None:
    case = Case(shared, name)
    rewards = case.inputs["raw_rewards"].tolist()

    def reward(response: str, truth: str) -> dict[str, float]:
        assert truth == f"truth {response}"
        return dict.fromkeys(("reward", "format_reward", "answer_reward"), rewards[int(response)])

    responses = [str(number) for number in range(len(rewards))]
    truths = [f"truth {response}" for response in responses]
    normal, raw, metadata = adapters.run_compute_group_normalized_rewards(reward, responses, truths, **case.arguments)
    case.check(normalized_rewards=normal, raw_rewards=raw)
    assert all(isinstance(value, float) for value in metadata.values())
    assert metadata["answer_reward_mean"] == pytest.approx(sum(rewards) / len(rewards))


def test_equal_rewards_have_no_advantage() -> None:
    def reward(response: str, truth: str) -> dict[str, float]:
        return {"reward": 0.1, "format_reward": 1.0, "answer_reward": 0.1}

    for scaled in (True, False):
        normal, _, _ = adapters.run_compute_group_normalized_rewards(reward, ["a"] * 14, ["b"] * 14, 7, 1e-6, scaled)
        assert normal.tolist() == [0.0] * 14


def test_recorded_entropy(shared: Path) -> None:
    case = Case(shared, "entropy")
    case.check(entropy=adapters.run_compute_entropy(**case.inputs))


def test_masked_statistics_by_hand() -> None:
    """1 and 3 are kept of the first row, 7 of the second, nothing of the third; a mask may broadcast."""
    values = torch.tensor([[1.0, 100, 3], [7, 100, 100], [100, 100, 100]])
    mask = torch.tensor([[1, 0, 1], [1, 0, 0], [0, 0, 0]])
    assert adapters.run_masked_mean(values, mask, 1)[:2].tolist() == [2, 7]
    assert adapters.run_masked_mean(values, mask, 1).isnan().tolist() == [False, False, True]
    assert float(adapters.run_masked_mean(values, mask)) == pytest.approx(11 / 3)
    assert adapters.run_masked_normalize(values, mask, 1, 2.0).tolist() == [2, 3.5, 0]
    values = torch.arange(6.0).reshape(2, 3)
    assert float(adapters.run_masked_mean(values, torch.tensor([[1], [0]]))) == 1
    assert adapters.run_masked_mean(values, torch.tensor([1, 0, 1]), 1).tolist() == [1, 4]


@pytest.mark.parametrize("name", ["run_masked_mean", "run_masked_normalize"])
@pytest.mark.parametrize("dim", [None, 1])
@pytest.mark.parametrize("hidden", [math.nan, math.inf, 1e30])
def test_nothing_leaks_from_masked_places(name: str, dim: int | None, hidden: float) -> None:
    mask = torch.tensor([[1, 0, 1], [0, 0, 0]])
    clean = torch.tensor([[0.5, 0, 2], [0, 0, 0]], dtype=torch.float64, requires_grad=True)
    dirty = clean.detach().where(mask.bool(), hidden).requires_grad_()
    one, other = (getattr(adapters, name)(values, mask, dim).nan_to_num() for values in (clean, dirty))
    torch.testing.assert_close(one, other)
    (one**2).sum().backward()
    (other**2).sum().backward()
    torch.testing.assert_close(clean.grad, dirty.grad)


def test_entropy_neither_overflows_nor_breaks_on_what_is_ruled_out() -> None:
    logits = torch.tensor([[[1e4, 1e4, -1e4], [0.0, 0.0, -torch.inf]]], requires_grad=True)
    found = adapters.run_compute_entropy(logits)
    torch.testing.assert_close(found, torch.full((1, 2), math.log(2)))
    found.sum().backward()
    assert logits.grad is not None
    assert logits.grad.isfinite().all()
    assert adapters.run_compute_entropy(logits.detach().bfloat16()).dtype == torch.float32


@pytest.mark.parametrize("rows", [1, 3, 10**6])
def test_recorded_entropy_and_log_probs_by_chunks(shared: Path, rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("qed.training.scoring.CHUNK_ROWS", rows)
    vectors = np.load(shared / "vectors" / "verl_entropy_logprob.npz")
    logits = torch.tensor(vectors["entropy::in::logits"])
    np.testing.assert_allclose(adapters.run_compute_entropy(logits), vectors["entropy::out::entropy"], rtol=1e-9)
    logits, labels = (torch.tensor(vectors[f"logprob::in::{name}"]) for name in ("logits", "labels"))
    np.testing.assert_allclose(compute_label_logps(logits, labels), vectors["logprob::out::logprob"], rtol=1e-9)
    assert compute_label_logps(logits[:0], labels[:0]).shape == (0,)


@pytest.mark.parametrize(
    ("loss_type", "missing"),
    [
        ("no_baseline", "raw_rewards"),
        ("reinforce_with_baseline", "advantages"),
        ("grpo_clip", "advantages"),
        ("grpo_clip", "old_log_probs"),
        ("grpo_clip", "cliprange"),
    ],
)
def test_a_loss_says_what_it_misses(loss_type: str, missing: str) -> None:
    arguments: dict[str, Any] = dict.fromkeys(("raw_rewards", "advantages"), torch.ones(2, 1))
    arguments |= {"old_log_probs": torch.zeros(2, 3), "cliprange": 0.2}
    adapters.run_compute_policy_gradient_loss(torch.zeros(2, 3), loss_type, **arguments)
    with pytest.raises(AssertionError, match=missing):
        adapters.run_compute_policy_gradient_loss(torch.zeros(2, 3), loss_type, **{**arguments, missing: None})
    with pytest.raises(AssertionError, match="no loss 'ppo'"):
        adapters.run_compute_policy_gradient_loss(torch.zeros(2, 3), "ppo", **arguments)


@pytest.mark.parametrize("hidden", [math.nan, math.inf, 1e4])
def test_nothing_behind_a_response_reaches_a_step(hidden: float) -> None:
    """Row one has two tokens, row two one: A = 1 and -1, ratio e^0.1 for all, so the loss is (-e^0.1 + e^0.1) / 2."""
    mask = torch.tensor([[1, 1, 0], [1, 0, 0]])
    logps = torch.full((2, 3), -1.0).where(mask.bool(), hidden).requires_grad_()
    old = torch.full((2, 3), -1.1).where(mask.bool(), math.nan)
    loss, metadata = adapters.run_grpo_microbatch_train_step(
        logps, mask, 1, "grpo_clip", advantages=torch.tensor([[1.0], [-1.0]]), old_log_probs=old, cliprange=0.05
    )
    # The first row's ratio is clipped at 1.05, the second's is not, because clipping would only lower its loss.
    assert float(loss) == pytest.approx((-1.05 + math.exp(0.1)) / 2, rel=1e-5)
    assert float(metadata["clip_fraction"]) == pytest.approx(2 / 3)
    assert logps.grad is not None
    torch.testing.assert_close(logps.grad, torch.tensor([[0.0, 0, 0], [math.exp(0.1) / 2, 0, 0]]))
    logps.grad = None
    loss, _ = adapters.run_sft_microbatch_train_step(logps, mask, 2)
    assert float(loss) == pytest.approx(3 / 2 / 2)
    torch.testing.assert_close(logps.grad, -mask / 4)


def test_no_response_at_all_is_no_loss() -> None:
    logps, mask = torch.zeros(2, 3, requires_grad=True), torch.zeros(2, 3)
    assert float(adapters.run_sft_microbatch_train_step(logps, mask, 1)[0]) == 0
    assert float(adapters.run_grpo_microbatch_train_step(logps, mask, 1, "no_baseline", torch.ones(2, 1))[0]) == 0


TEXTS = ["Hello, world!", "This is a test.", "How many clips did Natalia sell in April and May? 72 clips.", alpaca.TEXT]


def make_tokenizer(begin: bool = False) -> Any:
    """A byte-level tokenizer; with `begin` it begins every text with a token, as Llama's does."""
    tokenizer = build_tokenizer(TEXTS * 3, 330)
    if begin:
        tokenizer = PreTrainedTokenizerFast(
            tokenizer_object=tokenizer._tokenizer, bos_token="<|user|>", eos_token="<|end|>", pad_token="<|pad|>"
        )
        from tokenizers.processors import TemplateProcessing  # noqa: PLC0415  of this variant alone

        tokenizer._tokenizer.post_processor = TemplateProcessing(
            single="<|user|> $A", special_tokens=[("<|user|>", tokenizer.bos_token_id)]
        )
    return tokenizer


@pytest.mark.parametrize("begin", [False, True])
def test_prompt_and_output_are_tokenised_apart(begin: bool) -> None:
    tokenizer = make_tokenizer(begin)
    prompts, outputs = ["Hello, ", "This is a test.", "How many clips?"], ["world!", " Is it?", "72"]
    found = adapters.run_tokenize_prompt_and_output(prompts, outputs, tokenizer)
    pieces = [
        [tokenizer.encode(text, add_special_tokens=False) for text in pair]
        for pair in zip(prompts, outputs, strict=True)
    ]
    longest = max(len(prompt) + len(output) for prompt, output in pieces)
    assert {name: value.shape for name, value in found.items()} == dict.fromkeys(
        ("input_ids", "labels", "response_mask"), (3, longest - 1)
    )
    for row, (prompt, output) in enumerate(pieces):
        padded = (prompt + output + [tokenizer.pad_token_id] * longest)[:longest]
        assert found["input_ids"][row].tolist() == padded[:-1]
        assert found["labels"][row].tolist() == padded[1:]
        trained = found["labels"][row][found["response_mask"][row].bool()].tolist()
        assert trained == output
        assert int(found["response_mask"][row].int().argmax()) == len(prompt) - 1


def test_an_empty_prompt_and_an_empty_output() -> None:
    """A first token has no label, so without a prompt one token fewer is trained."""
    tokenizer = make_tokenizer()
    ids = tokenizer.encode("Hello, world!")
    found = adapters.run_tokenize_prompt_and_output(["", "Hello, world!"], ["Hello, world!", ""], tokenizer)
    assert found["labels"].tolist() == [ids[1:]] * 2
    assert found["response_mask"].tolist() == [[True] * (len(ids) - 1), [False] * (len(ids) - 1)]


def test_response_log_probs_are_those_of_the_logits() -> None:
    model = make_model()
    ids, labels = torch.randint(0, 23, (2, 3, 7))
    log_probs = model(ids).logits.log_softmax(-1)
    found = adapters.run_get_response_log_probs(model, ids, labels, True)
    torch.testing.assert_close(found["log_probs"], log_probs.gather(-1, labels[..., None]).squeeze(-1))
    torch.testing.assert_close(found["token_entropy"], -(log_probs.exp() * log_probs).sum(-1))
    assert set(adapters.run_get_response_log_probs(model, ids, labels, False)) == {"log_probs"}


PAIRS = [("How many?", "72 clips."), ("What is {instruction}?", "a {response}\n"), ("Hello", "world! " * 9)]


def documents(tokenizer: Any) -> list[list[int]]:
    """The contract, word for word: Alpaca's text without a last line break, begun by default, the end token behind."""
    head = (
        "Below is an instruction that describes a task. Write a response that appropriately completes the request."
        "\n\n### Instruction:\n"
    )
    texts = [head + prompt + "\n\n### Response:\n" + response for prompt, response in PAIRS]
    return [[*tokenizer(text)["input_ids"], tokenizer.eos_token_id] for text in texts]


@pytest.mark.parametrize("begin", [False, True])
@pytest.mark.parametrize("length", [1, 7, 32])
def test_packed_windows_follow_the_stream(begin: bool, length: int, tmp_path: Path) -> None:
    tokenizer = make_tokenizer(begin)
    path = tmp_path / "sft.jsonl"
    path.write_text("".join(json.dumps({"prompt": one, "response": other}) + "\n" for one, other in PAIRS))
    stream = [token for document in documents(tokenizer) for token in document]
    assert (stream[0] == tokenizer.bos_token_id) is begin
    dataset = adapters.get_packed_sft_dataset(tokenizer, path, length, shuffle=False)
    assert len(dataset) == (len(stream) - 1) // length
    for number in range(len(dataset)):
        at = number * length
        assert dataset[number]["input_ids"].tolist() == stream[at : at + length]
        assert dataset[number]["labels"].tolist() == stream[at + 1 : at + length + 1]
    assert len(list(dataset)) == len(dataset)


def test_shuffled_documents_stay_whole(tmp_path: Path) -> None:
    tokenizer = make_tokenizer()
    path = tmp_path / "sft.jsonl"
    path.write_text("".join(json.dumps({"prompt": one, "response": other}) + "\n" for one, other in PAIRS))
    wanted = documents(tokenizer)
    orders = set()
    for seed in range(12):
        random.seed(seed)
        found = adapters.get_packed_sft_dataset(tokenizer, path, 1, shuffle=True)
        stream = [int(item["input_ids"]) for item in found] + [int(found[len(found) - 1]["labels"])]
        ends = [place + 1 for place, token in enumerate(stream) if token == tokenizer.eos_token_id]
        pieces = [stream[start:end] for start, end in zip([0, *ends], ends, strict=False)]
        assert sorted(pieces) == sorted(wanted)
        orders.add(tuple(map(tuple, pieces)))
    assert len(orders) > 1


def test_batches_have_a_length(tmp_path: Path) -> None:
    tokenizer = make_tokenizer()
    path = tmp_path / "sft.jsonl"
    path.write_text(json.dumps({"prompt": "Hello", "response": "world! " * 30}))
    dataset = adapters.get_packed_sft_dataset(tokenizer, path, 5, shuffle=False)
    everything = Counter(tuple(item["input_ids"].tolist()) for item in dataset)
    for shuffle in (False, True):
        batches = adapters.run_iterate_batches(dataset, 4, shuffle)
        assert len(batches) == math.ceil(len(dataset) / 4)
        rows = [tuple(row) for batch in batches for row in batch["input_ids"].tolist()]
        assert Counter(rows) == everything
    first = next(iter(adapters.run_iterate_batches(dataset, 4, False)))
    assert first["input_ids"].tolist() == [dataset[number]["input_ids"].tolist() for number in range(4)]


@pytest.mark.parametrize(
    ("output", "letter"),
    [
        ("The correct answer is B. There is only one human polyomavirus known, which is the BK virus.", "B"),
        ("the correct answer is b", "B"),
        ("The correct answer is (D).", "D"),
        ("C", "C"),
        ("Answer: A", "A"),
        ("<answer> D </answer>", "D"),
        ("The correct answer is 10000 polyomaviruses.", None),
        ("The correct answer is E.", None),  # there are four
        ("I do not know.", None),
        ("", None),
    ],
)
def test_mmlu_letters(output: str, letter: str | None) -> None:
    example = {"subject": "virology", "question": "How many?", "options": ["100", "1", "10", "unknown"], "answer": "A"}
    assert adapters.run_parse_mmlu_response(example, output) == letter


@pytest.mark.parametrize(
    ("output", "number"),
    [
        ("Natalia sold 48/2 = 24 clips in May. Altogether she sold 48+24 = 72 clips in April and May.", "72"),
        ("She sold seventy-two clips.", None),
        ("", None),
        ("It is $1,234.50.", "1234.50"),
        ("#### 1,000", "1000"),
        ("It falls by 7 to -5 degrees", "-5"),
        ("That is 20%.", "20"),
        ("between 5-3", "3"),
        ("3/4", "4"),
        ("\\boxed{18} is it, but it", "18"),
        ("It costs $.75 each", ".75"),
        ("about -.25", "-.25"),
        ("Wait...5", None),
    ],
)
def test_gsm8k_numbers(output: str, number: str | None) -> None:
    assert adapters.run_parse_gsm8k_response(output) == number


def test_dpo_of_one_pair() -> None:
    """-log sigmoid(beta (policy's difference - reference's)), each the difference of two whole texts' log-probs."""
    tokenizer = make_tokenizer(begin=True)
    policy, reference = (make_model(seed, vocab_size=len(tokenizer), max_position_embeddings=256) for seed in (0, 1))
    prompt, chosen, rejected = "How many?", "72 clips.", "none of them"

    def difference(model: Any) -> float:
        scores = []
        for response in (chosen, rejected):
            text = alpaca.TEXT.replace("{instruction}", prompt) + response
            ids = torch.tensor([[*tokenizer(text)["input_ids"], tokenizer.eos_token_id]])
            log_probs = model(ids).logits[:, :-1].log_softmax(-1)
            scores.append(float(log_probs.gather(-1, ids[:, 1:, None]).sum().detach()))
        return scores[0] - scores[1]

    margin = 0.5 * (difference(policy) - difference(reference))
    loss = adapters.run_compute_per_instance_dpo_loss(policy, reference, tokenizer, 0.5, prompt, chosen, rejected)
    assert loss.shape == ()
    assert float(loss.detach()) == pytest.approx(math.log1p(math.exp(-margin)))
    loss.backward()
    assert any(parameter.grad is not None for parameter in policy.parameters())
    assert all(parameter.grad is None for parameter in reference.parameters())
    same = adapters.run_compute_per_instance_dpo_loss(policy, policy, tokenizer, 0.5, prompt, chosen, rejected)
    assert float(same.detach()) == pytest.approx(math.log(2))
