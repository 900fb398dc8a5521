"""The extension of vLLM servers that qed starts; vLLM loads it by --worker-extension-cls.

It runs in vLLM's environment, which does not have qed, and imports nothing.
"""

from __future__ import annotations

from typing import Any


class FolderWeights:
    """A mixin of vLLM's worker, whose methods the route /collective_rpc calls by name."""

    def reload_folder(self, folder: str) -> dict[str, int]:
        """Load a folder's weights, including those of an output head that is tied to the embedding.

        On CPUs vLLM computes with packed copies of weights. Its `reload_weights` loads a tied embedding but does not
        update the head's packed copy (0.32.0), so the head would continue to use the old weights.

        Returns:
            The number of modules that were packed again.
        """
        worker: Any = self
        worker.reload_weights(weights_path=folder)
        packed = [
            module
            for module in worker.get_model().modules()
            if hasattr(module, "cpu_linear") and module.weight.numel() and hasattr(module, "quant_method")
        ]
        for module in packed:
            module.quant_method.process_weights_after_loading(module)
        return {"packed": len(packed)}
