"""A continuous-batching inference engine as pure steps, and the same engine over HTTP."""
