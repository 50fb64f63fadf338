"""Admission scenarios in virtual time: real admission code, simulated engines, minutes of traffic in seconds."""
