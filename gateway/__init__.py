"""The data plane, its configuration and what operators see; the only room that knows the others."""
