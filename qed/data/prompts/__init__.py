"""The shelf of prompts: how a problem is asked, and how its demonstration is written."""
