"""What the pages' commands find in their folder, and what is read out of the pages besides their blocks."""

from __future__ import annotations

import json
import re
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from docs.pages import ROOT, blocks
from docs.shorten import shortened

from qed.cli.main import main
from qed.config import plugins
from qed.data.tasks import arithmetic

MODEL = "Qwen/Qwen2.5-0.5B"
LINK = re.compile(r"\]\(([^)\s#:]*)(?:#([^)\s]*))?\)")
COMMAND = re.compile(r"`qed ([^`…]+)`")
OTHERS = plugins.list_leaves("commands")  # commands that train nothing
TRL_REWARD = '''"""Shorter answers earn more; written for TRL."""


def short(completions, **columns):
    return [1.0 - min(len(text), 200) / 200 for text in completions]
'''
JUDGE = '''"""Right when the last line is the gold, with or without ####."""

from qed.grading.equal import equal
from qed.types import Grade, Rollout


def reward(rollout: Rollout) -> Grade:
    last = rollout.text.rpartition("\\n")[2].removeprefix("#### ")
    correct = equal(rollout.problem.answer, last).correct
    return Grade(reward=float(correct), correct=correct, format_ok=True, extracted=last)
'''


def write_files(folder: Path) -> None:
    """Write the data files and the rewards that the pages name."""
    train, test = arithmetic.load("train")[:60], arithmetic.load("test")[:20]
    gsm8k = [
        [{"question": p.question, "answer": f"{p.solution}\n#### {p.answer}"} for p in part] for part in (train, test)
    ]
    pairs = [{"prompt": p.question, "chosen": p.answer, "rejected": "I do not know."} for p in train]
    answers = [
        {"question": p.question, "answer": p.answer, "completion": f"Let me count.\n#### {p.answer if n % 3 else 7}"}
        for n, p in enumerate(test)
    ]
    files = {"train": gsm8k[0], "test": gsm8k[1], "pairs": pairs, "answers": answers}
    files["odd"] = [{"frage": p.question, "loesung": p.answer} for p in train]
    for name, rows in files.items():
        write(folder / f"{name}.jsonl", rows)
    (folder / "mine.py").write_text(JUDGE, encoding="utf-8")
    own = next(block.code for block in blocks(ROOT / "docs" / "environments.md") if "# shout.py" in block.code)
    (folder / "shout.py").write_text(own, encoding="utf-8")
    (folder / "trl_reward.py").write_text(TRL_REWARD, encoding="utf-8")
    (folder / "benchmarks").symlink_to(Path(__file__).resolve().parents[2] / "benchmarks")


def write(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write rows as jsonl."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def build_model(folder: Path) -> None:
    """Make the run of a short quickstart in `runs/quickstart`, and put its model under the hub's name too."""
    try:
        main(shortened(["quickstart", "--out", "runs/quickstart"]))
    except SystemExit as ended:
        if ended.code:
            raise
    shutil.copytree(folder / "runs/quickstart/final/hf", folder / MODEL)


def commands_in_tables(page: Path) -> Iterator[str]:
    """Yield the arguments of each training command in a page's tables."""
    for line in page.read_text(encoding="utf-8").splitlines():
        if line.startswith("|"):
            for command in COMMAND.findall(line):
                if command.split()[0].replace("-", "_") in OTHERS:
                    continue
                yield command.replace("MODEL", MODEL).replace("openr1.parquet", "train.jsonl")


def links(page: Path) -> Iterator[tuple[str, str]]:
    """Yield the path and the anchor of each relative link of a page."""
    for target, anchor in LINK.findall(page.read_text(encoding="utf-8")):
        if target or anchor:
            yield target, anchor


def anchors(page: Path) -> set[str]:
    """Return the anchors that GitHub gives to a page's headings."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


if __name__ == "__main__":
    build_model(Path(sys.argv[1]))
