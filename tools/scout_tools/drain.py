"""Stopping without losing a request.

HTTP has no way to say "send nothing more" on an idle connection, so a server that closes at once cuts off
requests that are on their way. Here, in order: the kernel stops opening connections; whatever comes on open
ones is answered with ``Connection: close``, and clients between two turns have half a second for that; then
idle connections are closed, each only if nothing unread stands in its socket.
"""

from __future__ import annotations

import asyncio
import ctypes
import socket
import struct
from contextlib import suppress

GRACE_S = 0.5
_SO_ATTACH_FILTER = 26
# Classic BPF on the TCP header: load the flags; drop the packet where SYN is set, else let it pass.
_DROP_SYN = ((0x30, 0, 0, 13), (0x45, 0, 1, 0x02), (0x06, 0, 0, 0), (0x06, 0, 0, 0xFFFFFFFF))


def drop_new_connections(sock: socket.socket) -> None:
    """Let a listening socket open no further connection, and keep those that wait in its backlog (Linux).

    Closing the socket would reset the ones in the backlog, whose clients may have sent a request. A client
    that tries now asks again after a second, and is refused then.
    """
    program = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *line) for line in _DROP_SYN))
    argument = struct.pack("HP", len(_DROP_SYN), ctypes.addressof(program))
    with suppress(OSError):  # elsewhere the window of a few milliseconds remains
        sock.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, argument)


def has_unread(transport: asyncio.Transport) -> bool:
    """Whether the kernel holds bytes of this connection that the loop has not read yet."""
    sock = transport.get_extra_info("socket")
    if sock is None:
        return False
    try:
        # uvloop's socket object has no recv of its own
        with socket.socket(fileno=socket.dup(sock.fileno())) as twin:
            return bool(twin.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT))
    except OSError:  # BlockingIOError: nothing there
        return False
