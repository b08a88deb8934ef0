"""`shardwise serve`: the planner as a page, runs to watch, and the toy model step by step"""
