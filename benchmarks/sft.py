"""SFT on demonstrations of uneven length: tokens per CPU second, against a plain packed loop and TRL's SFTTrainer.

    python benchmarks/sft.py --against trl
    python benchmarks/sft.py --against trl --vocabulary 32000 --precision bfloat16

Lengths are log-normal. qed packs rows, or pads them (`qed padded`); SFTTrainer pads them, or packs them into as many
full-length rows as a step's tokens need, like the plain loop. Only completions are trained. The last
line is JSON.
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from results import print_result
from speed_parts import figures, floor, options, places
from speed_parts.process import Figures, Worker, in_turns
from transformers import AutoTokenizer

# Of the logarithm of a completion's length in words; the median of 33 words is about 100 tokens.
MEAN, SPREAD = 3.5, 0.8
DEMONSTRATIONS = 1024


def main() -> None:
    """Measure, print the summary, then one line of JSON."""
    asked = _asked()
    folder = _folder(asked)
    with tempfile.TemporaryDirectory() as out, ExitStack() as stack:
        data = Path(out) / "demonstrations.jsonl"
        written = write_demonstrations(data, folder, asked.rows, asked.longest)
        told = {**options.plain(asked), "folder": str(folder), "data": str(data), **written}
        workers = {}
        for side, (module, extra) in _sides(asked.against).items():
            own = {**told, "out": f"{out}/{side}", **extra, "extra": {**told["extra"], **extra.get("extra", {})}}
            workers[side] = stack.enter_context(Worker(module, own, asked.threads))
        ceilings = workers["qed packed"].ready
        sides = {side: figures.summary(own) for side, own in in_turns(workers, asked.rounds).items()}
    rates = {side: 1000 / one["cpu_per_1000_tokens"] for side, one in sides.items()}
    ours, rival = sides["qed packed"], sides.get("trl padded")
    read = ours["tokens"] - ours["labels"]
    work = floor.Floor(folder, ours["rows"], ours["labels"], read)
    flops = (1 + floor.BACKWARD) * work.forward(read / ours["rows"])
    result = figures.result(
        options.plain(asked),
        ours,
        rival,
        ratio=rates["qed packed"] / rates["trl padded"] if rival else None,
        ratio_packed=rates["qed packed"] / rates["trl packed"] if rival else None,
        ratio_plain=rates["qed packed"] / rates["plain packed"],
        floor=floor.share(flops, ours, ceilings),
        tokens_per_cpu_s=rates,
        sides=sides,
    )
    _card(result)
    print_result(result, asked.json)


def _asked() -> argparse.Namespace:
    parser = options.parser(__doc__)
    parser.set_defaults(model="new:small")
    parser.add_argument("--rows", type=int, default=32, help="demonstrations per step")
    parser.add_argument(
        "--longest", type=int, default=512, help="maximum tokens of a demonstration; longer ones are truncated"
    )
    parser.add_argument(
        "--vocabulary", type=int, default=0, help="vocabulary of the model; 0 uses the default for its size"
    )
    return parser.parse_args()


def _folder(asked: argparse.Namespace) -> Path:
    """Return the folder that all sides load: a randomly initialised model, with another vocabulary if requested."""
    model = f"{asked.model}@{asked.vocabulary}" if asked.vocabulary else asked.model
    return places.prepared(asked.place, places.Kind(model, places.EVEN)).resolve()


def _sides(against: str | None) -> dict[str, tuple[str, dict[str, Any]]]:
    """Return the module of every side, and the settings that distinguish it."""
    sides: dict[str, tuple[str, dict[str, Any]]] = {
        "qed packed": ("sft_ours", {"extra": {"learner.packing": "true"}}),
        "qed padded": ("sft_ours", {"extra": {"learner.packing": "false"}}),
        "plain packed": ("sft_plain", {}),
    }
    if against:
        sides |= {"trl padded": ("sft_trl", {"packing": False}), "trl packed": ("sft_trl", {"packing": True})}
    return sides


def write_demonstrations(file: Path, folder: Path, count: int, longest: int) -> Figures:
    """Write demonstrations of uneven length.

    Args:
        file: file to write.
        folder: folder of the model, for its tokenizer.
        count: number of demonstrations per step.
        longest: maximum tokens of a demonstration.

    Returns:
        `bins`: the number of full-length rows that a step's tokens fill.
    """
    tokenizer = AutoTokenizer.from_pretrained(folder / "hf")
    chance, rows, lengths = random.Random(0), [], []
    for number in range(max(DEMONSTRATIONS, 4 * count)):
        question = f"Write down some words, as number {number}."
        text = places.words(round(chance.lognormvariate(MEAN, SPREAD)) + 1, number)
        # Leave room for the prompt, its tags and the end token.
        ids = tokenizer(text, add_special_tokens=False)["input_ids"][: longest - 40]
        rows.append({"prompt": question, "completion": tokenizer.decode(ids)})
        lengths.append(len(ids) + len(tokenizer(question)["input_ids"]) + 3)
    file.write_text("\n".join(map(json.dumps, rows)) + "\n", encoding="utf-8")
    return {"bins": max(1, round(count * sum(lengths) / len(lengths) / longest))}


def _card(result: dict[str, Any]) -> None:
    told = result["settings"]
    figures.show(f"SFT, {told['model']}, {told['rows']} demonstrations a step", result, result["sides"])
    for side, rate in result["tokens_per_cpu_s"].items():
        print(f"{side}: {rate:,.0f} tokens for each CPU second")
    print(f"qed packed: {result['ratio_plain']:.2f} times the plain loop")
    if result["rival"]:
        print(f"qed packed: {result['ratio']:.2f} times SFTTrainer padded, {result['ratio_packed']:.2f} times packed")


if __name__ == "__main__":
    main()
