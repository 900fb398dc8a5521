"""Samplers: one interface, several engines."""
