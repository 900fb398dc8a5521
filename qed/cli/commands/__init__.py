"""The commands that look rather than train: one file each, with `run(arguments)`.

A command imports what is heavy only once it is sure what it was asked.
"""
