"""Evaluate a model on servers that sample by token ids: what they serve, and what an evaluation records about it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from qed.console.live import Console
from qed.errors import UsageError
from qed.models.load import is_new
from qed.rollout.policy import Policy
from qed.runs.choose import is_run
from qed.runs.manifest import parse_step
from qed.runs.run import Row
from qed.sampling.server.recognise import find_served_model
from qed.sampling.server.sampler import ServerSampler


def is_served(policy: Policy) -> bool:
    """Return whether the policy is sampled by servers."""
    return isinstance(policy.sampler, ServerSampler)


def find_model(url: str) -> tuple[str, int | None]:
    """Return the folder or hub name of a server's model, or the run and the step if it is a run's checkpoint.

    Raises:
        UsageError: no server answers there, or its model is not on this machine.
    """
    name, root = find_served_model(url)
    folder = Path(root)
    if folder.is_dir():
        # The run of a checkpoint has the prompt and the reward.
        checkpoint = folder.resolve().parent
        run = checkpoint.parent.parent
        is_of_run = folder.name == "hf" and checkpoint.parent.name == "checkpoints" and is_run(run)
        return (str(run), parse_step(checkpoint.name)) if is_of_run else (root, None)
    if is_new(root) or folder.is_absolute() or root.count("/") > 1:
        raise UsageError(
            f"The server {url} serves {name} from {root}, which does not exist here. Name its tokenizer with --model: "
            "a folder or a hub name."
        )
    return root, None


def describe_servers(policy: Policy) -> Row:
    """Describe what determines the answers of servers besides the model, for the files of an evaluation."""
    sampler: Any = policy.sampler
    found = sampler.servers[0].capabilities
    return {
        "engine": found.engine,
        "engine_version": found.engine_version,
        "model": found.model,
        "weight_version": next(iter(sampler.allowed)),
        # A batch is split between the servers, which changes the rounding.
        "servers": len(sampler.servers),
    }


def read_precision(policy: Policy) -> str:
    """Return the precision in which the servers compute; empty if they do not report it."""
    sampler: Any = policy.sampler
    return str(sampler.servers[0].capabilities.precision)


def list_urls(policy: Policy) -> list[str]:
    """List the addresses of the servers, without secrets."""
    sampler: Any = policy.sampler
    return [server.url for server in sampler.servers]


def require_one_version(policy: Policy, name: str, console: Console) -> None:
    """Raise if servers have weights of different versions; print what they serve and that log-probs are not checked.

    After this call, an answer from another version ends the evaluation.

    Args:
        policy: policy with the servers.
        name: name of the model whose tokenizer is used.
        console: for the output.

    Raises:
        UsageError: the versions differ.
    """
    sampler: Any = policy.sampler
    versions = {server.url: server.read_version() for server in sampler.servers}
    if len(set(versions.values())) > 1:
        told = ", ".join(f"{url} has {version}" for url, version in versions.items())
        raise UsageError(f"The servers have weights of different versions: {told}. Use servers with the same version.")
    (version,) = sampler.allowed = frozenset(versions.values())
    root = str(sampler.servers[0].capabilities.details.get("root", ""))
    if root and root != name and Path(root).resolve() != Path(name).resolve():
        console.say(
            f"The server serves the weights of {root}; {name} provides the tokenizer and the name of the evaluation."
        )
    if version:
        console.say(f"The server has weights of version {version}, sent by a run, instead of those of {root}.")
    console.say("The log-probs of servers are not compared with the model's own: its weights are not loaded here.")
