"""Tests of the board parameters: a tracker and a key, both or neither."""

from __future__ import annotations

import pytest

from tvmopt.config import EvaluateConfig, TuneConfig
from tvmopt.errors import ConfigError
from tvmopt.remote import Board


def test_both_are_a_board():
    board = Board.parse("127.0.0.1:9190", "pi5")
    assert (board.host, board.port, board.key) == ("127.0.0.1", 9190, "pi5")
    assert board.address == "127.0.0.1:9190"
    assert Board.parse("[::1]:9190", "pi5").host == "::1"


def test_neither_is_none():
    assert Board.parse("", "") is None


@pytest.mark.parametrize(
    ("tracker", "key", "message"),
    [
        ("127.0.0.1:9190", "", "must be given together, but got rpc_tracker alone; add rpc_key"),
        ("", "pi5", "must be given together, but got rpc_key alone; add rpc_tracker"),
        ("127.0.0.1", "pi5", r"rpc_tracker must be host:port .*, but got '127\.0\.0\.1'"),
        ("host:0", "pi5", "rpc_tracker must be host:port"),
        ("host:65536", "pi5", "rpc_tracker must be host:port"),
        ("host:http", "pi5", "rpc_tracker must be host:port"),
        ("a b:9190", "pi5", "rpc_tracker must be host:port"),
        ("host:9190", "pi 5", "rpc_key must be one word without a colon"),
        ("host:9190", "a:b", "rpc_key must be one word without a colon"),
    ],
)
def test_rules(tracker, key, message):
    with pytest.raises(ConfigError, match=message):
        Board.parse(tracker, key)


def test_configurations_check_it_and_do_not_tell_of_none():
    with pytest.raises(ConfigError, match="add rpc_key"):
        EvaluateConfig(1, rpc_tracker="host:1")
    with pytest.raises(ConfigError, match="add rpc_tracker"):
        TuneConfig({}, rpc_key="pi5")
    told = EvaluateConfig(1).to_dict() | TuneConfig({}).to_dict()
    assert not {"rpc_tracker", "rpc_key"} & set(told)
    config = EvaluateConfig(1, rpc_tracker="host:1", rpc_key="pi5")
    assert EvaluateConfig.from_dict(config.to_dict()) == config
