"""`shardwise serve`: the planner as a page, runs that one can watch, and the toy model step by step"""
