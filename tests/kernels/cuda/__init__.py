"""Tests of the GPU templates."""
