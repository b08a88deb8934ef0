"""Warm processes: each has imported what a kind of program imports, and forks for each run."""

import atexit
import fcntl
import gc
import importlib
import json
import os
import runpy
import selectors
import signal
import socket
import subprocess
import sys
import threading
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import TextIOWrapper
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, NoReturn, cast

#: Kind of warm process -> what it has imported.
PRELOADED = {
    "pure": ("shardwise.cli.main", "shardwise.api", "shardwise.programs.prepare", "ruamel.yaml"),
    "data": (
        *("shardwise.programs.data_worker", "transformers.models.auto.tokenization_auto"),
        *("transformers.models.llama.configuration_llama", "pyarrow.parquet"),
    ),
    "torch": (
        *("ruamel.yaml", "shardwise.programs.rehearse", "shardwise.programs.worker"),
        *("shardwise.programs.model_shape", "shardwise.train.merging", "shardwise.train.chatting"),
        *("shardwise.programs.difference", "transformers.models.llama.modeling_llama", "transformers.optimization"),
        "peft.utils.transformers_weight_conversion",
    ),
}
#: Libraries read such variables as they are imported.
READ_AT_IMPORT = ("HF_", "TRANSFORMERS_", "HUGGINGFACE_", "XDG_", "ARROW_", "LC_", "LANG", "HOME")
#: Warm processes at a time; one that was not asked for long makes room.
MOST = 6
#: Bytes of a request, and descriptors that come with it.
LARGEST, MOST_HELD = 1 << 20, 64


@contextmanager
def warm_starts(folder: Path) -> Iterator[str]:
    """A server, while entered; gives the path of an executable in this interpreter's place."""
    address, python = folder / "server", folder / "python"
    shim = Path(__file__).with_name("shim.py").read_text(encoding="utf-8")
    python.write_text(f"#!{sys.executable} -IS\n{shim}\n\nmain({sys.executable!r}, {str(address)!r})\n")
    (folder / "shardwise").write_text(f'#!/bin/sh\nexec {python} -m shardwise "$@"\n')
    for path in (python, folder / "shardwise"):
        path.chmod(0o755)
    with _listening(address) as listens:
        held, lease = os.pipe()
        argv = [sys.executable, "-m", "tests.warm.server", str(listens.fileno()), str(held)]
        root = Path(__file__).parents[2]
        env = {**os.environ, "WARM_LOG": str(folder / "log")}
        server = subprocess.Popen(argv, pass_fds=(listens.fileno(), held), cwd=root, env=env, start_new_session=True)
    os.close(held)
    try:
        yield str(python)
    finally:
        os.close(lease)
        server.wait()


def _listening(address: Path) -> socket.socket:
    listens = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listens.bind(str(address))
    listens.listen(64)
    return listens


def serve(listens: socket.socket, lease: int) -> None:
    """Hands each request to a warm process, until nobody holds the lease's other end."""
    warm: dict[str, tuple[socket.socket, subprocess.Popen[bytes]]] = {}
    with selectors.DefaultSelector() as selector:
        selector.register(listens, selectors.EVENT_READ)
        selector.register(lease, selectors.EVENT_READ)
        while all(key.fileobj is not lease for key, _ in selector.select()):
            line, _ = listens.accept()
            line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, LARGEST)
            text, streams, *_ = socket.recv_fds(line, LARGEST, MOST_HELD)
            if text:
                _hand_on(warm, text, [line.fileno(), *streams])
            for stream in streams:
                os.close(stream)
            line.close()
    for _, process in warm.values():
        process.terminate()
        process.wait()


def _hand_on(warm: dict[str, Any], text: bytes, streams: list[int]) -> None:
    asked = json.loads(text)
    read = {name: value for name, value in asked["env"].items() if name.startswith(READ_AT_IMPORT)}
    key = json.dumps([asked["kind"], read], sort_keys=True)
    one = warm.pop(key, None)
    if one is None or one[1].poll() is not None:
        one = _started(asked["kind"], read)
    warm[key] = one  # behind those that were asked for before
    socket.send_fds(one[0], [text], streams)
    if len(warm) > MOST:
        warm.pop(next(iter(warm)))[0].close()  # it ends with the last of its children


def _started(kind: str, read: dict[str, str]) -> tuple[socket.socket, subprocess.Popen[bytes]]:
    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    here.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, LARGEST)
    argv = [sys.executable, "-m", "tests.warm.server", kind, str(there.fileno())]
    others = {name: value for name, value in os.environ.items() if not name.startswith(READ_AT_IMPORT)}
    environment = {**others, **read, "OMP_NUM_THREADS": "1", "KINETO_LOG_LEVEL": "99"}
    with there, Path(os.environ["WARM_LOG"]).open("ab") as log:
        return here, subprocess.Popen(argv, pass_fds=[there.fileno()], env=environment, stdout=log, stderr=log)


def stay_warm(kind: str, line: socket.socket) -> None:
    """Imports what a kind of program imports, then forks for each request until the line closes."""
    if kind == "data":
        sys.modules["torch"] = cast(Any, None)  # as `programs/data_worker.py` does
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in PRELOADED[kind]:
            importlib.import_module(name)
    for name in [name for name in sys.modules if name.startswith("shardwise.programs.")]:
        del sys.modules[name]  # or runpy warns of it
    line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, LARGEST)
    gc.collect()
    gc.freeze()
    with selectors.DefaultSelector() as selector:
        selector.register(line, selectors.EVENT_READ)
        while selector.get_map():
            for key, _ in selector.select():
                if key.data is not None:
                    if key.fd in selector.get_map():  # and not seen off a moment ago
                        _look_after(selector, key)
                elif (received := socket.recv_fds(line, LARGEST, MOST_HELD + 1))[0]:
                    _fork(selector, json.loads(received[0]), received[1])
                else:
                    selector.unregister(line)


def _look_after(selector: selectors.BaseSelector, key: selectors.SelectorKey) -> None:
    """Of a child that ended or is sent a signal; one whose shim is gone is killed."""
    pid, asking = key.data
    if key.fileobj is asking:
        said = b""
        with suppress(OSError):
            said = asking.recv(64)
        with suppress(ProcessLookupError):
            os.kill(pid, int(said or signal.SIGKILL))
        if not said:
            selector.unregister(asking)
        return
    selector.unregister(key.fileobj)
    os.close(key.fd)
    if asking.fileno() in selector.get_map():
        selector.unregister(asking)
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    with suppress(OSError), asking:
        asking.send(str(status).encode())


def _fork(selector: selectors.BaseSelector, asked: dict[str, Any], handed: list[int]) -> None:
    asking, *streams = handed
    pid = os.fork()
    if pid == 0:
        for key in [*selector.get_map().values()]:
            os.close(key.fd)
        os.close(asking)
        selector.close()
        _become(asked, streams)
    for stream in streams:
        os.close(stream)
    data = (pid, socket.socket(fileno=asking))
    selector.register(data[1], selectors.EVENT_READ, data)
    selector.register(os.pidfd_open(pid), selectors.EVENT_READ, data)


def _become(asked: dict[str, Any], streams: list[int]) -> NoReturn:
    """Is the program, with what the shim was given."""
    high = [fcntl.fcntl(stream, fcntl.F_DUPFD, 300) for stream in streams]
    for stream in streams:
        os.close(stream)
    for number, stream in zip(asked["held"], high, strict=True):
        os.dup2(stream, number)
        os.close(stream)
    os.chdir(asked["folder"])
    os.environ.clear()
    os.environ.update(asked["env"])
    for number in asked["ignored"]:
        signal.signal(number, signal.SIG_IGN)
    sys.executable, sys.path[0] = asked["executable"], asked["folder"]
    sys.path[1:1] = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    at_once = "PYTHONUNBUFFERED" in os.environ or asked["words"][0] == "-u"
    sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115 - as the interpreter makes them
    sys.stdout = TextIOWrapper(
        open(1, "wb", buffering=0 if at_once else -1, closefd=False),  # noqa: SIM115
        encoding="utf-8",
        line_buffering=os.isatty(1),
        write_through=at_once,
    )
    sys.stderr = open(2, "w", encoding="utf-8", errors="backslashreplace", buffering=1, closefd=False)  # noqa: SIM115
    sys.__stdin__, sys.__stdout__, sys.__stderr__ = sys.stdin, sys.stdout, sys.stderr
    if sys.modules.get("torch"):
        import torch

        from shardwise.train.watching import journal

        torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", os.cpu_count() or 1)))
        started = journal.os = SimpleNamespace(**vars(os))
    else:
        started = os
    started.getpid = lambda: asked["pid"]  # of whom the launcher has started
    code = 0
    try:
        _run(asked["words"])
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(bool(ended.code))
        if isinstance(ended.code, str):
            print(ended.code, file=sys.stderr)
    except KeyboardInterrupt:
        traceback.print_exc()
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    except BaseException:  # noqa: BLE001 - as the interpreter says it
        traceback.print_exc()
        code = 1
    threading._shutdown()
    atexit._run_exitfuncs()
    with suppress(OSError, ValueError):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)


def _run(words: list[str]) -> None:
    """A command line of Python."""
    words = words[1:] if words[0] == "-u" else words
    option, rest = words[0], words[1:]
    if option == "-m":
        sys.argv = rest
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    elif option == "-c":
        sys.argv = [option, *rest[1:]]
        sys.modules["__main__"] = main = ModuleType("__main__")
        exec(compile(rest[0], "<string>", "exec"), vars(main))
    else:
        sys.argv, sys.path[0] = words, str(Path(option).parent)
        runpy.run_path(option, run_name="__main__")


if __name__ == "__main__":
    if sys.argv[1] in PRELOADED:
        stay_warm(sys.argv[1], socket.socket(fileno=int(sys.argv[2])))
    else:
        serve(socket.socket(fileno=int(sys.argv[1])), int(sys.argv[2]))
