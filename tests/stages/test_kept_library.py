"""Tests of the library that the build stage takes over from the check of the conversion."""

from __future__ import annotations

import dataclasses
import json
import shutil

import pytest

from tvmopt.config import BuildConfig, TuneConfig
from tvmopt.device.target import resolve_target
from tvmopt.digest import sha256_file
from tvmopt.errors import ArtifactError
from tvmopt.runtime.metadata import LIBRARY_FILE
from tvmopt.stages import kept_library
from tvmopt.stages.build import SOURCES_FILE, build
from tvmopt.stages.tune import _is_too_short, least_seconds, tune
from tvmopt.stages.tune_files import TASKS_FILE

KEPT = ", compiled by the convert stage"


@pytest.fixture
def built(tmp_path):
    """Build a converted model in a new folder; return the result and the folder."""

    def run(convert_dir, name="out", tune_dir=None, threads=2, schedule="default"):
        config = BuildConfig("conv", resolve_target("host", threads).to_dict(), schedule)
        out = tmp_path / name
        out.mkdir()
        return build(config, convert_dir, tune_dir, "d", out, lambda *_: None), out

    return run


@pytest.fixture
def converted(conv_build, tmp_path):
    """Return a copy of the converted session model, whose check kept a library."""
    copy = tmp_path / "convert"
    shutil.copytree(conv_build / "convert", copy)
    assert kept_library.path_in(copy).is_file()
    return copy


def _is_kept(result) -> bool:
    return any(line.endswith(KEPT) for line in result.changed)


def test_the_library_is_the_one_that_the_build_stage_would_compile(converted, built):
    kept, first = built(converted, "kept")
    shutil.rmtree(converted / kept_library.FOLDER)
    compiled, second = built(converted, "compiled")
    assert (_is_kept(kept), _is_kept(compiled)) == (True, False)
    files = [out / "bundle" / LIBRARY_FILE for out in (first, second)]
    assert files[0].read_bytes() == files[1].read_bytes()
    assert (first / SOURCES_FILE).read_text() == (second / SOURCES_FILE).read_text()
    assert kept.tags == compiled.tags
    assert kept.metrics.keys() == compiled.metrics.keys()


def test_a_library_of_other_content_is_refused(converted, built):
    with kept_library.path_in(converted).open("ab") as file:
        file.write(b"more")
    with pytest.raises(ArtifactError, match=r"must have sha256 \w+, but has \w+; run the convert"):
        built(converted)


@pytest.mark.parametrize("options", [{"threads": 1}, {"schedule": "none"}], ids=str)
def test_another_target_or_schedule_is_compiled(converted, built, options):
    assert not _is_kept(built(converted, **options)[0])


@pytest.mark.parametrize("left", ["database/meta.json", "packing.json", "plan.json"])
def test_what_was_tuned_is_compiled(converted, built, tmp_path, monkeypatch, left):
    tune_dir = tmp_path / "tune"
    (tune_dir / left).parent.mkdir(parents=True)
    plan = {"layers": {"0": {"layout": "NHWC", "algorithm": ""}}}
    (tune_dir / left).write_text(json.dumps(plan if left == "plan.json" else {}))

    class CompiledError(Exception):
        pass

    def compiles(*_, **__):
        raise CompiledError

    monkeypatch.setattr("tvmopt.stages.build.lowered_network", compiles)
    with pytest.raises(CompiledError):
        built(converted, tune_dir=tune_dir)


def test_strategy_default_takes_over_where_the_schedules_come_from(
    converted, tmp_path, monkeypatch
):
    tables = []
    for name in ("kept", "scheduled"):
        (tmp_path / name).mkdir()
        config = TuneConfig(resolve_target("host", 2).to_dict(), strategy="default")
        with monkeypatch.context() as patch:
            if name == "kept":
                patch.setattr(
                    "tvmopt.kernels.first_choice.schedule_function",
                    lambda *_: pytest.fail("was scheduled again"),
                )
                patch.setattr(
                    "tvmopt.stages.tune.lower", lambda *_, **__: pytest.fail("was lowered again")
                )
            tune(config, converted, tmp_path / name, lambda *_: None)
        files = [tmp_path / name / file for file in (TASKS_FILE, "lowered.py")]
        tables.append([file.read_text() for file in files])
        shutil.rmtree(converted / kept_library.FOLDER, ignore_errors=True)
    assert tables[0] == tables[1]
    assert "default:" in tables[0][0]


def test_fast_in_too_short_a_time_takes_over_what_is_compiled(
    converted, built, tmp_path, monkeypatch
):
    functions = len(kept_library.find(converted, resolve_target("host", 2)).built.sources)
    out = tmp_path / "short"
    out.mkdir()
    target = resolve_target("host", 2).to_dict()
    config = TuneConfig(target, time_budget=0.9 * least_seconds(functions))
    with monkeypatch.context() as patch:
        patch.setattr("tvmopt.tune.fast.search", lambda *_: pytest.fail("was measured"))
        result = tune(config, converted, out, lambda *_: None)
    assert f"top-1 of 'fast' for each, since {config.time_budget:g} s are" in result.changed[-1]
    assert _is_kept(built(converted, tune_dir=out)[0])
    longer = dataclasses.replace(config, time_budget=1.1 * least_seconds(functions))
    assert not _is_too_short(longer, converted, resolve_target("host", 2))
    assert not _is_too_short(TuneConfig(target), converted, resolve_target("host", 2))


def test_many_functions_need_time_for_their_ranking_and_the_heaviest_of_them() -> None:
    assert [least_seconds(n) for n in (10, 100, 200)] == [5.0, 32.0, 52.0]


def test_the_facts_name_what_was_compiled(converted):
    target = resolve_target("host", 2)
    found = kept_library.find(converted, target)
    assert found is not None
    assert found.sha256 == sha256_file(found.built.path)
    assert found.segments == 0
    assert found.built.sources
    assert all(source.startswith("default:") for source in found.built.sources.values())
    assert kept_library.find(converted, resolve_target("host", 1)) is None
