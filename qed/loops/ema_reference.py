"""A reference model that follows the policy: every so many steps its weights move towards the policy's.

Moved all the way it is the policy as it was then, as in ProRL (arXiv 2505.24864) and the hard update of TR-DPO (arXiv
2404.09656); moved a part of it, the soft update of TR-DPO.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from qed.models import lora

KEPT = "reference."  # before the names of the reference's weights in a checkpoint's state


@dataclass
class EMAReference:
    """What moves a reference.

    Args:
        reference: a model of its own, in place.
        policy: the model that it follows; adapters are merged into what it moves to.
        every: steps of a phase between two moves; 0 never moves it.
        mix: how far it goes: 1 all the way, so that it becomes the policy.
    """

    reference: nn.Module | lora.AdapterDisabled | None
    policy: nn.Module
    every: int
    mix: float
    moves: int = 0

    def before(self, step: int) -> None:
        """Move it if that is due before a step of the phase, counted from 1.

        Moves are counted, so that a run which is stopped within a step does not move it for that step again.
        """
        if self.every and (step - 1) // self.every > self.moves:
            self.moves += 1
            self._move()

    def state(self) -> dict[str, Tensor]:
        """The weights as far as they have moved; none where they are those that the phase began with."""
        return {KEPT + name: weight for name, weight in self._weights().items()} if self.moves else {}

    @torch.no_grad()
    def load(self, tensors: dict[str, Tensor], moves: int) -> dict[str, Tensor]:
        """Continue from `state()` after so many moves; the tensors that are not of it."""
        self.moves = moves
        for name, weight in (self._weights() if moves else {}).items():
            weight.copy_(tensors[KEPT + name])
        return {name: tensor for name, tensor in tensors.items() if not name.startswith(KEPT)}

    @torch.no_grad()
    def _move(self) -> None:
        new = lora.merge_adapters(self.policy) if lora.has_adapters(self.policy) else self.policy.state_dict()
        for name, weight in self._weights().items():
            weight.lerp_(new[name].to(weight), self.mix)

    def _weights(self) -> Mapping[str, Tensor]:
        """Those of the reference, each once: two layers that share one have a single name."""
        return dict(self.reference.named_parameters()) if isinstance(self.reference, nn.Module) else {}
