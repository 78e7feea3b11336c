"""A command that runs Python scripts like ``sys.executable``, but in processes that have imported torch already.

Every process that trains spends seconds on imports, and a script with workers starts several. Here a server imports once, and forks a
process for each call of the command. It runs in the caller's place: with its arguments, environment, folder, open files and network
namespace. Signals reach it, it is killed when its caller is, and the caller ends as it has ended. What such a process starts by
its own ``sys.executable`` is run in the same way.

It is another process than the one that was started, and at its end it does not take its modules apart: tests that look for processes,
stop them or kill them from outside, or are about an interpreter's end, need ``sys.executable``.
"""

import atexit
import ctypes
import functools
import gc
import importlib
import json
import os
import runpy
import select
import shlex
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import traceback
import types
from pathlib import Path

# What DDP, FSDP, their checkpoints and torchrun import.
PRELOADED = ["torch._dynamo", "torch.distributed.nn", "torch.distributed.fsdp", "torch.distributed.checkpoint.state_dict", "torch.distributed.run",
             "thinwire.torch"]
TRAINERS = ["transformers", "accelerate", "pytorch_lightning"]  # for scripts that train with one of these; each takes seconds, too
MOST_DESCRIPTORS = 32
CLIENT = Path(__file__).with_name("preloaded_python_client.py")
NAMESPACES = {"mnt": 0x00020000, "net": 0x40000000}  # their flags of setns()


@functools.cache
def preloaded_python(*further):
    """The command's path. further: modules that are imported too."""
    server = _Server(further)
    atexit.register(server.stop)
    return server.command


class _Server:
    def __init__(self, further):
        self._folder = tempfile.TemporaryDirectory(prefix="thinwire-python-")
        address, self.command = f"{self._folder.name}/server", f"{self._folder.name}/python"
        Path(self.command).write_text(f'#!/bin/sh\nexec {shlex.join([sys.executable, "-IS", str(CLIENT), address])} "$@"\n')
        os.chmod(self.command, 0o755)
        command = [sys.executable, __file__, self.command, address, *further]
        # It ends when its input does, however this process ends.
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True)
        if self._process.stdout.readline() != b"ready\n":
            raise RuntimeError("the server of preloaded processes has not started")

    def stop(self):
        self._process.stdin.close()
        self._process.wait()
        self._folder.cleanup()


def _serve(command, address, *further):
    sys.path.pop(0)  # this file's folder, which a fresh interpreter would not look into
    for module in [*PRELOADED, *further]:
        importlib.import_module(module)
    gc.freeze()  # or each process's first collection would walk, and so copy, all that it shares with the others
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(address)
    listening.listen(64)
    print("ready", flush=True)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for watchers
    while True:
        ready, _, _ = select.select([listening, sys.stdin], [], [])
        if sys.stdin in ready:
            return
        caller, _ = listening.accept()
        if os.fork() == 0:
            listening.close()
            _watch(caller, command)
        caller.close()


def _watch(caller, command):
    """Forks the process that does the work, passes signals on to it, and tells the caller how it ended."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    header, descriptors, _, _ = socket.recv_fds(caller, struct.calcsize("I"), MOST_DESCRIPTORS)
    request = json.loads(caller.recv(struct.unpack("I", header)[0], socket.MSG_WAITALL))
    worker = os.fork()
    if worker == 0:
        _work(request, descriptors, command)
    os.closerange(0, 3)
    for descriptor in descriptors:
        os.close(descriptor)
    ended = os.pidfd_open(worker)
    while True:
        ready, _, _ = select.select([caller, ended], [], [])
        if ended in ready:
            _, status = os.waitpid(worker, 0)
            caller.sendall(struct.pack("i", os.waitstatus_to_exitcode(status)))
            os._exit(0)
        number = caller.recv(1)
        os.kill(worker, number[0] if number else signal.SIGKILL)
        if not number:
            os._exit(0)


def _work(request, descriptors, command):
    """As a fresh interpreter would, but that it leaves its modules to the kernel: taking them apart takes longer than most scripts."""
    try:
        _enter_namespaces(request["process"])
        _place(descriptors, request["descriptors"])
        os.environ.clear()
        os.environ.update(request["environment"])
        os.chdir(request["folder"])
        signal.signal(signal.SIGINT, signal.default_int_handler)
        sys.executable, sys.orig_argv = command, [command, *request["arguments"]]
        code = _run(request["arguments"])
    except BaseException:  # of the lines above: what the script raises has been told
        traceback.print_exc()
        code = 1
    threading._shutdown()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _enter_namespaces(process):
    """Those of the caller, whom `ip netns exec` may have put into others than the server's."""
    other = [flag for name, flag in NAMESPACES.items() if os.readlink(f"/proc/{process}/ns/{name}") != os.readlink(f"/proc/self/ns/{name}")]
    if other and ctypes.CDLL(None, use_errno=True).setns(os.pidfd_open(process), sum(other)) != 0:
        raise OSError(ctypes.get_errno(), "the caller's namespaces cannot be entered")


def _place(descriptors, numbers):
    """Gives them the numbers that they have in the caller; the server's own are closed."""
    beyond = 1 + max([*descriptors, *numbers])
    for place, descriptor in enumerate(descriptors):
        os.dup2(descriptor, beyond + place)
    os.closerange(0, beyond)
    for place, number in enumerate(numbers):
        os.dup2(beyond + place, number)
    os.closerange(beyond, beyond + len(numbers))


def _run(arguments):
    """Its exit status."""
    if arguments[:1] == ["-u"]:
        arguments = arguments[1:]
        sys.stdout.reconfigure(write_through=True)
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    try:
        if arguments[0] == "-m":
            sys.path.insert(0, os.getcwd())
            sys.argv = arguments[1:]
            runpy._run_module_as_main(arguments[1])
        elif arguments[0].startswith("-"):
            raise ValueError(f"only -u and -m are known here, not {arguments[0]}")
        else:
            sys.path.insert(0, os.path.dirname(os.path.realpath(arguments[0])))
            sys.argv, main.__file__ = arguments, arguments[0]
            exec(compile(Path(arguments[0]).read_bytes(), arguments[0], "exec"), main.__dict__)
    except SystemExit as ended:
        if ended.code is None or isinstance(ended.code, int):
            return ended.code or 0
        print(ended.code, file=sys.stderr)
        return 1
    except BaseException:
        sys.excepthook(*sys.exc_info())
        return 1
    return 0


if __name__ == "__main__":
    _serve(*sys.argv[1:])
