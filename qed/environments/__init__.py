"""Environments: what answers the policy after each turn, such as a tool or a second attempt."""
