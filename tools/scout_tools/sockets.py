"""The listening sockets of one server: one per worker, all on the same port."""

from __future__ import annotations

import errno
import socket

from scout_protocol.errors import UserError

BACKLOG = 4096


def listen(host: str, port: int, n: int) -> list[socket.socket]:
    """``n`` sockets on one port; the kernel spreads connections over them (SO_REUSEPORT).

    They are made before any worker starts and live as long as the supervisor: while a worker is being
    replaced, its connections wait in the backlog and none is refused.

    Args:
        port: 0 lets the system choose; all sockets get the same one.

    Raises:
        UserError: the port is in use, may not be used, or the host is not one of this machine's.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except socket.gaierror as error:
        raise UserError("--host", host, f"is not a name or address ({error.strerror})") from error
    sockets: list[socket.socket] = []
    try:
        for rank in range(n):
            sock = socket.socket(family, kind, protocol)
            sockets.append(sock)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            # The first is bound without SO_REUSEPORT: with it, a second server would quietly share the port.
            if rank > 0:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            sock.bind(address)
            if rank == 0:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
                address = sock.getsockname()
            sock.setblocking(False)
        for sock in sockets:
            sock.listen(BACKLOG)
    except OSError as error:
        for sock in sockets:
            sock.close()
        if error.errno == errno.EADDRINUSE:
            remedy = "is in use: stop what listens there, or choose another with --port (0 picks a free one)"
        elif error.errno == errno.EACCES:
            remedy = "needs root: choose a port above 1023"
        else:
            remedy = f"cannot be used on {host} ({error.strerror}): check --host and --port"
        raise UserError("--port", port, remedy) from error
    return sockets
