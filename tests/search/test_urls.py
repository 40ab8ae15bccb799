"""Secrets in URLs are never shown, logged, or accepted as a parameter."""

from __future__ import annotations

import pytest

from tvmopt.errors import ConfigError
from tvmopt.search.storage import open_storage, storage_url
from tvmopt.search.urls import has_secret, masked_url, without_secrets

SECRET = "s3cr3t"
WITH_SECRET = [
    f"postgresql://bob:{SECRET}@host/db",
    f"postgresql+psycopg://bob:{SECRET}@host:5432/db?sslmode=require",
    f"postgresql://host/db?user=bob&password={SECRET}",
    f"postgresql://host/db?user=bob&sslpassword={SECRET}",
    f"mysql://bob:{SECRET}@host/db",
    f"https://bob:{SECRET}@host/mlflow",
    f"bob:{SECRET}@host/db",
    f"host=db user=bob password={SECRET}",
]


@pytest.mark.parametrize("url", WITH_SECRET)
def test_secrets_are_known_and_masked(url):
    assert has_secret(url)
    assert SECRET not in masked_url(url)
    assert SECRET not in without_secrets(f"could not connect to {url} (timeout)", url)


@pytest.mark.parametrize(
    "url",
    ["", "sqlite:////tmp/a.db", "postgresql://bob@host/db", "postgresql://host/db?sslmode=on"],
)
def test_urls_without_secrets_stay(url):
    assert not has_secret(url)
    assert masked_url(url) == url


@pytest.mark.parametrize("url", WITH_SECRET)
def test_a_password_in_the_parameter_is_refused(url):
    with pytest.raises(ConfigError, match="storage must not hold a password") as caught:
        storage_url(url, "sqlite:///default.db")
    said = str(caught.value)
    assert SECRET not in said
    for way in ("TVMOPT_STORAGE", "PGPASSWORD", ".pgpass"):
        assert way in said


def test_the_environment_comes_after_the_parameter(monkeypatch):
    monkeypatch.delenv("TVMOPT_STORAGE", raising=False)
    assert storage_url("", "sqlite:///default.db") == "sqlite:///default.db"
    monkeypatch.setenv("TVMOPT_STORAGE", WITH_SECRET[0])
    assert storage_url("", "sqlite:///default.db") == WITH_SECRET[0]
    assert storage_url("sqlite:///given.db", "sqlite:///default.db") == "sqlite:///given.db"


@pytest.mark.parametrize(
    "url", [f"postgresql://bob:{SECRET}@127.0.0.1:1/db", f"nowhere://bob:{SECRET}@x/db"]
)
def test_errors_of_the_database_hold_no_secret(url):
    with pytest.raises(ConfigError) as caught:
        open_storage(url, attempts=1)
    assert SECRET not in str(caught.value)
    assert caught.value.__cause__ is None


HIDDEN = [
    "postgresql://:{}@h/d",
    "postgresql://bob:a@{}@h/d",
    "postgresql://bob:a/{}@h/d",
    "postgresql://h/d?user=bob&pw={}",
    "postgresql://h/d?options=-c%20password%3D{}",
    "postgresql:///?host=bob:{}@h",
    "postgresql+psycopg://?dbname=d%20password={}",
    "mssql+pyodbc:///?odbc_connect=DRIVER%3D%7BODBC%7D%3BPWD%3D{}",
    "mysql://h/d?auth={}",
    "mysql://h/d?ssl_ca=/x&credential={}",
    "oracle://bob/{}@h",
    "postgresql://bob%3A{}@h/d",
    "postgresql://bob:{}%40h/d",
    "postgresql//bob:{}@h",
    "postgresql://bob:{}@[::1/d",
    "https://{}@h/",
    "https://h/?sig={}",
]


@pytest.mark.parametrize("url", [url.format(SECRET) for url in HIDDEN])
def test_what_may_be_a_secret_is_hidden(url):
    assert has_secret(url)
    assert SECRET not in masked_url(url)
    assert SECRET not in without_secrets(f"could not connect to {url} now", url)


@pytest.mark.parametrize(
    "url",
    [
        "postgresql:///db?host=/var/run/postgresql", "http://localhost:5000", "./mlflow.db",
        "postgresql+psycopg://bob@[::1]:5432/db?sslmode=require", "sqlite:////home/a=b/c d.db",
        "sqlite:///file:x.db?mode=ro&uri=true", "file:///tmp/mlruns", "databricks",
    ],
)  # fmt: skip
def test_ordinary_urls_stay(url):
    assert not has_secret(url)
    assert masked_url(url) == url


@pytest.mark.parametrize(
    "text",
    [
        "API request to http://bob:s3cr3t@h:1/api failed", "PGPASSWORD=s3cr3t", "password: s3cr3t",
        "{'password': 's3cr3t'}", "Authorization: Basic s3cr3t", "https://bob:a/s3cr3t@h/x",
    ],
)  # fmt: skip
def test_messages_of_libraries_hold_no_secret(text):
    assert SECRET not in without_secrets(text)


@pytest.mark.parametrize(
    "text", ["models:/digits-cnn@champion is gone", "KeyError: 'conv'", "no module named 'token'"]
)
def test_other_messages_stay(text):
    assert without_secrets(text) == text


def test_a_password_of_one_letter_does_not_spoil_the_message():
    url = "postgresql://bob:a@host/db"
    assert without_secrets(f"cannot reach {url} again", url) == (
        "cannot reach postgresql://bob:***@host/db again"
    )
