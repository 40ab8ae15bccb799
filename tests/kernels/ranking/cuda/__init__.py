"""Tests of the ranking of GPU templates."""
