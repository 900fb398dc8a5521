"""The ranks of a run: processes that train the same model, each on a part of every step.

All ranks run the same loop on the same data. Each samples, grades and scores its part and then receives the results of
all, so every rank makes the same decisions without communication. The gradient of a step is a sum over its rows, so it
is the sum of the ranks' gradients, however the rows are distributed. Apart from this file, only `joining.py` and
`slices.py` use torch.distributed.

A model is replicated on every rank, or sharded by FSDP2: `fully_shard` is applied to each block, then to the rest of
the model, whose scoring function is registered as a forward method, so that the weights of embedding, norm and head are
gathered for it. Gradients are summed, not averaged. Running a sharded model is a collective operation of all ranks.
"""

from __future__ import annotations

import datetime
import os
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import compress
from typing import Any, TypeVar, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard, register_fsdp_forward_method
from torch.distributed.tensor import DTensor

from qed.config.ranks_settings import ParallelSettings
from qed.errors import Interrupted
from qed.guards.foreign_errors import describe_error, rebuild_error
from qed.guards.heartbeats import Store
from qed.guards.ranks import assign_failure, in_collective
from qed.guards.signals import Stop, allow_stop_in_section
from qed.models.families import split_head

T = TypeVar("T")

NOT_SHARDED = ParallelSettings()
SCORES = "compute_scores"  # name of the scoring function among a sharded model's forward methods
BUCKET = 2**26  # elements of gradients that are summed in one call
STORE_SECONDS = 5  # timeout of a request to the ranks' store


@dataclass(frozen=True, eq=False)
class Parallel:
    """One rank of `world`; with a world of 1, the default, nothing here communicates.

    `local_rank` is the rank among the `local_world` ranks of this machine. `settings` define what is sharded.
    """

    rank: int = 0
    world: int = 1
    local_rank: int = 0
    local_world: int = 1
    settings: ParallelSettings = NOT_SHARDED
    _gathered: set[int] = field(default_factory=set, repr=False)  # models that `gather_weights` has gathered

    @property
    def is_first(self) -> bool:
        """Whether this rank writes the run's folder and prints."""
        return self.rank == 0

    @property
    def shards(self) -> bool:
        """Whether models are sharded over the ranks."""
        return self.world > 1 and self.settings.shard != "none"

    def is_sharded(self, model: nn.Module) -> bool:
        """Return whether a model has been sharded by `shard_model`."""
        return isinstance(model, FSDPModule)

    def exchange(self, compute: Callable[[], T]) -> list[T]:
        """Compute something on each rank, and return the results of all ranks in order.

        Within `compute` a rank works alone and may be stopped by a signal. An error on one rank is raised on all.
        """
        if self.world == 1:
            return [compute()]
        error: Exception | None = None
        result: T | None = None
        try:
            with allow_stop_in_section():
                result = compute()
        except Exception as raised:  # noqa: BLE001 -- raised again on every rank
            error = raised
        outcomes = self._gather((result, describe_error(error) if error is not None else None))
        # Prefer an error to a stop, which may be its consequence.
        failed = [
            (described["type"] == Interrupted.__name__, rank)
            for rank, (_, described) in enumerate(outcomes)
            if described
        ]
        if failed:
            assign_failure(prints=self.is_first)
            rank = min(failed)[1]
            raise error if error is not None and rank == self.rank else rebuild_error(outcomes[rank][1] or {}, rank)
        return [cast(T, value) for value, _ in outcomes]

    def run_on_first(self, compute: Callable[[], T]) -> T:
        """Compute something on rank 0, and return its result on all ranks; an error there is raised on all."""
        return self.exchange(compute if self.is_first else lambda: None)[0]  # type: ignore[return-value]

    def split(self, items: Sequence[T]) -> Sequence[T]:
        """Return this rank's part of a sequence: consecutive items, about as many as on every other rank."""
        start, end = (number * len(items) // self.world for number in (self.rank, self.rank + 1))
        return items[start:end]

    def map_split(self, compute: Callable[[Sequence[T]], list[Any]], items: Sequence[T]) -> list[Any]:
        """Compute a list from items, each rank for its consecutive part, and join the parts in order."""
        return [value for part in self.exchange(lambda: compute(self.split(items))) for value in part]

    def agree_on_stop(self, stop: Stop) -> bool:
        """Share all ranks' signals with every rank, and return whether any of them requests a checkpoint."""
        if self.world == 1:
            return stop.save
        gathered = self._gather((stop.received, stop.save))
        stop.agreed = max((received for received, _ in gathered if received), default=None)
        if stop.agreed:
            assign_failure(prints=self.is_first)
        return any(save for _, save in gathered)

    def sum_metrics(self, sums: Mapping[str, Tensor | float]) -> dict[str, Tensor | float]:
        """Sum metrics over the ranks, in rank order for bit-identical results; `_max` ones are maxima."""
        if self.world == 1:
            return dict(sums)
        total: dict[str, Tensor | float] = {}
        for part in self._gather({name: float(value) for name, value in sums.items()}):
            for name, value in part.items():
                values = (total[name], value) if name in total else (value,)
                total[name] = max(values) if name.endswith("_max") else sum(values)
        return total

    def sum_in_place(self, tensor: Tensor) -> Tensor:
        """Sum a tensor over the ranks."""
        if self.world > 1:
            with in_collective("sum"):
                dist.all_reduce(tensor)
        return tensor

    def shard_model(self, model: nn.Module) -> nn.Module:
        """Shard a model over the ranks in place, if they shard models; `call_scores` then computes with it."""
        if not self.shards or isinstance(model, FSDPModule):
            return model
        body, _ = split_head(model)
        device = next(model.parameters()).device
        mesh = init_device_mesh(device.type, (self.world,))
        reshards = self.settings.shard == "full"
        # Half-precision weights have float32 gradients until these are summed.
        policy = MixedPrecisionPolicy(reduce_dtype=torch.float32 if _has_half_weights(model) else None)
        for layer in _list_layers(body):
            fully_shard(layer, mesh=mesh, mp_policy=policy, reshard_after_forward=reshards)
        setattr(model, SCORES, _compute_scores.__get__(model))
        fully_shard(model, mesh=mesh, mp_policy=policy, reshard_after_forward=False)
        register_fsdp_forward_method(model, SCORES)
        for module in _list_sharded(model):
            # Both are needed for a sum in every version of torch: the second alone still averages.
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)
        # FSDP treats the module whose forward pass runs first as the root.
        with torch.no_grad():
            model(input_ids=torch.zeros(1, 1, dtype=torch.int64, device=device), use_cache=False)
        self.free_weights(model)
        return model

    def free_weights(self, model: nn.Module) -> None:
        """Free a sharded model's complete weights, which remain after a forward pass without a backward pass."""
        if id(model) not in self._gathered:
            for module in _list_sharded(model):
                module.reshard()

    def begin_microbatch(self, model: nn.Module, is_last: bool) -> None:
        """Let a sharded model sum its gradients over the ranks in each micro-batch, or only in a step's last one."""
        if self.shards and isinstance(model, FSDPModule):
            model.set_requires_gradient_sync(is_last or self.settings.reduce == "microbatch")
            model.set_is_last_backward(is_last)

    def sum_gradients(self, parameters: Sequence[nn.Parameter]) -> None:
        """Sum the gradients of replicated parameters over the ranks, after a step's last micro-batch."""
        if self.world == 1 or self.shards:
            return
        # Weights unused on all ranks keep no gradient: with a zero gradient, the optimizer would decay them.
        used = torch.tensor([each.grad is not None for each in parameters], device=parameters[0].device).int()
        for bucket in _split_buckets(list(compress(parameters, self.sum_in_place(used).tolist()))):
            for parameter in bucket:
                if parameter.grad is None:  # a rank without rows
                    parameter.grad = torch.zeros_like(parameter, dtype=parameter.grad_dtype)
            gradients = [parameter.grad for parameter in bucket if parameter.grad is not None]
            flat = self.sum_in_place(torch.cat([gradient.flatten() for gradient in gradients]))
            for gradient, summed in zip(gradients, flat.split([each.numel() for each in gradients]), strict=True):  # type: ignore[no-untyped-call]
                gradient.copy_(summed.view_as(gradient))

    @contextmanager
    def gather_weights(self, model: nn.Module) -> Iterator[None]:
        """Within the context, hold a sharded model's complete weights on each rank, for reading; all ranks must enter.

        Within it, a rank may run the model alone.
        """
        modules = _list_sharded(model)
        if not modules or id(model) in self._gathered:
            yield
            return
        for module in modules:
            module.unshard()
            # Otherwise a forward pass would free weights that the sampler still reads.
            module.set_reshard_after_forward(False, recurse=False)
        self._gathered.add(id(model))
        try:
            yield
        finally:
            self._gathered.discard(id(model))
            for module in modules:
                full = self.settings.shard == "full" and id(module) != id(model)
                module.set_reshard_after_forward(full, recurse=False)
                module.reshard()

    def _gather(self, value: T) -> list[T]:
        """Return the value of every rank, in rank order."""
        values: list[Any] = [None] * self.world
        with in_collective("exchange of results"):
            dist.all_gather_object(values, value)
        return values

    def open_store(self) -> Store:
        """Open a key-value store that all ranks share; rank 0 holds it."""
        timeout = datetime.timedelta(seconds=STORE_SECONDS)
        host = os.environ.get("MASTER_ADDR") or socket.gethostname()
        make: Any = partial(dist.TCPStore, timeout=timeout)  # type: ignore[attr-defined]
        store = make(host, 0, is_master=True, wait_for_workers=False) if self.is_first else None
        host, port = self._gather((host, store.port if store is not None else 0))[0]
        return store or make(host, port, is_master=False)  # type: ignore[no-any-return]


ALONE = Parallel()


def deal_parts(costs: Sequence[float], world: int) -> list[list[int]]:
    """Assign micro-batches to ranks, the most expensive first, each to the rank with the least work so far.

    No rank gets more than `ceil(len(costs) / world)`. Every rank computes the same result.
    """
    rounds = -(-len(costs) // world)
    dealt: list[list[int]] = [[] for _ in range(world)]
    work = [0.0] * world
    for number in sorted(range(len(costs)), key=lambda index: (-costs[index], index)):
        rank = min((rank for rank in range(world) if len(dealt[rank]) < rounds), key=lambda rank: (work[rank], rank))
        dealt[rank].append(number)
        work[rank] += costs[number]
    return dealt


def read_full(tensor: Tensor) -> Tensor:
    """Return the full tensor of a sharded one, which is a collective operation; return others unchanged."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def call_scores(model: nn.Module, scores: Callable[..., T], *arguments: Any, **options: Any) -> T:
    """Call `scores(model, …)`, within a forward method if the model is sharded."""
    call = getattr(model, SCORES) if isinstance(model, FSDPModule) else partial(_compute_scores, model)
    result: T = call(scores, *arguments, **options)
    return result


def _compute_scores(model: nn.Module, scores: Callable[..., T], *arguments: Any, **options: Any) -> T:
    """Call `scores(model, …)`: the forward method of a sharded model, within which its weights are gathered."""
    return scores(model, *arguments, **options)


def _list_layers(body: nn.Module) -> list[nn.Module]:
    """Return the blocks of a decoder: its first list of modules; lists within a block, such as experts, come later."""
    return next((list(module) for module in body.modules() if isinstance(module, nn.ModuleList)), [])


def _has_half_weights(model: nn.Module) -> bool:
    return any(weight.requires_grad and weight.dtype == torch.bfloat16 for weight in model.parameters())


def _list_sharded(model: nn.Module) -> list[FSDPModule]:
    return [module for module in model.modules() if isinstance(module, FSDPModule)]


def _split_buckets(parameters: Sequence[nn.Parameter]) -> Iterator[list[nn.Parameter]]:
    """Split parameters into buckets of one dtype, of about `BUCKET` elements."""
    bucket: list[nn.Parameter] = []
    for parameter in parameters:
        if bucket and (bucket[0].dtype != parameter.dtype or sum(each.numel() for each in bucket) >= BUCKET):
            yield bucket
            bucket = []
        bucket.append(parameter)
    if bucket:
        yield bucket
