"""vLLM on the CPU as a worker: its engine in this process, one batch per round, with the log-probs that training needs.

It runs in vLLM's environment, so nothing of qed is imported.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

from speed_parts.pace import Pace

MARGIN = 2  # GiB of KV cache beyond what the answers need


def main() -> None:
    """Sample answers to the same prompts each round."""
    pace = Pace()
    told = pace.settings
    asked = json.loads(Path(told["prompts"]).read_text(encoding="utf-8"))
    config = json.loads(Path(told["folder"], "hf", "config.json").read_text(encoding="utf-8"))
    longest = max(map(len, asked)) + told["tokens"]
    heads = config["num_key_value_heads"] * config["hidden_size"] // config["num_attention_heads"]
    width = 2 if told["precision"] == "bfloat16" else 4
    needed = 2 * width * heads * config["num_hidden_layers"] * longest * len(asked) * told["group"]
    # With its engine in this process, this process's time includes everything.
    os.environ |= {
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_CPU_KVCACHE_SPACE": str(needed // 2**30 + MARGIN),
        "VLLM_NO_USAGE_STATS": "1",
    }
    from vllm import LLM, SamplingParams  # noqa: PLC0415 -- it reads its variables on import

    engine = LLM(
        model=f"{told['folder']}/hf",
        dtype=told["precision"],
        max_model_len=longest + 1,
        max_num_seqs=len(asked) * told["group"],
        enforce_eager=told["eager"],
        disable_log_stats=True,
    )
    how = SamplingParams(
        n=told["group"],
        temperature=told["temperature"],
        top_p=told["top_p"],
        max_tokens=told["tokens"],
        logprobs=0,
        detokenize=False,
    )
    prompts = [{"prompt_token_ids": prompt} for prompt in asked]
    pace.ready()
    while True:
        answers = engine.generate(prompts, how, use_tqdm=False)
        engine.reset_prefix_cache()  # the next round has the same prompts, which qed recomputes
        lengths = [len(each.token_ids) for answer in answers for each in answer.outputs]
        pace.done(tokens=sum(lengths), rows=len(lengths), longest=max(lengths))


if __name__ == "__main__":
    main()
