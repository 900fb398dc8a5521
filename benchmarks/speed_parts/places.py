"""The folder that both sides load: a model with its tokenizer, and problems; made once and reused.

Answers end in one of three ways. `natural`: the model was trained by SFT, so its answers end like real ones.
`uneven`: the end is equally likely at every token, so lengths are geometric, truncated at the budget; their mean is
0.4 of it, and a tenth of the answers reach it. `even`: no answer ends before the budget.
"""

from __future__ import annotations

import json
import math
import random
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from string import ascii_lowercase
from typing import Any

import torch
from torch import Tensor, nn
from transformers import Qwen2Config, Qwen2ForCausalLM

from qed.config.phases import Settings
from qed.config.resolve import resolve_settings
from qed.data.prompts import think_answer
from qed.data.splits import list_training_texts
from qed.data.tasks import arithmetic
from qed.loops.train import train
from qed.models.load import SIZES, Size, build_model, check_name
from qed.runs.run import Launch
from qed.types import Problem

PROBLEMS = 2048
NATURAL, UNEVEN, EVEN = LENGTHS = ("natural", "uneven", "even")
DATA = "problems.jsonl"
# Shapes that only the benchmarks have, and the width of their feed-forward layers.
SHAPES = {
    "new:qwen2.5-0.5b": (Size(24, 896, 14, 2, 151_936, 4096), 4864),
    "new:long": (replace(SIZES["large"], window=8192), 4 * SIZES["large"].width),  # answers of thousands of tokens
}
SCORES = 2**27  # logits in memory at once while setting ends: 1 GiB
# The end's probability at each token, times the budget; truncated geometric lengths then have a mean of 0.4 budgets.
HAZARD = 2.2
NEVER = 1e-9


@dataclass(frozen=True)
class Kind:
    """The model and how its answers end: `taught` SFT steps and `improved` GRPO steps give natural ends."""

    model: str = "new:tiny"
    lengths: str = NATURAL
    budget: int = 48
    taught: int = 500
    improved: int = 0

    @property
    def name(self) -> str:
        """Return the name of its folder."""
        size = self.model.removeprefix("new:")
        made = f"{self.taught}-{self.improved}" if self.lengths == NATURAL else str(self.budget)
        return f"{size}-{self.lengths}-{made}"


def prepared(place: Path, kind: Kind) -> Path:
    """Return a folder under `place` with `hf/` and `problems.jsonl`, made if missing."""
    folder = place / kind.name
    if (folder / DATA).is_file():
        return folder
    shutil.rmtree(folder, ignore_errors=True)
    problems = arithmetic.load("train")[:PROBLEMS]
    if kind.improved:
        shutil.copytree(prepared(place, replace(kind, improved=0)) / "hf", folder / "hf")
        _trained(folder, "grpo", kind.improved)
    else:
        _fresh(folder / "hf", kind, problems)
        if kind.lengths == NATURAL and kind.taught:
            _trained(folder, "sft", kind.taught)
    # Written last, so that a folder with this file is complete.
    lines = [json.dumps({"question": problem.question, "answer": problem.answer}) for problem in problems]
    (folder / DATA).write_text("\n".join(lines) + "\n", encoding="utf-8")
    return folder


def _fresh(hf: Path, kind: Kind, problems: Sequence[Problem]) -> None:
    """Make a randomly initialised model, whose answers end as requested unless it will be trained."""
    size, inner = find_size(kind.model)
    texts = [words(size.vocabulary, 0), *list_training_texts(problems, think_answer)]
    SIZES[kind.model.removeprefix("new:")] = size
    network, tokenizer = build_model(kind.model, texts, 0)
    if inner != network.config.intermediate_size:
        torch.manual_seed(0)
        network = Qwen2ForCausalLM(Qwen2Config(**{**network.config.to_dict(), "intermediate_size": inner}))
    if kind.lengths != NATURAL:
        set_ends(network, tokenizer.eos_token_id, HAZARD / kind.budget if kind.lengths == UNEVEN else NEVER)
    network.save_pretrained(hf)
    tokenizer.save_pretrained(hf)


def find_size(model: str) -> tuple[Size, int]:
    """Return the shape of a model and the width of its feed-forward layers.

    Args:
        model: one of qed's, such as new:tiny, or one of `SHAPES`; a suffix `@N` sets the vocabulary.

    Raises:
        UsageError: there is no such model.
    """
    name, _, vocabulary = model.partition("@")
    if name in SHAPES:
        size, inner = SHAPES[name]
    else:
        check_name(name)
        size = SIZES[name.removeprefix("new:")]
        inner = 4 * size.width
    return (replace(size, vocabulary=int(vocabulary)) if vocabulary else size), inner


def words(count: int, seed: int) -> str:
    """Return words of random letters, with which a tokenizer can fill any vocabulary; the task's text is too small."""
    source = random.Random(seed)
    return " ".join("".join(source.choices(ascii_lowercase, k=source.randint(2, 8))) for _ in range(count))


def _trained(folder: Path, method: str, steps: int) -> None:
    """Train the model in `hf/` with qed on its built-in task, and replace it with the result."""
    out, hf = folder / method, folder / "hf"
    config = {"sft": "arithmetic-sft", "grpo": "arithmetic-rl"}[method]
    told = ["--model", str(hf), "--steps", str(steps), "--evaluation.problems", "1", "--out", str(out)]
    settings = resolve_settings(method, [config, *told, "--evaluation.every", "0"]).settings
    assert isinstance(settings, Settings)
    train(settings, Launch(json=True))
    shutil.rmtree(hf)
    (out / "final" / "hf").resolve().rename(hf)
    shutil.rmtree(out)


@torch.no_grad()
def set_ends(network: Any, end: int, probability: float) -> None:
    """Make an untrained model end its answers with about this probability at every token.

    One coordinate of the residual stream is the same at all tokens: no block writes to it, and the embeddings, which
    are the output layer too, hold the same number there. Only the end token's embedding holds another one, which
    becomes a term of its logit.
    """
    body = network.model
    for block in body.layers:
        block.self_attn.o_proj.weight[-1] = 0
        block.mlp.down_proj.weight[-1] = 0
    table: Tensor = body.embed_tokens.weight
    table[:, -1] = 1
    source = torch.Generator().manual_seed(0)
    rows = min(64, max(1, SCORES // (64 * len(table))))
    ids = torch.randint(len(table), (rows, 64), generator=source)
    ids[ids == end] = 0  # nothing is ever written after the end
    hidden = body(input_ids=ids).last_hidden_state.flatten(0, 1).double()
    scores = hidden @ table.double().T
    others = scores.clone()
    others[:, end] = -math.inf
    gap = scores[:, end] - others.logsumexp(-1)
    low, high = -1e3, 1e3
    for _ in range(60):
        middle = (low + high) / 2
        if float(nn.functional.sigmoid(gap + middle * hidden[:, -1]).mean()) < probability:
            low = middle
        else:
            high = middle
    table[end, -1] += low
