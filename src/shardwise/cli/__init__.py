"""The command line: verbs that share their parts stand in one module."""
