"""Operators of ai.onnx.ml that are ensembles of trees."""
