"""Any function of leaf blocks, block by block."""
