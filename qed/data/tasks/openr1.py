"""OpenR1-Math: problems with reasoning traces of DeepSeek-R1, for SFT or as off-policy demonstrations for LUFFY.

`train` is the default part of OpenR1-Math-220k: about 94,000 problems, each with its first trace that is complete and
correct according to math-verify. `luffy` has the 46,000 problems with traces of at most 8,192 tokens (Yan et al. 2025,
arXiv 2504.14945), and `complement` the 48,000 others, with which LUFFY's baseline continues its SFT model by RL.
Problems without such a trace are kept without a demonstration.
"""

from __future__ import annotations

from qed.data.sources.hub import HubDataset
from qed.data.tasks.base import Benchmark

PROMPT = "luffy"
BENCHMARK = Benchmark(
    "openr1",
    {
        "train": HubDataset("open-r1/OpenR1-Math-220k", "train", ("default",)),
        "luffy": HubDataset("Elliott/Openr1-Math-46k-8192", "train"),
        "complement": HubDataset("Elliott/Openr1-Math-48k-Complement", "train"),
    },
    drop=("messages", "finish_reasons", "correctness_llama", "target_lst", "target_ds_qwen_7b_probs"),
)
SPLITS = tuple(BENCHMARK.splits)
load, read = BENCHMARK.load, BENCHMARK.read
