"""What tests put in the place of `sys.executable`: has a warm process run a program, and is a process in its stead.

Gives its arguments, environment, folder and standard streams to the server, passes signals on and ends as the program
ends. What no warm process runs becomes the interpreter itself.
"""

import json
import os
import signal
import socket
import sys

#: Programs of the package -> the kind of warm process that runs them (`warm.server.PRELOADED`).
PROGRAMS = {
    "shardwise": "pure",
    "shardwise.programs.prepare": "pure",
    "shardwise.programs.data_worker": "data",
    "shardwise.programs.worker": "torch",
    "shardwise.programs.rehearse": "torch",
    "shardwise.programs.model_shape": "torch",
    "shardwise.programs.merge": "torch",
    "shardwise.programs.chat": "torch",
    "shardwise.programs.difference": "torch",
}
PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)


def main(python: str, server: str) -> None:
    """Runs the command line warm, or with `python`; does not return."""
    words = sys.argv[1:]
    kind = PROGRAMS.get(words[1], "") if len(words) > 1 and words[0] == "-m" else ""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as line:
        if not kind or "PYTHONPATH" in os.environ or line.connect_ex(server) != 0:
            os.execv(python, [python, *words])
        ignored = [number for number in PASSED_ON if signal.getsignal(number) is signal.SIG_IGN]
        for number in PASSED_ON:
            if number not in ignored:
                signal.signal(number, lambda number, _: line.send(str(number).encode()))
        asked = {
            "kind": kind,
            "words": words,
            "env": dict(os.environ),
            "folder": os.getcwd(),  # noqa: PTH109 - pathlib takes long to import
            "ignored": ignored,
            "executable": sys.argv[0],
        }
        line.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
        socket.send_fds(line, [json.dumps(asked).encode()], [0, 1, 2])
        for stream in (0, 1, 2):
            os.close(stream)
        said = line.recv(64)
    status = int(said) if said else 70
    if status < 0:
        signal.signal(-status, signal.SIG_DFL) if -status != signal.SIGKILL else None
        os.kill(os.getpid(), -status)
    os._exit(status)
