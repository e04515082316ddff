"""Instruments, one file each: time, memory, and the state of the machine. They know nothing of backends."""
