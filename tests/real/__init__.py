"""The gateway in front of engines that nobody on this project wrote: llama.cpp and vLLM on a CPU, with a tiny model."""
