"""The processes of a run: starting, signalling and ending them"""
