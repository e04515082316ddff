"""The `doctor` command: is this machine fit to measure?"""
