"""Tests of API keys and of the principals behind them."""
