"""The labeling server's connections: time limits for each, a bounded number of them, and a log without repetitions.

By default, uvicorn waits indefinitely for the head of a request and accepts connections until it runs out of file
descriptors. Here, a connection that takes too long is closed. If there are too many, the one that has been waiting
longest for a request is closed; a connection whose request is being answered stays open.
"""

import asyncio
import errno
import logging
import resource
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

HEAD_S = 10.0
"""A request's first line and headers must arrive within this time."""
KEEP_ALIVE_S = 5
"""An idle connection is closed after this time."""
REQUEST_S = 120.0
"""A request must be read, and its reply received, within this time."""
SHUTDOWN_S = 12
"""How long requests in progress may take when the server stops: slightly longer than a body may take to arrive."""
MOST_CONNECTIONS = 1000
RESERVED_FILES = 200
"""File descriptors reserved for SQLite, images, and connections that are accepted before others are closed."""
ACCEPTED_AT_ONCE = 16
"""How many connections asyncio accepts before it does anything else."""
QUEUE = 2048
"""How many connections the kernel queues until they are accepted."""
QUIET_S = 10.0
"""The same message is logged at most once in this many seconds."""
OUT_OF_FILES = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


class Connection(H11Protocol):
    """A uvicorn connection with a time limit for each phase of a request."""

    since = 0.0
    """When the connection began to wait for a request."""
    _limit: asyncio.TimerHandle | None = None
    _is_reading_head = True

    @property
    def is_waiting(self) -> bool:
        """Whether the connection is idle: no request is being read or answered."""
        return self.cycle is None or self.cycle.response_complete

    def connection_made(self, transport: asyncio.Transport) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        super().connection_made(transport)
        self.since = self.loop.time()
        self._allow(HEAD_S)
        if self.limit_concurrency is not None and len(self.connections) >= self.limit_concurrency:
            self._close_oldest()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if self._limit is not None:
            self._limit.cancel()

    def data_received(self, data: bytes) -> None:
        was_waiting = self.is_waiting
        super().data_received(data)
        if was_waiting and not self.is_waiting:
            self._is_reading_head = False
            self._allow(REQUEST_S)
        elif self.is_waiting and not self._is_reading_head:  # the first bytes of another request
            self._is_reading_head = True
            self._allow(HEAD_S)

    def on_response_complete(self) -> None:
        self.since = self.loop.time()
        self._is_reading_head = False
        self._allow(REQUEST_S)  # time to receive the reply, or to process a request that has already arrived
        super().on_response_complete()

    def _allow(self, seconds: float) -> None:
        """Closes the connection after this time, unless a new limit is set before."""
        if self._limit is not None:
            self._limit.cancel()
        self._limit = self.loop.call_later(seconds, self.transport.abort)

    def _close_oldest(self) -> None:
        others = [one for one in self.connections if isinstance(one, Connection) and one is not self and one.is_waiting]
        if others:
            oldest = min(others, key=lambda one: one.since)
            self.connections.discard(oldest)  # uvicorn does so later, but this one must not be chosen again
            oldest.transport.abort()


class Server(uvicorn.Server):
    """A uvicorn server that accepts a few connections at a time while the kernel queues the others."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        asyncio.get_running_loop().set_exception_handler(_log_loop_error)
        await super().startup(sockets)
        for bound in sockets or []:
            bound.listen(QUEUE)


class OncePerMessage(logging.Filter):
    """Logs a repeated message once in a while, with the number of omitted ones; tracebacks are always logged."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: dict[str, tuple[float, int]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        if record.exc_info:
            return True
        moment, message = time.monotonic(), str(record.msg)
        until, missed = self.seen.get(message, (0.0, 0))
        if moment < until:
            self.seen[message] = (until, missed + 1)
            return False
        if len(self.seen) > 100:
            self.seen.clear()
        self.seen[message] = (moment + QUIET_S, 0)
        if missed:
            record.msg = f"{message} ({missed} more of these since the last line)"
        return True


def make_server(app: ASGIApp) -> Server:
    """Returns a server for as many connections as the limit on open files allows."""
    return Server(
        uvicorn.Config(
            app,
            http=Connection,
            ws="none",
            log_level="warning",
            access_log=False,
            server_header=False,
            proxy_headers=False,  # anyone can send X-Forwarded-For; wrong tokens are counted by the real address
            backlog=ACCEPTED_AT_ONCE,
            limit_concurrency=make_room(),
            timeout_keep_alive=KEEP_ALIVE_S,
            timeout_graceful_shutdown=SHUTDOWN_S,
        )
    )


def make_room() -> int:
    """Raises this process's limit on open files as far as possible; returns how many connections it allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST_CONNECTIONS + RESERVED_FILES
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return MOST_CONNECTIONS
    soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return max(soft - RESERVED_FILES, soft // 4)


@contextmanager
def short_log() -> Iterator[None]:
    """Prevents the loggers of uvicorn and asyncio from repeating messages within the block."""
    once = OncePerMessage()
    loggers = [logging.getLogger(name) for name in ("uvicorn.error", "asyncio")]
    for logger in loggers:
        logger.addFilter(once)
    try:
        yield
    finally:
        for logger in loggers:
            logger.removeFilter(once)


def _log_loop_error(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    error, logger = context.get("exception"), logging.getLogger("uvicorn.error")
    if isinstance(error, OSError) and error.errno in OUT_OF_FILES:
        logger.error("Cannot accept connections: %s. Trying again.", error.strerror)
    else:
        loop.default_exception_handler(context)
