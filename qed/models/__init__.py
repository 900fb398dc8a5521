"""Models and tokenizers: load, build, adapters, quantized weights, threads."""
