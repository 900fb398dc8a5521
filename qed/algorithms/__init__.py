"""Algorithms: one file each, with a frozen dataclass that is selected by the file's name."""
