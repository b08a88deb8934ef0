"""`python -m shardwise.programs.chat JSON`: answers with what a run trained, on stdin, stdout."""

import signal

if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C while torch is imported has no traceback
    from shardwise.train.chatting import chat
    from shardwise.train.result import run_program

    run_program(chat)
