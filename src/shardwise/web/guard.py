"""What every request passes first: host, origin, token, method and size; and headers of answers."""

import hmac
import ipaddress
from http.cookies import CookieError, SimpleCookie
from urllib.parse import parse_qsl, urlencode

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from shardwise.web.model_choices import MOST_BYTES

COOKIE = "shardwise_token"
MOST_OF_ADDRESS, MOST_OF_HEAD = 8 * 1024, 16 * 1024
LOOPBACK = frozenset({"localhost", "127.0.0.1", "[::1]"})
SELF = ("script-src", "style-src", "img-src", "connect-src", "form-action")
NONE = ("default-src", "base-uri", "frame-ancestors")
HEADERS = {
    "content-security-policy": "; ".join([f"{one} 'none'" for one in NONE] + [f"{one} 'self'" for one in SELF]),
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-cache",
}


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return None


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches an address."""
    address = _address(host)
    return host == "localhost" if address is None else address.is_loopback


class Guard:
    """Refuses what a browser on this page would not send; `host` is the listening address."""

    def __init__(self, app: ASGIApp, *, host: str, port: int, token: str | None) -> None:
        self._app, self._host, self._port, self._token = app, host, port, token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self._app(scope, receive, send)
            return
        headers, app = Headers(scope=scope), self._app
        if refused := self._refusal(scope, headers):
            app = _said(*refused)
        elif self._token is not None and not self._has_token(headers):
            app = self._take_token(scope)

        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                own = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    own.setdefault(name, value)
            await send(message)

        await app(scope, receive, sending)

    def _refusal(self, scope: Scope, headers: Headers) -> tuple[int, str] | None:
        hosts = headers.getlist("host")
        if len(hosts) != 1 or not self._is_here(hosts[0]):
            return 421, "this address is not the one that is served"
        # Links to this page may stand anywhere; what another page would load or frame may not.
        site, mode = (headers.get(f"sec-fetch-{name}") for name in ("site", "mode"))
        is_loaded = site in ("cross-site", "same-site") and mode != "navigate"
        if is_loaded or any(origin != f"http://{hosts[0]}" for origin in headers.getlist("origin")):
            return 403, "another page asks, and only this one's own are answered"
        if len(scope["raw_path"]) + len(scope["query_string"]) > MOST_OF_ADDRESS:
            return 414, f"the address is longer than {MOST_OF_ADDRESS} bytes"
        if sum(len(name) + len(value) for name, value in scope["headers"]) > MOST_OF_HEAD:
            return 431, f"the request has more than {MOST_OF_HEAD} bytes of headers"
        most = MOST_BYTES if scope["method"] == "POST" else 0
        if scope["method"] not in ("GET", "HEAD") and not (most and scope["path"] == "/config"):
            return 405, "there is nothing here to change"
        size = headers.getlist("content-length") or ["0"]
        if "transfer-encoding" in headers or len(size) != 1 or not size[0].isdecimal():
            return 411, "a body has to say its length"
        if int(size[0][:20]) > most:
            return 413, f"is larger than {most} bytes; a model's config.json is a page"
        return None

    def _is_here(self, host: str) -> bool:
        """Whether a Host is this server, not a name another page points here (DNS rebinding)."""
        name, colon, port = host.rpartition(":") if not host.endswith("]") else (host, "", "")
        if not colon:
            name, port = host, "80"
        if port != str(self._port):
            return False
        if name.lower() in LOOPBACK or is_loopback(self._host):
            return name.lower() in LOOPBACK
        return name.lower() == self._host.lower() or _address(name) is not None

    def _has_token(self, headers: Headers) -> bool:
        try:
            cookie = SimpleCookie("; ".join(headers.getlist("cookie"))).get(COOKIE)
        except CookieError:
            return False
        return cookie is not None and self._is_token(cookie.value)

    def _is_token(self, given: str) -> bool:
        return self._token is not None and hmac.compare_digest(given.encode(), self._token.encode())

    def _take_token(self, scope: Scope) -> ASGIApp:
        """A token in the address becomes a cookie, and leaves the address."""
        pairs = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        if not any(name == "token" and self._is_token(value) for name, value in pairs):
            return _said(401, "this page needs the token that `shardwise serve` printed: open the address with it")
        rest = urlencode([(name, value) for name, value in pairs if name != "token"])
        # A path that begins with two slashes would be another host.
        path = "/" + str(scope["path"]).strip("/").partition("/")[0]
        cookie = f"{COOKIE}={self._token}; HttpOnly; SameSite=Strict; Path=/"
        location = path + (f"?{rest}" if rest else "")
        return _said(303, "", headers={"set-cookie": cookie, "location": location})


def _said(status: int, sentence: str, *, headers: dict[str, str] | None = None) -> ASGIApp:
    """A short answer; then the connection is closed: what is left of a request is not read."""
    return PlainTextResponse(f"{sentence}\n", status_code=status, headers={"connection": "close", **(headers or {})})
