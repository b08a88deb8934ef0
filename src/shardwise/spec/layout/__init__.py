"""How work is spread over ranks, and the order in which a step runs."""
