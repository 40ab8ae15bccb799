"""Column reductions: the reduced axis is not the contiguous one."""
