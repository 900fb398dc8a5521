"""Per-token statistics of a few answers of a step, `rollouts/step_000010.stats.zst`.

One line per answer, each in a separate zstd frame: `group` and `answer` as in the step's index, and lists with a value
per token, null where there is none:

    learner_logps, entropy   under the learner before the step's updates
    updated_logps            under the learner after them
    ref_logps                under the reference model, if the algorithm has one
    values                   of the critic before each token, if the algorithm has one
    top                      the most likely tokens with their log-probs, if `run.save_top_logps` is set
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from qed.runs.step_file import ANSWERS, Row, compress_rows


def name_stats(data: Path) -> Path:
    """Return the path of the statistics that belong to a file of a step's answers."""
    return data.with_name(data.name.removesuffix(ANSWERS) + ".stats.zst")


def encode_stats(rows: Iterable[Row]) -> bytes:
    """Encode the statistics of answers, one frame each."""
    return b"".join(compress_rows([row]) for row in rows)
