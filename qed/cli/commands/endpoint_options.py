"""Options of the commands that query a server: inference servers by token ids, or any OpenAI-compatible endpoint."""
# ruff: noqa: PLC0415 -- the endpoint's client is imported after the options are parsed

from __future__ import annotations

import argparse
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from qed.errors import UsageError

if TYPE_CHECKING:
    from qed.config.phases import Settings
    from qed.evaluation.endpoint.ask import EndpointPolicy
    from qed.evaluation.endpoint.model import EndpointSettings

PREFIX = "openai:"
# Options for a model that is loaded here; they have no effect on an endpoint.
LOCAL = ("sampler", "device", "precision", "attention", "revision", "step", "cluster")


def add_endpoint_options(add: Any) -> None:
    """Add the options."""
    add("--url", metavar="ADDRESS,…", help="servers of --sampler server, or the endpoint of --model openai:NAME")
    add("--api", choices=("chat", "completions"), help="the endpoint's API: messages or text (default: chat)")
    add("--key-variable", metavar="NAME", help="environment variable with the key (default: OPENAI_API_KEY)")
    add("--concurrency", type=int, metavar="N", help="requests to the endpoint at the same time (default: 16)")
    add("--request-seconds", metavar="SECONDS", help="deadline of a request to a server or endpoint (default: 600)")
    add("--extra", metavar="JSON", help='additional fields of each request, such as {"seed": null}; null removes one')


def is_endpoint(model: str | None) -> bool:
    """Return whether the name is that of a model behind an endpoint, `openai:NAME`."""
    return model is not None and model.startswith(PREFIX)


def find_served(args: argparse.Namespace) -> None:
    """Set the model to the one served at the first address, if the sampler uses servers and no model is named."""
    if args.sampler == "server" and args.url:
        from qed.evaluation.served import find_model

        args.model, step = find_model(args.url.split(",")[0])
        args.step = step if args.step is None else args.step


def add_addresses(args: argparse.Namespace, settings: Settings) -> Settings:
    """Return the settings with the server addresses of the command line.

    Raises:
        UsageError: there are addresses, but the sampler uses no servers.
    """
    given: dict[str, Any] = {"url": tuple(args.url.split(","))} if args.url else {}
    if args.request_seconds is not None:
        given["request_seconds"] = _read_seconds(args.request_seconds, "generate")
    return replace(settings, sampling=replace(settings.sampling, **given))


def read_endpoint(args: argparse.Namespace, command: str) -> EndpointSettings | None:
    """Return the endpoint of the command line; None for a model that is loaded or sampled by token ids.

    Raises:
        UsageError: options contradict each other.
    """
    given: dict[str, Any] = {
        "api": args.api,
        "key_variable": args.key_variable,
        "concurrency": args.concurrency,
        "extra": args.extra,
    }
    given = {name: value for name, value in given.items() if value is not None}
    if not is_endpoint(args.model):
        if given:
            name = next(iter(given)).replace("_", "-")
            raise UsageError(f"qed {command}: --{name} is for an endpoint, --model openai:NAME with --url.")
        return None
    local = [name for name in LOCAL if getattr(args, name, None)]
    if local:
        raise UsageError(f"qed {command}: --{local[0]} has no effect on the model behind an endpoint; leave it out.")
    if not args.url or "," in args.url:
        raise UsageError(f"qed {command}: --model openai:NAME needs one --url, such as http://127.0.0.1:8000/v1.")
    from qed.evaluation.endpoint.model import EndpointSettings

    if args.request_seconds is not None:
        given["seconds"] = _read_seconds(args.request_seconds, command)
    return EndpointSettings(args.url, args.model.removeprefix(PREFIX), **given)


def resolve_endpoint_settings(args: argparse.Namespace) -> tuple[Settings, str]:
    """Return the settings of a model behind an endpoint with its prompt, and a display name."""
    from qed.cli.commands.policy_options import list_passed
    from qed.rollout.trained import resolve_model_settings

    options = list_passed(args)
    options.setdefault("data.prompt", "question_only" if args.api == "completions" else "chat")
    return resolve_model_settings(None, args.model, options, args.allow_user_code), args.model


def load_endpoint_policy(endpoint: EndpointSettings, settings: Settings) -> EndpointPolicy:
    """Return the model behind an endpoint with the prompt of the settings."""
    from qed.data.splits import load_prompt
    from qed.evaluation.endpoint.ask import EndpointPolicy
    from qed.evaluation.endpoint.prompts import EndpointTemplate

    return EndpointPolicy(endpoint, EndpointTemplate(load_prompt(settings.data), endpoint.api, settings.sampling.stop))


def _read_seconds(text: str, command: str) -> float:
    try:
        return float(text)
    except ValueError as error:
        raise UsageError(f"qed {command}: --request-seconds takes a number, not '{text}'.") from error
