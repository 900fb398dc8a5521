"""The update as a short script would write it, as a worker: all rows padded, the full log-softmax."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from torch import nn
from transformers import AutoModelForCausalLM

from speed_parts.pace import Pace

CLIP = 0.2


def main() -> None:
    """Update the model in each round."""
    pace = Pace()
    told = pace.settings
    model = AutoModelForCausalLM.from_pretrained(f"{told['folder']}/hf", dtype="float32")
    optimizer = torch.optim.AdamW(model.parameters(), lr=told["lr"], weight_decay=0.0)
    rows = json.loads(Path(told["rollouts"]).read_text(encoding="utf-8"))
    width = max(len(row["prompt"]) + len(row["output"]) for row in rows)
    ids, there = torch.zeros(len(rows), width, dtype=torch.int64), torch.zeros(len(rows), width, dtype=torch.int64)
    mask, old = torch.zeros(len(rows), width - 1), torch.zeros(len(rows), width - 1)
    for number, row in enumerate(rows):
        start, end = len(row["prompt"]), len(row["prompt"]) + len(row["output"])
        ids[number, :end] = torch.tensor(row["prompt"] + row["output"])
        there[number, :end], mask[number, start - 1 : end - 1] = 1, 1
        old[number, start - 1 : end - 1] = torch.tensor(row["logps"])
    weights = mask / mask.sum(1, keepdim=True) / len(rows)
    advantages = torch.tensor([row["advantage"] for row in rows])[:, None]
    parts = torch.arange(len(rows)).split(told["micro"] or len(rows))
    pace.ready()
    while True:
        optimizer.zero_grad(set_to_none=True)
        for part in parts:
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=told["precision"] == "bfloat16"):
                logits = model(input_ids=ids[part], attention_mask=there[part], use_cache=False).logits[:, :-1]
            logps = logits.float().log_softmax(-1).gather(-1, ids[part, 1:, None]).squeeze(-1)
            ratio = (logps - old[part]).exp()
            gain = torch.minimum(ratio * advantages[part], ratio.clamp(1 - CLIP, 1 + CLIP) * advantages[part])
            (-(gain * weights[part]).sum()).backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        pace.done(tokens=int(mask.sum()), rows=len(rows), norm=float(norm))


if __name__ == "__main__":
    main()
