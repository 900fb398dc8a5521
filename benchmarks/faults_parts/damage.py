"""C1, C2 and D1: files that are damaged or from another run, and disk errors."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

from faults_parts.rival import WEIGHTS, Finding, Rival, checkpoints, cut, ending, resumed

CUT = 4
FLIPS = 250


def half(path: Path) -> None:
    """Keep only the first half of a file."""
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def empty(path: Path) -> None:
    """Empty a file."""
    path.write_bytes(b"")


def flip(path: Path) -> None:
    """Flip the lowest bit of many four-byte numbers in a safetensors file."""
    data = bytearray(path.read_bytes())
    start = 8 + int.from_bytes(data[:8], "little")
    for number in random.Random(0).sample(range((len(data) - start) // 4), FLIPS):
        data[start + 4 * number] ^= 1
    path.write_bytes(data)


def one_bit(path: Path) -> None:
    """Flip a bit in the middle of a file."""
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 4
    path.write_bytes(data)


def missing(path: Path) -> None:
    """Delete a file."""
    path.unlink()


DAMAGES: dict[str, tuple[str, Callable[[Path], None]]] = {
    f"half of {WEIGHTS}": (WEIGHTS, half),
    "half of optimizer.pt": ("optimizer.pt", half),
    "empty trainer_state.json": ("trainer_state.json", empty),
    f"{FLIPS} lowest bits flipped in the weights": (WEIGHTS, flip),
    "a bit flipped in optimizer.pt": ("optimizer.pt", one_bit),
    "no model.safetensors": (WEIGHTS, missing),
    "no trainer_state.json": ("trainer_state.json", missing),
    "no optimizer.pt": ("optimizer.pt", missing),
    "no scheduler.pt": ("scheduler.pt", missing),
    "no rng_state.pth": ("rng_state.pth", missing),
}


def c1(rival: Rival) -> Iterator[Finding]:
    """Damage the newest of several checkpoints."""
    whole = rival.whole()
    for name, (file, damage) in DAMAGES.items():
        out = cut(whole, rival.fresh(), CUT)
        damage(out / f"checkpoint-{CUT}" / file)
        outcome, end, figures = resumed(rival, out, whole)
        yield Finding("C1", name, outcome, end, figures)


def c2(rival: Rival) -> Iterator[Finding]:
    """Add folders that are not checkpoints of the run, with larger numbers than its own."""
    whole = rival.whole()
    out = cut(whole, rival.fresh(), CUT)
    (out / "checkpoint-5").mkdir()
    for name in ("config.json", WEIGHTS):
        shutil.copy(whole / "checkpoint-5" / name, out / "checkpoint-5" / name)
    outcome, end, figures = resumed(rival, out, whole)
    yield Finding("C2", "checkpoint-5 with its weights alone", outcome, end, figures)
    out = cut(whole, rival.fresh(), CUT)
    (out / "checkpoint-999").mkdir()
    outcome, end, figures = resumed(rival, out, whole)
    yield Finding("C2", "an empty checkpoint-999", outcome, end, figures)
    other = rival.whole(model=str(rival.make_model("wide", width=48)))
    out = cut(whole, rival.fresh(), CUT)
    shutil.copytree(other / "checkpoint-5", out / "checkpoint-5")
    outcome, end, figures = resumed(rival, out, whole)
    yield Finding("C2", "checkpoint-5 of a wider model", outcome, end, figures)


def d1(rival: Rival) -> Iterator[Finding]:
    """Let a write fail in the save of step 4, and delete the folder during it; then resume the run."""
    whole = rival.whole()
    size = (whole / "checkpoint-4" / WEIGHTS).stat().st_size
    for file, limit in ((WEIGHTS, size // 2), ("optimizer.pt", size * 3 // 2)):
        out = rival.fresh()
        first = rival.run(out, fault={"at": "save", "step": 4, "do": "full disk", "value": limit})
        left = {path.name: path.stat().st_size for path in sorted((out / "checkpoint-4").glob("*"))}
        yield Finding("D1", f"no room for {file}", ending(first), first, {"left": left})
        by_hand = cut(out, rival.fresh(), 3)
        outcome, end, figures = resumed(rival, out, whole)
        yield Finding("D1", f"resumed after no room for {file}", outcome, end, figures)
        outcome, end, figures = resumed(rival, by_hand, whole)
        yield Finding("D1", f"the same, checkpoint-4 deleted by hand ({file})", outcome, end, figures)
    out = rival.fresh()
    first = rival.run(out, fault={"at": "step", "step": 4, "do": "delete"})
    figures = {"left": checkpoints(out), "said": rival.unusual(first)[:6]}
    yield Finding("D1", "the run's folder deleted before step 4", f"{ending(first)}, it goes on", first, figures)
