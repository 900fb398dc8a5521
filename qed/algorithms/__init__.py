"""The shelf of algorithms: one file a thing, a frozen dataclass found by the file's name."""
