"""Contractions by a heuristic tile, without a cost model."""
