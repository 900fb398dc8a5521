"""Judges stored answers with Qwen2.5-Math's evaluator; needs its folder `evaluation` and its packages, but not qed.

PYTHONPATH=QWEN/evaluation python qwen_side.py answers ROWS OUT
PYTHONPATH=QWEN/evaluation python qwen_side.py pairs ROWS OUT
"""

from __future__ import annotations

import json
import sys
from pathlib import Path


def main(kind: str, rows: str, out: str) -> None:
    """Write a verdict for each row: on a whole answer to a GSM8K question, or on a pair of extracted answers."""
    from grader import math_equal  # type: ignore[import-not-found]  # noqa: PLC0415
    from parser import extract_answer, strip_string  # type: ignore[import-not-found]  # noqa: PLC0415

    verdicts = []
    for line in Path(rows).read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        if kind == "pairs":
            verdicts.append({"id": row["id"], "correct": bool(math_equal(row["answer"], row["gold"]))})
            continue
        gold = strip_string(row["gold"])
        answer = strip_string(extract_answer(row["text"], "gsm8k"))
        verdicts.append({"id": row["id"], "correct": bool(math_equal(answer, gold)), "answer": answer, "gold": gold})
    Path(out).write_text(json.dumps(verdicts), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
