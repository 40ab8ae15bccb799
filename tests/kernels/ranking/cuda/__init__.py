"""Tests of how GPU templates are ranked."""
