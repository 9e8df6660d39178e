"""The HTTP server of the tests' sites: what it answers is theirs."""

import asyncio
from functools import partial


async def serve(answer, ready):
    """Serve on a free port of the loopback interface, told to `ready`, for ever.

    `answer(method, path, body)` is awaited for each request, and returns a status, headers
    and the body; None hangs up.
    """
    server = await asyncio.start_server(partial(_client, answer), "127.0.0.1", 0, backlog=200)
    ready(server.sockets[0].getsockname()[1])
    await server.serve_forever()


async def _client(answer, reader, writer):
    try:
        while (request := await _request(reader)) is not None:
            if (reply := await answer(*request)) is None:
                break
            status, headers, body = reply
            headers = {"Content-Length": len(body), **headers}
            lines = [f"HTTP/1.1 {status} -", *(f"{name}: {headers[name]}" for name in headers)]
            writer.write("\r\n".join([*lines, "", ""]).encode() + body)
            await writer.drain()
    except (OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
        pass  # the client was killed, or the server is closed
    finally:
        writer.close()


async def _request(reader):
    """Return method, path and body of the next request, or None at the end."""
    if not (line := await reader.readline()):
        return None
    length = 0
    while (header := await reader.readline()) not in (b"\r\n", b""):
        name, _, value = header.partition(b":")
        if name.lower() == b"content-length":
            length = int(value)
    method, path, _ = line.decode().split()
    return method, path, (await reader.readexactly(length)).decode()
