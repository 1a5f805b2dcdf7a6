"""The labeling server: pages and a small API over a workspace's store, for the few people who have its address."""

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
    """The app; `hosts` are the names it answers to, `summary` makes what the dashboard shows."""
    api = LabelingApi(store, keys.workspace, summary)

    @asynccontextmanager
    async def life(_: Starlette) -> AsyncIterator[None]:
        merging = asyncio.create_task(api.keep_merging())
        yield
        merging.cancel()
        api.close()

    known = frozenset(f"[{host}]" if ":" in host and host not in ANY_ADDRESS else host.lower() for host in hosts)
    app = Starlette(
        routes=make_routes(api),
        middleware=[Middleware(guard, keys=keys, hosts=known)],
        exception_handlers=dict.fromkeys((Exception, HTTPException, RarefishError), on_error),
        lifespan=life,
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
    """Serves until it is interrupted; `on_ready` gets the addresses to open, with tokens in them, by person.

    Without `people` there is one address, of the person ANYBODY: whoever has it can label under any name. With them,
    everyone has an address that proves who labels.

    Without a `token` a random one is made. With the same one, pages that are open go on after a restart.
    `names` are further names the machine is known by, of a proxy for instance. Port 0 takes the workspace's last one
    where it is free: a page that is still open goes on after a restart.
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
    """While this lasts, SIGTERM raises SystemExit, as ctrl+c raises KeyboardInterrupt; so does a closed terminal.

    By default these signals end the process at once, and nothing is closed or removed. While uvicorn runs, it handles
    SIGTERM first: it completes the requests that are under way.
    """

    def leave(number: int, _: FrameType | None) -> None:
        raise SystemExit(128 + number)

    def hang_up(_: int, __: FrameType | None) -> None:
        raise_signal(SIGTERM)

    is_main = threading.current_thread() is threading.main_thread()
    ours = [(one, end) for one, end in ((SIGTERM, leave), (SIGHUP, hang_up)) if is_main and getsignal(one) == SIG_DFL]
    for one, end in ours:
        signal(one, end)
    try:
        yield
    finally:
        for one, _ in ours:
            signal(one, SIG_DFL)


def check_host(host: str, allow_remote: bool) -> None:
    """Complains about an address that others could reach, unless that is wanted."""
    try:
        is_own = ipaddress.ip_address(host).is_loopback
    except ValueError:
        is_own = host == "localhost"
    if not is_own and not allow_remote:
        raise ArgumentError(
            f"{host} can be reached from other machines, and what is sent there can be read on the way. Say that "
            "remote access is allowed, or use 127.0.0.1 and an SSH tunnel."
        )


def known_hosts(host: str, names: Sequence[str] = ()) -> tuple[str, ...]:
    """What a browser may call this server."""
    own = ("127.0.0.1", "localhost", "::1")
    machine = (socket.gethostname(), socket.getfqdn()) if host in ANY_ADDRESS else ()
    return tuple(dict.fromkeys((host, *own, *machine, *names)))


def listen(store: Store, host: str, port: int) -> socket.socket:
    """A bound socket: browsers that come before the server runs wait in its line."""
    last = store.settings().get(PORT_SETTING, 0)
    wishes = [port] if port else [last, 0] if isinstance(last, int) and 0 < last < 65536 else [0]
    problem = OSError()
    for wish in wishes:
        try:
            family = socket.getaddrinfo(host, wish, type=socket.SOCK_STREAM)[0][0]
            bound = socket.create_server((host, wish), family=family, backlog=QUEUE)
            bound.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # asyncio forgets it here: 40 ms an answer
            return bound
        except (OSError, OverflowError) as error:
            problem = error
    raise ArgumentError(f"Cannot serve at {host}, port {port}: {problem}. Take another port, or 0 for any.")
