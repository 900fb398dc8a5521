"""The sampler: useful tokens per second, alone or against `model.generate` or vLLM, and the distance from the ceiling.

    python benchmarks/sampler.py --against generate --model new:small --tokens 128
    python benchmarks/sampler.py --against generate --model new:large --precision bfloat16 --tokens 48 --lengths even
    python benchmarks/sampler.py --against generate --model new:large --temperature 0.6 --top-p 0.95
    python benchmarks/sampler.py --against vllm --model new:qwen2.5-0.5b --precision bfloat16 --problems 8 --tokens 256

Groups of answers share one prompt; the sides are separate processes and take turns. The floor is the minimum time that
the machine needs, measured in the same process: for the multiplications of all tokens, or for reading the weights once
for every token of the longest answer and the keys and values once for every token. vLLM has a separate environment: the
one of `qed serve --install vllm`, or of --python; its log-probs are requested as training needs them, while
`model.generate` computes none. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from results import print_result
from speed_parts import figures, floor, options, places
from speed_parts.process import Figures, Worker, in_turns
from transformers import AutoTokenizer

from qed.data.prompts import think_answer
from qed.serving.install import find_vllm
from qed.types import Problem

RIVALS = {"generate": "sampler_hf", "vllm": "sampler_vllm"}


def main() -> None:
    """Measure, print the summary, then one line of JSON."""
    asked = _asked()
    folder = options.folder_of(asked)
    prompts = read_prompts(folder, asked.problems)
    with tempfile.TemporaryDirectory() as out, ExitStack() as stack:
        file = Path(out) / "prompts.json"
        file.write_text(json.dumps(prompts), encoding="utf-8")
        told = {**options.plain(asked), "folder": str(folder), "prompts": str(file), "out": f"{out}/run"}
        workers = {"qed": stack.enter_context(Worker("sampler_ours", told, asked.threads))}
        if asked.against:
            python = str(find_vllm(asked.python).python) if asked.against == "vllm" else ""
            rival = Worker(RIVALS[asked.against], told, asked.threads, python)
            workers[asked.against] = stack.enter_context(rival)
        ceilings = workers["qed"].ready
        rounds = in_turns(workers, asked.rounds, warm_up=1)
    sides = {side: figures.summary(own) for side, own in rounds.items()}
    for one in sides.values():
        one["tokens_per_s"] = one["tokens"] / one["wall"]
        one["tokens_per_cpu_s"] = one["tokens"] / one["cpu"]
    ours, rival = sides["qed"], sides.get(asked.against)
    read = sum(map(len, prompts))
    work = floor.Floor(folder, ours["rows"], ours["tokens"], read)
    moved = work.moved(ours["longest"], 2 if asked.precision == "bfloat16" else 4)
    least = floor.share(work.forward(read / len(prompts)), ours, ceilings, moved)
    result = figures.result(options.plain(asked), ours, rival, floor=least, ceiling_share=least["share"])
    _card(result, sides)
    print_result(result, asked.json)


def _asked() -> argparse.Namespace:
    parser = options.parser(__doc__, rivals=tuple(RIVALS))
    parser.add_argument("--python", default="", help="Python of an environment with vLLM")
    parser.add_argument("--temperature", type=float, default=1.0)
    parser.add_argument("--top-p", type=float, default=1.0, help="probability mass to sample from")
    parser.add_argument(
        "--eager", action="store_true", help="run vLLM without torch.compile, which needs a C++ compiler"
    )
    options.add_answers(parser, places.UNEVEN)
    return parser.parse_args()


def read_prompts(folder: Path, count: int) -> list[list[int]]:
    """Return the token ids of the first problems' prompts."""
    tokenizer = AutoTokenizer.from_pretrained(folder / "hf")
    lines = (folder / places.DATA).read_text(encoding="utf-8").splitlines()[:count]
    problems = [Problem("", json.loads(line)["question"], "") for line in lines]
    texts = [think_answer.render(problem, tokenizer) for problem in problems]
    return [tokenizer(text, add_special_tokens=False)["input_ids"] for text in texts]


def _card(result: dict[str, Any], sides: dict[str, Figures]) -> None:
    figures.show(f"Sampler, {figures.describe_answers(result['settings'])}", result, sides)
    for side, one in sides.items():
        print(f"{side}: {one['tokens_per_cpu_s']:,.0f} useful tokens / CPU second, {one['tokens_per_s']:,.0f} / second")
    if result["rival"]:
        rival = result["settings"]["against"]
        print(
            f"{rival} needs {result['ratio_per_token']:.2f} times the CPU seconds for each token, "
            f"{result['ratio_wall']:.2f} times the time"
        )
    figures.tell_tokens(result["ours"], result["rival"])


if __name__ == "__main__":
    main()
