"""`model.generate` as a worker, as TRL calls it: every prompt once per answer, padded on the left."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

from speed_parts.pace import Pace


@torch.inference_mode()
def main() -> None:
    """Sample answers to the same prompts each round; with bfloat16, the weights are in bfloat16 too."""
    pace = Pace()
    told = pace.settings
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_pretrained(f"{told['folder']}/hf", dtype=told["precision"]).eval()
    tokenizer = AutoTokenizer.from_pretrained(f"{told['folder']}/hf")
    asked = [prompt for prompt in json.loads(Path(told["prompts"]).read_text()) for _ in range(told["group"])]
    width, pad, end = max(map(len, asked)), tokenizer.pad_token_id, tokenizer.eos_token_id
    ids = torch.tensor([[pad] * (width - len(prompt)) + prompt for prompt in asked])
    mask = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in asked])
    how = GenerationConfig(
        max_new_tokens=told["tokens"],
        do_sample=True,
        temperature=told["temperature"],
        top_k=0,
        top_p=told["top_p"],
        pad_token_id=pad,
        eos_token_id=end,
    )
    pace.ready()
    while True:
        written = model.generate(input_ids=ids, attention_mask=mask, generation_config=how)[:, width:].tolist()
        lengths = [row.index(end) + 1 if end in row else len(row) for row in written]
        pace.done(tokens=sum(lengths), rows=len(lengths), longest=max(lengths))


if __name__ == "__main__":
    main()
