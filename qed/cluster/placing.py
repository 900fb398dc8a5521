"""What a run on a Ray cluster reserves for its inference servers, and whether the cluster can host them."""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from qed.cluster.ray_session import Session, require_shared
from qed.config.phases import PipelineSettings, Settings
from qed.errors import UsageError
from qed.sampling.server.dialect import KEY_VARIABLE

ENGINES = ("native", "vllm")  # samplers whose servers a run starts
MEMORY = Path("/dev/shm")


@dataclass(frozen=True)
class Engines:
    """The servers of a run: the resources of each, and whether they may be on several nodes."""

    count: int
    resources: Mapping[str, float]
    shared: bool


def place_engines(settings: Settings | PipelineSettings, session: Session) -> Engines | None:
    """Return the servers of `cluster.engines` for a cluster; None if there are none.

    Raises:
        UsageError: the sampler does not use servers of the run, or the nodes do not share the weights' folder.
    """
    cluster, sampling = settings.cluster, settings.sampling
    if not cluster.engines:
        return None
    if sampling.sampler not in ENGINES:
        raise UsageError(
            f"cluster.engines starts servers for sampling.sampler {' or '.join(ENGINES)}, not for {sampling.sampler}."
        )
    if sampling.servers not in (0, cluster.engines):
        raise UsageError("On a cluster the number of servers is cluster.engines: leave sampling.servers out.")
    if sampling.devices or sampling.colocate:
        raise UsageError("On a cluster Ray places the servers: leave sampling.devices and sampling.colocate out.")
    shared = session.nodes > 1
    folder = Path(sampling.weights_folder or settings.run.out).absolute()
    if shared and MEMORY in (folder, *folder.parents):
        raise UsageError(
            f"sampling.weights_folder {folder} is in the memory of one node, but servers may be on others. Leave it "
            "out, or give a folder that all nodes share."
        )
    if shared:
        require_shared(folder if sampling.weights_folder else folder.parent)
    return Engines(cluster.engines, reserve_for_engine(settings, session), shared)


def reserve_for_engine(settings: Settings | PipelineSettings, session: Session) -> dict[str, float]:
    """Return what Ray reserves for a server: GPUs only if the learners have some."""
    gpus = float(settings.cluster.gpus_per_engine) if uses_gpus(settings, session) else 0.0
    return {"CPU": 1.0, **({"GPU": gpus} if gpus else {})}


def uses_gpus(settings: Settings | PipelineSettings, session: Session) -> bool:
    """Return whether the learners have GPUs."""
    return session.gpus >= 1 and settings.model.device in ("auto", "cuda")


def make_key(settings: Settings | PipelineSettings) -> dict[str, str]:
    """Return the environment variable with the key of the run's servers, with a new key unless it is set."""
    if not settings.cluster.engines:
        return {}
    return {KEY_VARIABLE: os.environ.get(KEY_VARIABLE) or secrets.token_urlsafe(32)}
