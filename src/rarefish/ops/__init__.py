"""Fast paths: GPU kernels, compiled passes, CUDA graphs."""
