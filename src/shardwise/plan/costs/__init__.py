"""Costs: what each technique takes, a file each: its bytes at the instants of a step beside its seconds"""
