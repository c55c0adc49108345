"""`scout reward serve`: one process that scores over HTTP until told to stop."""

from __future__ import annotations

import argparse
import asyncio
import errno
import os
import signal
import socket

from scout_protocol.errors import UserError
from scout_reward.settings import RewardSettings

GRACE_S = 10  # for requests in flight when the service stops


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `scout reward serve`."""
    add = parser.add_argument
    add("--host", default="127.0.0.1", help="address to listen on (default %(default)s: this machine only)")
    add("--port", type=int, default=5001, help="0 picks a free one (default %(default)s)")
    add("--max-body-mb", type=float, default=64.0, help="larger requests get a 413 (default %(default)s)")
    add("--exit-with", type=int, metavar="PID", help="stop when this process ends, in whatever way")


def serve(args: argparse.Namespace, settings: RewardSettings) -> int:
    """Serve; returns 0 when stopped by a signal.

    Raises:
        UserError: the golden gate refuses the settings, or the address cannot be used.
    """
    from scout_reward import gate

    if not 0 < args.max_body_mb < 1e6:
        raise UserError("--max-body-mb", args.max_body_mb, "must be above 0")
    passed = gate.check(settings)

    import uvicorn

    from scout_reward.service import RewardApp

    app = RewardApp(settings, args.dialect, int(args.max_body_mb * (1 << 20)))
    sock = listen(args.host, args.port)
    config = uvicorn.Config(
        app.app,
        http="httptools",
        ws="none",
        lifespan="off",
        log_level="warning",
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=GRACE_S,
    )
    server = uvicorn.Server(config)

    async def run() -> None:
        host, port = sock.getsockname()[:2]
        url = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
        print(f"scout reward: ready at {url} (gate: {len(passed)} checks passed)", flush=True)
        watch = asyncio.create_task(_stop_with(args.exit_with, server)) if args.exit_with else None
        await server.serve(sockets=[sock])
        if watch is not None:
            watch.cancel()

    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # uvicorn takes it, stops, and then raises it once more
    try:
        asyncio.run(run())
    except KeyboardInterrupt:
        pass
    finally:
        sock.close()
    return 0


def listen(host: str, port: int) -> socket.socket:
    """A listening socket.

    Raises:
        UserError: the port is in use or not allowed, or the host is not one of this machine's.
    """
    if not 0 <= port <= 65535:
        raise UserError("--port", port, "must be between 0 and 65535")
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except socket.gaierror as error:
        raise UserError("--host", host, f"is not a name or address ({error.strerror})") from error
    sock = socket.socket(family, kind, protocol)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(address)
        sock.listen(1024)
    except OSError as error:
        sock.close()
        if error.errno == errno.EADDRINUSE:
            remedy = "is in use: choose another with --port (0 picks a free one)"
        else:
            remedy = f"cannot be used on {host} ({error.strerror}): check --host and --port"
        raise UserError("--port", port, remedy) from error
    return sock


async def _stop_with(pid: int, server: object) -> None:
    """Ask the server to stop once the process is gone."""
    while _alive(pid):  # noqa: ASYNC110 - a process that is not our child cannot be awaited
        await asyncio.sleep(0.5)
    server.should_exit = True  # type: ignore[attr-defined]


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
