"""The shelf of algorithms: one file each, with a frozen dataclass that is found by the file's name."""
