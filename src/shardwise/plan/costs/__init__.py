"""Costs: what each technique takes, a file each: bytes at the instants of a step, and seconds"""
