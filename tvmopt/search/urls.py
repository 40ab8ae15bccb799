"""URLs of databases and servers: shown without the secrets that they hold."""

from __future__ import annotations

import re

from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError

_SECRET = re.compile(r"pass|pwd|secret|token|key", re.IGNORECASE)
_MASK = "***"


def masked_url(url: str) -> str:
    """``url`` as it may be shown: its password, and secrets among its query keys, are ``***``."""
    parsed = _parsed(url)
    if parsed is None:
        return _without_secrets(url)
    query = {k: _MASK if _SECRET.search(k) else v for k, v in parsed.query.items()}
    return parsed.set(query=query).render_as_string(hide_password=True)


def has_secret(url: str) -> bool:
    """Whether ``url`` holds a password, or a secret among its query keys."""
    parsed = _parsed(url)
    if parsed is None:
        return _without_secrets(url) != url
    return parsed.password is not None or any(map(_SECRET.search, parsed.query))


def without_secrets(text: str, *urls: str) -> str:
    """``text``, a message of a library, without the secrets of ``urls`` and of URLs in it."""
    for url in urls:
        parsed = _parsed(url)
        if parsed is not None:
            text = text.replace(url, masked_url(url))
            values = [str(v) for k, v in parsed.query.items() if _SECRET.search(k)]
            for secret in filter(None, [parsed.password, *values]):
                text = text.replace(str(secret), _MASK)
    return _without_secrets(text)


def _parsed(url: str) -> URL | None:
    try:
        return make_url(url)
    except (ArgumentError, ValueError):
        return None


def _without_secrets(text: str) -> str:
    # What SQLAlchemy does not take for a URL may still hold user:password@host or password=...
    text = re.sub(r"(://)[^/\s]*@", rf"\1{_MASK}@", text)
    text = re.sub(r"(?<![\w/])[^\s/:@'\"]+:[^\s@'\"]+@", f"{_MASK}@", text)
    pairs = rf"([?&\s]\w*(?:{_SECRET.pattern})\w*=)[^&\s'\"]+"
    return re.sub(pairs, rf"\1{_MASK}", text, flags=re.IGNORECASE)
