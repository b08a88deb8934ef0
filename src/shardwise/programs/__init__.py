"""Programs started by `python -m`: they read their arguments and call the room with the logic."""
