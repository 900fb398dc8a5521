"""The shelf of prompts: how a problem is presented to the model, and how its demonstration is written."""
