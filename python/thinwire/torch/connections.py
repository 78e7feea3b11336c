"""Connections of a lane's own between the workers of a group. Through Gloo the same messages take several times as long: its threads
wake one another for each of them, where here the lane's thread sends and receives by itself."""

import fcntl
import hashlib
import hmac
import logging
import os
import resource
import secrets
import socket
import struct
import time
from contextlib import ExitStack, suppress
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from thinwire import _native

_PATIENCE = 10.0  # seconds to connect to everybody
_CHANNELS = 2  # what collectives move, and what workers say when they leave
_SAYS_WHO = struct.Struct("=16sii")  # whoever connects: the group's token, its rank, the channel
_SHARE_OF_FILES = 16  # up to four lanes, and what scripts open themselves
_GET_INTERFACE_ADDRESS = 0x8915  # SIOCGIFADDR

_logger = logging.getLogger("thinwire")

Sockets = list[list[socket.socket]]  # by worker and channel; none for the own one


def connect(group: dist.ProcessGroup, timeout: timedelta, hosts: list[int]) -> _native.SocketCommunicator | None:
    """All workers of the group call this together. timeout: for collectives. hosts: as the reducer takes them. Returns None on all workers, and
    logs why, where not all can reach each other by the addresses that they know of themselves."""
    rank = dist.get_rank(group)
    with ExitStack() as opened:  # closes what was opened and not taken over
        listener, problem = None, ""
        try:
            listener = opened.enter_context(_listener())
        except (OSError, ValueError) as error:  # such as a name that is none
            problem = f"rank {rank} has nothing to listen at: {error}"
        said = _say(group, (problem, listener and listener.getsockname()[:2], secrets.token_bytes(16)))
        token = hashlib.sha256(b"".join(part for _, _, part in said)).digest()[:16]
        sockets: Sockets = []
        if listener is not None and not any(text for text, _, _ in said):
            try:
                sockets = _join(opened, listener, rank, [address for _, address, _ in said], token)
            except OSError as error:
                problem = f"rank {rank} could not connect: {error}"
        problems = [text for text in _say(group, problem) if text]
        if problems:
            _logger.info("messages go through Gloo: %s", problems[0])
            return None
        descriptors = [[each.detach() for each in channels] or [-1] * _CHANNELS for channels in sockets]
    return _native.SocketCommunicator(rank=rank, sockets=descriptors, timeout=timeout.total_seconds(), hosts=hosts)


def _say(group: dist.ProcessGroup, what: Any) -> list[Any]:
    """What each worker says."""
    said: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(said, what, group=group)
    return said


def _join(opened: ExitStack, listener: socket.socket, rank: int, addresses: list[tuple[str, int]], token: bytes) -> Sockets:
    """Calls the workers of lower rank, and waits for the others' calls."""
    end = time.monotonic() + _PATIENCE
    calls: dict[tuple[int, int], socket.socket] = {}
    for worker, channel in [(worker, channel) for worker in range(rank) for channel in range(_CHANNELS)]:
        call = opened.enter_context(socket.create_connection(addresses[worker], timeout=_left(end)))
        call.sendall(_SAYS_WHO.pack(token, rank, channel))
        calls[worker, channel] = call
    while len(calls) < _CHANNELS * (len(addresses) - 1):
        listener.settimeout(_left(end))
        call = opened.enter_context(listener.accept()[0])
        call.settimeout(_left(end))
        said, worker, channel = _SAYS_WHO.unpack(_read(call, _SAYS_WHO.size))
        if hmac.compare_digest(said, token) and rank < worker < len(addresses) and 0 <= channel < _CHANNELS:  # else a stranger
            calls[worker, channel] = call
    return [[calls[worker, channel] for channel in range(_CHANNELS) if worker != rank] for worker in range(len(addresses))]


def _left(end: float) -> float:
    if (left := end - time.monotonic()) <= 0:
        raise TimeoutError(f"not everybody was there within {_PATIENCE:g} s")
    return left


def _read(call: socket.socket, length: int) -> bytes:
    """Zeros where whoever calls has less to say."""
    read = b""
    while len(read) < length:
        try:
            more = call.recv(length - len(read))
        except ConnectionError:
            more = b""
        if not more:
            return bytes(length)
        read += more
    return read


def _listener() -> socket.socket:
    """At an address by which other workers reach this one, if one is known. Raises OSError, also where connections would take more than a small share
    of the files that this process may open."""
    wanted, most = _CHANNELS * dist.get_world_size(), resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if most != resource.RLIM_INFINITY and wanted > most // _SHARE_OF_FILES:
        raise OSError(f"{wanted} connections a lane of {most} files that may be open (ulimit -n); allowed: 1 of {_SHARE_OF_FILES}")
    family, address = _own_address()
    return socket.create_server((address, 0), family=family, backlog=_CHANNELS * dist.get_world_size())


def _own_address() -> tuple[socket.AddressFamily, str]:
    """Of the interface that Gloo was told to use; else that from which packets go to where the workers have met; else the host name's, or this
    host's own, which does where it is everybody's."""
    if interface := os.environ.get("GLOO_SOCKET_IFNAME", "").split(",")[0]:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
            entry = fcntl.ioctl(any_socket, _GET_INTERFACE_ADDRESS, struct.pack("256s", interface.encode()[:15]))
        return socket.AF_INET, socket.inet_ntoa(entry[20:24])
    for place in filter(None, (_meeting_place(), socket.gethostname(), "127.0.0.1")):
        try:
            found = socket.getaddrinfo(place, 1, type=socket.SOCK_DGRAM)
        except (OSError, ValueError):  # no such name, or none at all
            continue
        for family, _, _, _, address in found:
            with suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as outgoing:
                outgoing.connect(address)  # sends nothing
                return family, outgoing.getsockname()[0]
    raise OSError("this host has no network at all")


def _meeting_place() -> str | None:
    """The host of the store by which the processes found each other."""
    store = c10d._get_default_store()
    while (underlying := getattr(store, "underlying_store", None)) is not None:
        store = underlying
    return getattr(store, "host", None)
