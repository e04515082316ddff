"""Which backend a program should use for which shapes: regions, the file and the module it loads, engines' names."""
