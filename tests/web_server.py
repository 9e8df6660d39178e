"""The HTTP server of the tests' sites: what it answers is theirs."""

import asyncio
from contextvars import ContextVar
from functools import partial
from threading import Event, Thread

from tests.patience import PATIENCE

HEADERS = ContextVar("HEADERS")
"""The headers of the request that is answered, by their names in small letters."""


async def serve(answer, ready):
    """Serve on a free port of the loopback interface, told to `ready`, for ever.

    `answer(method, path, body)` is awaited for each request, and returns a status, headers
    and the body; None hangs up.
    """
    server = await asyncio.start_server(partial(_client, answer), "127.0.0.1", 0, backlog=200)
    ready(server.sockets[0].getsockname()[1])
    await server.serve_forever()


class ServedInThread:
    """A site of which `_answer` is the handler, on a free port of the loopback interface."""

    def __enter__(self):
        self._served = Event()
        self._thread = Thread(target=asyncio.run, args=[self._serve()], daemon=True)
        self._thread.start()
        assert self._served.wait(PATIENCE)
        return self

    def __exit__(self, *_):
        self._loop.call_soon_threadsafe(self._ended.set)
        self._thread.join()

    async def _serve(self):
        def ready(port):
            self.url = f"http://127.0.0.1:{port}"
            self._served.set()

        self._loop = asyncio.get_running_loop()
        self._ended = asyncio.Event()
        serving = asyncio.create_task(serve(self._answer, ready))
        await self._ended.wait()
        serving.cancel()


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
    headers = {}
    while (header := await reader.readline()) not in (b"\r\n", b""):
        name, _, value = header.decode("latin-1").partition(":")
        headers[name.lower()] = value.strip()
    HEADERS.set(headers)
    method, path, _ = line.decode().split()
    return method, path, (await reader.readexactly(int(headers.get("content-length", 0)))).decode()
