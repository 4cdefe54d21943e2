"""Differential fuzzing: random calls of ndpool against the definition, in child processes; `make fuzz`."""
