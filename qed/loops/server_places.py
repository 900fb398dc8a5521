"""Chooses the devices of a run's servers, builds their commands, and checks whether a server fits the run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from qed.config.phases import Settings
from qed.errors import UsageError
from qed.guards.parents import build_child_command
from qed.models import load
from qed.rollout.policy import Policy
from qed.sampling.server.dialect import Server
from qed.serving.install import find_vllm
from qed.serving.processes import ServerSpec, copy_environment
from qed.serving.vllm import VllmOptions, build_vllm_spec

BODY_MB = 1024  # largest request to the run's own servers, which nobody else can reach
START = 1800.0  # seconds for a server to load its model
LEAST_WINDOW = 384  # tokens that the probe after a weight update needs
LEAST_ROOM = 8  # prompt tokens that must fit a server's window besides an answer


@dataclass(frozen=True)
class Place:
    """A server of a run: its name, its devices, and its number of threads on a CPU."""

    name: str
    devices: Sequence[str]
    threads: int


def choose_devices(settings: Settings, count: int, device: torch.device, ranks: int) -> list[list[str]]:
    """Return the devices of each server that a run starts.

    Args:
        settings: uses `sampling.devices`, and `sampling.colocate`, which selects the learner's device.
        count: number of servers.
        device: device of the learner.
        ranks: number of the learner's processes on this machine, each with its own device.

    Raises:
        UsageError: the devices cannot be distributed evenly, or none is left.
    """
    given = list(settings.sampling.devices)
    if not given and device.type != "cuda":
        return [[device.type]] * count
    if not given:
        first = device.index or 0
        own = [f"cuda:{number}" for number in range(first, first + ranks)]
        all_devices = [f"cuda:{number}" for number in range(torch.cuda.device_count())]
        free = [each for each in all_devices if each not in own]
        # A qed server takes only the memory that its rows need, so several can share the learner's device.
        shares = settings.sampling.colocate or (not free and settings.sampling.sampler == "native")
        given = own[:1] * count if shares else free[: len(free) // count * count] or free
    if not given:
        raise UsageError(
            "The learner uses every device, so none is left for a server. Set sampling.devices, or let "
            "both take turns with sampling.colocate=true."
        )
    if len(given) % count:
        raise UsageError(
            f"sampling.devices names {len(given)} devices for {count} servers. All servers need the same number: name "
            "more, or change sampling.servers."
        )
    each = len(given) // count
    if each > 1 and settings.sampling.sampler == "native":
        raise UsageError(
            f"sampling.devices names {len(given)} devices for {count} servers, but a qed server uses only one. "
            "Name fewer devices, or set sampling.servers to their number."
        )
    return [given[number * each : (number + 1) * each] for number in range(count)]


def share_threads(count: int) -> int:
    """Return each server's threads on a CPU; a single server has the learner's, to compute bit-identical results."""
    return max(1, torch.get_num_threads() // count)


def build_spec(settings: Settings, place: Place, logs: Path, window: int, find_model: Callable[[], Path]) -> ServerSpec:
    """Build the specification by which a server of a run is started.

    Args:
        settings: settings of the phase that samples.
        place: name, devices and threads of the server.
        logs: folder of the server's logs.
        window: context window of the model, in tokens.
        find_model: returns the folder of the model when the server starts.

    Raises:
        UsageError: vLLM is not installed, or cannot serve the model with these settings.
    """
    if settings.sampling.sampler != "vllm":
        command = _build_native_command(settings, place, find_model)
        return ServerSpec(place.name, command, copy_environment(), logs, seconds=START)
    sampling, model = settings.sampling, settings.model
    prompt = settings.data.max_prompt_tokens
    options = VllmOptions(
        str(find_model()),
        model.name,
        dtype="bfloat16" if model.precision == "bfloat16" else "float32",
        window=min(window, max(LEAST_WINDOW, prompt + sampling.max_tokens)) if prompt else None,
        seed=settings.run.seed,
        rows=sampling.rows_per_batch,
        devices=tuple(each for each in place.devices if each.startswith("cuda")),
        memory_share=sampling.memory_share,
        threads=place.threads,
        lora_rank=model.lora_rank,
        adapters=2 + settings.rollout.max_staleness,
        sleeps=sampling.colocate,
    )
    return build_vllm_spec(find_vllm(), options, logs, place.name, find_model=find_model)


def _build_native_command(
    settings: Settings, place: Place, find_model: Callable[[], Path]
) -> Callable[[int], Sequence[str]]:
    """Return a function from port to command of a qed server that computes like the run's in-process sampler."""
    options = {
        "--name": settings.model.name,
        "--device": place.devices[0],
        "--precision": settings.model.precision,
        "--dtype": settings.model.dtype,
        "--attention": settings.model.attention,
        "--threads": place.threads,
        "--rows-per-batch": settings.sampling.rows_per_batch,
        "--max-body-mb": BODY_MB,
    }
    given = [str(word) for option in options.items() for word in option]
    return lambda port: build_child_command(["serve", str(find_model()), "--port", str(port), "--json", *given])


def require_fit(server: Server, policy: Policy, settings: Settings) -> None:
    """Require that a server's model can load the policy's weights.

    Raises:
        UsageError: its vocabulary, its size, its end tokens or its window do not fit.
    """
    found = server.capabilities
    ours: dict[str, object] = {
        "vocabulary": int(policy.model.get_input_embeddings().num_embeddings),
        "ends": sorted(server.reader.ends),
    }
    theirs = {name: found.details.get(name) for name in ours}
    theirs["ends"] = sorted(theirs["ends"]) if isinstance(theirs["ends"], list | tuple) else None
    for name, mine in ours.items():
        if theirs[name] is not None and theirs[name] != mine:
            what = {"vocabulary": "tokens in its vocabulary", "ends": "as end tokens"}[name]
            raise UsageError(
                f"The server {server.url} serves {found.model}, which does not fit {settings.model.name}: it has "
                f"{theirs[name]} {what}, the run's model {mine}. Start it with the run's model, for example: qed "
                f"serve {settings.model.name}."
            )
    needed = settings.sampling.max_tokens + LEAST_ROOM
    if found.window < min(needed, load.read_window(policy.model)):
        raise UsageError(
            f"The server {server.url} takes sequences of {found.window} tokens, but answers alone may have "
            f"{settings.sampling.max_tokens} (sampling.max_tokens). Start it with a larger window."
        )


def describe_server(server: Server) -> str:
    """Describe a server in one line."""
    found = server.capabilities
    version = "" if server.version is None else f", weights of step {server.version}"
    exact = "as the learner computes them" if found.exact_logps else "not the learner's to the last digit"
    return (
        f"{server.url}: {found.engine} {found.engine_version} with {found.model} (window {found.window:,} tokens"
        f"{', ' + found.precision if found.precision else ''}{version}); log-probs {exact}."
    )
