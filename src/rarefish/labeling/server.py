"""The labeling server: pages and an HTTP API over a workspace, for people who have its link."""

import asyncio
import ipaddress
import socket
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from signal import SIG_DFL, SIGHUP, SIGTERM, getsignal, raise_signal, signal
from types import FrameType
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware

from rarefish.errors import ArgumentError, RarefishError
from rarefish.labeling import request_fields
from rarefish.labeling.api import LabelingApi, bare_summary, make_routes, on_error
from rarefish.labeling.connections import QUEUE, make_server, short_log
from rarefish.labeling.security import ANY_ADDRESS, guard
from rarefish.labeling.tokens import Keys, make_keys
from rarefish.workspace.answers import check_name
from rarefish.workspace.store import Store

PORT_SETTING = "labeling_port"
Summary = Callable[[Store], dict[str, Any]]


def make_app(store: Store, keys: Keys, hosts: Sequence[str], summary: Summary = bare_summary) -> Starlette:
    """Returns the ASGI app. `hosts` are the accepted host names; `summary` computes what the dashboard shows."""
    api = LabelingApi(store, keys.workspace, summary)

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        merging = asyncio.create_task(api.keep_merging())
        yield
        merging.cancel()
        api.close()

    known = frozenset(f"[{host}]" if ":" in host and host not in ANY_ADDRESS else host.lower() for host in hosts)
    app = Starlette(
        routes=make_routes(api),
        middleware=[Middleware(guard, keys=keys, hosts=known)],
        exception_handlers=dict.fromkeys((Exception, HTTPException, RarefishError), on_error),
        lifespan=lifespan,
    )
    app.state.api = api
    return app


def serve(
    store: Store,
    host: str = "127.0.0.1",
    port: int = 0,
    token: str | None = None,
    allow_remote: bool = False,
    on_ready: Callable[[dict[str, str]], None] = print,
    summary: Summary = bare_summary,
    names: Sequence[str] = (),
    people: Sequence[str] = (),
) -> None:
    """Serves until interrupted.

    Args:
        store: The workspace.
        host: The address to listen on.
        port: The port. With 0, the workspace's last port is reused if it is free, so that open pages keep working.
        token: The secret from which links are made, random by default. With the same token, open pages keep working
            after a restart.
        allow_remote: Whether `host` may be reachable from other machines.
        on_ready: Called with the links to open, by person.
        summary: Computes what the dashboard shows.
        names: Additional host names of this machine, such as that of a proxy.
        people: People who each get a link that proves who is labeling. By default, there is one link, owned by
            ANYBODY, with which anyone can label under any name.
    """
    check_host(host, allow_remote)
    people = [request_fields.person(who) for who in people]
    for who in people:
        check_name(who)
    keys = make_keys(token, store.identity(), people)
    with listen(store, host, port) as bound, short_log(), orderly_shutdown():
        number = bound.getsockname()[1]
        store.set(**{PORT_SETTING: number})
        app = make_app(store, keys, known_hosts(host, names), summary)
        server = make_server(app)
        shown = {"0.0.0.0": socket.gethostname(), "::": socket.gethostname()}.get(host, host)
        site = f"http://{f'[{shown}]' if ':' in shown else shown}:{number}"
        on_ready({who: f"{site}/?token={own}" for who, own in keys.tokens.items()})
        try:
            server.run(sockets=[bound])
        finally:
            app.state.api.close()  # nothing is read or written after this
            store.close()


@contextmanager
def orderly_shutdown() -> Iterator[None]:
    """Makes SIGTERM and SIGHUP raise SystemExit within the block, as Ctrl+C raises KeyboardInterrupt.

    By default, these signals end the process immediately and without cleanup. While uvicorn runs, it handles SIGTERM
    first and completes the current requests.
    """

    def leave(number: int, _: FrameType | None) -> None:
        raise SystemExit(128 + number)

    def hang_up(_: int, __: FrameType | None) -> None:
        raise_signal(SIGTERM)

    is_main = threading.current_thread() is threading.main_thread()
    handlers = ((SIGTERM, leave), (SIGHUP, hang_up))
    ours = [(number, handler) for number, handler in handlers if is_main and getsignal(number) == SIG_DFL]
    for number, handler in ours:
        signal(number, handler)
    try:
        yield
    finally:
        for number, _ in ours:
            signal(number, SIG_DFL)


def check_host(host: str, allow_remote: bool) -> None:
    """Raises ArgumentError if other machines can reach this address without permission."""
    try:
        is_own = ipaddress.ip_address(host).is_loopback
    except ValueError:
        is_own = host == "localhost"
    if not is_own and not allow_remote:
        raise ArgumentError(
            f"{host} can be reached from other machines, and the connection is not encrypted. Use 127.0.0.1 and an "
            "SSH tunnel, or allow remote access with --allow-remote."
        )


def known_hosts(host: str, names: Sequence[str] = ()) -> tuple[str, ...]:
    """Returns the host names by which a browser may reach this server."""
    own = ("127.0.0.1", "localhost", "::1")
    machine = (socket.gethostname(), socket.getfqdn()) if host in ANY_ADDRESS else ()
    return tuple(dict.fromkeys((host, *own, *machine, *names)))


def listen(store: Store, host: str, port: int) -> socket.socket:
    """Returns a listening socket; connections made before the server runs wait in its queue."""
    last = store.settings().get(PORT_SETTING, 0)
    candidates = [port] if port else [last, 0] if isinstance(last, int) and 0 < last < 65536 else [0]
    problem = OSError()
    for candidate in candidates:
        try:
            family = socket.getaddrinfo(host, candidate, type=socket.SOCK_STREAM)[0][0]
            bound = socket.create_server((host, candidate), family=family, backlog=QUEUE)
            bound.setsockopt(
                socket.IPPROTO_TCP, socket.TCP_NODELAY, 1
            )  # asyncio does not set this here; without it, replies take 40 ms longer
            return bound
        except (OSError, OverflowError) as error:
            problem = error
    raise ArgumentError(f"Cannot serve at {host}, port {port}: {problem}. Choose another port, or 0 for any free one.")
