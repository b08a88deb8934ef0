"""`python -m shardwise.programs.merge JSON`: merges the adapter of a run into its base model."""

from shardwise.train.merging import merge
from shardwise.train.result import run_program

if __name__ == "__main__":
    run_program(merge)
