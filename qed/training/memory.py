"""Computes the memory of training and sampling, part by part, from a model's shape and the settings.

The preflight check, the dry run and `qed doctor --fit --device-memory` use these functions, and benchmarks/memory.py
compares them with measured peaks. All results are bytes of tensors at the peak of a step. Memory that the allocator
keeps in addition is not counted: fragments on a GPU, holes in glibc's heap on a CPU (docs/scale.md).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from qed.models.qlora import count_packed_bytes
from qed.models.shapes import ModelShape
from qed.sampling.native.kv_cache import SPARE
from qed.sampling.native.prefill import PREFILL_TOKENS
from qed.sampling.native.sampler import SHARED_FROM
from qed.training.fused_logps import KEPT_BYTES
from qed.training.optim import CHUNK
from qed.training.output_tiles import TILE_ELEMENTS
from qed.training.parallel import BUCKET
from qed.training.short_attention import COLUMNS

FLOAT = 4  # bytes
SIZES = {"float32": 4, "bfloat16": 2, "float64": 8}  # bytes per element
# Bytes of AdamW's two moments per weight, by optimizer.
MOMENTS = {"adamw": 8, "adamw_offload": 8, "adamw8bit": 2}
TILES = 3  # tiles of logits at a time: two, and one for the gradient of an entropy
DIVERGENCE_TILES = 10  # for a divergence to a teacher: two of logits, two that mix them, and others for its terms
OFFLOADED = ("moments", "float32 copies", "initial weights")  # parts that learner.offload_for_sampling offloads
STATE = 20  # bytes that the sampler stores per answer token: an id, a log-prob and a random number


@dataclass(frozen=True)
class StepPlan:
    """The parameters of a learner's step that determine its memory, besides the model.

    `precision` is that of the computation, `dtype` that of the weights; if it is below float32, the optimizer holds
    float32 copies of them. `shard` and `reduce` are as in `ParallelSettings`.
    """

    tokens: int  # inputs of a rank's longest micro-batch
    row: int  # inputs of its longest row
    microbatches: int = 2  # per optimizer step and rank
    shared_prompts: bool = False  # whether rows share prompts, whose attention needs a mask on a CPU
    checkpointing: bool = False
    optimizer: str = "adamw"
    dtype: str = "float32"
    precision: str = "float32"
    quantized: bool = False  # whether the linear layers under adapters are quantized to 4 bits
    copies: int = 0  # copies of the initial weights, for an algorithm that restores them
    reference: str = ""  # dtype of a separate reference model's weights; empty without one
    reference_weights: int = 0  # parameters of a reference model other than the policy; 0: as many as the policy
    critic: bool = False  # whether there is a critic of the policy's size with its own weights and optimizer
    critic_offload: bool = False  # whether the critic is on the host while it is not used
    divergence: bool = False  # whether full distributions are compared with a teacher's
    reference_offload: bool = False
    offload_for_sampling: bool = False
    on_cpu: bool = False
    kernels: bool = False  # whether layers with CUDA kernels use them
    ranks: int = 1
    shard: str = "none"
    reduce: str = "step"

    @property
    def divided(self) -> int:
        """The number of ranks over which weights, gradients and optimizer state are sharded; 1 if they are not."""
        return self.ranks if self.shard != "none" else 1

    @property
    def offloads_models(self) -> bool:
        """Whether a reference model or a critic can be on the host; a sharded one stays on its devices."""
        return not self.on_cpu and self.divided == 1

    @property
    def late(self) -> bool:
        """Whether each rank holds complete gradients until the last of several micro-batches."""
        return self.divided > 1 and self.reduce == "step" and self.microbatches > 1


@dataclass(frozen=True)
class SamplingPlan:
    """The parameters that determine the native sampler's memory, besides the model; lengths are in tokens."""

    rows: int  # answers at a time
    prompt: int
    answer: int
    group: int = 1  # answers of a prompt
    precision: str = "float32"  # of the computation


@dataclass(frozen=True)
class Memory:
    """Bytes by part on the model's device, and of parts offloaded to the host."""

    parts: dict[str, int]
    host: dict[str, int] = field(default_factory=dict)

    @property
    def total(self) -> int:
        """Bytes on the device."""
        return sum(self.parts.values())

    def without(self, *parts: str) -> int:
        """Return the bytes on the device without some parts."""
        return sum(size for part, size in self.parts.items() if part not in parts)


def estimate_state(shape: ModelShape, plan: StepPlan) -> Memory:
    """Estimate a rank's memory between steps: its share of weights, optimizer state and frozen copies."""
    size = max(FLOAT, SIZES[plan.dtype])
    moments = {"moments": MOMENTS[plan.optimizer] * (size // FLOAT) * shape.trained // plan.divided}
    if plan.dtype == "bfloat16" and not shape.adapters:
        moments["float32 copies"] = FLOAT * shape.trained // plan.divided
    parts = {"weights": _count_weight_bytes(shape, plan) // plan.divided}
    host: dict[str, int] = {}
    if plan.reference:
        count = plan.reference_weights or shape.weights
        reference = {"reference": SIZES[plan.reference] * count // plan.divided}
        (host if plan.reference_offload and plan.offloads_models else parts).update(reference)
    if plan.copies:
        parts["initial weights"] = plan.copies * parts["weights"]
    (host if plan.optimizer == "adamw_offload" and not plan.on_cpu else parts).update(moments)
    if plan.critic:
        parts["critic"] = parts["weights"] + sum(size for name, size in moments.items() if name in parts)
    return Memory(parts, host)


def estimate_training(shape: ModelShape, plan: StepPlan) -> Memory:
    """Estimate the memory of a rank at the peak of an optimizer step.

    The peak is usually in the backward pass of the last micro-batch, when the gradients of earlier ones exist. With a
    single micro-batch, gradients are created while activations are freed. The part `after` is the additional memory at
    the end of the step, when the last gradients are summed over the ranks or the weights are updated.
    """
    state, size = estimate_state(shape, plan), _count_gradient_bytes(plan)
    # Once summed, sharded gradients have the dtype of their weights.
    summed = SIZES[plan.dtype] if plan.divided > 1 and not shape.adapters else size
    own = summed * shape.trained // plan.divided
    gradients = size * shape.trained if plan.late else own
    activations = _count_activation_bytes(shape, plan)
    if plan.microbatches == 1 and not shape.adapters:
        # The output layer writes its part of the embeddings' gradient before any activation is freed.
        coming = summed * shape.layers * shape.layer_weights // plan.divided
        activations = max(activations - coming, activations // shape.layers)
    parts = {"gradients": gradients, "activations": activations, "output layer": _count_output_bytes(shape, plan)}
    parts |= _count_backward_buffers(shape, plan)
    during = sum(parts.values()) - own
    after = max(_count_last_sum_bytes(shape, plan), _count_update_bytes(shape, plan, summed)) - during
    return Memory({**state.parts, **parts, **({"after": after} if after > 0 else {})}, state.host)


def estimate_sampling(shape: ModelShape, plan: SamplingPlan, step: StepPlan) -> Memory:
    """Estimate a rank's memory while its native sampler decodes the longest answers, after gradients are freed.

    Args:
        shape: shape of the model.
        plan: plan of the sampler.
        step: plan of the step of the learner in the same process.
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
    if plan.precision == "bfloat16" and step.dtype == "float32" and not shape.adapters:
        # Autocast's casts and, on a device, those of the decoding steps.
        copies = 1 if step.on_cpu else 2
        parts["casts"] = 2 * copies * (shape.layers * shape.layer_weights + shape.vocabulary * shape.width)
    if step.divided > 1:
        parts["gathered"] = _count_weight_bytes(shape, step)
    if step.quantized:
        parts["dequantized"] = _count_dequantized_bytes(shape, step)
    state = estimate_state(shape, step)
    moved = {name: size for name, size in state.parts.items() if name in OFFLOADED}
    if not step.offload_for_sampling or step.on_cpu:
        moved = {}
    if step.critic and (step.critic_offload or step.offload_for_sampling) and step.offloads_models:
        moved["critic"] = state.parts["critic"]
    kept = {name: size for name, size in state.parts.items() if name not in moved}
    return Memory({**kept, **parts}, {**state.host, **moved})


def count_cache_bytes(shape: ModelShape, precision: str) -> int:
    """Count the bytes of a token's keys and values in all layers."""
    return 2 * SIZES[precision] * shape.layers * shape.keys


def count_layer_bytes(shape: ModelShape, plan: StepPlan) -> int:
    """Count the bytes per token that a layer stores for the backward pass, in packed rows without masks.

    In float32 these are the input, the normalised input and the output of both norms; queries, keys, values, their
    attention before and after its rows are put in order, and its normaliser; and four tensors of the feed-forward
    layer. Under autocast, every product stores its own bfloat16 copy of its input. Frozen norms do not store the
    normalised input. This holds for torch's operators; layers in C++ store at most two thirds of it.
    """
    if plan.kernels and shape.has_kernels and "bfloat16" in (plan.dtype, plan.precision):
        return _count_kernel_bytes(shape, plan)
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


def _count_kernel_bytes(shape: ModelShape, plan: StepPlan) -> int:
    """Count the same for layers with CUDA kernels.

    These are the states before both norms; in bfloat16, their norms, rotated queries and keys, values, the attention
    and three tensors of the feed-forward layer; and normalisers. The small products of adapters are not counted.
    """
    width, queries, keys, inner = shape.width, shape.queries, shape.keys, shape.inner
    half = 2 * width + 2 * queries + 2 * keys + 3 * inner + (queries + keys if shape.qk_norm else 0)
    return SIZES[plan.dtype] * 2 * width + 2 * half + FLOAT * (shape.heads + 2)


def count_short_bytes(shape: ModelShape, plan: StepPlan) -> int:
    """Count the most bytes per token of short rows that a layer stores in addition to `count_layer_bytes`.

    Their attention stores its probabilities and, in half precision, its operands in float32.
    """
    half = plan.dtype == "bfloat16" or plan.precision == "bfloat16"
    operands = (shape.queries + shape.keys) * 2 if half else 0
    return FLOAT * (shape.heads * min(plan.row, COLUMNS) + operands)


def _count_weight_bytes(shape: ModelShape, plan: StepPlan) -> int:
    """Count the bytes of the complete weights; with adapters under autocast, weights of products are in bfloat16."""
    size = SIZES[plan.dtype]
    packed = shape.layers * shape.linear_weights * plan.quantized
    whole, stored = shape.weights - packed, count_packed_bytes(packed)
    if shape.adapters and plan.precision == "bfloat16" and size == FLOAT:
        # The output layer gets its own bfloat16 copy if it shares the weights of the embeddings.
        embeddings = shape.vocabulary * shape.width
        copied = embeddings if shape.other_weights < 2 * embeddings else 0
        return stored + 2 * (whole - embeddings + copied) + FLOAT * (embeddings + shape.adapters)
    return stored + size * whole + FLOAT * shape.adapters


def _count_dequantized_bytes(shape: ModelShape, plan: StepPlan) -> int:
    """Count the bytes of a layer's largest weight when a product dequantizes it from 4 bits and converts it."""
    sizes = {plan.dtype: SIZES[plan.dtype], plan.precision: SIZES[plan.precision]}
    return sum(sizes.values()) * shape.width * max(shape.inner, shape.queries) * plan.quantized


def _count_activation_bytes(shape: ModelShape, plan: StepPlan) -> int:
    """Count the bytes of a micro-batch besides gradients and the output layer."""
    half = plan.dtype == "bfloat16" or plan.precision == "bfloat16"
    size = 2 if half else FLOAT
    layer = count_layer_bytes(shape, plan) * plan.tokens
    if plan.on_cpu and plan.shared_prompts:
        layer += FLOAT * plan.row * plan.tokens  # torch converts a mask to float32 and stores it
    if plan.on_cpu:
        layer += count_short_bytes(shape, plan) * plan.tokens
    # In a feed-forward layer's backward pass, gradients of three of its tensors exist, and one is freed.
    passing = (2 * shape.inner * size + 2 * FLOAT * shape.width) * plan.tokens
    accumulated = plan.microbatches > 1 and not shape.adapters
    passing += _count_gradient_bytes(plan) * shape.width * shape.inner * accumulated
    passing += _count_dequantized_bytes(shape, plan)
    # Autocast caches bfloat16 copies of trained weights from their first use on.
    casts = 0 if shape.adapters or plan.dtype == "bfloat16" or not half else 2 * shape.layer_weights
    if not plan.checkpointing:
        return (layer + casts) * shape.layers + passing
    inputs = shape.layers * shape.width * SIZES[plan.dtype] * plan.tokens
    return inputs + max(layer + casts + passing, casts * shape.layers)


def _count_gradient_bytes(plan: StepPlan) -> int:
    """Count the bytes of a gradient before it is summed over the ranks: float32 for bfloat16 weights and adapters."""
    return max(FLOAT, SIZES[plan.dtype])


def _count_backward_buffers(shape: ModelShape, plan: StepPlan) -> dict[str, int]:
    """Count FSDP's buffers in a backward pass: complete weights, and complete gradients that it sums.

    Complete weights are all of them, or those of two blocks and of the embeddings and output layer, which stay to the
    end. Of a block there are the gradients, their copy in one tensor, and such a copy of the previous block.
    """
    if plan.divided == 1:
        return {}
    blocks = shape.layers if plan.shard == "grads" else min(2, shape.layers)
    gathered = SIZES[plan.dtype] * (blocks * shape.layer_weights + shape.other_weights)
    if shape.adapters:
        return {"gathered": gathered}
    copies = 2 if plan.late else 3
    reduction = _count_gradient_bytes(plan) * copies * shape.layer_weights
    if not plan.late:  # otherwise the output layer's is among the complete gradients
        reduction += _count_gradient_bytes(plan) * shape.vocabulary * shape.width
    return {"gathered": gathered, "reduction": reduction}


def _count_last_sum_bytes(shape: ModelShape, plan: StepPlan) -> int:
    """Count the bytes for summing the last gradients, besides a rank's share of them, when no activations are left.

    With sharded weights these are the embeddings and the output layer, which FSDP sums together; otherwise one bucket.
    """
    size = _count_gradient_bytes(plan)
    if plan.ranks == 1 or shape.adapters:
        return 0
    if plan.divided == 1:
        return size * min(shape.trained, max(BUCKET, shape.vocabulary * shape.width))
    gathered = SIZES[plan.dtype] * (shape.layers * shape.layer_weights * (plan.shard == "grads") + shape.other_weights)
    return gathered + 2 * size * shape.other_weights


def _count_update_bytes(shape: ModelShape, plan: StepPlan, summed: int) -> int:
    """Count the optimizer step's bytes besides the gradients: it converts them, or moves chunks of its state."""
    masters = plan.dtype == "bfloat16" and not shape.adapters
    if plan.optimizer == "adamw_offload":
        # Two chunks at a time, each of both moments, a master and a converted gradient.
        return 0 if plan.on_cpu else 2 * (2 + masters + (summed < FLOAT)) * CHUNK * FLOAT
    # Gradients in half precision are replaced one by one.
    return (FLOAT - summed) * shape.trained // plan.divided if summed < FLOAT else 0


def _count_output_bytes(shape: ModelShape, plan: StepPlan) -> int:
    """Count the bytes of the final norm and the fused output layer if all tokens are trained."""
    logits = plan.tokens * shape.vocabulary
    # Logits or, without kernels, exponentials, which are never in half precision: the larger of those stored.
    sizes = {SIZES[plan.precision], max(FLOAT, SIZES[plan.precision])}
    kept = max((logits * size for size in sizes if logits * size <= KEPT_BYTES), default=0)
    tile = min(logits, TILE_ELEMENTS["cpu" if plan.on_cpu else "other"])
    states = 5 * shape.width * plan.tokens  # input, normalised and output of the norm, those selected, their gradient
    # Kernels on a device read the whole weight in half precision.
    casts = plan.precision == "bfloat16" and plan.dtype == "float32" and not plan.on_cpu and not shape.adapters
    weight = 2 * shape.vocabulary * shape.width if casts else 0
    return weight + kept + FLOAT * (states + (DIVERGENCE_TILES if plan.divergence else TILES) * tile)
