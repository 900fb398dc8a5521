"""SFT as in a short recipe for one device, as a worker: packed rows, and a chunked loss.

As in torchtune: demonstrations are packed one after the other into rows of the maximum length, each attends only to
itself (a block mask and restarting positions), and logits are computed in float32 chunk by chunk.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import cycle
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, AutoTokenizer

from speed_parts.pace import Pace

CHUNKS = 8  # chunks of a step's logits, as in torchtune's loss over a chunked output layer
NO_LABEL = -100
Example = tuple[list[int], list[int]]


def main() -> None:
    """Update the model in each round."""
    pace = Pace()
    told = pace.settings
    model = AutoModelForCausalLM.from_pretrained(f"{told['folder']}/hf", dtype="float32")
    optimizer = torch.optim.AdamW(model.parameters(), lr=told["lr"], weight_decay=0.0)
    batches = read_batches(told, AutoTokenizer.from_pretrained(f"{told['folder']}/hf"))
    pace.ready()
    while True:
        rows = next(batches)
        ids, labels, positions, mask = _collate(rows, told["longest"])
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=told["precision"] == "bfloat16"):
            hidden = model.model(input_ids=ids, position_ids=positions, attention_mask=mask, use_cache=False)[0]
            loss = torch.zeros(())
            for part, wanted in zip(hidden.flatten(0, 1).chunk(CHUNKS), labels.flatten().chunk(CHUNKS), strict=True):
                logits = model.lm_head(part).float()
                loss = loss + nn.functional.cross_entropy(logits, wanted, ignore_index=NO_LABEL, reduction="sum")
        (loss / (labels != NO_LABEL).sum()).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        pace.done(tokens=sum(len(own) for row in rows for own, _ in row), rows=sum(map(len, rows)))


def read_batches(told: dict[str, Any], tokenizer: Any) -> Iterator[list[list[Example]]]:
    """Yield batches of the demonstrations endlessly, each with as many rows as a step's tokens need."""
    lines = Path(told["data"]).read_text(encoding="utf-8").splitlines()
    examples = cycle([_read_example(json.loads(line), tokenizer, told["longest"]) for line in lines])
    example = next(examples)
    while True:
        rows: list[list[Example]] = []
        for _ in range(told["bins"]):
            row, room = [], told["longest"]
            while len(example[0]) <= room:
                row.append(example)
                room -= len(example[0])
                example = next(examples)
            rows.append(row)
        yield rows


def _read_example(row: dict[str, str], tokenizer: Any, longest: int) -> Example:
    """Return tokens and labels; the prompt has no labels."""
    asked = [{"role": "user", "content": row["prompt"]}]
    told = [*asked, {"role": "assistant", "content": row["completion"]}]
    prompt = tokenizer.apply_chat_template(asked, add_generation_prompt=True, return_dict=False)
    ids = tokenizer.apply_chat_template(told, return_dict=False)
    return ids[:longest], ([NO_LABEL] * len(prompt) + ids[len(prompt) :])[:longest]


def _collate(rows: list[list[Example]], longest: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return token ids, labels shifted by one, positions, and the attention mask."""
    shape = (len(rows), longest)
    ids, positions = torch.zeros(shape, dtype=torch.int64), torch.zeros(shape, dtype=torch.int64)
    labels, owners = torch.full(shape, NO_LABEL), torch.full(shape, -1)
    for number, row in enumerate(rows):
        start = 0
        for owner, (own, wanted) in enumerate(row):
            end = start + len(own)
            ids[number, start:end], labels[number, start : end - 1] = torch.tensor(own), torch.tensor(wanted[1:])
            positions[number, start:end], owners[number, start:end] = torch.arange(len(own)), owner
            start = end
    same = owners[:, :, None] == owners[:, None, :]
    causal = torch.ones(longest, longest, dtype=torch.bool).tril()
    return ids, labels, positions, (same & causal)[:, None]


if __name__ == "__main__":
    main()
