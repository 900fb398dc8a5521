"""The commands that do not train: one file each, with `run(arguments)`.

In a launch with several ranks only the first rank runs them, except those that set `IN_EACH_RANK`.

A command imports heavy modules only after its options are parsed.
"""
