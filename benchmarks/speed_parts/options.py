"""Options shared by the speed benchmarks."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from results import add_json

from speed_parts import places

# Training on noise would soon make each side's answers longer or shorter, so that their work would differ.
TINY_RATE = 1e-12


def parser(text: str | None, rivals: Sequence[str] = ("trl",)) -> argparse.ArgumentParser:
    """Build a parser with the options of every speed benchmark; the first line of `text` describes it."""
    made = argparse.ArgumentParser(description=(text or "").partition("\n")[0])
    made.add_argument("--against", choices=rivals, help="the rival; TRL must be installed (qed[bench])")
    made.add_argument("--rounds", type=read_count, default=5, help="rounds per side, in turns, after the warm-up")
    made.add_argument(
        "--model",
        default="new:tiny",
        help=f"new:tiny, new:small, new:medium, new:large, {', '.join(places.SHAPES)}; @N sets the vocabulary",
    )
    made.add_argument("--precision", choices=("float32", "bfloat16"), default="float32")
    made.add_argument("--threads", type=int, default=1)
    made.add_argument(
        "--lr", type=float, default=TINY_RATE, help="learning rate; by default so small that weights hardly change"
    )
    made.add_argument("--place", type=Path, default=Path("runs/speed"), help="folder of model folders")
    add_json(made)
    made.add_argument(
        "--set", action="append", type=_read_setting, default=[], metavar="NAME=VALUE", help="a setting of qed's run"
    )
    return made


def read_count(text: str) -> int:
    """Read an integer above 0."""
    if not (text.isascii() and text.isdecimal() and int(text)):
        raise argparse.ArgumentTypeError(f"must be a whole number above 0, not {text}")
    return int(text)


def _read_setting(text: str) -> str:
    if "=" not in text:
        raise argparse.ArgumentTypeError(f"must be NAME=VALUE, not {text}")
    return text


def add_answers(made: argparse.ArgumentParser, lengths: str) -> None:
    """Add the options of the sampled answers."""
    made.add_argument("--problems", type=int, default=16)
    made.add_argument("--group", type=int, default=8, help="answers per problem")
    made.add_argument("--tokens", type=int, default=48, help="maximum tokens of an answer")
    made.add_argument("--lengths", choices=places.LENGTHS, default=lengths, help="how answers end")
    made.add_argument("--taught", type=int, default=500, help="SFT steps before the measurement, for natural lengths")
    made.add_argument("--improved", type=int, default=0, help="GRPO steps after them, for a model in mid-training")


def folder_of(asked: argparse.Namespace) -> Path:
    """Return the folder that both sides load."""
    kind = places.Kind(asked.model, asked.lengths, asked.tokens, asked.taught, asked.improved)
    return places.prepared(asked.place, kind).resolve()


def plain(asked: argparse.Namespace) -> dict[str, Any]:
    """Return the options for workers and for JSON; `extra` holds the settings of qed's run."""
    told = {name: str(value) if isinstance(value, Path) else value for name, value in vars(asked).items()}
    return {**told, "extra": dict(entry.split("=", 1) for entry in told.pop("set"))}
