"""Settings from defaults, YAML files and the command line; each value records its origin."""
