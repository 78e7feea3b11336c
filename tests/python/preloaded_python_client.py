"""What the command of preloaded_python.py runs: `python preloaded_python_client.py SERVER ARGUMENTS...`. Asks the server for a process in its place."""

import json
import os
import signal
import socket
import struct
import sys


def inherited(descriptor):
    """Python's own are closed by exec."""
    try:
        return os.get_inheritable(descriptor)
    except OSError:
        return False  # the one that listed them


def main(address, arguments):
    descriptors = list(filter(inherited, map(int, os.listdir("/proc/self/fd"))))
    server = socket.socket(socket.AF_UNIX)
    server.connect(address)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, lambda number, _: server.sendall(bytes([number])))
    request = {"process": os.getpid(), "arguments": arguments, "environment": dict(os.environ), "folder": os.getcwd(), "descriptors": descriptors}
    text = json.dumps(request).encode()
    socket.send_fds(server, [struct.pack("I", len(text))], descriptors)
    server.sendall(text)
    answer = server.recv(struct.calcsize("i"))
    if not answer:
        sys.exit("the server of preloaded processes is gone")
    code = struct.unpack("i", answer)[0]
    if code < 0:  # by a signal
        if -code != signal.SIGKILL:
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)


main(sys.argv[1], sys.argv[2:])
