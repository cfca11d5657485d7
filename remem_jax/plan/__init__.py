"""Ahead-of-time plans: the programs of a run compiled for a named TPU slice, on a machine without one."""
