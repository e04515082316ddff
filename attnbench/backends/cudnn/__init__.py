"""cuDNN's frontend: graphs in 16 bits and in fp8."""
