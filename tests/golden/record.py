"""Record what the kernel half of the package emits and ranks.

    python -m tests.golden.record OUT.json [--quick] [--brief] [--texts DIR]

OUT.json holds a hash of every part of every entry, with ``--brief`` one of each entry. The texts
behind the hashes go to DIR, outside of the repository, 130 MB; ``tests.golden.compare`` then shows
the lines that differ.
"""

from __future__ import annotations

import argparse
import collections
import gzip
import json
import re
import subprocess
import sys
import time
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path
from typing import Any

from . import access
from .entries import CPUS, GPUS, Entry, entries, short_hash


def combined(hashes: str | dict[str, str]) -> str:
    """One hash of an entry; a brief record holds it already."""
    if isinstance(hashes, str):
        return hashes
    return short_hash(json.dumps(hashes, sort_keys=True))[:12]


def record(found: Iterable[Entry], texts: Path | None = None) -> dict[str, dict[str, Any]]:
    """Hashes of the parts of entries, by group and name.

    Args:
        found: The entries.
        texts: Folder for the texts of the parts.
    """
    groups: dict[str, dict[str, Any]] = {}
    files: set[Path] = set()
    for entry in found:
        group = groups.setdefault(entry.group, {})
        assert entry.name not in group, f"{entry.name} is twice in {entry.group}"
        group[entry.name] = entry.hashes()
        for part, text in entry.texts().items() if texts is not None else ():
            file = text_file(texts, entry.group, entry.name, part)
            assert file not in files, f"{file} is twice"
            files.add(file)
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(gzip.compress(text.encode(), 1, mtime=0))
    return groups


def text_file(texts: Path, group: str, name: str, part: str) -> Path:
    """Where the text of a part is kept."""
    plain = re.sub(r"[^\w.=+-]+", "_", name)
    return texts / re.sub(r"[^\w./+-]+", "_", group) / plain / f"{part}.txt.gz"


def write(path: Path, made: dict[str, Any], groups: dict[str, dict[str, Any]]) -> None:
    """Write a record, an entry a line."""
    lines = [f'{{"made": {json.dumps(made, sort_keys=True)}, "groups": {{']
    for group, members in groups.items():
        lines.append(f"{json.dumps(group)}: {{")
        lines += [f"{json.dumps(name)}: {json.dumps(value)}," for name, value in members.items()]
        lines[-1] = lines[-1].removesuffix(",")
        lines.append("},")
    lines[-1] = "}"
    path.write_text("\n".join([*lines, "}}"]) + "\n")


def _commit() -> str:
    def git(*words: str) -> str:
        done = subprocess.run(["git", *words], capture_output=True, text=True, check=False)
        return done.stdout.strip()

    changed = git("status", "--porcelain", "--", "tvmopt", "benchmarks", "tests")
    return git("rev-parse", "HEAD") + (" with changes" if changed else "")


def _unserved(groups: dict[str, dict[str, Any]]) -> dict[str, list[str]]:
    """Templates that no recorded schedule is of, by kind of device."""
    served: dict[bool, set[str]] = collections.defaultdict(set)
    for group, members in groups.items():
        section, *rest = group.split("/")
        if section == "schedule":
            for parts in members.values():
                served[rest[0] in GPUS].update(parts)
    return {
        kind: sorted(set(access.templates(access.device(name))) - served[name in GPUS])
        for kind, name in (("cpu", CPUS[0]), ("gpu", GPUS[0]))
    }


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.golden.record", description=__doc__)
    parser.add_argument("out", type=Path, metavar="OUT.json")
    parser.add_argument("--quick", action="store_true", help="the part that the tests compare")
    parser.add_argument("--brief", action="store_true", help="one hash of each entry")
    parser.add_argument("--texts", type=Path, metavar="DIR", help="keep the texts, too")
    options = parser.parse_args(arguments)
    start = time.process_time()
    groups = record(_told(entries(options.quick)), options.texts)
    unserved = _unserved(groups)
    if options.brief:
        groups = {g: {n: combined(v) for n, v in members.items()} for g, members in groups.items()}
    versions = {name: metadata.version(name) for name in ("apache-tvm", "hypothesis", "onnx")}
    made = {"commit": _commit(), "versions": versions, "templates_without_schedule": unserved}
    write(options.out, made, groups)
    count = sum(map(len, groups.values()))
    print(f"{count} entries in {time.process_time() - start:.0f} s of CPU; {unserved=}")
    return 0


def _told(found: Iterable[Entry]) -> Iterable[Entry]:
    """``found``; each new group is told with the CPU time before it."""
    told: set[str] = set()
    for entry in found:
        if entry.group not in told:
            told.add(entry.group)
            print(f"{time.process_time():6.0f} s  {entry.group}", file=sys.stderr, flush=True)
        yield entry


if __name__ == "__main__":
    raise SystemExit(main())
