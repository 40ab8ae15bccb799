"""Ensembles of decision trees: node arrays, layout, cost model and TensorIR functions."""
