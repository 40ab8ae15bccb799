"""Child processes of stages: results, and the error of each kind of failure."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tvmopt import command_cache, errors, host
from tvmopt.errors import LimitError, ModelError, StageFailedError, TvmoptError
from tvmopt.stages.launch import launch

OK = "result = StageResult({'a_s': 1.5}, {'tvmopt.tag': 'text'}, ['line'])\n"
KINDS = sorted(
    (
        kind
        for kind in vars(errors).values()
        if isinstance(kind, type) and issubclass(kind, TvmoptError)
    ),
    key=lambda kind: kind.__name__,
)


_linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs prctl and pidfd")


def _failure(launched, body, **options):
    with pytest.raises(StageFailedError) as caught:
        launched(body, **options)
    assert "\n" not in str(caught.value)
    return caught.value


def _gone(pid, seconds=10.0):
    """Return whether a process ends within some seconds; a zombie has ended."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if host.process_start(pid) is None:
            return True
        time.sleep(0.02)
    return False


def test_result_comes_back(launched):
    result = launched("assert digest == 'd5'\n" + OK)
    assert result.metrics == {"a_s": 1.5}
    assert result.tags == {"tvmopt.tag": "text"}
    assert result.changed == ["line"]


def test_progress_is_reported_and_kept_out_of_the_log(launched, tmp_path):
    seen = []
    launched(
        "progress(1, 4, 'first'); print('hello'); progress(4, 4, 'zwei: ü')\n" + OK,
        progress=lambda *step: seen.append(step),
    )
    assert seen == [(1, 4, "first"), (4, 4, "zwei: ü")]
    assert (tmp_path / "log.txt").read_text() == "hello\n"


def test_progress_is_reported_while_the_stage_runs(launched, tmp_path):
    sign = tmp_path / "go"
    body = (
        "import time; progress(1, 2, 'waiting')\n"
        f"while not os.path.exists({str(sign)!r}): time.sleep(0.01)\n"
    )
    launched(body + OK, progress=lambda *step: sign.touch())


def test_everything_printed_is_in_the_log(launched, tmp_path):
    (tmp_path / "log.txt").write_text("before\n")
    launched(
        "import subprocess; sys.stderr.write('warning\\n'); print('text')\n"
        "sys.stdout.flush(); subprocess.run(['echo', 'from a grandchild'])\n"
        "sys.stdout.buffer.write(b'\\xff\\xfe\\n')\n" + OK
    )
    lines = (tmp_path / "log.txt").read_text().splitlines()
    assert lines[0] == "before"
    assert {"warning", "text", "from a grandchild"} <= set(lines)


@pytest.mark.parametrize(
    ("number", "failure_class"),
    [
        (signal.SIGSEGV, "crash"),
        (signal.SIGABRT, "crash"),
        (signal.SIGTERM, "crash"),
        (signal.SIGKILL, "killed"),
        (40, "crash"),  # a signal without a name
    ],
)
def test_signal(launched, number, failure_class):
    error = _failure(
        launched, f"print('last words', flush=True); os.kill(os.getpid(), {int(number)})"
    )
    name = getattr(number, "name", "signal 40")
    assert f"the build process was ended by {name}" in str(error)
    assert "last words" in str(error)
    assert error.failure_class == failure_class


@pytest.mark.parametrize(
    ("body", "code"), [("os._exit(3)", 3), ("os._exit(0)", 0), ("sys.exit(4)", 4)]
)
def test_exit_without_a_result(launched, body, code):
    error = _failure(launched, body)
    assert f"the build process ended with exit code {code} and no result" in str(error)
    assert error.failure_class == "crash"


def test_only_the_end_of_the_log_is_told(launched):
    error = _failure(launched, "for i in range(50): print(f'line {i}.', flush=True)\nos._exit(1)")
    assert "line 49." in str(error)
    assert "line 44." not in str(error)


def test_unexpected_exception(launched, tmp_path):
    error = _failure(launched, "raise KeyError('boom')")
    assert "build failed with an unexpected error: KeyError: 'boom'" in str(error)
    assert error.failure_class == "crash"
    log = (tmp_path / "log.txt").read_text()
    assert "Traceback (most recent call last)" in log
    assert "raise KeyError('boom')" in log or "KeyError: 'boom'" in log


def test_unexpected_exception_without_a_message(launched):
    assert "unexpected error: AssertionError" in str(_failure(launched, "raise AssertionError"))


def test_memory_that_ends_is_a_limit(launched):
    with pytest.raises(LimitError, match="process needs more memory than there is: 7 E") as caught:
        launched("raise MemoryError('7 EiB')")
    assert caught.value.failure_class == "out_of_memory"


def test_stage_that_returns_nothing(launched):
    assert _failure(launched, "result = None").failure_class == "crash"


def test_own_errors_survive(launched, tmp_path):
    body = (
        "from tvmopt import errors\n"
        "kind = getattr(errors, (out_dir.parent / 'kind').read_text())\n"
        "raise kind('the rule: \\u00fc')\n"
    )
    for kind in KINDS:
        (tmp_path / "kind").write_text(kind.__name__)
        with pytest.raises(TvmoptError) as caught:
            launched(body)
        assert type(caught.value) is kind
        assert str(caught.value) == "the rule: ü"
        assert caught.value.failure_class == kind("").failure_class


def test_class_of_a_nested_failure_survives(launched):
    error = _failure(
        launched, "from tvmopt.errors import *; raise StageFailedError('inner', 'killed')"
    )
    assert (str(error), error.failure_class) == ("inner", "killed")
    with pytest.raises(LimitError) as caught:
        launched("from tvmopt.errors import *; raise LimitError('inner', 'out_of_memory')")
    assert caught.value.failure_class == "out_of_memory"


def test_error_class_from_elsewhere_is_still_a_failure(launched):
    body = (
        "from tvmopt.errors import TuneError\n"
        "class Special(TuneError): failure_class = 'special'\n"
        "raise Special('own words')\n"
    )
    error = _failure(launched, body)
    assert "own words" in str(error)
    assert error.failure_class == "special"


def test_unknown_stage(launched):
    error = _failure(launched, OK, stage="polish")
    assert "stage must be the name of one, but got 'polish'" in str(error)


def test_environment_of_the_child(launched, tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_RUN_ID", "0123")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "postgresql://u:secret@h/x")
    monkeypatch.setenv("PGPASSWORD", "secret")
    monkeypatch.setenv("TVM_NUM_THREADS", "1")
    launched("import json; (out_dir / 'env').write_text(json.dumps(dict(os.environ)))\n" + OK)
    env = json.loads((tmp_path / "out" / "env").read_text())
    assert "MLFLOW_RUN_ID" not in env
    assert "secret" not in "".join(env.values())
    assert env["TVM_NUM_THREADS"] == "3"


def test_stages_of_a_command_share_a_folder(launched, tmp_path):
    file = "from tvmopt import command_cache\nfile = command_cache.folder('kind') / 'file'\n"
    with command_cache.shared_in(tmp_path / "shared"):
        launched(file + "file.write_text('of the first stage')\n" + OK)
        launched(file + "assert file.read_text() == 'of the first stage'\n" + OK)
    launched("from tvmopt import command_cache\nassert not command_cache.folder('kind')\n" + OK)


def test_package_is_found_from_any_folder(launched, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    launched("import tvmopt; (out_dir / 'where').write_text(tvmopt.__file__)\n" + OK)
    where = (tmp_path / "out" / "where").read_text()
    assert Path(where).parent == Path(errors.__file__).parent


def test_child_reads_no_input(launched):
    launched("assert sys.stdin.read() == ''\n" + OK)


def test_child_is_ended_when_the_parent_is_interrupted(launched, tmp_path):
    def interrupt(done, total, text):
        raise KeyboardInterrupt

    body = (
        "import time; (out_dir / 'pid').write_text(str(os.getpid()))\n"
        "progress(1, 2, ''); time.sleep(60)\n"
    )
    with pytest.raises(KeyboardInterrupt):
        launched(body, progress=interrupt)
    assert host.process_start(int((tmp_path / "out" / "pid").read_text())) is None


@_linux
def test_child_dies_with_its_parent(staged, tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    staged(
        "import time; (out_dir / 'tmp').write_text(str(os.getpid()))\n"
        "(out_dir / 'tmp').rename(out_dir / 'pid'); time.sleep(60)\n"
    )
    code = (
        "import sys; from pathlib import Path; from tvmopt.stages.launch import launch\n"
        "config = {'name': 'm', 'target': {}}\n"
        "launch('build', config, {'convert': Path('m')}, Path(sys.argv[1]), Path(sys.argv[2]),\n"
        "       lambda *a: None, threads=1)\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", code, str(out), str(tmp_path / "log")])
    try:
        end = time.monotonic() + 30
        while not (out / "pid").exists() and time.monotonic() < end:
            time.sleep(0.02)
        child = int((out / "pid").read_text())
        assert host.process_start(child) is not None
    finally:
        parent.send_signal(signal.SIGKILL)
        parent.wait()
    assert _gone(child)


_WHO = "(out_dir / str(os.getpid())).write_text(str(os.getppid()))\n" + OK


def _processes(folder):
    """Return process ids of stages by their server's."""
    return {int(file.name): int(file.read_text()) for file in folder.iterdir()}


def _again(tmp_path, **options):
    """Run a stage once more, in the same environment."""
    (tmp_path / "again").mkdir(exist_ok=True)
    return launch(
        "build", {"name": "m", "target": {}}, {"convert": Path("m")}, tmp_path / "again",
        tmp_path / "log.txt", lambda *_: None, threads=1, **options,
    )  # fmt: skip


@_linux
def test_processes_of_one_server_are_new_ones(launched, tmp_path):
    launched(_WHO)
    _again(tmp_path)
    (first,), (second,) = _processes(tmp_path / "out"), _processes(tmp_path / "again")
    assert first != second
    servers = {*_processes(tmp_path / "out").values(), *_processes(tmp_path / "again").values()}
    assert len(servers) == 1
    assert os.getpid() not in servers


@_linux
def test_server_has_no_threads_that_a_fork_would_miss(launched, tmp_path):
    """NumPy's threads know about forks. Others may hold a lock that nobody would release."""
    launched(_WHO)
    [server] = _processes(tmp_path / "out").values()
    assert len(list(Path(f"/proc/{server}/task").iterdir())) <= (os.cpu_count() or 1)


@_linux
@pytest.mark.parametrize("code", ["os.kill(os.getpid(), 11)", "os._exit(3)", "1 / 0"])
def test_server_outlives_a_stage_that_fails(launched, staged, tmp_path, code):
    body = f"if out_dir.name == 'out':\n    {code}\n" + _WHO
    _failure(launched, body)
    _again(tmp_path)
    _again(tmp_path)
    assert len(set(_processes(tmp_path / "again").values())) == 1


@_linux
def test_stage_fails_alone_when_its_server_is_killed(launched, tmp_path):
    # A server that is killed before it tells the child's id leaves the stage to a new process. The
    # parent of that process is this one.
    body = (
        "if out_dir.name == 'out':\n    import time; time.sleep(2)\n"
        f"    assert os.getppid() != {os.getpid()}\n"
        "    os.kill(os.getppid(), 9)\n    time.sleep(9)\n"
    )
    error = _failure(launched, body + _WHO)
    assert "the build process was ended by SIGKILL" in str(error)
    _again(tmp_path)
    assert len(_processes(tmp_path / "again")) == 1


@_linux
def test_other_environment_is_another_server(launched, tmp_path, monkeypatch):
    launched("(out_dir / os.environ.get('COLOUR', '-')).write_text(str(os.getppid()))\n" + OK)
    monkeypatch.setenv("COLOUR", "blue")
    _again(tmp_path)
    assert [file.name for file in (tmp_path / "out").iterdir()] == ["-"]
    assert [file.name for file in (tmp_path / "again").iterdir()] == ["blue"]


@_linux
def test_stages_at_once(staged, tmp_path):
    """One server forks one child at a time; a second stage gets its own process."""
    staged(
        "import time\n(out_dir / 'here').touch()\n"
        "while len(list(out_dir.parent.glob('*/here'))) < 2: time.sleep(0.02)\n" + OK
    )

    def run(number):
        folder = tmp_path / f"out{number}"
        folder.mkdir()
        return launch(
            "build", {"name": "m", "target": {}}, {"convert": Path("m")}, folder,
            tmp_path / f"log{number}", lambda *_: None, threads=1,
        )  # fmt: skip

    with ThreadPoolExecutor(2) as pool:
        results = list(pool.map(run, range(2)))
    assert [result.metrics for result in results] == [{"a_s": 1.5}] * 2


def test_nothing_is_left_in_the_temporary_folder(launched, tmp_path, monkeypatch):
    import tempfile

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    launched(OK)
    _failure(launched, "os._exit(1)")
    assert list((tmp_path / "temporary").iterdir()) == []


def test_a_real_stage(conv_model, tmp_path):
    import onnx

    from tvmopt.device.target import resolve_target

    target = resolve_target("host", 1).to_dict()
    onnx.save(conv_model, str(tmp_path / "model.onnx"))
    (tmp_path / "out").mkdir()
    seen = []

    def start(model):
        return launch(
            "convert",
            {"input_shapes": "", "target": target},
            {"model": tmp_path / model},
            tmp_path / "out",
            tmp_path / "log.txt",
            lambda *step: seen.append(step),
            threads=1,
        )

    result = start("model.onnx")
    assert result.metrics["layers"] == 2
    assert result.metrics["import_max_deviation"] < 1e-3
    assert seen[-1] == (5, 5, "done")
    with pytest.raises(ModelError, match="existing ONNX file, but there is none"):
        start("none.onnx")
