"""Rewrite a model with strings as one with codes: a code is the place in a table of categories.

before -> after::

    string input -> OneHotEncoder(cats_strings)      int64 input -> OneHotEncoder(cats_int64s)
    LinearClassifier(classlabels_strings)            LinearClassifier(classlabels_ints)
    scores -> ZipMap -> maps of class to score       scores

String values that are moved into each other or compared share one table, which holds every string
that the model knows of them. A string that is in no table has the code -1. The tables are metadata
of the new model, whose numbers a runtime translates (:mod:`tvmopt.runtime.categories`).
"""

from tvmopt.frontend.categories.rewrite import without_strings
from tvmopt.frontend.categories.tables import Tables, read_tables

__all__ = ["Tables", "read_tables", "without_strings"]
