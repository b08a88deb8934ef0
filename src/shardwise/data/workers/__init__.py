"""Processes with limits that render and tokenise rows."""
