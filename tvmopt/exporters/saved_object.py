"""Read the object that a source saved: skops, cloudpickle or pickle; the latter two need trust."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

from tvmopt.errors import ModelError, in_one_line
from tvmopt.exporters.source import SourceModel

# Types that hold data alone; skops leaves them to its callers.
_KNOWN = frozenset(
    {
        "collections.OrderedDict",
        "lightgbm.basic.Booster",
        "lightgbm.sklearn.LGBMClassifier",
        "lightgbm.sklearn.LGBMRegressor",
        "numpy.dtype",
    }
)


def load_object(source: SourceModel, folder: Path) -> Any:
    """Return the object in the file of a source.

    A skops file needs no trust where it holds only types that skops and this function know.

    Raises:
        ConfigError: When the file is not trusted.
        ModelError: When it cannot be read.
    """
    path = source.path(folder)
    if source.format == "skops":
        import skops.io

        trusted = skops.io.get_untrusted_types(file=path)
        unknown = [one for one in trusted if one not in _KNOWN]
        if unknown:
            source.require_trust(f"its file holds objects of {', '.join(unknown[:3])}")
        return _loaded(source, lambda: skops.io.load(path, trusted=trusted))
    source.require_trust(f"its file is a {source.format or 'pickle'}")
    if source.format == "cloudpickle":
        import cloudpickle

        return _loaded(source, lambda: cloudpickle.loads(path.read_bytes()))
    return _loaded(source, lambda: pickle.loads(path.read_bytes()))


def _loaded(source: SourceModel, load: Any) -> Any:
    try:
        return load()
    except Exception as error:  # what a file of another version raises has no common class
        raise ModelError(
            f"model {source.uri!r} must be readable with the packages installed here, but: "
            f"{type(error).__name__}: {in_one_line(error)}; install the versions of its "
            "requirements.txt"
        ) from error
