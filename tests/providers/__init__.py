"""Tests of the upstream side."""
