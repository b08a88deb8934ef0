"""`python -m shardwise.programs.merge JSON`: merges the adapter of a run into its base model."""

import signal

if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C while torch is imported has no traceback
    from shardwise.train.merging import merge
    from shardwise.train.result import run_program

    run_program(merge)
