"""Load and run compiled models; requires only NumPy, and TVM's runtime if they are not native."""

from tvmopt.runtime.bound import BoundCall
from tvmopt.runtime.metadata import ModelMetadata, TensorSpec
from tvmopt.runtime.model import CompiledModel, load
from tvmopt.runtime.native import aligned_empty
from tvmopt.runtime.outputs import Outputs

__all__ = [
    "BoundCall",
    "CompiledModel",
    "ModelMetadata",
    "Outputs",
    "TensorSpec",
    "aligned_empty",
    "load",
]
