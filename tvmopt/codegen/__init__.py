"""Code generation: from a scheduled module to a shared library."""

from tvmopt.codegen.generator import CodeGenerator, code_generator

__all__ = ["CodeGenerator", "code_generator"]
