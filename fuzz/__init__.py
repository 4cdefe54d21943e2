"""Differential fuzzing: random calls of ndpool compared with a reference, in child processes; `make fuzz`."""
