"""What tests put in the place of `sys.executable`: has a warm process run a program, and is a
process in its stead.

Gives its command line, environment, folder and open descriptors to the server, passes signals on
and ends as the program ends. The command line of the package starts as ever, and its programs warm;
everything else is the interpreter.
"""

import json
import os
import signal
import socket
import sys

#: Programs of the package -> the kind of warm process that runs them (`warm.server.PRELOADED`).
OF_TORCH = ("worker", "rehearse", "model_shape", "merge", "chat", "difference", "block_profiles")
PROGRAMS = {f"shardwise.programs.{name}": "pure" for name in ("prepare", "sample_rows")}
PROGRAMS |= {"shardwise.programs.data_worker": "data"} | {f"shardwise.programs.{name}": "torch" for name in OF_TORCH}
#: The interpreter whatever a test asks for: the command line, and what becomes another program.
COLD = ("shardwise", "shardwise.programs.parent_death", "shardwise.programs.rank")
#: The variable with which a test has every command line run by that kind of warm process.
KIND = "SHARDWISE_TESTS_KIND"
PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
COMMAND = (
    "import runpy, sys; sys.argv[0], sys.executable = 'shardwise', sys.argv.pop(1)\n"
    "runpy.run_module('shardwise', run_name='__main__', alter_sys=True)"
)


def main(python: str, server: str) -> None:
    """Runs the command line warm, or with `python`; does not return."""
    words = sys.argv[1:]
    module = words[1] if words[:1] == ["-m"] else ""
    kind = PROGRAMS.get(module, "")
    if module not in COLD:
        asked_for = os.environ.get(KIND, "")
        kind = kind or asked_for if asked_for or "PYTHONPATH" not in os.environ else ""
    held = [number for number in map(int, os.listdir("/proc/self/fd")) if _is_handed_on(number)]  # noqa: PTH208
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as line:
        if not kind or line.connect_ex(server) != 0:
            os.execv(python, [python, *(["-c", COMMAND, sys.argv[0], *words[2:]] if module == "shardwise" else words)])
        ignored = [number for number in PASSED_ON if signal.getsignal(number) is signal.SIG_IGN]
        for number in {*PASSED_ON}.difference(ignored):
            signal.signal(number, lambda number, _: line.send(str(number).encode()))
        asked = {"kind": kind, "words": words, "env": dict(os.environ), "ignored": ignored, "held": held}
        place = {"folder": os.getcwd(), "executable": sys.argv[0], "pid": os.getpid()}  # noqa: PTH109 - pathlib is slow
        line.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
        socket.send_fds(line, [json.dumps(asked | place).encode()], held)
        for number in held:
            os.close(number)
        said = line.recv(64)
    status = int(said) if said else 70
    if status < 0:
        if -status != signal.SIGKILL:
            signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    os._exit(status)


def _is_handed_on(number: int) -> bool:
    try:
        return os.get_inheritable(number)
    except OSError:  # the folder that was listed
        return False
