"""Python processes forked from one that has already imported torch and rarefish: `run` and `Popen` of subprocess.

A fresh interpreter needs seconds to import torch, a fork of one that has done so needs milliseconds. The fork is a
process of its own in every other way: a child of the tests' process with its own pid, arguments, environment, working
directory and standard streams, which can be killed and waited for. A command starts with `sys.executable`, as with
subprocess. Elsewhere than on Linux, a fresh interpreter is started.

    forked_processes.run([sys.executable, "-m", "rarefish", "status", work], check=True)

What must not import torch, such as the labeling server, is forked from a process without it: `has_torch=False`. Use
subprocess where the fresh interpreter matters: for what is imported, or read from the environment by an import.
"""

import atexit
import ctypes
import gc
import json
import os
import runpy
import socket
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, AnyStr, NoReturn

ROOT = Path(__file__).parents[1]
PRELOADED = (
    *("torch._dynamo", "torch.distributed.run", "torch.distributed.nn", "numpy", "PIL.Image"),
    *("rarefish.cli.main", "rarefish.experiments.runner", "rarefish.workspace.model"),
)
PRELOADED_WITHOUT_TORCH = ("PIL.Image", "rarefish.cli.main", "rarefish.cli.workspace", "rarefish.labeling.server")
SET_CHILD_SUBREAPER = 36
"""A prctl: orphans among the descendants become children of this process."""
CAN_FORK = sys.platform == "linux"
LOCK = threading.Lock()
FORKED_RANKS = ("--run-path", "--start-method=fork")
"""Options of torchrun, with a script's absolute path: its processes are forks of it, not fresh interpreters."""


class Popen(subprocess.Popen[AnyStr]):
    """subprocess.Popen for commands that start with `sys.executable`."""

    def __init__(self, *arguments: Any, has_torch: bool = True, **more: Any) -> None:
        self.has_torch = has_torch
        super().__init__(*arguments, **more)

    def _execute_child(self, args: Any, executable: Any, preexec_fn: Any, *others: Any) -> None:
        """What subprocess.Popen calls to start the process; it has made the pipes before."""
        words = [os.fspath(word) for word in args]
        if not CAN_FORK or executable is not None or preexec_fn is not None or words[0] != sys.executable:
            super()._execute_child(args, executable, preexec_fn, *others)  # pyright: ignore[reportAttributeAccessIssue]
            return
        _, _, cwd, env, _, _, _, p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite, *_ = others
        streams = [own if given == -1 else given for own, given in enumerate((p2cread, c2pwrite, errwrite))]
        try:
            self.pid = fork(words[1:], cwd or os.getcwd(), os.environ if env is None else env, streams, self.has_torch)
        finally:
            self._close_pipe_fds(  # pyright: ignore[reportAttributeAccessIssue]
                p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite
            )


def run(
    command: Sequence[Any],
    *,
    capture_output: bool = False,
    text: bool = False,
    check: bool = False,
    timeout: float | None = None,
    **more: Any,
) -> "subprocess.CompletedProcess[Any]":
    """subprocess.run for commands that start with `sys.executable`."""
    if capture_output:
        more |= {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with Popen(command, text=text, **more) as process:
        try:
            out, errors = process.communicate(timeout=timeout)
        except BaseException:
            process.kill()
            raise
    done = subprocess.CompletedProcess(process.args, process.returncode, out, errors)
    if check:
        done.check_returncode()
    return done


def fork(
    words: Sequence[str], folder: Any, environment: Mapping[str, str], streams: Sequence[int], has_torch: bool = True
) -> int:
    """The pid of a new child of this process that runs `python WORDS`."""
    request = json.dumps([list(words), os.fspath(folder), dict(environment)]).encode()
    with LOCK:
        server = start_server(has_torch)
        adopt_orphans(True)  # the server's grandchild, whose parent ends at once
        try:
            socket.send_fds(server, [len(request).to_bytes(8, "big")], list(streams))
            server.sendall(request)
            return int.from_bytes(server.recv(8), "big")
        finally:
            adopt_orphans(False)


@cache
def start_server(has_torch: bool) -> socket.socket:
    """Our end of the connection to the process that forks; it ends when we do."""
    ours, theirs = socket.socketpair()
    command = [sys.executable, "-m", "tests.forked_processes", str(theirs.fileno())]
    command += PRELOADED if has_torch else PRELOADED_WITHOUT_TORCH
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}", "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(command, cwd=ROOT, env=environment, pass_fds=[theirs.fileno()])
    theirs.close()

    def stop() -> None:
        ours.close()
        process.wait()

    atexit.register(stop)
    return ours


def adopt_orphans(adopts: bool) -> None:
    result = ctypes.CDLL(None, use_errno=True).prctl(SET_CHILD_SUBREAPER, int(adopts), 0, 0, 0)
    assert result == 0, os.strerror(ctypes.get_errno())


def serve(connection: socket.socket) -> list[str]:
    """Forks for each request; returns, in each fork alone, the words of its command."""
    while True:
        size, streams, _, _ = socket.recv_fds(connection, 8, 3)
        if not size:
            os._exit(0)
        request = b""
        while len(request) < int.from_bytes(size, "big"):
            request += connection.recv(1 << 20)
        reading, writing = os.pipe()
        between = os.fork()
        if not between:
            between = os.getpid()
            child = os.fork()
            if child:
                os.write(writing, child.to_bytes(8, "big"))
                os._exit(0)
            while os.getppid() == between:
                time.sleep(0.001)
            words, folder, environment = json.loads(request)
            for number, stream in enumerate(streams):
                os.dup2(stream, number)
            for given in (*streams, reading, writing):
                os.close(given)
            connection.close()
            os.chdir(folder)
            os.environ.clear()
            os.environ.update(environment)
            return words
        os.waitpid(between, 0)  # now the child is the child of the tests' process
        connection.sendall(os.read(reading, 8))
        for given in (*streams, reading, writing):
            os.close(given)


def be_python(words: list[str]) -> None:
    """What `python WORDS` does, once it has started."""
    given = os.environ.get("PYTHONPATH")
    sys.path[0:0] = given.split(os.pathsep) if given else []
    if words[0] == "-W":
        warnings.simplefilter(words[1])  # pyright: ignore[reportArgumentType]
        words = words[2:]
    match words:
        case ["-m", module, *arguments]:
            sys.argv = [module, *arguments]
            sys.path.insert(0, os.getcwd())
            runpy.run_module(module, run_name="__main__", alter_sys=True)
        case ["-c", code, *arguments]:
            sys.argv = ["-c", *arguments]
            sys.path.insert(0, "")
            main = sys.modules["__main__"]
            main.__spec__ = None
            exec(compile(code, "<string>", "exec"), vars(main))
        case [script, *arguments] if not script.startswith("-"):
            sys.argv = [script, *arguments]
            sys.path.insert(0, str(Path(script).parent.resolve()))
            runpy.run_path(script, run_name="__main__")
        case _:
            raise ValueError(f"A fork runs -m, -c or a script, not {words}.")


def end(error: BaseException | None) -> NoReturn:
    """Ends as an interpreter does after an error or none, but leaves the memory to the system, as multiprocessing."""
    code: object = 0
    if isinstance(error, SystemExit):
        code = error.code if isinstance(error.code, int | None) else 1
        if code == 1 and error.code != 1:
            print(error.code, file=sys.stderr)
    elif error is not None:
        sys.excepthook(type(error), error, error.__traceback__)
        code = 1
    threading._shutdown()  # pyright: ignore[reportAttributeAccessIssue]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code if isinstance(code, int) else 0)


def main() -> None:
    connection = socket.socket(fileno=int(sys.argv[1]))
    for module in sys.argv[2:]:
        __import__(module)
    assert PRELOADED[0] in sys.argv or "torch" not in sys.modules
    tasks = os.listdir("/proc/self/task")
    assert len(tasks) == 1, f"a process with {len(tasks)} threads cannot be forked safely"
    gc.collect()
    gc.freeze()  # so that children do not copy the pages of what was imported
    words = serve(connection)
    try:
        be_python(words)
    except BaseException as error:
        end(error)
    end(None)


if __name__ == "__main__":
    main()
