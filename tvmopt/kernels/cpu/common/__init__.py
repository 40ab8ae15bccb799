"""Shared by several CPU families: loop nests, packing, cost model."""
