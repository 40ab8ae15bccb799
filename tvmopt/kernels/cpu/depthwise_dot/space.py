from tvmopt.kernels.cpu.depthwise_dot.config import NAME, DepthwiseDotConfig
def depthwise_dot_hints(form, arch): return []
