"""A reference model that follows the policy: every N steps, its weights move towards the policy's.

With mix 1 the reference becomes a copy of the current policy, as in ProRL (arXiv 2505.24864) and the hard update of
TR-DPO (arXiv 2404.09656); with a smaller mix this is the soft update of TR-DPO.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from qed.models import lora
from qed.training.parallel import ALONE, Parallel
from qed.training.slices import get_local, take_rows

PREFIX = "reference."  # of the reference's weight names in a checkpoint's state


@dataclass
class EMAReference:
    """Updates the weights of a reference model in place.

    Args:
        reference: the reference model; only a separate model is updated.
        policy: the model that the reference follows; adapters are merged first.
        every: steps of a phase between two updates; 0 never updates.
        mix: weight of the policy in an update; 1 copies the policy.
        moves: number of updates so far.
        parallel: the ranks that share the policy.
    """

    reference: nn.Module | lora.AdapterDisabled | None
    policy: nn.Module
    every: int
    mix: float
    moves: int = 0
    parallel: Parallel = ALONE

    def update_if_due(self, step: int) -> None:
        """Update the reference if an update is due before this step of the phase (counted from 1).

        Updates are counted, so a run that was stopped within a step does not update twice for it.
        """
        if self.every and (step - 1) // self.every > self.moves:
            self.moves += 1
            self._update()

    def state(self) -> dict[str, Tensor]:
        """Return the reference's weights for a checkpoint; empty until the first update of the phase."""
        return self.describe() if self.moves else {}

    def describe(self) -> dict[str, Tensor]:
        """Return the reference's weights by their names in a checkpoint; `load` needs the same names and rows."""
        return {PREFIX + name: weight for name, weight in self._weights().items()}

    @torch.no_grad()
    def load(self, tensors: Mapping[str, Tensor], moves: int) -> dict[str, Tensor]:
        """Restore the weights that `state()` returned after `moves` updates, and return the remaining tensors."""
        self.moves = moves
        for name, weight in (self._weights() if moves else {}).items():
            get_local(weight).copy_(take_rows(tensors[PREFIX + name], weight))
        return {name: tensor for name, tensor in tensors.items() if not name.startswith(PREFIX)}

    @torch.no_grad()
    def _update(self) -> None:
        if lora.has_adapters(self.policy):
            with self.parallel.gather_weights(self.policy):
                new = lora.merge_adapters(self.policy)
        else:
            new = self.policy.state_dict()
        for name, weight in self._weights().items():
            own = get_local(weight)
            own.lerp_(take_rows(new[name], weight).to(own), self.mix)

    def _weights(self) -> Mapping[str, Tensor]:
        """Return the reference's weights by name; a weight shared by two layers is listed once."""
        return dict(self.reference.named_parameters()) if isinstance(self.reference, nn.Module) else {}
