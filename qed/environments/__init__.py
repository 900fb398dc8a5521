"""Environments reply to the policy after each turn, for example as a tool or with a request for a second attempt."""
