"""The upstream leg against real sockets and against bytes cut anywhere."""
