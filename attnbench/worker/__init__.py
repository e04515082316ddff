"""The child process, which touches the device: it needs the standard library, torch and the library under test only."""
