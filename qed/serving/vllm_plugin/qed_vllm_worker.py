"""What a vLLM server that qed starts can do beyond vLLM's own routes; it is loaded there, by --worker-extension-cls.

It runs in vLLM's environment, which has no qed, and imports nothing.
"""

from __future__ import annotations

from typing import Any


class FolderWeights:
    """A part of vLLM's worker, whose methods the route /collective_rpc calls by name."""

    def reload_folder(self, folder: str) -> dict[str, int]:
        """Load a folder's weights, also those of an output head that is tied to the embedding.

        On CPUs vLLM computes with packed copies of weights. Its `reload_weights` loads a tied embedding and leaves the
        head's packed copy as it was (0.32.0), so that the head goes on with the old weights.

        Returns:
            the number of modules that were packed again.
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
