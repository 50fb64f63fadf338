"""Tests of the config file: reading it, its errors, its rules."""
