"""A tool server as a process of its own, to be killed and started again on the same port: `… PORT`."""

from __future__ import annotations

import json
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

TEXT = "\n\n<information>Doc 1(Title: France) The capital of France is Paris.</information>\n\n"


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def _reply(self, body: dict[str, Any]) -> None:
        raw = json.dumps(body).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(raw)))
        self.end_headers()
        self.wfile.write(raw)

    def do_GET(self) -> None:
        self._reply({"ready": True})

    def do_POST(self) -> None:
        n = len(json.loads(self.rfile.read(int(self.headers["Content-Length"])))["actions"])
        lists = {"observations": [TEXT] * n, "dones": [False] * n, "valids": [True] * n}
        self._reply({**lists, "processing_time_ms": 0.1})

    def log_message(self, *_args: Any) -> None:
        return None


if __name__ == "__main__":
    ThreadingHTTPServer.allow_reuse_address = True
    server = ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler)
    print(server.server_port, flush=True)
    server.serve_forever()
