"""The Python API; `qed` exports its names and imports them on first use."""
