"""Defaults for servers with inexact log-probs: truncated importance weights correct the difference from the learner.

Two programs that compute the same model round differently, and a policy gradient mistakes the difference for a change
of the policy. Log-probs from vLLM and SGLang differ by 0.001 to 0.05 nats per token, and by far more on some.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from qed.config.phases import PipelineSettings, Settings
from qed.config.resolve import DEFAULT
from qed.console.live import Console
from qed.errors import QedError, UsageError
from qed.loops.device_defaults import keep_device_defaults, set_value
from qed.loops.resume import list_phases
from qed.runs.run import Launch, Run
from qed.sampling.server.dialect import Reader
from qed.sampling.server.recognise import recognise

ON_SERVERS = f"{DEFAULT} on servers that are not exact"
KIND = "token_truncate"
HIGH = "algorithm.correction_high"
ASKING = 10.0  # seconds without progress before a request for a server's capabilities fails

AnySettings = Settings | PipelineSettings


def settle_engine_defaults(
    settings: AnySettings, launch: Launch, run: Run, console: Console
) -> tuple[AnySettings, Launch]:
    """Return a run's settings with a correction for inexact servers, and its launch with their origins.

    A resumed run keeps its initial choice. Values set by the user are not changed, and errors never fail a run.
    """
    if launch.resume:
        settings, kept = keep_device_defaults(settings, launch.origins, run.folder, ON_SERVERS)
        return settings, replace(launch, origins=kept)
    phase = list_phases(settings)[-1]
    section = "rl.algorithm" if isinstance(settings, PipelineSettings) else "algorithm"
    path = f"{section}.correction.kind"
    origin = launch.origins.get(path, "")
    correction = getattr(phase.algorithm, "correction", None)
    if not origin.startswith(DEFAULT) or correction is None or correction.kind != "none" or correction.rejects:
        return settings, launch
    engine = _find_inexact(phase)
    if not engine:
        return settings, launch
    try:
        settings = set_value(settings, path, KIND)
    except UsageError:  # the loss already has a ratio to the sampler
        return settings, launch
    console.say(
        f"{engine} computes log-probs differently from the learner; truncated importance weights correct this: "
        f"algorithm.correction {KIND}, {HIGH} {correction.high:g}. --algorithm.correction none turns them off."
    )
    run.event("engine_defaults", engine=engine, correction=KIND, high=correction.high)
    return settings, replace(launch, origins={**launch.origins, path: f"{ON_SERVERS}: {engine}"})


def _find_inexact(phase: Settings) -> str:
    """Return the name of an engine with inexact log-probs; empty for samplers in this process and for qed's servers."""
    sampling: Any = phase.sampling
    if sampling.sampler == "vllm":
        return "vLLM"
    for url in sampling.url if sampling.sampler == "server" else ():
        try:
            found = recognise(url, Reader(None, ()), ASKING).capabilities
        except QedError:
            return ""  # reported when the run connects to its servers
        if found.engine != "qed" or found.precision != phase.model.precision:
            return f"{found.engine} at {url}"
    return ""
