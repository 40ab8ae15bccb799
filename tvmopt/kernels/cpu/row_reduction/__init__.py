"""Row reductions: the reduced axis is the contiguous one."""
