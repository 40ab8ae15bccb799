"""Entry point promote: move an alias to a version that passes the held-out check."""

from __future__ import annotations

import re
from pathlib import Path

from tvmopt.errors import ConfigError
from tvmopt.parameters.call import entry_point
from tvmopt.parameters.commands import PromoteCommand
from tvmopt.remote import Board
from tvmopt.stages.metric_files import with_whole_paths
from tvmopt.tracking.registry.promotion import Promotion, promote_version
from tvmopt.tracking.registry.versions import check_name, find_version
from tvmopt.tracking.store import command
from tvmopt.tracking.store.allowance import stage_allowance
from tvmopt.tracking.store.console import say
from tvmopt.tracking.store.mlflow_store import open_store
from tvmopt.tracking.store.runs import log_tags

_ALIAS = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,62}")


@entry_point(PromoteCommand)
def promote(asked: PromoteCommand) -> Promotion:
    """Re-check a version on held-out data and give it the alias; refuse with the reason.

    Raises:
        ConfigError: A parameter breaks its rule.
        PromotionRefusedError: The version does not earn the alias; also when its library crashes or
            passes a limit.
    """
    name, version, alias = asked.candidate.name, asked.candidate.version, asked.candidate.alias
    check_name(name)
    board = Board.parse(asked.board.rpc_tracker, asked.board.rpc_key)
    allowance = stage_allowance(asked.limits.memory_limit, asked.limits.stage_timeout)
    if not _ALIAS.fullmatch(alias) or re.fullmatch(r"v\d+|latest", alias):
        raise ConfigError(
            "alias must start with a letter, hold letters, digits, _ and - only, and be neither "
            f"'latest' nor like 'v1', but got {alias!r}"
        )
    data = asked.candidate.data
    path = Path(data).expanduser().resolve() if data else None
    if path is not None and not path.is_file():
        raise ConfigError(f"data must be an existing .npz or .npy file, but got {data!r}")
    metric = with_whole_paths(asked.metric)
    find_version(open_store(), name, version)
    with command.command("promote", name, asked.values()) as session:
        promotion = promote_version(
            session.client,
            name,
            version,
            data=path,
            max_accuracy_drop=asked.accuracy.max_accuracy_drop,
            work_dir=session.work_dir,
            metric=metric,
            alias=alias,
            board=board,
            allowance=allowance,
            run_id=session.run_id,
        )
        log_tags(session.client, session.run_id, {"mlflow.note.content": promotion.words})
        say(promotion.words)
        return promotion
