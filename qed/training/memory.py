"""Computes the memory of training and sampling from a model's shape and the settings, part by part.

The preflight, the dry run and `qed doctor --fit --device-memory` use these functions, and benchmarks/memory.py
compares them with measured peaks. All results are bytes that tensors take at the peak of a step. What the allocator
keeps besides is not counted: on a GPU its fragments, on a CPU the holes in glibc's heap (docs/scale.md).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from qed.models.shapes import ModelShape
from qed.sampling.native.kv_cache import SPARE
from qed.sampling.native.prefill import PREFILL_TOKENS
from qed.sampling.native.sampler import SHARED_FROM
from qed.training.fused_logps import KEPT_ELEMENTS, TILE_ELEMENTS
from qed.training.optim import CHUNK

FLOAT = 4  # bytes
SIZES = {"float32": 4, "bfloat16": 2, "float64": 8}  # bytes of a number
GRADIENTS = {"float32": 4, "bfloat16": 2}  # bytes of a gradient, by the dtype of its weight
# Bytes of AdamW's two moments for a weight, by optimizer.
MOMENTS = {"adamw": 8, "adamw_offload": 8, "adamw8bit": 2}
TILES = 3  # of logits at a time: two, and one more for the gradient of an entropy
STATE = 20  # bytes that the sampler stores for each token of an answer: an id, a log-prob and a random number


@dataclass(frozen=True)
class StepPlan:
    """What decides the memory of a learner's step, besides the model.

    `precision` is that of the computation, `dtype` that of the weights; below float32 the optimizer holds float32
    copies of them. `shard` is `none`, `grads` (gradients and the optimizer's state are divided by the ranks) or `full`
    (weights too).
    """

    tokens: int  # inputs of the longest micro-batch
    row: int  # inputs of its longest row
    microbatches: int = 2  # of an optimizer step
    shared_prompts: bool = False  # whether rows share prompts, whose attention needs a mask on a CPU
    checkpointing: bool = False
    optimizer: str = "adamw"
    dtype: str = "float32"
    precision: str = "float32"
    copies: int = 0  # frozen copies of the weights, such as a reference model
    on_cpu: bool = False
    ranks: int = 1
    shard: str = "none"


@dataclass(frozen=True)
class SamplingPlan:
    """What decides the memory of the native sampler, besides the model; lengths in tokens."""

    rows: int  # answers at a time
    prompt: int
    answer: int
    group: int = 1  # answers of a prompt
    precision: str = "float32"  # of the computation


@dataclass(frozen=True)
class Memory:
    """Bytes by part on the device of the model, and those that an offloading optimizer keeps on the host."""

    parts: dict[str, int]
    host: dict[str, int] = field(default_factory=dict)

    @property
    def total(self) -> int:
        """Bytes on the device."""
        return sum(self.parts.values())

    def without(self, *parts: str) -> int:
        """Bytes on the device without some parts."""
        return sum(size for part, size in self.parts.items() if part not in parts)


def estimate_state(shape: ModelShape, plan: StepPlan) -> Memory:
    """Estimate what a rank holds all the time, also while it samples: weights, optimizer state, frozen copies."""
    divided = plan.ranks if plan.shard != "none" else 1
    whole = plan.ranks if plan.shard == "full" else 1
    moments = {"moments": MOMENTS[plan.optimizer] * shape.trained // divided}
    if plan.dtype == "bfloat16" and not shape.adapters:
        moments["float32 copies"] = FLOAT * shape.trained // divided
    offloaded = plan.optimizer == "adamw_offload" and not plan.on_cpu
    weights = _count_weight_bytes(shape, plan) // whole
    copies = {"reference": plan.copies * weights} if plan.copies else {}
    parts = {"weights": weights, **copies, **({} if offloaded else moments)}
    return Memory(parts, moments if offloaded else {})


def estimate_training(shape: ModelShape, plan: StepPlan) -> Memory:
    """Estimate the memory of a rank at the peak of an optimizer step.

    The peak is in the backward pass of the last micro-batch, when the gradients of earlier ones are there. With a
    single micro-batch gradients come into being while activations are freed.
    """
    state = estimate_state(shape, plan)
    divided = plan.ranks if plan.shard != "none" else 1
    size = GRADIENTS[plan.dtype] if not shape.adapters else FLOAT
    gradients = size * shape.trained // divided
    activations = _count_activation_bytes(shape, plan)
    if plan.microbatches == 1 and not shape.adapters:
        # Of the embeddings' gradient the output layer writes its part first, before any activation is freed.
        coming = size * shape.layers * shape.layer_weights // divided
        activations = max(activations - coming, activations // shape.layers)
    communication = {}
    if plan.ranks > 1 and plan.shard != "none":
        # The gradients of a block are reduced in float32. Those of the embeddings come last, after all activations.
        layer, other = (0, 0) if shape.adapters else (shape.layer_weights, shape.other_weights)
        reduction = max((size + FLOAT) * layer, (size + FLOAT) * other - activations)
        communication = {"gathered": _count_gathered_bytes(shape, plan), "reduction": reduction}
    transfer = 4 * CHUNK * FLOAT if state.host else 0
    parts = {"gradients": gradients, "activations": activations, **communication}
    parts["output layer"] = _count_output_bytes(shape, plan)
    return Memory({**state.parts, **parts, **({"transfer": transfer} if transfer else {})}, state.host)


def estimate_sampling(shape: ModelShape, plan: SamplingPlan, step: StepPlan) -> Memory:
    """Estimate the memory of a rank while its native sampler decodes the longest answers; gradients are freed by then.

    Args:
        shape: of the model.
        plan: of the sampler.
        step: of the learner in the same process.
    """
    size = SIZES[plan.precision]
    prompts = -(-plan.rows // plan.group)
    shared = plan.group > 1 and plan.prompt >= SHARED_FROM
    columns = plan.rows * (plan.answer + SPARE) + (prompts if shared else plan.rows) * plan.prompt
    cache = columns * count_cache_bytes(shape, plan.precision)
    longest = plan.prompt + plan.answer
    # When the cache grows, one layer exists twice. A step holds bias, scores and weights of a layer's attention, and
    # logits, log-probs and probabilities.
    decoding = cache // shape.layers + FLOAT * plan.rows * 3 * (shape.heads * longest + shape.vocabulary)
    tokens = max(plan.prompt, min(PREFILL_TOKENS, prompts * plan.prompt))
    prefill = tokens * (size * 3 * shape.inner + FLOAT * 6 * shape.width) + FLOAT * prompts * shape.vocabulary
    prefill += tokens * count_cache_bytes(shape, plan.precision)
    parts = {"KV cache": cache, "decoding": max(decoding, prefill - cache), "rows": plan.rows * plan.answer * STATE}
    gathered = shape.weights * SIZES[step.dtype] - estimate_state(shape, step).parts["weights"]
    if step.ranks > 1 and step.shard == "full":
        parts["gathered"] = max(0, gathered)
    state = estimate_state(shape, step)
    return Memory({**state.parts, **parts}, state.host)


def count_cache_bytes(shape: ModelShape, precision: str) -> int:
    """Count the bytes of a token's keys and values in all layers."""
    return 2 * SIZES[precision] * shape.layers * shape.keys


def count_layer_bytes(shape: ModelShape, plan: StepPlan) -> int:
    """Count the bytes that a layer stores for the backward pass for each token, in packed rows without masks.

    In float32 these are the input, the normalised input and the output of both norms; queries, keys, values, their
    attention before and after its rows are put in order, and its normaliser; and four tensors of the feed-forward
    layer. Under autocast every product stores its own bfloat16 copy of its input. Frozen norms do not store the
    normalised input.
    """
    width, queries, keys, inner = shape.width, shape.queries, shape.keys, shape.inner
    products = 3 * queries + 2 * keys + 4 * inner
    norms = 2 * width if shape.adapters else 4 * width
    numbers = FLOAT * (shape.heads + 2)
    if plan.dtype == "bfloat16":
        stored = FLOAT * 2 * width + 2 * (norms + products)
    elif plan.precision == "bfloat16":
        stored = FLOAT * norms + 2 * (5 * width + products)
    else:
        stored = FLOAT * (norms + 2 * width + products)
    normalised = FLOAT + (2 if plan.dtype == "bfloat16" or plan.precision == "bfloat16" else FLOAT)
    if shape.qk_norm:
        stored += normalised * (queries + keys) + FLOAT * (shape.heads + shape.kv_heads)
    return stored + numbers


def _count_weight_bytes(shape: ModelShape, plan: StepPlan) -> int:
    """Count the bytes of the weights; under autocast, frozen weights of products are stored in bfloat16."""
    size = SIZES[plan.dtype]
    if shape.adapters and plan.precision == "bfloat16" and size == FLOAT:
        # The output layer gets its own copy in bfloat16 where it shares the weights of the embeddings.
        embeddings = shape.vocabulary * shape.width
        copied = embeddings if shape.other_weights < 2 * embeddings else 0
        return 2 * (shape.weights - embeddings + copied) + FLOAT * (embeddings + shape.adapters)
    return size * shape.weights + FLOAT * shape.adapters


def _count_activation_bytes(shape: ModelShape, plan: StepPlan) -> int:
    """Count what a micro-batch takes besides gradients and the output layer."""
    half = plan.dtype == "bfloat16" or plan.precision == "bfloat16"
    size = 2 if half else FLOAT
    layer = count_layer_bytes(shape, plan) * plan.tokens
    if plan.on_cpu and plan.shared_prompts:
        layer += FLOAT * plan.row * plan.tokens  # torch converts a mask to float32 and stores it
    # In the backward pass of a feed-forward layer, gradients of three of its tensors are there, and one is freed.
    passing = (2 * shape.inner * size + 2 * FLOAT * shape.width) * plan.tokens
    accumulated = plan.microbatches > 1 and not shape.adapters
    passing += GRADIENTS[plan.dtype] * shape.width * shape.inner * accumulated
    # Autocast stores bfloat16 copies of trained weights from their first use on.
    casts = 0 if shape.adapters or plan.dtype == "bfloat16" or not half else 2 * shape.layer_weights
    if not plan.checkpointing:
        return (layer + casts) * shape.layers + passing
    inputs = shape.layers * shape.width * SIZES[plan.dtype] * plan.tokens
    return inputs + max(layer + casts + passing, casts * shape.layers)


def _count_gathered_bytes(shape: ModelShape, plan: StepPlan) -> int:
    """Count the whole weights that a rank gathers: those of two blocks, and the embeddings, which stay to the end."""
    if plan.shard != "full":
        return 0
    return SIZES[plan.dtype] * (2 * shape.layer_weights + shape.other_weights)


def _count_output_bytes(shape: ModelShape, plan: StepPlan) -> int:
    """Count what the final norm and the fused output layer take, if all tokens are trained."""
    logits = plan.tokens * shape.vocabulary
    kept = logits if logits <= KEPT_ELEMENTS else 0
    tile = min(logits, TILE_ELEMENTS["cpu" if plan.on_cpu else "other"])
    states = 5 * shape.width * plan.tokens  # input, normalised and output of the norm, those selected, their gradient
    return FLOAT * (states + kept + TILES * tile)
