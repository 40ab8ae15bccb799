"""Configurations of the GPU templates, ranked by modelled time."""
