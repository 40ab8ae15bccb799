"""Exporters: models of scikit-learn, XGBoost, LightGBM and PyTorch to ONNX files.

A source model is a folder that MLflow saved. One function of one file reads it and returns an
:class:`~tvmopt.exporters.exported.Exported`: the ONNX model, what its outputs mean, and the
predictions of the source itself. :mod:`tvmopt.stages.export` compares both and writes the file.
"""
