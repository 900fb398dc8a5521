"""The commands that look rather than train: one file each, with `run(arguments)`.

Of several ranks the first one alone runs them, but those with `IN_EACH_RANK`.

A command imports what is heavy only once it is sure what it was asked.
"""
