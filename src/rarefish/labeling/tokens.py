"""Access to the labeling server: a shared token or one per person, signed sessions, and a limit on wrong tokens.

A link contains a token. The browser that opens it receives a session in exchange: a cookie that is signed for this
workspace, port and person. Other servers on this machine receive the cookie too, but cannot learn the token from it.
"""

import hmac
import json
import re
import secrets
import time
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from ipaddress import IPv6Address, ip_address, ip_network

from rarefish.errors import ArgumentError

SHORTEST = 16
PLAIN = re.compile(r"[A-Za-z0-9._~-]*")
SESSION_S = 7 * 24 * 3600
"""A session ends after this many seconds; the link must then be opened again."""
WRONG_AT_ONCE = 30
"""How many wrong tokens an address may send in a row."""
WRONG_EVERY_S = 1.0
"""Seconds after which the address may try once more."""
MOST_ADDRESSES = 1000
ANYBODY = ""
"""The owner of a shared link."""


@dataclass(frozen=True)
class Keys:
    """The tokens of a server by person, and the secret that signs its sessions."""

    workspace: str
    tokens: Mapping[str, str] = field(repr=False)
    secret: bytes = field(repr=False)

    def person_of(self, token: str) -> str | None:
        """Returns the owner of a token, or None. Compares it with every token in constant time."""
        given = token.encode("utf-8", "surrogateescape")
        found = [who for who, own in self.tokens.items() if hmac.compare_digest(given, own.encode())]
        return found[0] if found else None

    def sign(self, who: str, port: int, now: float) -> str:
        """Returns a signed session for the browser that opened this person's link."""
        until = int(now) + SESSION_S
        return f"{until}.{urlsafe_b64encode(who.encode()).decode().rstrip('=')}.{self._signature(who, port, until)}"

    def read(self, session: str, port: int, now: float) -> str | None:
        """Returns the owner of a session, or None if it has expired, is not signed by us, or its owner has no link."""
        parts = session.split(".")
        if len(parts) != 3 or not (parts[0].isascii() and parts[0].isdigit()) or len(session) > 600:
            return None
        until = int(parts[0])
        try:
            who = urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)).decode()
        except ValueError:
            return None
        given = parts[2].encode("utf-8", "surrogateescape")
        is_signed = hmac.compare_digest(given, self._signature(who, port, until).encode())
        return who if is_signed and now < until and who in self.tokens else None

    def _signature(self, who: str, port: int, until: int) -> str:
        return _mac(self.secret, "session", self.workspace, port, who, until).hex()


def make_keys(token: str | None, workspace: str, people: Sequence[str] = ()) -> Keys:
    """Returns the keys made from a given or random token.

    The same token gives the same links and sessions after a restart. With `people`, each person gets a separate token,
    and the given one cannot be used directly.
    """
    base = secrets.token_urlsafe(24) if token is None else check_token(token)
    own = {who: urlsafe_b64encode(_mac(base.encode(), "link", workspace, who)[:24]).decode() for who in people}
    return Keys(workspace, own or {ANYBODY: base}, _mac(base.encode(), "sessions", workspace))


def check_token(token: str) -> str:
    """Returns the token, or raises ArgumentError if it is too short or cannot be part of a URL."""
    if len(token) < SHORTEST or not PLAIN.fullmatch(token):
        raise ArgumentError(
            f"A token must have at least {SHORTEST} characters, all of them letters, digits, '-', '_', '.' or '~'; "
            f"this one has {len(token)}. Choose another one, or give none to get a random one."
        )
    return token


class WrongTokens:
    """Counts recent wrong tokens by address; the count decreases by one per second."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self.counts: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def are_too_many(self, address: str) -> bool:
        return self._count(_network(address)) >= WRONG_AT_ONCE

    def add(self, address: str) -> None:
        network = _network(address)
        self.counts[network] = (self._count(network) + 1, self.clock())
        self.counts.move_to_end(network)
        if len(self.counts) > MOST_ADDRESSES:
            self.counts.popitem(last=False)

    def _count(self, network: str) -> float:
        count, moment = self.counts.get(network, (0.0, 0.0))
        return max(0.0, count - (self.clock() - moment) / WRONG_EVERY_S)


def _network(address: str) -> str:
    """Returns the address or, for IPv6, its /64 network, in which one machine can have many addresses."""
    try:
        parsed = ip_address(address)
    except ValueError:
        return address
    return str(ip_network((parsed, 64), strict=False)) if isinstance(parsed, IPv6Address) else address


def _mac(key: bytes, *parts: str | int) -> bytes:
    return hmac.digest(key, json.dumps(["rarefish", *parts]).encode(), sha256)
