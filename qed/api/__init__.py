"""The Python API; its names are those of `qed` itself, which imports them when they are first used."""
