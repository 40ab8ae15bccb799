"""Load and run compiled models; requires only TVM's runtime and NumPy."""

from tvmopt.runtime.metadata import ModelMetadata, TensorSpec
from tvmopt.runtime.model import CompiledModel, load
from tvmopt.runtime.outputs import Outputs

__all__ = ["CompiledModel", "ModelMetadata", "Outputs", "TensorSpec", "load"]
