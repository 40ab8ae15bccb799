"""Entry point promote: move an alias to a version that passes the held-out check."""

from __future__ import annotations

import re
from pathlib import Path

from tvmopt.config import at_least
from tvmopt.errors import ConfigError
from tvmopt.remote import Board
from tvmopt.tracking.allowance import stage_allowance
from tvmopt.tracking.command import command
from tvmopt.tracking.console import say
from tvmopt.tracking.promotion import promote_version
from tvmopt.tracking.registry import CANDIDATE, CHAMPION, check_name, find_version
from tvmopt.tracking.report.facts import Promotion
from tvmopt.tracking.report.sentences import promotion_words
from tvmopt.tracking.runs import log_tags
from tvmopt.tracking.store import open_store

_ALIAS = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,62}")


def promote(
    name: str,
    version: str = CANDIDATE,
    alias: str = CHAMPION,
    data: str = "",
    max_accuracy_drop: float = 0.01,
    rpc_tracker: str = "",
    rpc_key: str = "",
    stage_timeout: float = 7200.0,
    memory_limit: float = 0.0,
) -> Promotion:
    """Re-check a version on held-out data and give it the alias; refuse with the reason.

    Args:
        name: Registered model.
        version: Version number, or an alias of the version to promote.
        alias: Alias to give.
        data: ``.npz`` or ``.npy`` file; its held-out 30% is used. Without it, random inputs.
        max_accuracy_drop: Largest accuracy drop against the float model.
        rpc_tracker: ``host:port`` of a TVM RPC tracker, for a model of another CPU.
        rpc_key: Key of the board there to check it on.
        stage_timeout: Most seconds that the check may take; 0 for no limit.
        memory_limit: Most memory in MB that the check may use; 0 for 80% of what this machine or
            container allows.

    Raises:
        ConfigError: A parameter breaks its rule.
        PromotionRefusedError: The version does not earn the alias; also when its library crashes or
            passes a limit.
    """
    params = dict(locals())
    check_name(name)
    at_least("max_accuracy_drop", max_accuracy_drop, 0)
    board = Board.parse(rpc_tracker, rpc_key)
    allowance = stage_allowance(params)
    if not _ALIAS.fullmatch(alias) or re.fullmatch(r"v\d+|latest", alias):
        raise ConfigError(
            "alias must start with a letter, hold letters, digits, _ and - only, and be neither "
            f"'latest' nor like 'v1', but got {alias!r}"
        )
    path = Path(data).expanduser().resolve() if data else None
    if path is not None and not path.is_file():
        raise ConfigError(f"data must be an existing .npz or .npy file, but got {data!r}")
    find_version(open_store(), name, version)
    with command("promote", name, params) as session:
        promotion = promote_version(
            session.client,
            name,
            version,
            data=path,
            max_accuracy_drop=max_accuracy_drop,
            work_dir=session.work_dir,
            alias=alias,
            board=board,
            allowance=allowance,
            run_id=session.run_id,
        )
        words = promotion_words(promotion)
        log_tags(session.client, session.run_id, {"mlflow.note.content": words})
        say(words)
        return promotion
