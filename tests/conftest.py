"""Its place puts tests/ on the path, where tests of backends find their stand-ins."""
