"""Formats of the tools that others track benchmarks with."""
