"""Public names of the fast tuner, as in the fast dlight proposal for CUDA.

Source: the thread "fast dlight" of the TVM community forum, 2024. The same names work for CPUs::

    configs = DefaultPolicy(func=func, arch=arch).emit_config(20)
    results, best = apply_and_build(func, configs, arch, parallel_build=True)

``policy_of`` ranks every kernel family of a device together.
"""

from tvmopt.kernels.cuda.tensor_core_policy import TensorCorePolicy, get_tensorized_func_and_tags
from tvmopt.kernels.emit import emit, emit_kernel, hint_from_dict
from tvmopt.kernels.first_choice import Scheduled, schedule_function
from tvmopt.kernels.hint import Hint
from tvmopt.kernels.module_schedules import schedule_module
from tvmopt.kernels.policies import DefaultPolicy, policy_of
from tvmopt.tune.apply_and_build import ApplyFastTuning, apply_and_build

__all__ = [
    "ApplyFastTuning",
    "DefaultPolicy",
    "Hint",
    "Scheduled",
    "TensorCorePolicy",
    "apply_and_build",
    "emit",
    "emit_kernel",
    "get_tensorized_func_and_tags",
    "hint_from_dict",
    "policy_of",
    "schedule_function",
    "schedule_module",
]
