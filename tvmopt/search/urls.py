"""Show URLs of databases and servers without the secrets that they hold.

A password may stand in many places of a URL: after the user, in a query value, or, when it was not
quoted, in what the parser takes for the host. So only what cannot be a secret is shown: names of
plain characters, and the values of a few query keys. All else is ``***``.
"""

from __future__ import annotations

import os
import re

from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError

_MASK = "***"
_SHORTEST = 3
_PLAIN_NAME = re.compile(r"[\w.\-+]*")
_PLAIN_HOST = re.compile(r"[\w.\-]*|[0-9a-fA-F:.]+")
_PLAIN_DATABASE = re.compile(r"[\w.\-+/ ]*")
_PLAIN_VALUE = re.compile(r"[\w.\-+/, ]*")
#: What a text may hold that is no URL and is shown as it is.
_PLAIN_TEXT = re.compile(r"[\w.\-+/\\ ]*|sqlite:[^@?]*")
#: Query keys whose plain values are shown.
_PLAIN_KEYS = frozenset(
    {
        "application_name", "cache", "charset", "check_same_thread", "connect_timeout", "driver",
        "gssencmode", "host", "hostaddr", "mode", "passfile", "port", "service", "sslcert",
        "sslkey", "sslmode", "sslrootcert", "target_session_attrs", "timeout", "uri", "user",
    }
)  # fmt: skip
_WEB = ("http", "https", "databricks")
#: Environment variables that hold URLs with secrets.
_VARIABLES = ("MLFLOW_TRACKING_URI", "MLFLOW_REGISTRY_URI", "TVMOPT_STORAGE")
_SECRET = r"\w*(?:pass|pwd|secret|token|credential|signature)\w*|\w*(?:api|access)_?key\w*"
_VALUE = r"('[^']*'|\"[^\"]*\"|[^&\s'\",;]+)"
#: Patterns of secrets in messages, and what takes their place.
_IN_TEXT = (
    # but not user:***@, which is masked already
    (r"(://)(?![\w.\-+]*:\*{3}@)[^\s'\"]*@", rf"\1{_MASK}@"),
    # user:password@, but not models:/name@alias
    (r"(?<![\w/])[^\s/:@'\"]+:(?!/)[^\s@'\"]+@", f"{_MASK}@"),
    (r"(?i)\b(basic|bearer) +\S+", rf"\1 {_MASK}"),
    (rf"(?i)\b({_SECRET})(['\"]?\s*[=:]\s*){_VALUE}", rf"\1\2{_MASK}"),
    (rf"(?i)\b(\w*(?:key|sig))(=){_VALUE}", rf"\1\2{_MASK}"),
)


def masked_url(url: str) -> str:
    """Return ``url`` with secrets masked."""
    parsed = _parsed(url)
    if parsed is None:
        if _PLAIN_TEXT.fullmatch(url):
            return url
        scheme = re.match(r"[\w+.-]{1,30}:(?=/)", url)
        return f"{scheme[0]}//{_MASK}" if scheme else _MASK
    if not _secrets(parsed):
        return url
    query = {key: value if _is_plain(key, value) else _MASK for key, value in parsed.query.items()}
    masked = parsed.set(
        username=_shown(parsed.username, _plain_user(parsed)),
        host=_shown(parsed.host, _PLAIN_HOST),
        database=_shown(parsed.database, _plain_database(parsed)),
        query=query,
    )
    # The mask is put in after rendering, which would quote it.
    return masked.render_as_string(hide_password=True).replace("%2A%2A%2A", _MASK)


def has_secret(url: str) -> bool:
    """Return whether ``url`` holds anything that :func:`masked_url` masks."""
    parsed = _parsed(url)
    return not _PLAIN_TEXT.fullmatch(url) if parsed is None else bool(_secrets(parsed))


def without_secrets(text: str, *urls: str) -> str:
    """Return ``text``, a library's message, without the secrets of ``urls`` and of URLs in it."""
    for url in filter(None, urls):
        text = text.replace(url, masked_url(url))
        parsed = _parsed(url)
        for secret in sorted(_secrets(parsed) if parsed else [], key=len, reverse=True):
            if len(secret) >= _SHORTEST:  # a letter is in every word
                text = text.replace(secret, _MASK)
    for pattern, masked in _IN_TEXT:
        text = re.sub(pattern, masked, text)
    return text


def without_known_secrets(text: str) -> str:
    """Return ``text`` without the secrets of URLs in the environment and of URLs in it."""
    return without_secrets(text, *(os.environ.get(name, "") for name in _VARIABLES))


def _parsed(url: str) -> URL | None:
    try:
        return make_url(url)
    except (ArgumentError, ValueError):
        return None


def _secrets(url: URL) -> list[str]:
    """Return the parts of ``url`` to mask; an empty password counts."""
    found = [] if url.password is None else [str(url.password)]
    for part, plain in (
        (url.username, _plain_user(url)),
        (url.host, _PLAIN_HOST),
        (url.database, _plain_database(url)),
    ):
        if part and not plain.fullmatch(part):
            found.append(part)
    for key, value in url.query.items():
        if not _is_plain(key, value):
            found += [value] if isinstance(value, str) else value
    return found


def _plain_user(url: URL) -> re.Pattern[str]:
    # A token is often given as the user of a web address.
    return re.compile("") if url.drivername in _WEB else _PLAIN_NAME


def _plain_database(url: URL) -> re.Pattern[str]:
    # SQLite's is a path, which may hold anything but what looks like user:password@.
    return re.compile(r"[^@]*") if url.drivername == "sqlite" else _PLAIN_DATABASE


def _is_plain(key: str, value: str | tuple[str, ...]) -> bool:
    values = (value,) if isinstance(value, str) else value
    return key in _PLAIN_KEYS and all(map(_PLAIN_VALUE.fullmatch, values))


def _shown(part: str | None, plain: re.Pattern[str]) -> str | None:
    return part if not part or plain.fullmatch(part) else _MASK
