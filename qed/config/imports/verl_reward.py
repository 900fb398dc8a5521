"""The reward of verl's configurations: a user's file, LUFFY's by number, DAPO's overlong punishment."""

from __future__ import annotations

from qed.config.imports.rules import Draft


def set_reward(draft: Draft) -> None:
    """Set the reward: a user-defined one on the command line, LUFFY's by number, and DAPO's overlong punishment."""
    options = draft.options
    prefixes = ("custom_reward_function.", "reward.custom_reward_function.")
    prefix = next((one for one in prefixes if options.has(f"{one}path")), prefixes[0])
    own = options.get(f"{prefix}path")
    buffers = ("reward_model.overlong_buffer.", "reward_model.reward_kwargs.overlong_buffer_cfg.",
               "reward.reward_kwargs.overlong_buffer_cfg.", "custom_reward_function.overlong_buffer.")  # fmt: skip
    buffer = next((one for one in buffers if options.is_on(f"{one}enable")), "")
    overlong = ""
    if buffer:
        factor = options.number(f"{buffer}penalty_factor", default=1.0)
        overlong = "overlong" if factor == 1 else f"{factor:g}*overlong"
        draft.set(f"{buffer}len", "data.reward_options", [f"overlong.cache={int(options.number(f'{buffer}len'))}"])
    if own:
        name = options.get(f"{prefix}name", default="compute_score")
        draft.skip(f"{prefix}path", "on the command line, because it is code")
        draft.arguments += ["--reward", ",".join(filter(None, (f"{own}:{name}", overlong)))]
    elif options.has("data.reward_impl_version"):
        version = int(options.number("data.reward_impl_version"))
        draft.set("data.reward_impl_version", "data.reward", ["luffy_think"])
        if version in (1, 3):
            draft.set("data.reward_impl_version", "data.reward_options", [f"luffy_think.version={version}"])
    elif overlong:
        draft.set(f"{buffer}enable,{buffer}penalty_factor", "data.reward", ["auto", overlong])
