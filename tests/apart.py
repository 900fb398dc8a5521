"""A sampler with weights of its own in the same process: it stands for a server where a test needs none.

It is a sampler leaf: `--sampling.sampler tests/apart.py`. Weights that are prepared wait until they are loaded, as they
do in the folder of a server, and every answer names the version that sampled it.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from torch import nn

from qed.sampling import native
from qed.sampling.base import Sampling
from qed.types import Completion


class ApartSampler:
    """The native sampler on a copy of the model."""

    remote = True
    exact_logps = True

    def __init__(self, model: nn.Module, *common: Any) -> None:
        self.model = copy.deepcopy(model)
        self.inner = native.make(self.model, *common)
        self.version = 0

    def generate(
        self, prompts: Sequence[Sequence[int]], seeds: Sequence[Sequence[int]], sampling: Sampling, *lengths: Any
    ) -> list[list[Completion]]:
        answers = self.inner.generate(prompts, seeds, sampling, *lengths)
        return [[replace(answer, version=self.version) for answer in some] for some in answers]

    def prepare(self, weights: nn.Module, version: int) -> Callable[[], None]:
        state = {name: tensor.detach().clone() for name, tensor in weights.state_dict().items()}

        def load() -> None:
            self.model.load_state_dict(state)
            self.inner.load(self.model, version)
            self.version = version

        return load

    def load(self, weights: nn.Module, version: int) -> None:
        self.prepare(weights, version)()


def make(*common: Any) -> ApartSampler:
    return ApartSampler(*common)
