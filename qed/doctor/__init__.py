"""What this machine can do: looked at, and measured."""
