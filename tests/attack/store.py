"""Attacks by the store: files exchanged in it, runs of others, secrets left in it."""

from __future__ import annotations

import json
import subprocess

from .checkout import Checkout
from .victim import network, registered

_PASSWORD = "open-sesame-7"


def exchanged_tolerance(checkout: Checkout) -> str:
    """The tolerance of the golden check is raised in the store."""
    registered(checkout)
    path = checkout.registered("net") / "compiled" / "model.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "tolerance": 1e9}))
    code, _ = checkout.run("pull", name="net", version=1, output=checkout.folder / "pulled")
    return "pulled" if code == 0 else ""


def exchanged_code(checkout: Checkout) -> str:
    """A file of the code that a model carries is exchanged in the store."""
    registered(checkout)
    path = checkout.registered("net") / "code" / "tvmopt" / "versions.py"
    path.write_text(path.read_text() + "\nprint('exchanged')\n")
    code, _ = checkout.run("pull", name="net", version=1, output=checkout.folder / "pulled")
    return "pulled" if code == 0 else ""


def foreign_library(checkout: Checkout) -> str:
    """The stages of another user's run, in another experiment, are taken for one's own."""
    registered(checkout, user="mallory")
    _, said = registered(checkout, user="alice")
    return "reused" if "reused" in said else ""


def password_in_a_run(checkout: Checkout) -> str:
    """A password in the URL of a study's storage is kept by MLflow without a word.

    ``mlflow run`` itself stores the parameter first, so that the advice is what can be held.
    """
    url = f"postgresql://optuna:{_PASSWORD}@127.0.0.1:9/studies"
    process = checkout.start_by_mlflow(
        "search", model=checkout.save(network()), name="s", storage=url, trials=1
    )
    try:
        said = "".join(process.communicate(timeout=90))
    except subprocess.TimeoutExpired:
        checkout.kill(process)
        said = "".join(process.communicate())
    if process.returncode and "delete the run and change the password" in said:
        return ""
    kept = any(
        _PASSWORD.encode() in path.read_bytes()
        for path in checkout.folder.rglob("*")
        if path.is_file()
    )
    return "kept in the store" if kept else "printed" if _PASSWORD in said else ""
